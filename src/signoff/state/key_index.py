"""Which event was the first with a key, for each `dedupe`: a table on disk, shared by driver and workers.

    claim     a row that comes to the step owns its key, or repeats the row that owns it
    forget    what is older than `within`, or more than `max_keys`; and what was refused or has expired

Invariants:
- Every `claim` is one transaction and on disk before it returns, so before the row goes on to a sink.
- A key has one owner. An event finds what it owns itself whenever it comes again: a batch that is done again
  after a crash, or by halves, or for one sink, is decided as it was the first time.
- Only an event that is neither in flight nor settled (refused, expired) loses a key to another within the
  time a key is remembered.
- No circle of events waits for one another (`_waits_for_itself`).

Whether an owner is settled is not kept here: the ledger knows it, and is asked when a key comes again
(`signoff.ledger.fates`). Keys are hashes of 128 bits; 10 million of them take 1.2 GB on disk, and memory
for none of them but SQLite's page cache."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path

from signoff.ledger.fates import Fate
from signoff.ledger.folding import KEY_INDEX
from signoff.ledger.outcome import EventId
from signoff.ledger.store import Store

FILE = KEY_INDEX
"""Name of the index in the state directory."""
_CACHE_KIB = 64 * 1024
_CHECKPOINT_PAGES = 16_384
"""Keys are spread over the whole file: with a longer journal a page is written back once for many of them."""
_CHUNK = 20_000
"""Keys that are forgotten in one transaction: others wait for it."""
_ASKED = 500
VERSION = 1
SCHEMA = """
CREATE TABLE names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE steps (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, definition TEXT NOT NULL, keys INTEGER NOT NULL DEFAULT 0,
    UNIQUE (name, definition)
);
CREATE TABLE owners (
    step INTEGER NOT NULL, source INTEGER NOT NULL, sequence INTEGER NOT NULL, child TEXT NOT NULL,
    received INTEGER NOT NULL, key BLOB NOT NULL,
    PRIMARY KEY (step, source, sequence, child, key)
) WITHOUT ROWID;
CREATE INDEX owners_by_key ON owners (step, key, received);
CREATE TABLE waits (
    source INTEGER NOT NULL, sequence INTEGER NOT NULL, step INTEGER NOT NULL, child TEXT NOT NULL,
    owner_source INTEGER NOT NULL, owner_sequence INTEGER NOT NULL, owner_child TEXT NOT NULL,
    PRIMARY KEY (source, sequence, step, child)
) WITHOUT ROWID
"""
# `owners` grows at its end, in the order of the log: what is oldest is found, and removed, without an index
# of its own. `owners_by_key` holds all that is asked for. `waits` is empty but for duplicates in flight.


class Decision(StrEnum):
    FIRST = "first"
    REPEATS = "repeats"
    """Of an event that is settled: it ends here."""
    WAITS = "waits"
    """Of an event that is in flight."""
    LATE = "late"
    """Its own event was refused or has expired: the next one with its key is to be the first."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A row that has come to the step."""

    sequence: int
    child: str
    received: int
    """Microseconds since the epoch."""
    key: bytes
    others: tuple[int, ...] = ()
    """Further events it was made from."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The row that had a key first."""

    source: str
    sequence: int
    child: str
    received: int

    @property
    def event_id(self) -> EventId:
        return EventId(self.source, self.sequence, self.child)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A row that waits for the event it repeats."""

    step: str
    definition: str
    """By which keys it repeats the owner."""
    sequence: int
    child: str
    owner: EventId


Decided = tuple[Decision, Owner | None]
Fates = Callable[[str, int], Fate]
"""What became of an event: by source and sequence."""


class KeyIndex:
    """The index of one state directory. Safe to use from several threads and processes."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self._store = Store(path, schema=SCHEMA, version=VERSION, readonly=readonly)
        with self._store.read() as db:
            db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
            db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}")

    def close(self) -> None:
        self._store.close()

    def version(self) -> int:
        """A number that changes when anyone has written to the index; cheap enough to poll."""
        return self._store.version()

    # -- the workers, for each batch of rows ------------------------------------------------------

    def claim(
        self,
        step: str,
        definition: str,
        source: str,
        rows: Sequence[Arrival],
        within: int,
        fates: Fates,
        *,
        replay: bool = False,
    ) -> list[Decided]:
        """Decide about rows, in the order they are given. `within`: microseconds a key is remembered.
        `replay`: their events are settled, and somebody asked for them all the same."""
        if not rows:
            return []
        with self._store.write() as db:
            return _Claim(db, step, definition, source, within, fates, replay).decide(rows)

    # -- the driver --------------------------------------------------------------------------------

    def steps(self) -> dict[str, str]:
        """What the steps that have remembered keys were last asked to compare, by name."""
        with self._store.read() as db:
            return dict(db.execute("SELECT name, definition FROM steps ORDER BY id").fetchall())

    def count(self, step: str, definition: str) -> int:
        """Keys that are remembered."""
        with self._store.read() as db:
            found = db.execute(
                "SELECT keys FROM steps WHERE name = ? AND definition = ?", (step, definition)
            ).fetchone()
        return int(found["keys"]) if found else 0

    def received_before(self, step: str, definition: str, source: str, sequence: int = 2**62) -> int | None:
        """When the last owner of a source below a sequence was received; None if there is none."""
        with self._store.read() as db:
            found = db.execute(
                "SELECT received FROM owners WHERE step = (SELECT id FROM steps WHERE name = ? AND "
                "definition = ?) AND source = (SELECT id FROM names WHERE name = ?) AND sequence < ? "
                "ORDER BY sequence DESC LIMIT 1",
                (step, definition, source, sequence),
            ).fetchone()
        return int(found["received"]) if found else None

    def forget_before(self, step: str, definition: str, received: int) -> int:
        """Forget some of the keys of a step that were received before; returns how many were forgotten: ask
        until there are none."""
        with self._store.write() as db:
            return _forget_some(db, step, definition, lambda oldest, _: oldest < received)

    def forget_beyond(self, step: str, definition: str, most: int) -> int:
        """Forget some of the oldest keys of a step that has more than so many; as `forget_before`."""
        with self._store.write() as db:
            return _forget_some(db, step, definition, lambda _, keys: keys > most)

    def forget_others(self, steps: Mapping[str, str]) -> int:
        """Forget some of what steps have remembered that are not these, with these definitions."""
        with self._store.read() as db:
            found = db.execute("SELECT name, definition FROM steps ORDER BY id").fetchall()
        for name, definition in found:
            if steps.get(name) != definition:
                if forgotten := self.forget_beyond(name, definition, 0):
                    return forgotten
                with self._store.write() as db:
                    _remove_step(db, name, definition)
        return 0

    def release(self, source: str, sequences: Iterable[int]) -> None:
        """Forget what events own that were refused or have expired, and who waits for them, before the ledger
        forgets that."""
        sequences = frozenset(sequences)
        with self._store.write() as db:
            of = db.execute("SELECT id FROM names WHERE name = ?", (source,)).fetchone()
            if of is None:
                return
            waited_for = "FROM waits WHERE owner_source = ?"
            found = db.execute(f"SELECT DISTINCT owner_sequence {waited_for}", (of["id"],)).fetchall()
            for sequence in sequences.intersection(row[0] for row in found):
                db.execute(f"DELETE {waited_for} AND owner_sequence = ?", (of["id"], sequence))
            for (step,) in db.execute("SELECT id FROM steps").fetchall():
                removed = 0
                for sequence in sequences:
                    removed += db.execute(
                        "DELETE FROM owners WHERE step = ? AND source = ? AND sequence = ?",
                        (step, of["id"], sequence),
                    ).rowcount
                db.execute("UPDATE steps SET keys = keys - ? WHERE id = ?", (removed, step))

    def waiting(self, source: str, sequences: Iterable[int] | None = None) -> list[Waiting]:
        """The rows of a source that wait for the events they repeat, of some events or all."""
        query = (
            "SELECT steps.name, definition, waits.sequence, waits.child, names.name, owner_sequence, "
            "owner_child "
            "FROM waits JOIN steps ON steps.id = waits.step JOIN names ON names.id = owner_source "
            "WHERE waits.source = (SELECT id FROM names WHERE name = ?)"
        )
        with self._store.read() as db:
            found = db.execute(query, (source,)).fetchall() if sequences is None else []
            left = iter(sequences or ())
            while some := tuple(islice(left, _ASKED)):
                marks = ", ".join("?" * len(some))
                found += db.execute(f"{query} AND waits.sequence IN ({marks})", (source, *some)).fetchall()
        return [Waiting(row[0], row[1], row[2], row[3], EventId(row[4], row[5], row[6])) for row in found]

    def stop_waiting(self, source: str, sequences: Iterable[int]) -> None:
        """These events do not wait any more, for whatever reason."""
        with self._store.write() as db:
            db.executemany(
                "DELETE FROM waits WHERE source = (SELECT id FROM names WHERE name = ?) AND sequence = ?",
                [(source, sequence) for sequence in sequences],
            )


