"""The one way in which a settled origin moves to another count: its dead letters were replayed or dropped.

The source was told at settlement and is not told again. An origin counts as dead-lettered while
any of its letters is open; then as delivered if any row of it was, before or in a replay; else as
dropped. One that was refused or has expired stays that.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from pyroaring import BitMap64

from signoff.ledger.outcome import EventId, Outcome, Resolution
from signoff.ledger.sequences import from_bytes, to_bytes
from signoff.pipeline.secrets import redact

_ALLOWED = frozenset({Outcome.DELIVERED, Outcome.DROPPED, Outcome.DEAD_LETTERED})


def resolve(db: sqlite3.Connection, resolutions: Sequence[Resolution]) -> int:
    """See `Ledger.resolve`."""
    if wrong := {resolution.outcome for resolution in resolutions} - _ALLOWED:
        raise ValueError(
            f"a dead letter cannot end as {', '.join(sorted(wrong))}: its source was told already"
        )
    by_origin: dict[tuple[str, int], list[tuple[EventId, Resolution]]] = {}
    for resolution in resolutions:
        event = EventId.parse(resolution.event_id)
        by_origin.setdefault((event.source, event.sequence), []).append((event, resolution))
    found, batch = 0, None
    for (source, sequence), asked in sorted(by_origin.items()):
        if batch is None or batch.source != source or not batch.start <= sequence < batch.end:
            _save(db, batch)
            batch = _load(db, source, sequence)
        found += _resolve_origin(db, source, sequence, batch, asked)
    _save(db, batch)
    return found


@dataclass
class _Batch:
    """A batch that is not folded, loaded once for all of its letters."""

    source: str
    start: int
    end: int
    owed: BitMap64
    delivered: BitMap64
    changed: bool = False


def _resolve_origin(
    db: sqlite3.Connection,
    source: str,
    sequence: int,
    batch: _Batch | None,
    asked: list[tuple[EventId, Resolution]],
) -> int:
    rows = _rows(db, source, sequence)
    if not any(row["outcome"] == Outcome.DEAD_LETTERED for row in rows):
        return 0  # expired before the letter was recorded, or closed and folded: nothing counts on it
    delivered = sequence in batch.delivered if batch else any(row["also_delivered"] for row in rows)
    before = _class(rows, delivered)
    # The letters that stay or are new come first, so that the origin is never without one in between.
    asked.sort(key=lambda item: item[1].outcome != Outcome.DEAD_LETTERED)
    closed = 0
    for event, resolution in asked:
        done = _apply(db, source, sequence, event.child, resolution, delivered)
        closed += done
        if done and resolution.outcome == Outcome.DELIVERED and not delivered:
            delivered = True
            _mark_delivered(db, source, sequence, batch)
    after = _class(_rows(db, source, sequence), delivered)
    if batch is None or sequence not in batch.owed:
        _move(db, source, batch, before, after)
    if batch is None and after != Outcome.DEAD_LETTERED:
        db.execute("DELETE FROM exceptions WHERE source = ? AND sequence = ?", (source, sequence))
    return closed


def _apply(
    db: sqlite3.Connection, source: str, sequence: int, child: str, resolution: Resolution, delivered: bool
) -> int:
    if resolution.outcome == Outcome.DEAD_LETTERED:
        done = db.execute(
            "INSERT INTO exceptions (source, sequence, child, stage, outcome, reason, also_delivered) "
            "VALUES (?, ?, ?, ?, 'dead_lettered', ?, ?) "
            "ON CONFLICT DO UPDATE SET reason = excluded.reason, resolved = '', outcome = excluded.outcome "
            "WHERE outcome IN ('dead_lettered', 'dropped')",
            (source, sequence, child, resolution.stage, redact(resolution.reason), delivered),
        )
    else:
        # A letter dropped by hand while its replay was under way was delivered all the same.
        done = db.execute(
            "UPDATE exceptions SET resolved = ? WHERE source = ? AND sequence = ? AND child = ? "
            "AND stage = ? AND outcome = 'dead_lettered' AND resolved IN ('', 'dropped')",
            (resolution.outcome.value, source, sequence, child, resolution.stage),
        )
    return done.rowcount


def _mark_delivered(db: sqlite3.Connection, source: str, sequence: int, batch: _Batch | None) -> None:
    if batch is not None:
        batch.delivered.add(sequence)
        batch.changed = True
    else:
        db.execute(
            "UPDATE exceptions SET also_delivered = 1 WHERE source = ? AND sequence = ?", (source, sequence)
        )


def _move(db: sqlite3.Connection, source: str, batch: _Batch | None, before: Outcome, after: Outcome) -> None:
    if before == after:
        return
    change = f"SET {before} = {before} - 1, {after} = {after} + 1 WHERE source = ?"
    if batch is None:
        db.execute(f"UPDATE sources {change}", (source,))
    else:
        db.execute(f"UPDATE batches {change} AND start = ?", (source, batch.start))


def _load(db: sqlite3.Connection, source: str, sequence: int) -> _Batch | None:
    row = db.execute(
        'SELECT start, "end", owed, delivered_set FROM batches WHERE source = ? AND start <= ? AND "end" > ?',
        (source, sequence, sequence),
    ).fetchone()
    if row is None:
        return None
    return _Batch(source, row["start"], row["end"], from_bytes(row["owed"]), from_bytes(row["delivered_set"]))


def _save(db: sqlite3.Connection, batch: _Batch | None) -> None:
    if batch is not None and batch.changed:
        db.execute(
            "UPDATE batches SET delivered_set = ? WHERE source = ? AND start = ?",
            (to_bytes(batch.delivered), batch.source, batch.start),
        )


def _class(rows: Sequence[sqlite3.Row], delivered: bool) -> Outcome:
    standing = {row["outcome"] for row in rows if not row["resolved"]}
    for outcome in (Outcome.EXPIRED, Outcome.REFUSED, Outcome.DEAD_LETTERED):
        if outcome in standing:
            return outcome
    return Outcome.DELIVERED if delivered else Outcome.DROPPED


def _rows(db: sqlite3.Connection, source: str, sequence: int) -> list[sqlite3.Row]:
    return db.execute(
        "SELECT child, stage, outcome, resolved, also_delivered FROM exceptions "
        "WHERE source = ? AND sequence = ?",
        (source, sequence),
    ).fetchall()
