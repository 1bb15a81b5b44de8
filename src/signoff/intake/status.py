"""What an intake process says about itself: `status.json` in the source's directory.

The file is replaced whole, so a reader never sees half of it; at once when the state changes, and at
most five times a second for the counters.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import orjson

EVERY_S = 0.2

IntakeState = Literal["receiving", "held", "ended", "stopped", "failed"]
"""`receiving`: events are taken as they come. `held`: not, because the log is full or the disk is.
`ended`: the source has no more. `stopped`: the run has asked to stop. All of these go on settling.
`failed`: the source cannot be used; the process has ended."""


@dataclass(frozen=True, slots=True)
class Status:
    """One moment of an intake."""

    pid: int
    state: IntakeState
    reason: str = ""
    """Why it is held or failed, or why the source cannot be told at the moment."""
    held_because: str = ""
    """Why the source is held back, when that lasts: no room, or too many events that are not settled."""
    held_since: float | None = None
    """Seconds since the epoch."""
    next_sequence: int = 0
    """Events received so far: the sequence number of the next one."""
    durable_sequence: int = 0
    """All events below are fsynced."""
    settled_sequence: int = 0
    """All events below are settled and the source was told."""
    unanswered_sequence: int | None = None
    """From here on the source may still have to recognise events: it was told, and could not answer."""
    expected: int | None = None
    """About how many events there will be in all, going by how much of its input the source has read."""
    settled_after: Sequence[int] = ()
    """Events by how long it took from receipt until the source was told: a number for each bucket of
    `settle_times`."""
    settled_seconds: float = 0.0
    """The sum of these times."""
    drained: bool = False
    """Nothing more will come, and everything is settled and told."""
    updated_at: float = 0.0


def status_path(directory: Path) -> Path:
    return directory / "status.json"


def read_status(directory: Path) -> Status | None:
    """The last status written to a source's directory (`state/intake/<source>`), if there is one."""
    try:
        data: dict[str, Any] = orjson.loads(status_path(directory).read_bytes())
    except (FileNotFoundError, orjson.JSONDecodeError):
        return None
    return Status(**{key: value for key, value in data.items() if key in Status.__dataclass_fields__})


class StatusFile:
    """Writes the status; a full disk is no reason to stop, so failures are passed over."""

    def __init__(self, directory: Path) -> None:
        self.source = directory.name
        self._path = status_path(directory)
        self._last: Status | None = None
        self._written = 0.0

    def report(self, status: Status, *, last_word: bool = False) -> None:
        """Write the status if it says something new and it is time to."""
        last, now = self._last, time.monotonic()
        if last == status:
            return
        urgent = (
            last_word
            or last is None
            or (last.state, last.reason, last.drained, last.held_since)
            != (status.state, status.reason, status.drained, status.held_since)
        )
        if urgent or now - self._written >= EVERY_S:
            self._write(status)
            self._last, self._written = status, now

    def _write(self, status: Status) -> None:
        part = self._path.with_suffix(".part")
        with suppress(OSError):
            part.write_bytes(orjson.dumps(asdict(replace(status, updated_at=time.time()))))
            os.replace(part, self._path)  # noqa: PTH105 - the same, without a Path per call
