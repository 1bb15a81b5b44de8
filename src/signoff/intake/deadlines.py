"""When the time of each event is up: `acknowledge_within`, counted from its receipt.

Events are kept by group commit, first and last number and time of receipt, and neighbours whose times are
close share an entry: a few thousand entries at most, however many events wait. An event is therefore never
early, and late by about a hundredth of the time.

Where the source holds a lease that can be extended (a RabbitMQ message until the consumer timeout), progress
moves the deadline of all that wait: it is `within_s` after the last progress, but never later than `cap_s`
after receipt. A start counts as progress, for the source has a new lease then.

All times are those of the monotonic clock, so that nothing expires because somebody set the clock. The log
has the time of day at which an event was received; `clock_notes` says which of the monotonic clock that was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from signoff.errors import LogError
from signoff.sources.contract import EventLog

MOST_ENTRIES = 10_000
MOST_AT_ONCE = 20_000
"""Events that are called due at a time: the ledger keeps a row of each, and others want to write too."""
Received = Callable[[int, float], float | None]
"""From an event's number and the time of day at which it was received to that of the monotonic clock."""
_ATTEMPTS = 5
"""How often the log is read again when it is trimmed while it is being read."""


@dataclass(slots=True)
class _Entry:
    first: int
    end: int
    oldest: float
    newest: float
    """When the first and the last of these events were received."""


class Deadlines:
    """The deadlines of one source's events. Used by the intake's one thread."""

    def __init__(self, within_s: float, cap_s: float | None, now: float) -> None:
        self._within_s = within_s
        self._cap_s = None if cap_s is None else max(cap_s, within_s)
        self._progress = now
        self._entries: deque[_Entry] = deque()
        self._grain_s = within_s / 100

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def within_s(self) -> float:
        return self._within_s

    def recall(self, log: EventLog, settled_upto: int, now: float, received: Received) -> None:
        """Find again when the events that an earlier process left unsettled were received.

        Those of which it cannot be known have the whole time once more.
        """
        for attempt in range(_ATTEMPTS):
            self._entries.clear()
            try:
                start = max(settled_upto, log.first())
                for first, events in log.read(start, log.head(), ("received_at",)):
                    received_at = events.column("received_at")[-1].value / 1e6
                    at = received(first, received_at)
                    self.add(first, events.num_rows, now if at is None else min(at, now))
            except LogError:  # what was settled this moment is removed from the log
                if attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def add(self, first: int, count: int, received: float) -> None:
        """These events are durable; they follow those that were added before."""
        if self._entries:
            received = max(received, self._entries[-1].newest)
        self._put(_Entry(first, first + count, received, received))
        while len(self._entries) > MOST_ENTRIES:
            self._grain_s *= 2
            entries, self._entries = self._entries, deque()
            for entry in entries:
                self._put(entry)

    def progressed(self, now: float) -> None:
        """Something of this source was settled, and not because its time was up."""
        self._progress = now

    def forget(self, upto: int) -> None:
        """All events below are settled."""
        while self._entries and self._entries[0].end <= upto:
            self._entries.popleft()
        if self._entries:
            self._entries[0].first = max(self._entries[0].first, upto)
        else:
            self._grain_s = self._within_s / 100

    def due(self, now: float) -> range:
        """The events whose time is up, settled or not, oldest first and not too many; `forget` them next."""
        if not self._entries:
            return range(0)
        start = end = self._entries[0].first
        for entry in self._entries:  # in the order of their deadlines
            if self._deadline(entry) > now or end - start >= MOST_AT_ONCE:
                break
            end = entry.end
        return range(start, min(end, start + MOST_AT_ONCE))

    def _deadline(self, entry: _Entry) -> float:
        if self._cap_s is None:
            return entry.newest + self._within_s
        extended = max(entry.newest, self._progress) + self._within_s
        return min(extended, entry.newest + self._cap_s)

    def _put(self, entry: _Entry) -> None:
        last = self._entries[-1] if self._entries else None
        if last is not None and entry.newest - last.oldest <= self._grain_s:
            last.end, last.newest = entry.end, entry.newest
        else:
            self._entries.append(entry)
