"""What the invoker has decided, in `invoker.db` beside the link of its sink.

runs       one row for each run: its rows (numbers of the link's log), the values it is asked for, how far it
is:

           running   decided, and not known to have ended: it may have been started, or not
           done      it is done; its rows are delivered
           failed    it was given up; its rows are refused, for the reason

origins    the events that a run's rows were made from, by source
contents   which run covers a row that is equal to this one

Invariants: a row belongs to one run at most. A run is noted before it is started, so that whatever is killed,
the same run goes on; a row that was taken before the run was noted is covered by it, since it begins
afterwards. Rows are answered after it is noted what became of their run (`told` says that they were), and not
before.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pyroaring import BitMap64

from signoff.ledger.sequences import from_bytes, to_bytes
from signoff.ledger.store import Store

State = Literal["running", "done", "failed"]

_VERSION = 1
_SCHEMA = """
CREATE TABLE runs (
    number INTEGER PRIMARY KEY, asked_by TEXT NOT NULL, key TEXT NOT NULL, given TEXT NOT NULL,
    rows BLOB NOT NULL, first TEXT NOT NULL, state TEXT NOT NULL, told INTEGER NOT NULL DEFAULT 0,
    tries INTEGER NOT NULL DEFAULT 0, reason TEXT NOT NULL DEFAULT '', run TEXT NOT NULL DEFAULT '',
    boot TEXT NOT NULL, steady REAL NOT NULL, began_at REAL NOT NULL, ended_at REAL
);
CREATE INDEX open_runs ON runs (told) WHERE told = 0;
CREATE TABLE origins (
    number INTEGER NOT NULL, source TEXT NOT NULL, sequences BLOB NOT NULL, PRIMARY KEY (number, source)
) WITHOUT ROWID;
CREATE TABLE contents (key TEXT NOT NULL, content TEXT NOT NULL, number INTEGER NOT NULL,
    PRIMARY KEY (key, content)) WITHOUT ROWID;
CREATE INDEX contents_by_run ON contents (number)
"""

Key = tuple[str | None, ...]
Origins = dict[str, BitMap64]


@dataclass(frozen=True)
class Began:
    """When a run was decided on, by both clocks."""

    boot: str
    steady: float
    at: float


@dataclass(frozen=True)
class Invocation:
    """One run that rows have asked for."""

    number: int
    asked_by: str
    """The name under which it is asked for; no other run has ever had it."""
    key: Key
    given: Mapping[str, str]
    """Values of parameters, as texts."""
    rows: BitMap64
    first: str
    """Id of the first event that asked for it."""
    began: Began
    state: State = "running"
    told: bool = False
    tries: int = 0
    reason: str = ""
    run: str = ""
    """The run, as the job's own records name it."""
    ended_at: float | None = None
    origins: Origins = field(default_factory=dict)

    @property
    def events(self) -> int:
        return sum(len(sequences) for sequences in self.origins.values())