def repeats(owner: EventId) -> str:
    """Why a row ends at the step."""
    return f"seen before: repeats {owner}"


def waits_for(owner: EventId) -> str:
    """Why a row waits at the step."""
    return f"repeats {owner}, which is not settled yet"


def repeats_another(reason: str) -> bool:
    """Whether a row waits for another event, and not because the index cannot be used."""
    return reason.startswith("repeats ")


def reasons_to_wait(state: Path) -> Callable[[EventId], Mapping[str, str]]:
    """For `explain`: why an event of a state directory waits for another, by step."""

    def reasons(event: EventId) -> Mapping[str, str]:
        index = KeyIndex(state / FILE, readonly=True)
        try:
            found = index.waiting(event.source, [event.sequence])
        finally:
            index.close()
        mine = [each for each in found if not event.child or each.child in ("", event.child)]
        return {each.step: waits_for(each.owner) for each in mine}

    return reasons


def _remove_step(db: sqlite3.Connection, step: str, definition: str) -> None:
    """With its waits: its number may be used again."""
    at, query = (step, definition), "SELECT id FROM steps WHERE name = ? AND definition = ?"
    db.execute(f"DELETE FROM waits WHERE step = ({query})", at)
    db.execute("DELETE FROM steps WHERE name = ? AND definition = ?", at)


