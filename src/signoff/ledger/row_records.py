"""The exceptions of single rows, as they are recorded. Reads only."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from pyroaring import BitMap64

from signoff.ledger.outcome import Outcome, RowOutcome, RowRef
from signoff.ledger.sequences import from_bytes, from_range


@dataclass(frozen=True, slots=True)
class RowRecord:
    """One exception as the ledger keeps it."""

    row: RowRef
    stage: str
    outcome: Outcome
    reason: str
    resolved: str
    """'' or, for a dead letter that was replayed or dropped, what became of it."""
    letter: str = ""
    """The id of the dead letter that stands for it, if it is not its own."""


def records(db: sqlite3.Connection, source: str, sequence: int) -> list[RowRecord]:
    """The exceptions known of one event."""
    found = db.execute(
        "SELECT child, stage, outcome, reason, resolved, letter FROM exceptions "
        "WHERE source = ? AND sequence = ? ORDER BY child, stage",
        (source, sequence),
    )
    return [
        RowRecord(RowRef(sequence, row["child"]), row["stage"], Outcome(row["outcome"]), row["reason"],
                  row["resolved"], row["letter"])
        for row in found
    ]  # fmt: skip


def exceptions(db: sqlite3.Connection, source: str, start: int, end: int) -> list[RowOutcome]:
    """What was recorded of single rows in a range and stands, but expiries."""
    found = db.execute(
        "SELECT * FROM exceptions "
        "WHERE source = ? AND sequence >= ? AND sequence < ? AND stage != '' AND resolved = ''",
        (source, start, end),
    )
    return [
        RowOutcome(RowRef(row["sequence"], row["child"]), row["stage"], Outcome(row["outcome"]),
                   row["reason"], bool(row["transient"]), row["letter"])
        for row in found
    ]  # fmt: skip


def delivered(db: sqlite3.Connection, source: str, start: int, end: int) -> BitMap64:
    """Origins of a range of which a row was delivered; what is folded counts as that, if nothing else is
    known of it."""
    known = db.execute("SELECT folded FROM sources WHERE source = ?", (source,)).fetchone()
    folded = min(end, known["folded"] if known else 0)
    found = from_range(start, folded) - _undelivered(db, source, start, folded)
    for row in db.execute(
        'SELECT delivered_set FROM batches WHERE source = ? AND start < ? AND "end" > ?', (source, end, start)
    ):
        found |= from_bytes(row["delivered_set"]) & from_range(start, end)
    return found


def _undelivered(db: sqlite3.Connection, source: str, start: int, end: int) -> BitMap64:
    """Of a folded range, the origins of which it is known that no row was delivered."""
    found = db.execute(
        "SELECT sequence FROM exceptions WHERE source = ? AND sequence >= ? AND sequence < ? "
        "AND resolved = '' AND also_delivered = 0",
        (source, start, end),
    )
    return BitMap64(sequence for (sequence,) in found)