class InvokerNotes:
    """The notes of one sink. One process writes them."""

    def __init__(self, directory: Path, *, readonly: bool = False) -> None:
        path = directory / "invoker.db"
        self._store = Store(path, schema=_SCHEMA, version=_VERSION, readonly=readonly)

    def next_number(self) -> int:
        with self._store.read() as db:
            return int(db.execute("SELECT coalesce(max(number), 0) + 1 FROM runs").fetchone()[0])

    def decide(self, run: Invocation, contents: set[str]) -> None:
        """Note a run that is to be started."""
        with self._store.write() as db:
            db.execute(
                "INSERT INTO runs (number, asked_by, key, given, rows, first, state, boot, steady, began_at) "
                "VALUES (?, ?, ?, ?, ?, ?, 'running', ?, ?, ?)",
                (
                    run.number, run.asked_by, key_text(run.key), json.dumps(run.given), to_bytes(run.rows),
                    run.first, run.began.boot, run.began.steady, run.began.at,
                ),
            )  # fmt: skip
            _add_origins(db, run.number, run.origins)
            db.executemany(
                "INSERT OR REPLACE INTO contents VALUES (?, ?, ?)",
                [(key_text(run.key), content, run.number) for content in contents],
            )

    def join(self, number: int, rows: BitMap64, origins: Origins) -> None:
        """Rows that are the same as some of a run share its outcome."""
        with self._store.write() as db:
            (known,) = db.execute("SELECT rows FROM runs WHERE number = ?", (number,)).fetchone()
            db.execute(
                "UPDATE runs SET rows = ?, told = 0 WHERE number = ?",
                (to_bytes(from_bytes(known) | rows), number),
            )
            _add_origins(db, number, origins)

    def change(self, number: int, **fields: Any) -> None:
        names = ", ".join(f"{name} = ?" for name in fields)
        with self._store.write() as db:
            db.execute(f"UPDATE runs SET {names} WHERE number = ?", (*fields.values(), number))
            if fields.get("state") == "failed":  # nothing was delivered that another could share
                db.execute("DELETE FROM contents WHERE number = ?", (number,))

    def forget_contents(self, numbers: list[int]) -> None:
        with self._store.write() as db:
            db.executemany("DELETE FROM contents WHERE number = ?", [(number,) for number in numbers])

    def forget_runs(self, below: int) -> None:
        """What is told, and so old that only the account of its events is kept."""
        with self._store.write() as db:
            db.execute("DELETE FROM runs WHERE number < ? AND told = 1", (below,))
            for table in ("origins", "contents"):
                db.execute(f"DELETE FROM {table} WHERE number NOT IN (SELECT number FROM runs)")

    def untold(self) -> list[Invocation]:
        """The runs whose rows are not all answered."""
        with self._store.read() as db:
            return [_run(db, row) for row in db.execute("SELECT * FROM runs WHERE told = 0 ORDER BY number")]

    def get(self, number: int) -> Invocation | None:
        with self._store.read() as db:
            row = db.execute("SELECT * FROM runs WHERE number = ?", (number,)).fetchone()
            return None if row is None else _run(db, row)

    def beginnings(self) -> list[tuple[int, Key, Began]]:
        """Of all runs that are known, in order."""
        with self._store.read() as db:
            found = db.execute("SELECT number, key, boot, steady, began_at FROM runs ORDER BY number")
            return [(row["number"], key_of(row["key"]), _began(row)) for row in found]

    def contents(self) -> dict[tuple[Key, str], int]:
        with self._store.read() as db:
            return {
                (key_of(row["key"]), row["content"]): row["number"]
                for row in db.execute("SELECT * FROM contents")
            }

    def with_event(self, source: str, sequence: int) -> list[Invocation]:
        """The runs that an event has asked for."""
        with self._store.read() as db:
            found = [
                row["number"]
                for row in db.execute("SELECT number, sequences FROM origins WHERE source = ?", (source,))
                if sequence in from_bytes(row["sequences"])
            ]
        return [run for number in found if (run := self.get(number)) is not None]

    def counts(self) -> dict[str, int]:
        with self._store.read() as db:
            found = db.execute("SELECT state, count(*) FROM runs GROUP BY state")
            return {"running": 0, "done": 0, "failed": 0, **dict(found)}

    def version(self) -> int:
        """A number that changes with every change."""
        return self._store.version()

    def close(self) -> None:
        self._store.close()


def key_text(key: Key) -> str:
    return json.dumps(key, ensure_ascii=False)


def key_of(text: str) -> Key:
    return tuple(json.loads(text))


def _add_origins(db: sqlite3.Connection, number: int, origins: Origins) -> None:
    for source, sequences in origins.items():
        row = db.execute(
            "SELECT sequences FROM origins WHERE number = ? AND source = ?", (number, source)
        ).fetchone()
        whole = sequences | from_bytes(row["sequences"]) if row else sequences
        db.execute("INSERT OR REPLACE INTO origins VALUES (?, ?, ?)", (number, source, to_bytes(whole)))


def _began(row: sqlite3.Row) -> Began:
    return Began(row["boot"], row["steady"], row["began_at"])


def _run(db: sqlite3.Connection, row: sqlite3.Row) -> Invocation:
    return Invocation(
        row["number"], row["asked_by"], key_of(row["key"]), json.loads(row["given"]), from_bytes(row["rows"]),
        row["first"], _began(row), row["state"], bool(row["told"]), row["tries"], row["reason"], row["run"],
        row["ended_at"], dict(_origins(db, row["number"])),
    )  # fmt: skip


def _origins(db: sqlite3.Connection, number: int) -> Iterator[tuple[str, BitMap64]]:
    for row in db.execute("SELECT source, sequences FROM origins WHERE number = ?", (number,)):
        yield row["source"], from_bytes(row["sequences"])
