"""Sinks over all batches: what they took, and which of them fail. Reads only."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace

from signoff.ledger.batch_state import Wait
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
