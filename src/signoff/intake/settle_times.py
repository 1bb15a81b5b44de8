"""How long events take from their receipt until their source is told their outcome.

A histogram of one process of an intake: events that an earlier process received are not in it. Times are of
the monotonic clock. Costs a step or two for each batch that is received or settled, whatever its size; a
backlog of any length takes at most `MOST_ENTRIES` entries, and loses precision instead.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from pyroaring import BitMap64

BOUNDS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds of the histogram's buckets; a last one takes what is beyond them."""
MOST_ENTRIES = 10_000


@dataclass(slots=True)
class _Received:
    """Neighbours in the log that were received together."""

    first: int
    end: int
    at: float
    waiting: int
    """How many of them are not settled."""


class SettleTimes:
    """Used by the intake's one thread."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """Events by bucket, not cumulative."""
        self.seconds = 0.0
        """The times of all of them together."""
        self._entries: list[_Received] = []

    def __len__(self) -> int:
        return len(self._entries)

    def received(self, first: int, count: int, at: float) -> None:
        """Events from `first` on were received."""
        self._entries.append(_Received(first, first + count, at, count))
        if len(self._entries) > MOST_ENTRIES:
            self._entries = [_together(self._entries[i : i + 2]) for i in range(0, len(self._entries), 2)]

    def settled(self, sequences: BitMap64, now: float) -> None:
        """The source was told of these; each is given once."""
        if not sequences or not self._entries:
            return
        low, high = sequences.min(), sequences.max()
        begin = bisect_right(self._entries, low, key=lambda entry: entry.end)
        end = bisect_left(self._entries, high + 1, key=lambda entry: entry.first)
        for entry in self._entries[begin:end]:
            found = sequences.range_cardinality(entry.first, entry.end)
            took = max(now - entry.at, 0.0)
            self.counts[bisect_left(BOUNDS_S, took)] += found
            self.seconds += took * found
            entry.waiting -= found
        self._entries[begin:end] = [entry for entry in self._entries[begin:end] if entry.waiting > 0]


def _together(entries: list[_Received]) -> _Received:
    """One entry for two neighbours, as old as the older."""
    first, last = entries[0], entries[-1]
    if first is last:
        return first
    return _Received(first.first, last.end, first.at, first.waiting + last.waiting)
