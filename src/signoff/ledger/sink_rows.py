"""How far each sink is with a batch, as stored: the rows it owes are a bitmap, and a list for children.

A wait is stored as a sink of its own, called `sink via step`. Which state one is in is told by its columns:

    done            Done
    owed            OwesRows; without attempts, error and `handed` Untried, for these rows only;
                    with `handed` and no rows HandedOn
    owed is NULL    OwesAll; without attempts, error and `handed` Untried
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from pyroaring import BitMap64

from signoff.ledger.batch_state import (
    Debtor,
    Done,
    HandedOn,
    OwesAll,
    OwesRows,
    SinkState,
    Untried,
    Wait,
)
from signoff.ledger.outcome import RowRef
from signoff.ledger.sequences import from_bytes, to_bytes
from signoff.pipeline.secrets import redact

_VIA = " via "
WAITS = f"sink LIKE '%{_VIA}%'"
"""SQL: the rows of `batch_sinks` that are of waits."""


def debtor(name: str) -> Debtor:
    """Who it is that a name is stored for."""
    sink, via, step = name.partition(_VIA)
    return Wait(sink, step) if via else name


def save_sinks(
    db: sqlite3.Connection,
    source: str,
    start: int,
    states: Mapping[Any, SinkState],
    published: Collection[Debtor] = (),
) -> None:
    """Replace what is known of these sinks and waits; others of the batch stay as they are. `published`:
    those that have published rows they were asked for by name: the next ones have another number."""
    db.executemany(
        "INSERT INTO batch_sinks "
        "(source, start, sink, done, attempts, error, since, owed, owed_children, handed, rows_of) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET done = excluded.done, "
        "attempts = excluded.attempts, error = excluded.error, since = excluded.since, owed = excluded.owed, "
        "owed_children = excluded.owed_children, handed = excluded.handed, rows_of = excluded.rows_of",
        [
            (source, start, str(name), state.done, state.attempts, redact(state.error), state.since,
             *_pack(state), _bytes(state.handed_on), _bytes(state.arrived))
            for name, state in states.items()
        ],
    )  # fmt: skip
    for name, state in states.items():
        if name in published or state.wanted_rows:
            number(db, source, start, str(name), anew=name in published)


def number(db: sqlite3.Connection, source: str, start: int, name: str, *, anew: bool = False) -> None:
    """Give a sink or wait a number that no rows were published under, if it has none, or `anew`."""
    key = (source, start, name)
    query = "SELECT published_as FROM batch_sinks WHERE source = ? AND start = ? AND sink = ?"
    if anew or not db.execute(query, key).fetchone()["published_as"]:
        (given,) = db.execute("UPDATE clock SET published = published + 1 RETURNING published").fetchone()
        db.execute(
            "UPDATE batch_sinks SET published_as = ? WHERE source = ? AND start = ? AND sink = ?",
            (given, *key),
        )


def load_numbers(db: sqlite3.Connection, source: str, start: int) -> dict[Debtor, int]:
    """Under which number the rows of each are published next that are asked for by name."""
    rows = db.execute(
        "SELECT sink, published_as FROM batch_sinks WHERE source = ? AND start = ? AND published_as != 0",
        (source, start),
    )
    return {debtor(row["sink"]): int(row["published_as"]) for row in rows}


def load_states(
    db: sqlite3.Connection, source: str, start: int
) -> tuple[dict[str, SinkState], dict[Wait, SinkState]]:
    """Of the sinks of a batch, and of the rows that wait for a step in front of one."""
    sinks: dict[str, SinkState] = {}
    waits: dict[Wait, SinkState] = {}
    for row in db.execute(
        "SELECT * FROM batch_sinks WHERE source = ? AND start = ? ORDER BY sink", (source, start)
    ):
        name = debtor(row["sink"])
        if isinstance(name, Wait):
            waits[name] = _state(row)
        else:
            sinks[name] = _state(row)
    return sinks, waits


def _state(row: sqlite3.Row) -> SinkState:
    attempts, error, since = row["attempts"], row["error"], row["since"]
    if row["done"]:
        return Done(attempts=attempts, error=error, since=since)
    handed, came = _bitmap(row["handed"]), _bitmap(row["rows_of"])
    untried = not attempts and not error and handed is None
    if row["owed"] is None:
        named = row["owed_children"] or ""
        whole = OwesAll(came, named, handed, attempts=attempts, error=error, since=since)
        return Untried() if untried else whole
    rows = _rows(row["owed"], row["owed_children"])
    if untried:
        return Untried(rows)
    if handed is not None and not rows:
        return HandedOn(handed, attempts=attempts, error=error, since=since)
    return OwesRows(rows, handed, came, attempts=attempts, error=error, since=since)


@dataclass(frozen=True, slots=True)
class OwingSink:
    """A sink that has not finished a batch."""

    name: str
    attempts: int
    error: str
    owed: BitMap64 | None
    """Origins of the rows it owes, also where they were handed on; None: of all its rows."""
    waits: bool
    """It has handed on all that it owes, and waits for the other log."""


def load_owing(db: sqlite3.Connection, source: str, start: int) -> list[OwingSink]:
    """The sinks that are not done with a batch, without an object for each row they owe."""
    found = db.execute(
        "SELECT * FROM batch_sinks WHERE source = ? AND start = ? AND NOT done ORDER BY sink", (source, start)
    )
    return [_owing(row) for row in found]


def _owing(row: sqlite3.Row) -> OwingSink:
    if row["owed"] is None:
        return OwingSink(row["sink"], row["attempts"], row["error"], None, waits=False)
    children = json.loads(row["owed_children"] or "[]")
    to_ask = from_bytes(row["owed"]) | BitMap64(sequence for sequence, _ in children)
    owed = to_ask | from_bytes(row["handed"])
    return OwingSink(row["sink"], row["attempts"], row["error"], owed, waits=not to_ask)


def _pack(state: SinkState) -> tuple[bytes | None, str | None]:
    """The rows one owes: a bitmap of those named by their event, and the others as JSON."""
    if isinstance(state, Done):
        return None, None
    if state.wants_all:
        return None, state.named or None if isinstance(state, OwesAll) else None
    plain = BitMap64(row.sequence for row in state.wanted_rows if not row.child)
    children = [(row.sequence, row.child) for row in state.wanted_rows if row.child]
    return to_bytes(plain), json.dumps(children) if children else None


def _rows(plain: bytes, children: str | None) -> tuple[RowRef, ...]:
    rows = [RowRef(sequence) for sequence in from_bytes(plain)]
    rows += [RowRef(sequence, child) for sequence, child in json.loads(children or "[]")]
    return tuple(sorted(rows))


def _bytes(numbers: BitMap64 | None) -> bytes | None:
    return None if numbers is None else to_bytes(numbers)


def _bitmap(stored: bytes | None) -> BitMap64 | None:
    return None if stored is None else from_bytes(stored)
