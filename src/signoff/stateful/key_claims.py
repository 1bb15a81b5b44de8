"""Which rows own their keys, and which repeat others: decisions about some rows, inside one transaction.

See `key_index` for what always holds."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from signoff.ledger.fates import Fate
from signoff.ledger.outcome import EventId


class Decision(StrEnum):
    FIRST = "first"
    REPEATS = "repeats"
    """Of an event that is settled: it ends here."""
    WAITS = "waits"
    """Of an event that is in flight."""
    GIVEN_UP = "given up"
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
class FirstEvent:
    """The row that had a key first."""

    source: str
    sequence: int
    child: str
    received: int

    @property
    def event_id(self) -> EventId:
        return EventId(self.source, self.sequence, self.child)


Decided = tuple[Decision, FirstEvent | None]
Fates = Callable[[str, int], Fate]
"""What became of an event: by source and sequence."""


class Claim:
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
        self._definition, self._replay = definition, replay
        at, query = (step, definition), "SELECT id FROM steps WHERE name = ? AND definition = ?"
        if (known := db.execute(query, at).fetchone()) is None:
            db.execute("INSERT INTO steps (name, definition) VALUES (?, ?)", at)
            known = db.execute(query, at).fetchone()
            # Of a step that had the number before, and is forgotten:
            db.execute("DELETE FROM waits WHERE step = ?", (known["id"],))
        self._step = int(known["id"])
        self._of_source = self._number(source)
        self._names: dict[int, str] = {self._of_source: source}
        self._owners: dict[bytes, FirstEvent | None] = {}
        """By key, as they are after what was decided so far."""
        self._new: dict[bytes, FirstEvent] = {}
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
        if self._is_given_up(row):
            return Decision.GIVEN_UP, None
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

    def _is_given_up(self, row: Arrival) -> bool:
        """Whether its source has refused its events, or they have expired."""
        events = (row.sequence, *row.others)
        return not self._replay and all(self._fates(self._source, event) == Fate.LOST for event in events)

    def _take(self, row: Arrival) -> Decided:
        before = self._owners[row.key]
        if before is not None and row.key not in self._new:
            of = self._number(before.source)
            self._lost.append((self._step, of, before.sequence, before.child, row.key))
        mine = FirstEvent(self._source, row.sequence, row.child, row.received)
        self._owners[row.key] = self._new[row.key] = mine
        return Decision.FIRST, None

    def _waits_for_itself(self, row: Arrival, owner: FirstEvent) -> bool:
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
                self._owners[key] = FirstEvent(self._name(source), sequence, child, received)

    def _owned(self) -> list[tuple[bytes, FirstEvent]]:
        """By what rows of these own now, and did not before: the owner."""
        return [*self._new.items()]

    def _save(self) -> None:
        taken = self._owned()
        self._db.executemany(
            "DELETE FROM owners WHERE step = ? AND source = ? AND sequence = ? AND child = ? AND key = ?",
            self._lost,
        )
        self._db.executemany(
            "INSERT OR REPLACE INTO owners (step, source, sequence, child, received, key) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            [
                (self._step, self._of_source, owner.sequence, owner.child, owner.received, key)
                for key, owner in sorted(taken, key=lambda each: each[0])
            ],
        )
        added = len(taken) - len(self._lost)
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
