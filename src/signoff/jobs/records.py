"""What is known of each run: in the ledger's database, so that it is saved and backed up with it.

runs   one row for each time that a run was asked for (its edition). States, in this order:

       computing    nothing of it is durable but this record: it begins anew after a kill
       computed     the rows are in files of the run's own, with their number (`outputs`)
       appending    it is known which numbers they have in the logs; some may be there already
       delivering   all of them are in the logs; the engine has them
       done         every sink has finished
       failed       it ended without; why is in `reason`
       cancelled    somebody gave it up before it ended; who asked once for it does not ask again

Invariants: at most one edition of a key is unfinished, the last one. A run is `done` only when every sink has
signed for its rows and finished.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from signoff.ledger.schema import SCHEMA, UPGRADES, VERSION
from signoff.ledger.store import Store

UNFINISHED = ("computing", "computed", "appending", "delivering")
IN_LOGS = ("appending", "delivering")
CANCELLED = "cancelled"
PERSON = "person"
"""Asks for a new run each time; all others ask once, by their own name."""

_TABLES = """
CREATE TABLE IF NOT EXISTS runs (
    key TEXT NOT NULL, edition INTEGER NOT NULL, asked_by TEXT NOT NULL, parameters TEXT NOT NULL,
    period_from REAL, period_to REAL, state TEXT NOT NULL, tries INTEGER NOT NULL,
    asked_at REAL NOT NULL, began_at REAL NOT NULL, ended_at REAL, busy_s REAL NOT NULL DEFAULT 0,
    inputs TEXT NOT NULL DEFAULT '{}', complete_to TEXT, outputs TEXT NOT NULL DEFAULT '{}',
    outcome TEXT NOT NULL DEFAULT '{}', reason TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (key, edition)
) WITHOUT ROWID
"""
"""Not part of the ledger's schema, which has a version: a release that does not know them lets them be."""


@dataclass(frozen=True)
class Output:
    """The rows of one table or query."""

    rows: int
    columns: str
    """Their schema, as Spark writes it in JSON."""
    parts: tuple[str, ...] = ()
    """Files of the run's own, in order."""
    first: int | None = None
    """The number of the first row in the log."""
    before: Mapping[str, int] = field(default_factory=dict)
    """What had become of all rows of the log before these."""

    @property
    def range(self) -> tuple[int, int]:
        assert self.first is not None
        return self.first, self.first + self.rows


