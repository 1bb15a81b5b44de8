"""Sinks over all batches: what they took, and which of them fail. Reads only."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from dataclasses import dataclass, replace

from pyroaring import BitMap64

from signoff.ledger.batch_state import Wait
from signoff.ledger.sequences import from_bytes
from signoff.ledger.sink_rows import WAITS, debtor


@dataclass(frozen=True, slots=True)
class SinkTotals:
    """One sink over all batches."""

    sink: str
    rows: int
    failing_since: float | None
    error: str
    """The last error, also when the sink has recovered since."""


@dataclass(frozen=True, slots=True)
class SinkFailure:
    """A sink that failed when it was asked last."""

    error: str
    asked_again: bool
    """Something is owed to it, so that it will be asked again."""
    ago_s: float
    """How long ago; infinite if an earlier process saw it."""
    attempts: int
    """How many times in a row, for what it was given last."""


_FAILING = """
SELECT sink, source, error, source = '' OR EXISTS (
    SELECT 1 FROM batches WHERE batches.source = sinks.source AND owed_count > 0 AND EXISTS (
        SELECT 1 FROM batch_sinks AS part WHERE part.source = batches.source AND part.start = batches.start
        AND part.sink = sinks.sink AND NOT part.done
    )
) AS asked_again
FROM sinks WHERE since IS NOT NULL
"""


def sink_totals(db: sqlite3.Connection) -> dict[str, SinkTotals]:
    totals: dict[str, SinkTotals] = {}
    # Of several sources, the one for which the sink fails longest speaks for it.
    for row in db.execute("SELECT * FROM sinks ORDER BY sink, since IS NULL, since"):
        seen = totals.get(row["sink"], SinkTotals(row["sink"], 0, row["since"], row["error"]))
        totals[row["sink"]] = replace(seen, rows=seen.rows + row["rows"], error=seen.error or row["error"])
    return totals


def events_owed(db: sqlite3.Connection) -> Counter[str]:
    """By sink: events of open batches that it is still to be given rows of. Where no pass has ended yet, all
    that may have some. Not what it has handed on, nor what waits for a step in front of it."""
    found: Counter[str] = Counter()
    for row in db.execute(
        "SELECT part.sink, part.owed, part.owed_children, part.rows_of, batches.owed AS open_ones "
        "FROM batches JOIN batch_sinks AS part "
        "ON part.source = batches.source AND part.start = batches.start "
        f"WHERE batches.owed_count > 0 AND NOT part.done AND NOT part.{WAITS}"
    ):
        owed = from_bytes(row["open_ones"])
        if row["owed"] is not None:
            children = BitMap64(sequence for sequence, _ in json.loads(row["owed_children"] or "[]"))
            owed &= from_bytes(row["owed"]) | children
        elif row["rows_of"] is not None:
            owed &= from_bytes(row["rows_of"])
        found[row["sink"]] += len(owed)
    return found


def failing_sinks(db: sqlite3.Connection) -> list[sqlite3.Row]:
    """Sinks that failed when they were asked last; of what `SinkFailure` says all but when that was."""
    return db.execute(_FAILING).fetchall()


def failing_steps(db: sqlite3.Connection) -> dict[tuple[str, Wait], str]:
    """Errors of steps that rows wait for, by source and wait."""
    found = db.execute(
        "SELECT source, sink, error FROM batch_sinks WHERE NOT done AND error != '' "
        f"AND {WAITS} ORDER BY start"
    )
    named = ((row["source"], debtor(row["sink"]), row["error"]) for row in found)
    return {(source, wait): error for source, wait, error in named if isinstance(wait, Wait)}
