"""Folding: the details of old settled batches become counts, so that the ledger stays as small as it is.

Folded is always a prefix [0, folded) of a source. A batch is folded only when it and all before it
are settled. What stays of it:
- the rows of its dead letters, for their origins can still move to another count;
- its refusals and expiries, for an intake that starts again tells its source everything again, and
  must not call acknowledged what was refused. The newest `KEEP_NEGATIVE` of them stay, and all that
  the source has not been told at all: a batch that holds such is not folded.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from pyroaring import BitMap64

from signoff.ledger.outcome import FINAL
from signoff.ledger.sequences import from_bytes

KEEP_NEGATIVE = 100_000
"""Refused and expired origins of the folded prefix that can still be told to a source again."""

KEY_INDEX = "dedupe.db"
"""Beside a ledger, this file knows events that others repeat: it has to be told which are forgotten."""

OnForget = Callable[[str, Sequence[int]], None]
"""Told, by source, which refused and expired origins are forgotten, just before they are."""


def fold(
    db: sqlite3.Connection,
    source: str,
    keep: int,
    on_forget: OnForget | None = None,
    *,
    forget: bool = True,
) -> int:
    """Fold what is beyond the newest `keep` batches, in strides; returns the number of batches folded.
    `forget`: whether refusals and expiries beyond the newest may be forgotten."""
    (kept,) = db.execute("SELECT count(*) FROM batches WHERE source = ?", (source,)).fetchone()
    if kept <= keep + keep // 10:
        return 0
    (told,) = db.execute("SELECT told FROM sources WHERE source = ?", (source,)).fetchone()
    folded = 0
    for batch in db.execute(
        "SELECT * FROM batches WHERE source = ? ORDER BY start LIMIT ?", (source, kept - keep)
    ).fetchall():
        untold = (batch["refused"] or batch["expired"]) and told is not None and batch["end"] > told
        if batch["owed_count"] or untold:
            break
        _fold_one(db, source, batch)
        folded += 1
    if folded and forget:
        _forget_negative(db, source, on_forget)
    return folded


def _fold_one(db: sqlite3.Connection, source: str, batch: sqlite3.Row) -> None:
    start, end = batch["start"], batch["end"]
    added = ", ".join(f"{outcome} = {outcome} + ?" for outcome in FINAL)
    db.execute(
        f"UPDATE sources SET folded = ?, folded_change = max(folded_change, ?), {added} WHERE source = ?",
        (end, batch["change"], *(batch[outcome] for outcome in FINAL), source),
    )
    standing = _standing(db, source, start, end)
    delivered = from_bytes(batch["delivered_set"])
    # Through a table of the connection's own: there may be more of them than a statement takes.
    db.execute("CREATE TEMP TABLE IF NOT EXISTS standing (sequence INTEGER PRIMARY KEY, delivered INTEGER)")
    db.executemany("INSERT INTO standing VALUES (?, ?)", [(n, n in delivered) for n in standing])
    db.execute(
        "UPDATE exceptions SET also_delivered = standing.delivered FROM standing "
        "WHERE exceptions.source = ? AND exceptions.sequence = standing.sequence",
        (source,),
    )
    db.execute(
        "DELETE FROM exceptions WHERE source = ? AND sequence >= ? AND sequence < ? "
        "AND outcome NOT IN ('refused', 'expired') AND sequence NOT IN (SELECT sequence FROM standing)",
        (source, start, end),
    )
    db.execute("DELETE FROM standing")
    db.execute("DELETE FROM batch_sinks WHERE source = ? AND start = ?", (source, start))
    db.execute("DELETE FROM batches WHERE source = ? AND start = ?", (source, start))


def _forget_negative(db: sqlite3.Connection, source: str, on_forget: OnForget | None) -> None:
    last = db.execute(
        "SELECT sequence FROM exceptions JOIN sources USING (source) WHERE source = ? "
        "AND sequence < folded AND outcome IN ('refused', 'expired') "
        "ORDER BY sequence DESC LIMIT 1 OFFSET ?",
        (source, KEEP_NEGATIVE),
    ).fetchone()
    if last is None:
        return
    which = "FROM exceptions WHERE source = ? AND outcome IN ('refused', 'expired') AND sequence <= ?"
    at = (source, last["sequence"])
    if on_forget is not None:
        on_forget(source, [sequence for (sequence,) in db.execute(f"SELECT DISTINCT sequence {which}", at)])
    db.execute(f"DELETE {which}", at)


def _standing(db: sqlite3.Connection, source: str, start: int, end: int) -> BitMap64:
    """Origins that count as dead-lettered now."""
    dead, worse = BitMap64(), BitMap64()
    for sequence, outcome in db.execute(
        "SELECT sequence, outcome FROM exceptions WHERE source = ? AND sequence >= ? AND sequence < ? "
        "AND resolved = '' AND outcome IN ('expired', 'refused', 'dead_lettered')",
        (source, start, end),
    ):
        (dead if outcome == "dead_lettered" else worse).add(sequence)
    return dead - worse