@dataclass(frozen=True)
class Record:
    """One edition of a run."""

    key: str
    edition: int
    asked_by: str
    parameters: str
    period: tuple[float | None, float | None]
    state: str
    tries: int
    asked_at: float
    began_at: float
    ended_at: float | None
    busy_s: float
    """How long it was worked on, in all tries."""
    inputs: Mapping[str, Any]
    """By table: rows, complete_to."""
    complete_to: str | None
    outputs: Mapping[str, Output]
    outcome: Mapping[str, int]
    """What became of the rows: delivered, dropped, dead_lettered, refused."""
    reason: str

    @property
    def id(self) -> str:
        return f"{self.key}#{self.edition}"

    @property
    def unfinished(self) -> bool:
        return self.state in UNFINISHED

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The rows in the logs; empty before they have numbers."""
        return {name: output.range for name, output in self.outputs.items() if output.first is not None}

    def to_json(self) -> dict[str, Any]:
        """For people and programs."""
        return {
            "run": self.id, "key": self.key, "edition": self.edition, "asked_by": self.asked_by,
            "parameters": json.loads(self.parameters), "period": [_when(each) for each in self.period],
            "state": self.state, "tries": self.tries, "asked_at": _when(self.asked_at),
            "began_at": _when(self.began_at), "ended_at": _when(self.ended_at),
            "duration_s": round(self.busy_s, 3),
            "inputs": dict(self.inputs), "complete_to": self.complete_to,
            "outputs": {name: output.rows for name, output in self.outputs.items()},
            "outcome": dict(self.outcome), "reason": self.reason,
        }  # fmt: skip


@dataclass
class Records:
    """The runs of one job."""

    state: Path
    readonly: bool = False
    _store: Store = field(init=False)

    def __post_init__(self) -> None:
        path = self.state / "ledger.db"
        self._store = Store(path, schema=SCHEMA, version=VERSION, upgrades=UPGRADES, readonly=self.readonly)
        if not self.readonly:
            with self._store.write() as db:
                db.execute(_TABLES)

    def begin(
        self, key: str, asked_by: str, parameters: str, period: tuple[float | None, float | None]
    ) -> Record:
        """The edition that is unfinished, or a new one. A new try of it begins; with other values, from the
        beginning, for which its rows must not be in the logs yet."""
        now = time.time()
        with self._store.write() as db:
            last = _last(db, key)
            # What failed after its rows had come to sinks is done anew, and replaces those.
            if last is None or not (last.unfinished or (last.state == "failed" and not last.ranges)):
                edition = 1 if last is None else last.edition + 1
                db.execute(
                    "INSERT INTO runs (key, edition, asked_by, parameters, period_from, period_to, state, "
                    "tries, asked_at, began_at) VALUES (?, ?, ?, ?, ?, ?, 'computing', 1, ?, ?)",
                    (key, edition, asked_by, parameters, *period, now, now),
                )
            else:
                # Who asks once may do so because of data that an earlier try has not seen. A person who goes
                # on with what another has asked for does it for him: he is not to ask again.
                same = last.parameters == parameters
                for_him = asked_by == PERSON and same
                asker, about = (last.asked_by, last.period) if for_him else (asked_by, period)
                other = asker != last.asked_by and asked_by != PERSON
                anew = last.state == "failed" or not same or other
                db.execute(
                    "UPDATE runs SET tries = tries + 1, state = ?, parameters = ?, asked_by = ?, "
                    "period_from = ?, period_to = ?, reason = '', ended_at = NULL, asked_at = ?, "
                    "began_at = ? WHERE key = ? AND edition = ?",
                    (
                        "computing" if anew else last.state, parameters, asker, *about,
                        now if other else last.asked_at, now if other else last.began_at, key, last.edition,
                    ),
                )  # fmt: skip
            found = _last(db, key)
        assert found is not None
        return found

    def change(self, record: Record, **fields: Any) -> Record:
        """Durable when it returns."""
        plain = {name: _plain(value) for name, value in fields.items()}
        names = ", ".join(f"{name} = ?" for name in plain)
        with self._store.write() as db:
            db.execute(
                f"UPDATE runs SET {names} WHERE key = ? AND edition = ?",
                (*plain.values(), record.key, record.edition),
            )
            return next(_found(db, "key = ? AND edition = ?", (record.key, record.edition)))

    def again(self, record: Record) -> Record:
        """The record as it is now: others may have delivered its rows."""
        return self._read("key = ? AND edition = ?", (record.key, record.edition))[0]

    @property
    def store(self) -> Store:
        """For what else is kept beside the runs of a job."""
        return self._store

    def is_done(self, asked_by: str) -> bool:
        """Whether a run that was asked for by this one is done."""
        return bool(self._read("asked_by = ? AND state = 'done'", (asked_by,)))

    def asked_by(self, name: str) -> Record | None:
        """The run that was asked for by this one: that which is done, or the last. Not by when they began:
        the clock may have been set."""
        found = self._read("asked_by = ? ORDER BY state = 'done' DESC, edition DESC LIMIT 1", (name,))
        return next(iter(found), None)

    def last(self, key: str) -> Record | None:
        return next(iter(self._read("key = ? ORDER BY edition DESC LIMIT 1", (key,))), None)

    def editions(self, key: str) -> list[Record]:
        return self._read("key = ? ORDER BY edition", (key,))

    def in_logs(self) -> list[Record]:
        """Those whose rows are in the logs and not all settled, in the order of the logs."""
        return self._read("state IN ('appending', 'delivering') ORDER BY began_at", ())

    def newest(self, most: int = -1) -> list[Record]:
        """The newest first."""
        return self._read("1 ORDER BY began_at DESC, key, edition DESC LIMIT ?", (most,))

    def _read(self, where: str, values: tuple[Any, ...]) -> list[Record]:
        with self._store.read() as db:
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone() is None:
                return []
            return list(_found(db, where, values))

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _last(db: sqlite3.Connection, key: str) -> Record | None:
    return next(_found(db, "key = ? ORDER BY edition DESC LIMIT 1", (key,)), None)


def _found(db: sqlite3.Connection, where: str, values: tuple[Any, ...]) -> Iterator[Record]:
    for row in db.execute(f"SELECT * FROM runs WHERE {where}", values):
        outputs = {
            name: Output(each["rows"], each["columns"], tuple(each["parts"]), each["first"], each["before"])
            for name, each in json.loads(row["outputs"]).items()
        }
        yield Record(
            row["key"], row["edition"], row["asked_by"], row["parameters"],
            (row["period_from"], row["period_to"]), row["state"], row["tries"], row["asked_at"],
            row["began_at"], row["ended_at"], row["busy_s"], json.loads(row["inputs"]), row["complete_to"],
            outputs, json.loads(row["outcome"]), row["reason"],
        )  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return json.dumps(
            {name: vars(each) if isinstance(each, Output) else each for name, each in value.items()}
        )
    return value


def _when(seconds: float | None) -> str | None:
    return None if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
