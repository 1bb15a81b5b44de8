"""How old the events of an earlier process are, whatever the time of day says now.

An event's time of receipt is the time of day, and that may be set between two runs, or in one. So the intake
notes by how much the time of day is ahead of the monotonic clock, and from which event on that holds:
durably, before the first event for which it holds is logged. From both follows when an event was received by
the monotonic clock, as long as the machine was not restarted since.

What was received before a restart of the machine has an age nobody can know. It counts as received now: what
expires was too old, and not only by a clock that somebody has set.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

from signoff.clock import STEP_S, Clock, boot
from signoff.durable import write_whole

NOTES = "clock.json"


@dataclass(frozen=True, slots=True)
class _Note:
    first: int
    """The first event it holds for."""
    boot: str
    offset: float
    """Time of day, less monotonic clock."""


class ClockNotes:
    """Of one source. Used by the intake's one thread."""

    def __init__(
        self,
        directory: Path,
        time_of_day: Clock = time.time,
        steady: Clock = time.monotonic,
        boot_id: str | None = None,
    ) -> None:
        self._path = directory / NOTES
        self._time_of_day, self._steady = time_of_day, steady
        self._boot = boot() if boot_id is None else boot_id
        self._notes: list[_Note] = []
        with suppress(FileNotFoundError, ValueError, TypeError):
            self._notes = [_Note(*each) for each in json.loads(self._path.read_bytes())]

    def offset(self) -> float:
        """By how much the time of day is ahead of the monotonic clock."""
        return self._time_of_day() - self._steady()

    def note(self, first: int, offset: float, settled_upto: int = 0) -> None:
        """Events from here on, received with this offset, are about to be logged.

        Raises OSError when that cannot be noted.
        """
        last = self._notes[-1] if self._notes else None
        if last is not None and last.boot == self._boot and abs(last.offset - offset) <= STEP_S:
            return
        ends = [*(note.first for note in self._notes), first][1:]
        kept = [note for note, end in zip(self._notes, ends, strict=True) if end > settled_upto]
        notes = [*(note for note in kept if note.first < first), _Note(first, self._boot, offset)]
        write_whole(self._path, json.dumps([astuple(note) for note in notes]).encode())
        self._notes = notes

    def received(self, sequence: int, time_of_day: float) -> float | None:
        """When an event was received by the monotonic clock of now; None where nobody can know."""
        place = bisect_right([note.first for note in self._notes], sequence) - 1
        if place < 0 or not self._boot or self._notes[place].boot != self._boot:
            return None
        return min(time_of_day - self._notes[place].offset, self._steady())