def _forget_some(
    db: sqlite3.Connection, step: str, definition: str, is_due: Callable[[int, int], bool]
) -> int:
    """Forget the oldest while it is due: by when the oldest was received, and by how many keys there are."""
    known = db.execute(
        "SELECT id, keys FROM steps WHERE name = ? AND definition = ?", (step, definition)
    ).fetchone()
    if known is None:
        return 0
    oldest: list[tuple[int, int]] = []
    for (source,) in db.execute("SELECT id FROM names").fetchall():
        found = db.execute(
            "SELECT received FROM owners WHERE step = ? AND source = ? ORDER BY sequence LIMIT 1",
            (known["id"], source),
        ).fetchone()
        if found is not None:
            oldest.append((found["received"], source))
    if not oldest or not is_due(min(oldest)[0], known["keys"]):
        return 0
    source = min(oldest)[1]
    gone: list[tuple[int, int, int, str, bytes]] = []
    for row in db.execute(
        "SELECT sequence, child, key, received FROM owners WHERE step = ? AND source = ? "
        "ORDER BY sequence LIMIT ?",
        (known["id"], source, _CHUNK),
    ):
        if not is_due(row["received"], known["keys"] - len(gone)):
            break
        gone.append((known["id"], source, row["sequence"], row["child"], row["key"]))
    db.executemany(
        "DELETE FROM owners WHERE step = ? AND source = ? AND sequence = ? AND child = ? AND key = ?", gone
    )
    db.execute("UPDATE steps SET keys = keys - ? WHERE id = ?", (len(gone), known["id"]))
    return len(gone)


