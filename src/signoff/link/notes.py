"""The state of a link besides its log: which batches it holds, and which outcomes the reading pipeline has
reported.

Invariants:
- A batch is noted before its rows are appended: `first` is where the log ended then, `last` where it
  ends with them. It is in the log if the log reaches `last`; if not, nobody has seen any of it.
- At most one noted batch is not in the log; it is the last one. It may have been withdrawn: then the
  log may hold its rows behind `first`, but does not reach `last`; they are cut off before the next write.
- A batch that comes again with other rows (a step has changed its mind) has several notes, as has one of
  which rows come on their own: each row is in the log once.
- Answers only grow: what was answered stays answered until the batch it belongs to is forgotten.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyroaring import BitMap64

from signoff.batch import OF_LETTERS
from signoff.ledger.sequences import from_bytes, from_range, to_bytes
from signoff.ledger.store import Store
from signoff.sinks.contract import BatchRef

_VERSION = 3
_OWNERS = "CREATE TABLE owners (role TEXT PRIMARY KEY, token TEXT NOT NULL, pipeline TEXT, state TEXT)"
_SCHEMA = f"""
CREATE TABLE handed (
    sink TEXT NOT NULL, source TEXT NOT NULL, start INTEGER NOT NULL, "end" INTEGER NOT NULL,
    replay INTEGER NOT NULL, first INTEGER PRIMARY KEY, last INTEGER NOT NULL, origins BLOB NOT NULL,
    made_from TEXT NOT NULL DEFAULT ''
);
CREATE INDEX handed_by_batch ON handed (source, start, replay);
CREATE TABLE answered (upto INTEGER NOT NULL, beyond BLOB NOT NULL);
INSERT INTO answered VALUES (0, x'');
CREATE TABLE refused (sequence INTEGER PRIMARY KEY, reason TEXT NOT NULL, transient INTEGER NOT NULL);
{_OWNERS}
"""
_UPGRADES = {1: _OWNERS, 2: "ALTER TABLE handed ADD COLUMN made_from TEXT NOT NULL DEFAULT ''"}


@dataclass(frozen=True, slots=True)
class Owner:
    """Who writes a link, or reads it (see `ownership`)."""

    token: str
    """Random: no copy and no other pipeline has it."""
    pipeline: str
    state: str
    """Its state directory, for people."""


@dataclass(frozen=True, slots=True)
class Handed:
    """The rows of one batch: they are [first, last) of the link's log."""

    sink: str
    """The sink that handed them on, as the pipeline called it then."""
    batch: BatchRef
    first: int
    last: int
    origins: BitMap64
    """The events they were made from."""
    made_from: str = ""
    """Of rows that do not name all of these: how they were made from which, for who handed them on."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The outcomes that the reading pipeline has reported for events of the link's log."""

    settled: BitMap64
    refused: Mapping[int, tuple[str, bool]]
    """Of these: why it refused them, and whether another time may do."""


