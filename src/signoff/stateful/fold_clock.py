"""The time of a fold: Spark's time of each batch, without what somebody has set the clock by.

Spark's time is the time of day. A group that is to end after an hour must not end because the clock was set
forward by one. So each batch has a *shift*: by how much the clock was set, in all, before Spark took the time
of the batch. It is on disk before the batch is worked on, and the same whenever that is done again.

After a restart of the machine nobody can tell time that went by from a clock that was set: what it says then
counts. A clock that was set back makes Spark look at its timers later, so that a group without further
events may end late by as much; none ends early.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

from signoff.clock import STEP_S, Clock, boot
from signoff.ledger.store import Store

_VERSION = 1
_SCHEMA = """
CREATE TABLE batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT, batch INTEGER NOT NULL, time_ms INTEGER NOT NULL,
    shift_ms INTEGER NOT NULL, offset REAL NOT NULL, boot TEXT NOT NULL
)
"""
_KEPT = 100
"""Batches whose shift is kept; only the last one can come again."""


class FoldClock:
    """Of one fold; used by the driver."""

    is_given: ClassVar[bool] = False
    """Whether somebody says what time it is, and not the clock of the machine."""

    def __init__(
        self,
        path: Path,
        time_of_day: Clock = time.time,
        steady: Clock = time.monotonic,
        boot_id: str | None = None,
    ) -> None:
        self._store = Store(path, schema=_SCHEMA, version=_VERSION)
        self._time_of_day, self._steady = time_of_day, steady
        self._boot = boot() if boot_id is None else boot_id

    def shift_ms(self, batch: int, time_ms: int) -> int:
        """The shift of a batch that Spark began at a time."""
        with self._store.write() as db:
            known = db.execute(
                "SELECT shift_ms FROM batches WHERE batch = ? AND time_ms = ?", (batch, time_ms)
            ).fetchone()
            if known is not None:
                return int(known["shift_ms"])
            last = db.execute("SELECT * FROM batches ORDER BY number DESC LIMIT 1").fetchone()
            offset, shift = self._time_of_day() - self._steady(), 0 if last is None else int(last["shift_ms"])
            if last is not None and last["boot"] == self._boot:
                step = offset - float(last["offset"])
                if abs(step) <= STEP_S or self._was_before(time_ms, step):
                    offset = float(last["offset"])
                else:
                    shift += round(step * 1000)
            db.execute(
                "INSERT INTO batches (batch, time_ms, shift_ms, offset, boot) VALUES (?, ?, ?, ?, ?)",
                (batch, time_ms, shift, offset, self._boot),
            )
            db.execute("DELETE FROM batches WHERE number <= (SELECT max(number) FROM batches) - ?", (_KEPT,))
            return shift

    def now_ms(self) -> int:
        """The time of a fold now."""
        with self._store.read() as db:
            last = db.execute("SELECT * FROM batches ORDER BY number DESC LIMIT 1").fetchone()
        now = self._time_of_day()
        if last is None:
            return round(now * 1000)
        set_since = now - self._steady() - float(last["offset"]) if last["boot"] == self._boot else 0.0
        return round((now - set_since) * 1000) - int(last["shift_ms"])

    def close(self) -> None:
        self._store.close()

    def _was_before(self, time_ms: int, step: float) -> bool:
        """Whether Spark has taken the time of a batch just before the clock was set."""
        ago = self._time_of_day() - time_ms / 1000
        return abs(ago - step) < abs(step) / 2