class _Claim:
    """The decisions about some rows of one source at one step, inside one transaction."""

    def __init__(
        self,
        db: sqlite3.Connection,
        step: str,
        definition: str,
        source: str,
        within: int,
        fates: Fates,
        replay: bool,
    ) -> None:
        self._db, self._source, self._within, self._fates = db, source, within, fates
        self._replay = replay
        at, query = (step, definition), "SELECT id FROM steps WHERE name = ? AND definition = ?"
        if (known := db.execute(query, at).fetchone()) is None:
            db.execute("INSERT INTO steps (name, definition) VALUES (?, ?)", at)
            known = db.execute(query, at).fetchone()
            # Of a step that had the number before, and is forgotten:
            db.execute("DELETE FROM waits WHERE step = ?", (known["id"],))
        self._step = int(known["id"])
        self._of_source = self._number(source)
        self._names: dict[int, str] = {self._of_source: source}
        self._owners: dict[bytes, Owner | None] = {}
        """By key, as they are after what was decided so far."""
        self._new: dict[bytes, Owner] = {}
        self._lost: list[tuple[int, int, int, str, bytes]] = []

    def decide(self, rows: Sequence[Arrival]) -> list[Decided]:
        self._look_up(rows)
        decided = []
        waiting = self._any_waits()
        for row in rows:
            one = self._one(row)
            decided.append(one)
            if waiting or one[0] == Decision.WAITS:
                waiting = True
                self._note_wait(row, one)
        self._save()
        return decided

    def _one(self, row: Arrival) -> Decided:
        owner = self._owners[row.key]
        if not self._replay and all(
            self._fates(self._source, event) == Fate.LOST for event in (row.sequence, *row.others)
        ):
            return Decision.LATE, None
        if owner is None:
            return self._take(row)
        if owner.source == self._source and owner.sequence in (row.sequence, *row.others):
            # Its own key; a second row of one event with the same key ends here, and waits for nobody.
            own = owner.sequence == row.sequence and owner.child == row.child
            return (Decision.FIRST, None) if own else (Decision.REPEATS, owner)
        later = row.received - owner.received
        if later > self._within:
            return self._take(row)
        if -later > self._within:
            return Decision.FIRST, None  # the key has another owner since: two that have nothing in common
        fate = self._fates(owner.source, owner.sequence)
        if fate == Fate.LOST:
            return self._take(row)
        if fate == Fate.SETTLED:
            return Decision.REPEATS, owner
        if self._waits_for_itself(row, owner):
            return Decision.FIRST, None
        return Decision.WAITS, owner

    def _take(self, row: Arrival) -> Decided:
        before = self._owners[row.key]
        if before is not None and row.key not in self._new:
            of = self._number(before.source)
            self._lost.append((self._step, of, before.sequence, before.child, row.key))
        mine = Owner(self._source, row.sequence, row.child, row.received)
        self._owners[row.key] = self._new[row.key] = mine
        return Decision.FIRST, None

    def _waits_for_itself(self, row: Arrival, owner: Owner) -> bool:
        """Whether the owner waits for this very event, perhaps through others.

        Two events of several rows may each own a key that the other repeats. One of them is let through
        then: what is delivered twice is better than what is never delivered.
        """
        mine = {(self._of_source, sequence) for sequence in (row.sequence, *row.others)}
        todo, seen = [(self._number(owner.source), owner.sequence)], set[tuple[int, int]]()
        while todo:
            source, sequence = todo.pop()
            if (source, sequence) in mine:
                return True
            if (source, sequence) in seen or self._fates(self._name(source), sequence) != Fate.IN_FLIGHT:
                continue
            seen.add((source, sequence))
            todo += self._db.execute(
                "SELECT owner_source, owner_sequence FROM waits WHERE source = ? AND sequence = ?",
                (source, sequence),
            ).fetchall()
        return False

    def _note_wait(self, row: Arrival, decided: Decided) -> None:
        decision, owner = decided
        for sequence in (row.sequence, *row.others):
            at = (self._of_source, sequence, self._step, row.child)
            if decision == Decision.WAITS and owner is not None:
                self._db.execute(
                    "INSERT OR REPLACE INTO waits VALUES (?, ?, ?, ?, ?, ?, ?)",
                    (*at, self._number(owner.source), owner.sequence, owner.child),
                )
            else:
                self._db.execute(
                    "DELETE FROM waits WHERE source = ? AND sequence = ? AND step = ? AND child = ?", at
                )

    def _any_waits(self) -> bool:
        found = self._db.execute(
            "SELECT 1 FROM waits WHERE source = ? LIMIT 1", (self._of_source,)
        ).fetchone()
        return found is not None

    def _look_up(self, rows: Sequence[Arrival]) -> None:
        asked = "SELECT source, sequence, child, received FROM owners WHERE step = ? AND key = ?"
        self._owners = dict.fromkeys((row.key for row in rows), None)
        for key in sorted(self._owners):  # in the order of the index: its pages are read once
            found = self._db.execute(asked, (self._step, key)).fetchone()
            if found is not None:
                source, sequence, child, received = found
                self._owners[key] = Owner(self._name(source), sequence, child, received)

    def _save(self) -> None:
        self._db.executemany(
            "DELETE FROM owners WHERE step = ? AND source = ? AND sequence = ? AND child = ? AND key = ?",
            self._lost,
        )
        self._db.executemany(
            "INSERT OR REPLACE INTO owners (step, source, sequence, child, received, key) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            [
                (self._step, self._of_source, owner.sequence, owner.child, owner.received, key)
                for key, owner in sorted(self._new.items())
            ],
        )
        added = len(self._new) - len(self._lost)
        self._db.execute("UPDATE steps SET keys = keys + ? WHERE id = ?", (added, self._step))

    def _number(self, source: str) -> int:
        self._db.execute("INSERT OR IGNORE INTO names (name) VALUES (?)", (source,))
        (number,) = self._db.execute("SELECT id FROM names WHERE name = ?", (source,)).fetchone()
        return int(number)

    def _name(self, number: int) -> str:
        if number not in self._names:
            (name,) = self._db.execute("SELECT name FROM names WHERE id = ?", (number,)).fetchone()
            self._names[number] = name
        return self._names[number]
