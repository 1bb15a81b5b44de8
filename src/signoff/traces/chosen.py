"""Which events are traced: those that bring a sampled context, a share of the others, and never too many.

Every event has a rank, which follows from its number. A share of the events are those of the lowest ranks,
and so are the most that may be: two processes that have to leave out some keep the same ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from hashlib import blake2b

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from signoff.log import LogReader
from signoff.pipeline.trace_settings import TraceSettings
from signoff.traces.ids import HEADER, TracedEvent, sampled_context, traced

MOST_AT_ONCE = 128
"""Events of a batch, at most: as many links as a span may have."""
_RANKS = 2**64
_Numbers = np.ndarray[tuple[int], np.dtype[np.uint64]]


class Chooser:
    """Chooses events of one source, in one process."""

    def __init__(
        self,
        source: str,
        settings: TraceSettings,
        *,
        keeps_ids: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`keeps_ids`: rows have the ids that its events came with, and not their numbers."""
        self._source = source
        self._columns = ["headers", "received_at", *(["message_id"] if keeps_ids else [])]
        self._below = min(int(settings.ratio * _RANKS), _RANKS - 1)
        self._per_second, self._clock = settings.max_events_per_second, clock
        self._left, self._at = float(self._per_second), clock()
        self._salt = int.from_bytes(blake2b(source.encode(), digest_size=8).digest(), "big")
        self.left_out = 0
        """Events that were to be traced, and were too many."""

    def choose(self, log: LogReader, start: int, end: int, *, limited: bool = True) -> list[TracedEvent]:
        """The events of a range of the log that are traced. `limited`: as many as may be in the time."""
        found: dict[int, tuple[int, TracedEvent]] = {}
        for first, events in log.read(start, end, self._columns):
            ranks = self._ranks(first, events.num_rows)
            carried = _with_context(events.column("headers"))
            chosen = np.flatnonzero(ranks < np.uint64(self._below)) if self._below else np.array([], np.int64)
            both = np.union1d(carried, chosen)
            if len(both) > MOST_AT_ONCE:  # of a flood not each is looked at
                self.left_out += len(both) - MOST_AT_ONCE
                both = both[np.argsort(ranks[both], kind="stable")[:MOST_AT_ONCE]]
            for place in both.tolist():
                headers = dict(events.column("headers")[place].as_py() or ())
                if ranks[place] < self._below or sampled_context(headers.get(HEADER)):
                    at = events.column("received_at")[place].value * 1000
                    own = events.column("message_id")[place].as_py() if len(self._columns) > 2 else ""
                    event = traced(self._source, first + place, at, headers, own or "")
                    found[first + place] = int(ranks[place]), event
        return [found[number][1] for number in (self._kept(found) if limited else sorted(found))]

    def _kept(self, found: Mapping[int, tuple[int, TracedEvent]]) -> list[int]:
        now = self._clock()
        self._left = min(self._left + (now - self._at) * self._per_second, float(self._per_second))
        self._at = now
        most = min(int(self._left), MOST_AT_ONCE)
        kept = sorted(found, key=lambda number: found[number][0])[:most]
        self._left -= len(kept)
        self.left_out += len(found) - len(kept)
        return sorted(kept)

    def _ranks(self, first: int, count: int) -> _Numbers:
        """Splitmix64 of the numbers of events: as if drawn at random, and always the same."""
        with np.errstate(over="ignore"):
            x = np.arange(first, first + count, dtype=np.uint64) + np.uint64(self._salt)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return x ^ (x >> np.uint64(31))


def _with_context(headers: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The places of events that have the header; what it says is not looked at."""
    if headers.null_count == len(headers):
        return np.array([], dtype=np.int64)
    offsets = np.asarray(headers.offsets)
    names = headers.keys.slice(offsets[0], offsets[-1] - offsets[0])
    places = pc.indices_nonzero(pc.equal(names, HEADER)).to_numpy() + offsets[0]
    return np.unique(np.searchsorted(offsets, places, side="right") - 1)
