"""Where rows left the pipeline without being delivered, and why: running totals by stage.

Counted are rows, not events, since the pipeline's first run; a dead letter that is replayed later stays
counted, for it did leave there. Two kinds come together:

    with a reason   dead letters, refusals, drops by policy: each row once, also when an attempt is repeated
    filtered        what a step left out inside Spark, as a number; told with a batch's first record only

The table is bounded: reasons are grouped (numbers and quoted values are the event's, not the reason's), and a
stage has at most `MOST_REASONS` of an outcome; what is beyond them counts under `OTHER`.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from signoff.ledger.outcome import Outcome, RowOutcome
from signoff.pipeline.secrets import excerpt, redact

MOST_REASONS = 20
OTHER = "other"
_LONGEST = 120
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'|`[^`]*`")
_NUMBERED = re.compile(r"[\w.:/+-]*\d[\w.:/+-]*")
_COUNTED = frozenset({Outcome.DEAD_LETTERED, Outcome.REFUSED, Outcome.DROPPED})

Key = tuple[str, str, str]
"""Stage, outcome, reason."""


@dataclass(frozen=True, slots=True)
class StageTotal:
    """So many rows left the pipeline at one stage, for one kind of reason."""

    source: str
    stage: str
    outcome: Outcome
    reason: str
    rows: int


def group(reason: str) -> str:
    """What a million different messages of one kind have in common."""
    text = _NUMBERED.sub("#", _QUOTED.sub('"…"', " ".join(redact(reason).split())))
    return excerpt(text, _LONGEST)


def count(
    db: sqlite3.Connection,
    source: str,
    start: int,
    end: int,
    outcomes: Sequence[RowOutcome],
    filtered: Mapping[str, tuple[int, str]],
) -> None:
    """Add what an attempt at a batch says; called before its outcomes are saved."""
    totals: Counter[Key] = Counter()
    for stage, (rows, why) in filtered.items():
        totals[stage, Outcome.DROPPED, why] += rows
    counted = [outcome for outcome in outcomes if outcome.outcome in _COUNTED]
    if counted:
        known = _known(db, source, start, end)
        groups: dict[str, str] = {}
        for outcome in counted:
            if (outcome.row.sequence, outcome.row.child, outcome.stage) in known:
                continue
            if outcome.reason not in groups:
                groups[outcome.reason] = group(outcome.reason)
            totals[outcome.stage, outcome.outcome, groups[outcome.reason]] += 1
    for key, rows in totals.items():
        if rows:
            _add(db, source, key, rows)


def read(db: sqlite3.Connection) -> list[StageTotal]:
    """All of them, the largest of a source first."""
    found = db.execute("SELECT * FROM departures ORDER BY source, rows DESC, stage, outcome, reason")
    return [
        StageTotal(row["source"], row["stage"], Outcome(row["outcome"]), row["reason"], row["rows"])
        for row in found.fetchall()
    ]


def _known(db: sqlite3.Connection, source: str, start: int, end: int) -> set[tuple[int, str, str]]:
    found: Iterable[sqlite3.Row] = db.execute(
        "SELECT sequence, child, stage FROM exceptions "
        "WHERE source = ? AND sequence >= ? AND sequence < ? AND outcome != 'failed'",
        (source, start, end),
    )
    return {(sequence, child, stage) for sequence, child, stage in found}


def _add(db: sqlite3.Connection, source: str, key: Key, rows: int) -> None:
    stage, outcome, reason = key
    at = (source, stage, str(outcome))
    added = db.execute(
        "UPDATE departures SET rows = rows + ? WHERE source = ? AND stage = ? AND outcome = ? AND reason = ?",
        (rows, *at, reason),
    )
    if added.rowcount:
        return
    (reasons,) = db.execute(
        "SELECT count(*) FROM departures WHERE source = ? AND stage = ? AND outcome = ?", at
    ).fetchone()
    db.execute(
        "INSERT INTO departures (source, stage, outcome, reason, rows) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET rows = rows + excluded.rows",
        (*at, reason if reasons < MOST_REASONS else OTHER, rows),
    )
