"""Which delivery tag stands for which event, on one channel.

A broker numbers the deliveries of a channel 1, 2, 3, …, and takes acknowledgements by these tags:
of one, or of all up to one (`multiple`). Events are settled by sequence number, in any order.

Invariants:

- A tag belongs to its channel: with the channel this object is thrown away, and so no tag is ever
  used on another one.
- A `multiple` acknowledgement names a tag that is outstanding, and nothing below it is still owed or
  was never handed out.
- Each tag is answered once.

Events in a row have tags in a row, so what is kept is a handful of runs, not an entry for each event.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from pyroaring import BitMap64


@dataclass(frozen=True, slots=True)
class Acks:
    """What to tell the broker."""

    upto: int | None
    """Acknowledge this tag and all before it with one frame; None when there is nothing of the kind."""
    singly: list[int]
    """Tags above one that is still in flight: one frame each."""


@dataclass(slots=True)
class _Run:
    """Consecutive tags of consecutive events."""

    tag: int
    sequence: int
    count: int


class Deliveries:
    """The deliveries of one channel that were handed out and are not answered yet."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []
        """New events, in the order of their tags, and so of their sequence numbers too."""
        self._bound: dict[int, int] = {}
        """Old events that were delivered again: sequence number to tag."""
        self._outstanding = BitMap64()

    @property
    def owed(self) -> int:
        return len(self._outstanding)

    def hand_out(self, tag: int, sequence: int, count: int = 1) -> None:
        """The deliveries from `tag` on are the new events from `sequence` on."""
        self._outstanding.add_range(tag, tag + count)
        last = self._runs[-1] if self._runs else None
        if last and last.tag + last.count == tag and last.sequence + last.count == sequence:
            last.count += count
        else:
            self._runs.append(_Run(tag, sequence, count))

    def bind(self, tag: int, sequence: int) -> None:
        """This delivery brings again an event that has its number already."""
        self._outstanding.add(tag)
        self._bound[sequence] = tag

    def acknowledge(self, settled: BitMap64) -> Acks:
        """The frames for what is outstanding of these events; unknown ones are ignored."""
        tags = self._tags(settled) & self._outstanding
        if not tags:
            return Acks(None, [])
        self._outstanding -= tags
        self._forget_answered()
        if not self._outstanding:
            return Acks(tags.max(), [])
        above = tags.copy()
        above.remove_range(0, self._outstanding.min())
        below = tags - above
        return Acks(below.max() if below else None, list(above))

    def holding(self, sequences: Iterable[int]) -> BitMap64:
        """Those of these events whose delivery is outstanding."""
        return BitMap64([n for n in sequences if (tag := self._tag(n)) and tag in self._outstanding])

    def take_back(self, sequences: Iterable[int]) -> dict[int, int]:
        """The tags of those of these events that are outstanding, by sequence; they count as answered."""
        found: dict[int, int] = {}
        for sequence in sequences:
            tag = self._tag(sequence)
            if tag is not None and tag in self._outstanding:
                found[sequence] = tag
                self._bound.pop(sequence, None)
        self._outstanding -= BitMap64(found.values())
        self._forget_answered()
        return found

    def _tags(self, settled: BitMap64) -> BitMap64:
        tags = BitMap64()
        for run in self._runs:
            part = BitMap64(range(run.sequence, run.sequence + run.count)) & settled
            if part:
                tags |= part.shift(run.tag - run.sequence)
        if self._bound:
            known = [sequence for sequence in self._bound if sequence in settled]
            tags |= BitMap64([self._bound.pop(sequence) for sequence in known])
        return tags

    def _tag(self, sequence: int) -> int | None:
        if sequence in self._bound:
            return self._bound[sequence]
        index = bisect_right(self._runs, sequence, key=lambda run: run.sequence) - 1
        if index < 0:
            return None
        run = self._runs[index]
        place = sequence - run.sequence
        return run.tag + place if place < run.count else None

    def _forget_answered(self) -> None:
        """Drop the runs, and the beginning of one, of which nothing is in flight any more."""
        oldest = self._outstanding.min() if self._outstanding else None
        while self._runs:
            run = self._runs[0]
            done = run.count if oldest is None else min(max(oldest - run.tag, 0), run.count)
            run.tag, run.sequence, run.count = run.tag + done, run.sequence + done, run.count - done
            if run.count:
                return
            del self._runs[0]
