"""Each period of a schedule once: through restarts, downtime, two processes and changes of the clock.

periods   one row for each period that has ended since the schedule was first looked at: what was decided
          of it (run, or skipped), and how far that is. In the ledger's database.

Decisions are made in one transaction, from the last period that was decided on: two processes that look at
the same moment decide once. A period whose run is not done is worked on by whoever has the lock of the run;
the run's record names the period, so that a kill between the two records does not start it again.

A run that began when its period had not ended, as the clock says now, has not seen all its data: the clock
was ahead then. When the period has ended it is run again, unless the clock that says so was itself wrong: by
the steady clock of the machine the run began after the end, as the time of day is now.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice

from signoff.clock import boot
from signoff.errors import PipelineError, StateError
from signoff.jobs.parameters import Asked, asked
from signoff.jobs.periods import Period, periods
from signoff.jobs.records import CANCELLED, IN_LOGS, Record, Records
from signoff.jobs.state_dir import RunGoesOn, is_being_done
from signoff.pipeline.graph import Graph
from signoff.pipeline.job_settings import text_of
from signoff.pipeline.secrets import redact

logger = logging.getLogger(__name__)

_GRACE_S = 60.0
"""A period that ended no longer ago than this was not missed, whatever `catch_up` says."""
_MOST_TRIES = 3
_WAIT_S = 60.0
"""Before a run that failed is tried again; twice as long each time."""
_LONGEST_WAIT_S = 900.0
_MOST_DOUBLED = 10
_KILLED = 128
"""Exit codes from here on, and negative ones: a signal has ended the process."""
_WRONG = 2
"""Exit code of a run whose job is wrong, or does not take these values."""
_INCOMPLETE = 4
"""Exit code of a run whose tables lack what it is about."""
_COMPLETE_WITHIN_S = 86_400.0
"""How long a period waits for its tables; from then on, each run that finds them incomplete has failed."""
_FAR = timedelta(days=8 * 366)
"""29 February comes again in it."""
_MOST_AT_ONCE = 10_000
"""Periods decided on in one transaction."""

_TABLES = """
CREATE TABLE IF NOT EXISTS schedule (since REAL NOT NULL);
CREATE TABLE IF NOT EXISTS periods (
    end REAL PRIMARY KEY, name TEXT NOT NULL, start_name TEXT NOT NULL, state TEXT NOT NULL,
    tries INTEGER NOT NULL DEFAULT 0, next_try REAL NOT NULL DEFAULT 0
) WITHOUT ROWID
"""
_COLUMNS = {
    "again": "INTEGER NOT NULL DEFAULT 0", "early": "INTEGER NOT NULL DEFAULT 0",
    "boot": "TEXT NOT NULL DEFAULT ''", "steady": "REAL NOT NULL DEFAULT 0",
    "lacking": "REAL NOT NULL DEFAULT 0",
}  # fmt: skip
"""Of `periods`, added since: how often a run of it that began too early was taken for none; whether this one
may have; when it began, by the clock that nobody sets; and since when its tables were found incomplete."""

Do = Callable[[Asked, str], int]
"""Does a run, asked for by somebody; returns its exit code."""


@dataclass(frozen=True)
class Due:
    """A period whose run is to be done."""

    period: Period
    tries: int
    again: int = 0
    lacking: float = 0.0
    """Since when its tables are known to be incomplete; 0 if they are not."""

    @property
    def asked_by(self) -> str:
        return f"schedule {self.period.name}{f' again {self.again}' if self.again else ''}"


@dataclass
class Scheduler:
    """Looks after the schedule of one job. Any number of processes may have one."""

    graph: Graph
    do: Do
    now: Callable[[], float] = time.time
    read_again: Callable[[], Graph] | None = None
    """Gives the job as its file is now; None takes it to be as it was."""
    steady: Callable[[], float] = time.monotonic
    boot: str = field(default_factory=boot)
    _records: Records = field(init=False)
    _trouble: str = ""
    _unkept: str = ""

    def __post_init__(self) -> None:
        self._records = Records(self.graph.state)
        with self._records.store.write() as db:
            for statement in _TABLES.split(";"):
                db.execute(statement)
            known = {row["name"] for row in db.execute("PRAGMA table_info(periods)")}
            for name in _COLUMNS.keys() - known:
                db.execute(f"ALTER TABLE periods ADD COLUMN {name} {_COLUMNS[name]}")

    def tried(self, do: Callable[[], int | None]) -> int:
        """What `do` gives. What a full disk, or a process that holds the database, prevents is done the next
        time, and said once."""
        try:
            done, trouble = do() or 0, ""
        except (StateError, OSError) as error:
            done, trouble = 0, redact(str(error))
        if trouble and trouble != self._unkept:
            logger.warning("the schedule waits: %s", trouble)
        self._unkept = trouble
        return done

    def look(self) -> int:
        """Decide what is due, and do the next run that is; returns how many runs were begun."""
        self._read_again()
        self.decide()
        for due in self.pending():
            if self._do(due):
                return 1
        return 0

    def decide(self) -> None:
        """Record each period that has ended since the last look: to be run, or skipped."""
        schedule = self.graph.settings.schedule
        assert schedule is not None
        now = self.now()
        with self._records.store.write() as db:
            row = db.execute("SELECT since FROM schedule").fetchone()
            if row is None:
                db.execute("INSERT INTO schedule VALUES (?)", (now,))
                return
            if row["since"] > now:  # it was ahead at the first look
                db.execute("UPDATE schedule SET since = ?", (now,))
            # What has not ended was decided on by a clock that went wrong, and is decided on when it ends.
            db.execute("DELETE FROM periods WHERE end > ? AND state = 'skipped'", (now,))
            self._see_early(db, now)
            (last,) = db.execute("SELECT max(end) FROM periods WHERE end <= ?", (now,)).fetchone()
            since = datetime.fromtimestamp(max(min(row["since"], now), last or 0.0), UTC)
            upto = datetime.fromtimestamp(now, UTC)
            ended = list(islice(periods(schedule, since, upto), _MOST_AT_ONCE + 1))
            newest = ended[-1] if ended else None
            for period in ended[:_MOST_AT_ONCE]:
                late = now - period.end.timestamp() > _GRACE_S
                left_out = late and (
                    schedule.catch_up == "none" or (schedule.catch_up == "latest" and period is not newest)
                )
                db.execute(
                    "INSERT OR IGNORE INTO periods (end, name, start_name, state) VALUES (?, ?, ?, ?)",
                    (
                        period.end.timestamp(),
                        period.name,
                        period.start.isoformat(),
                        "skipped" if left_out else "pending",
                    ),
                )

    def _see_early(self, db: sqlite3.Connection, now: float) -> None:
        """Note the runs that have ended before their period, as the clock is now; of periods that have ended
        since, take those for none that began before it."""
        db.execute(
            "UPDATE periods SET early = 1 WHERE end > ? AND state IN ('done', 'failed') AND early = 0",
            (now + _GRACE_S,),
        )
        # If the steady clock says that it began after the end, it was the later look that was early.
        in_time = "boot = ?1 AND ?2 - (?3 - steady) >= end - ?4"
        values = (self.boot, now, self.steady(), _GRACE_S)
        db.execute(f"UPDATE periods SET early = 0 WHERE early = 1 AND end <= ?2 AND {in_time}", values)
        db.execute(
            "UPDATE periods SET state = 'pending', early = 0, again = again + 1, tries = 0, next_try = 0, "
            "lacking = 0 WHERE early = 1 AND end <= ?",
            (now,),
        )

    def announce(self) -> None:
        """Say when the next run is, and with which values: a schedule is silent for a day, or a month."""
        schedule = self.graph.settings.schedule
        assert schedule is not None
        now = datetime.fromtimestamp(self.now(), UTC)
        period = next(periods(schedule, now, now + _FAR), None)
        if period is None:
            logger.warning('the schedule "%s" names no time in the next years', schedule.cron)
            return
        try:
            values = wanted(self.graph, period).values
        except PipelineError as error:
            logger.warning("%s", redact(str(error)))
            values = {}
        said = [f"{period.end:%Y-%m-%d %H:%M} {schedule.timezone}"]
        said += [f"{name}={text_of(value)}" for name, value in values.items()]
        logger.info("next run %s", redact(", ".join(said)))

    def pending(self) -> list[Due]:
        """The periods whose runs may be done now, in order."""
        with self._records.store.read() as db:
            rows = db.execute(
                "SELECT * FROM periods WHERE state = 'pending' AND end <= ?1 "
                # A time to wait that is longer than any was noted before the clock was set back.
                "AND (next_try <= ?1 OR next_try > ?1 + ?2) ORDER BY end",
                (self.now(), _LONGEST_WAIT_S),
            ).fetchall()
        moment = datetime.fromisoformat
        return [
            Due(
                Period(moment(row["start_name"]), moment(row["name"])),
                row["tries"],
                row["again"],
                row["lacking"],
            )
            for row in rows
        ]

    def states(self) -> dict[str, str]:
        """By the end of the period, what became of it."""
        with self._records.store.read() as db:
            return {row["name"]: row["state"] for row in db.execute("SELECT name, state FROM periods")}

    def close(self) -> None:
        self._records.close()

    def _read_again(self) -> None:
        """An edited job has its new times and values at once. One that is wrong goes on as it was: its runs
        say what is wrong, and wait for it to be put right."""
        if self.read_again is None:
            return
        trouble = ""
        try:
            graph = self.read_again()
            if graph.settings.schedule is None:
                trouble = f"{graph.file} has no schedule any more; that which it had goes on until this ends"
            elif graph.state != self.graph.state:
                trouble = f"{graph.file} has another state directory now; start this again"
            else:
                self.graph = graph
        except PipelineError as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            logger.warning("%s", redact(trouble))
        self._trouble = trouble

    def _do(self, due: Due) -> bool:
        if self._records.is_done(due.asked_by):
            self._note(due, "done")
            return False
        try:
            asks_for = wanted(self.graph, due.period)
        except PipelineError as error:  # no try that failed: its file is wrong, until somebody mends it
            logger.warning("the run of %s cannot be asked for: %s", due.period.name, redact(str(error)))
            self._note(due, "pending", due.tries, _MOST_DOUBLED)
            return False
        if is_being_done(self.graph.state, asks_for.key):
            return False
        before, began = _try_of(self._records.last(asks_for.key)), self.steady()
        try:
            code = self.do(asks_for, due.asked_by)
        except RunGoesOn:  # another process does it, or this one is to end: that is no try that failed
            return False
        if code == 0 or self._records.is_done(due.asked_by):
            self._note(due, "done", began=began)
        else:
            last = self._records.last(asks_for.key)
            if last is not None and last.state == CANCELLED and last.asked_by == due.asked_by:
                self._note(due, "failed")
                return True
            owed = last is not None and last.state in IN_LOGS  # it has not failed: it waits for a sink
            killed = code < 0 or code >= _KILLED  # nor has this: it goes on
            wrong = code == _WRONG and _try_of(last) == before  # nor has this begun: its file is wrong now
            lacks = code == _INCOMPLETE and self._may_wait(due)  # nor this: it waits for its tables
            tries = due.tries if owed or killed or wrong or lacks else due.tries + 1
            wait_for = max(tries, last.tries if last is not None else 0) - 1
            self._note(due, "failed" if tries >= _MOST_TRIES else "pending", tries, wait_for, began)
        return True

    def _may_wait(self, due: Due) -> bool:
        """Whether a period, whose tables are incomplete, is to wait for them; notes since when they are."""
        if due.lacking:
            return self.now() - due.lacking < _COMPLETE_WITHIN_S
        with self._records.store.write() as db:
            values = (self.now(), due.period.end.timestamp(), due.again)
            db.execute("UPDATE periods SET lacking = ? WHERE end = ? AND again = ?", values)
        return True

    def _note(
        self, due: Due, state: str, tries: int = 0, before: int = 0, began: float | None = None
    ) -> None:
        """`before`: how many tries there were before the last. `began`: when it began, by the steady clock;
        None if another process has done it."""
        wait = min(_WAIT_S * 2 ** min(before, _MOST_DOUBLED), _LONGEST_WAIT_S)
        with self._records.store.write() as db:
            db.execute(
                "UPDATE periods SET state = ?, tries = ?, next_try = ?, boot = ?, steady = ? "
                "WHERE end = ? AND state = 'pending' AND again = ?",
                (
                    state,
                    max(tries, due.tries),
                    self.now() + wait,
                    "" if began is None else self.boot,
                    began or 0.0,
                    due.period.end.timestamp(),
                    due.again,
                ),
            )


def _try_of(record: Record | None) -> tuple[str, int] | None:
    return None if record is None else (record.id, record.tries)


def wanted(graph: Graph, period: Period) -> Asked:
    """What the run of a period is asked for. Raises PipelineError."""
    schedule, settings = graph.settings.schedule, graph.settings
    assert schedule is not None
    given: dict[str, object] = {}
    if settings.period is not None:
        given |= dict(zip(settings.period, map(_default(graph), (period.start, period.end)), strict=True))
    given |= schedule.values(period.start, period.end)
    found = asked(graph, given)
    return Asked(found.key, found.values, (period.start.astimezone(UTC), period.end.astimezone(UTC)))


def _default(graph: Graph) -> Callable[[datetime], object]:
    kinds = [graph.settings.parameters[name].type for name in graph.settings.period or ()]
    return lambda moment: moment.date() if "date" in kinds else moment
