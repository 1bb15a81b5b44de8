"""How far each sink is with a batch, as stored: the rows it owes are a bitmap, and a list for children."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from pyroaring import BitMap64

from signoff.ledger.outcome import RowRef, SinkState
from signoff.ledger.sequences import from_bytes, to_bytes
from signoff.pipeline.secrets import redact


def save_sinks(db: sqlite3.Connection, source: str, start: int, sinks: Mapping[str, SinkState]) -> None:
    """Replace what is known of these sinks; others of the batch stay as they are."""
    db.executemany(
        "INSERT OR REPLACE INTO batch_sinks "
        "(source, start, sink, done, attempts, error, since, owed, owed_children, handed, rows_of) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            (source, start, name, sink.done, sink.attempts, redact(sink.error), sink.since,
             *_pack(sink.owed, sink.split), None if sink.handed is None else to_bytes(sink.handed),
             None if sink.rows_of is None else to_bytes(sink.rows_of))
            for name, sink in sinks.items()
        ],
    )  # fmt: skip


def load_sinks(db: sqlite3.Connection, source: str, start: int) -> dict[str, SinkState]:
    found = db.execute(
        "SELECT * FROM batch_sinks WHERE source = ? AND start = ? ORDER BY sink", (source, start)
    )
    return {
        row["sink"]: SinkState(
            bool(row["done"]), row["attempts"], row["error"], row["since"],
            _unpack(row["owed"], row["owed_children"]),
            None if row["handed"] is None else from_bytes(row["handed"]),
            None if row["rows_of"] is None else from_bytes(row["rows_of"]),
            (row["owed_children"] or "") if row["owed"] is None else "",
        )
        for row in found
    }  # fmt: skip


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


def _pack(owed: tuple[RowRef, ...] | None, split: str) -> tuple[bytes | None, str | None]:
    if owed is None:
        return None, split or None
    plain = BitMap64(row.sequence for row in owed if not row.child)
    children = [(row.sequence, row.child) for row in owed if row.child]
    return to_bytes(plain), json.dumps(children) if children else None


def _unpack(plain: bytes | None, children: str | None) -> tuple[RowRef, ...] | None:
    if plain is None:
        return None
    rows = [RowRef(sequence) for sequence in from_bytes(plain)]
    rows += [RowRef(sequence, child) for sequence, child in json.loads(children or "[]")]
    return tuple(sorted(rows))