class LinkNotes:
    """`link.db` of one link; both sides may have it open at once."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self._store = Store(path, schema=_SCHEMA, version=_VERSION, upgrades=_UPGRADES, readonly=readonly)

    # -- whose it is

    def writer(self) -> Owner | None:
        """None if nobody has ever been."""
        return self._owner("writer")

    def set_writer(self, owner: Owner, *, anew: bool) -> None:
        """`anew`: it is another one than before, of whose batches nothing is known."""
        with self._store.write() as db:
            if anew:
                db.execute("DELETE FROM handed")
            _set_owner(db, "writer", owner)

    def reader(self) -> Owner | None:
        return self._owner("reader")

    def set_reader(self, owner: Owner) -> None:
        with self._store.write() as db:
            _set_owner(db, "reader", owner)

    def _owner(self, role: str) -> Owner | None:
        with self._store.read() as db:
            row = db.execute("SELECT * FROM owners WHERE role = ?", (role,)).fetchone()
        return Owner(row["token"], row["pipeline"], row["state"]) if row else None

    # -- the side that hands on

    def note(self, handed: Handed) -> None:
        """A batch is about to be appended; replaces the last one, if that never came to be in the log."""
        batch = handed.batch
        with self._store.write() as db:
            db.execute("DELETE FROM handed WHERE first >= ?", (handed.first,))
            db.execute(
                "INSERT INTO handed VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (handed.sink, batch.source, batch.start, batch.end, batch.replay, handed.first, handed.last,
                 to_bytes(handed.origins), handed.made_from),
            )  # fmt: skip

    def withdraw(self, handed: Handed) -> None:
        """This batch, the last one, is not in the log, although its file may still hold its rows: it is noted
        as longer than they are. May be repeated."""
        with self._store.write() as db:
            db.execute("UPDATE handed SET last = ? WHERE first = ?", (handed.last + 1, handed.first))

    def find(self, batch: BatchRef) -> list[Handed]:
        """What is stored of a batch, whatever the name of the sink that wrote it was."""
        with self._store.read() as db:
            found = db.execute(
                'SELECT * FROM handed WHERE source = ? AND start = ? AND "end" = ? AND replay = ? '
                "ORDER BY first",
                (batch.source, batch.start, batch.end, batch.replay),
            )
            return [_handed(row) for row in found]

    def find_range(self, batch: BatchRef) -> list[Handed]:
        """What is stored of a batch under all its names: rows that came on their own as well. Of replayed
        letters only themselves: what they bring again was settled here before."""
        if batch.of_letters:
            return self.find(batch)
        with self._store.read() as db:
            found = db.execute(
                'SELECT * FROM handed WHERE source = ? AND start = ? AND "end" = ? AND replay < ? '
                "ORDER BY first",
                (batch.source, batch.start, batch.end, OF_LETTERS),
            )
            return [_handed(row) for row in found]

    def rename(self, handed: Handed, sink: str) -> None:
        """The sink that handed it on has another name now, and was not recorded under its old one."""
        with self._store.write() as db:
            db.execute("UPDATE handed SET sink = ? WHERE first = ?", (sink, handed.first))

    def last(self) -> Handed | None:
        """The batch that was noted last."""
        with self._store.read() as db:
            row = db.execute("SELECT * FROM handed ORDER BY first DESC LIMIT 1").fetchone()
        return _handed(row) if row else None

    def each(self) -> list[Handed]:
        """The batches that are not forgotten, in the order of the log."""
        with self._store.read() as db:
            return [_handed(row) for row in db.execute("SELECT * FROM handed ORDER BY first")]

    def forget(self, handed: Handed) -> None:
        """No outcome of this batch is waited for any more, and it will not be written again."""
        with self._store.write() as db:
            db.execute("DELETE FROM handed WHERE first = ?", (handed.first,))
            (oldest,) = db.execute("SELECT min(first) FROM handed").fetchone()
            db.execute("DELETE FROM refused WHERE sequence < ?", (handed.last if oldest is None else oldest,))

    # -- the side that reads

    def answer(self, settled: BitMap64, refused: Mapping[int, tuple[str, bool]]) -> None:
        """These events of the log are settled; the refused are among them. May be repeated."""
        with self._store.write() as db:
            known = _settled(db) | settled
            upto = _first_gap(known)
            db.execute(
                "UPDATE answered SET upto = ?, beyond = ?", (upto, to_bytes(known - from_range(0, upto)))
            )
            db.executemany(
                "INSERT OR REPLACE INTO refused VALUES (?, ?, ?)",
                [(sequence, reason, transient) for sequence, (reason, transient) in refused.items()],
            )

    # -- both

    def answered(self, first: int, last: int) -> Answered:
        with self._store.read() as db:
            refused = db.execute("SELECT * FROM refused WHERE sequence >= ? AND sequence < ?", (first, last))
            reasons = {row["sequence"]: (row["reason"], bool(row["transient"])) for row in refused}
            return Answered(_settled(db) & from_range(first, last), reasons)

    def settled(self) -> BitMap64:
        """All events of the log that are answered."""
        with self._store.read() as db:
            return _settled(db)

    def answered_upto(self) -> int:
        """All events of the log below are answered."""
        with self._store.read() as db:
            return int(db.execute("SELECT upto FROM answered").fetchone()["upto"])

    def version(self) -> int:
        """A number that changes when anyone has written; cheap enough to poll."""
        return self._store.version()

    def close(self) -> None:
        self._store.close()


def _set_owner(db: sqlite3.Connection, role: str, owner: Owner) -> None:
    db.execute(
        "INSERT OR REPLACE INTO owners VALUES (?, ?, ?, ?)", (role, owner.token, owner.pipeline, owner.state)
    )


def _settled(db: sqlite3.Connection) -> BitMap64:
    row = db.execute("SELECT upto, beyond FROM answered").fetchone()
    return from_range(0, row["upto"]) | from_bytes(row["beyond"])


def _first_gap(numbers: BitMap64) -> int:
    """The first number that is not in the set."""
    low, high = 0, len(numbers)
    while low < high:  # all below `low` are in; if all below the middle are, the gap is behind it
        middle = (low + high + 1) // 2
        if numbers.range_cardinality(0, middle) == middle:
            low = middle
        else:
            high = middle - 1
    return low


def _handed(row: sqlite3.Row) -> Handed:
    batch = BatchRef(row["source"], row["start"], row["end"], row["replay"])
    origins = from_bytes(row["origins"])
    return Handed(row["sink"], batch, row["first"], row["last"], origins, row["made_from"])
