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
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from signoff.ledger.compaction import KEY_INDEX
from signoff.ledger.outcome import EventId
from signoff.ledger.store import Store
from signoff.stateful.key_claims import Arrival, Claim, Decided, Fates
from signoff.stateful.throttle_claims import ThrottleClaim, throttles

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
_OWNED = (
    "FROM owners WHERE step = (SELECT id FROM steps WHERE name = ? AND definition = ?) "
    "AND source = (SELECT id FROM names WHERE name = ?)"
)
# `owners` grows at its end, in the order of the log: what is oldest is found, and removed, without an index
# of its own. `owners_by_key` holds all that is asked for. `waits` is empty but for duplicates in flight.


@dataclass(frozen=True, slots=True)
class WaitingDuplicate:
    """A row that waits for the event it repeats."""

    step: str
    definition: str
    """By which keys it repeats the owner."""
    sequence: int
    child: str
    owner: EventId


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
            kind = ThrottleClaim if throttles(definition) else Claim
            return kind(db, step, definition, source, within, fates, replay).decide(rows)

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

    def owned(self, step: str, definition: str, source: str, start: int, end: int) -> set[tuple[int, str]]:
        """The rows of a range that own a key, as sequence and child."""
        with self._store.read() as db:
            found = db.execute(f"SELECT sequence, child {_OWNED} AND sequence >= ? AND sequence < ?",
                               (step, definition, source, start, end)).fetchall()  # fmt: skip
        return {(int(row[0]), str(row[1])) for row in found}

    def remembers_from(self, step: str, definition: str, source: str) -> int | None:
        """The first event of a source that still owns a key; those before it may be forgotten."""
        with self._store.read() as db:
            (first,) = db.execute(f"SELECT min(sequence) {_OWNED}", (step, definition, source)).fetchone()
        return None if first is None else int(first)

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

    def waiting(self, source: str, sequences: Iterable[int] | None = None) -> list[WaitingDuplicate]:
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
        return [
            WaitingDuplicate(row[0], row[1], row[2], row[3], EventId(row[4], row[5], row[6])) for row in found
        ]

    def stop_waiting(self, source: str, sequences: Iterable[int]) -> None:
        """These events do not wait any more, for whatever reason."""
        with self._store.write() as db:
            db.executemany(
                "DELETE FROM waits WHERE source = (SELECT id FROM names WHERE name = ?) AND sequence = ?",
                [(source, sequence) for sequence in sequences],
            )


def repeats(owner: EventId, definition: str) -> str:
    """Why a row ends at the step."""
    return f"throttled after {owner}" if throttles(definition) else f"seen before: repeats {owner}"


def waits_for(owner: EventId, definition: str) -> str:
    """Why a row waits at the step."""
    return f"{'throttled after' if throttles(definition) else 'repeats'} {owner}, which is not settled yet"


def repeats_another(reason: str) -> bool:
    """Whether a row waits for another event, and not because the index cannot be used."""
    return reason.startswith(("repeats ", "throttled "))


def in_vain(source: str) -> str:
    """What to do when rows wait for events of a source that is gone."""
    return (
        f'source "{source}" is not in the pipeline any more; put it back under this name to have its events '
        f"settled, or give them up: signoff sources drop FILE {source}"
    )


def reasons_to_wait(
    state: Path, gone: Callable[[], Container[str]] = frozenset
) -> Callable[[EventId], Mapping[str, str]]:
    """For `explain`: why an event of a state directory waits for another, by step. `gone` says which sources
    are not in the pipeline any more, so that nothing settles their events; asked only if a row waits."""

    def reasons(event: EventId) -> Mapping[str, str]:
        index = KeyIndex(state / FILE, readonly=True)
        try:
            found = index.waiting(event.source, [event.sequence])
        finally:
            index.close()
        mine = [each for each in found if not event.child or each.child in ("", event.child)]
        names = gone() if mine else ()
        return {each.step: reason(each, names) for each in mine}

    def reason(each: WaitingDuplicate, names: Container[str]) -> str:
        text = waits_for(each.owner, each.definition)
        return f"{text}: {in_vain(each.owner.source)}" if each.owner.source in names else text

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
