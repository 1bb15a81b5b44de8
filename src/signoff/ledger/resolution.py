"""The one way in which a settled origin moves to another count: its dead letters were replayed or dropped.

The source was told at settlement and is not told again. An origin counts as dead-lettered while
any of its letters is open; then as delivered if any row of it was, before or in a replay; else as
dropped. One that was refused or has expired stays that.

A letter may stand for events of other sources as well: those its row was made from, in front of the logs it
has come through. What becomes of it becomes of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from pyroaring import BitMap64

from signoff.ledger.outcome import BUFFER, EventId, Outcome, Resolution, RowOutcome, is_united
from signoff.ledger.sequences import from_bytes, to_bytes
from signoff.pipeline.secrets import redact

MOVED_ON = "moved"
"""What became of a letter whose row came further when it was replayed, and failed there."""
_ALLOWED = frozenset({Outcome.DELIVERED, Outcome.DROPPED, Outcome.DEAD_LETTERED})


def resolve(db: sqlite3.Connection, resolutions: Sequence[Resolution]) -> int:
    """See `Ledger.resolve`."""
    if wrong := {resolution.outcome for resolution in resolutions} - _ALLOWED:
        raise ValueError(
            f"a dead letter cannot end as {', '.join(sorted(wrong))}: its source was told already"
        )
    by_origin: dict[tuple[str, int], list[_Asked]] = {}
    for resolution in resolutions:
        event = EventId.parse(resolution.event_id)
        for asked in (_Asked(event, resolution, resolution.letter), *_in_front(db, event, resolution)):
            by_origin.setdefault((asked.event.source, asked.event.sequence), []).append(asked)
    found, batch = 0, None
    for (source, sequence), of_origin in sorted(by_origin.items()):
        if batch is None or batch.source != source or not batch.start <= sequence < batch.end:
            _save(db, batch)
            batch = _load(db, source, sequence)
        found += _resolve_origin(db, source, sequence, batch, of_origin)
    _save(db, batch)
    return found


def closed_as(db: sqlite3.Connection, outcome: RowOutcome) -> str:
    """What became of the letter that stands for an outcome, if somebody has closed it meanwhile; else ''."""
    if not outcome.letter:
        return ""
    event = EventId.parse(outcome.letter)
    row = db.execute(
        "SELECT resolved FROM exceptions "
        "WHERE source = ? AND sequence = ? AND child = ? AND stage = ? AND outcome = 'dead_lettered'",
        (event.source, event.sequence, event.child, outcome.stage),
    ).fetchone()
    return Outcome.DROPPED if row is None else str(row["resolved"])


@dataclass(frozen=True)
class _Asked:
    """A row that a resolution is about."""

    event: EventId
    resolution: Resolution
    letter: str
    """The letter that stands for it; '' for its own."""


def _in_front(db: sqlite3.Connection, event: EventId, resolution: Resolution) -> list[_Asked]:
    """The rows of other sources that a letter stands for. One that is new stands for the rows that the letter
    stood for from whose replay it comes: of the same row, or of one that this was made from."""
    if not event.source.endswith(BUFFER):
        return []
    first = str(EventId(event.source, event.sequence))
    rows = db.execute(
        # One condition each: with OR the index would be read from end to end.
        "SELECT source, sequence, child, letter FROM exceptions WHERE letter != '' AND letter = ? UNION "
        "SELECT source, sequence, child, letter FROM exceptions "
        "WHERE letter != '' AND letter > ? AND letter < ?",
        (first, f"{first}/", f"{first}0"),  # 0 comes next after the slash
    ).fetchall()
    found: dict[EventId, _Asked] = {}
    for row in rows:
        known = EventId.parse(row["letter"])
        comes_from_it = known.row.holds(event.row) or is_united(event.child)  # whose name is made anew
        if known.child != event.child and (resolution.outcome != Outcome.DEAD_LETTERED or not comes_from_it):
            continue
        further = event.child.removeprefix(known.child).strip("/")
        child = "/".join(part for part in (row["child"], further) if part)
        origin = EventId(row["source"], row["sequence"], child)
        found[origin] = _Asked(origin, resolution, resolution.letter or resolution.event_id)
    return list(found.values())


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
    asked: list[_Asked],
) -> int:
    rows = _rows(db, source, sequence)
    if not any(row["outcome"] == Outcome.DEAD_LETTERED for row in rows):
        return 0  # expired before the letter was recorded, or closed and folded: nothing counts on it
    delivered = sequence in batch.delivered if batch else any(row["also_delivered"] for row in rows)
    before = _class(rows, delivered)
    # The letters that stay or are new come first, so that the origin is never without one in between.
    asked.sort(key=lambda one: one.resolution.outcome != Outcome.DEAD_LETTERED)
    closed = 0
    for one in asked:
        done = _apply(db, source, sequence, one, delivered)
        closed += done
        if done and one.resolution.outcome == Outcome.DELIVERED and not delivered:
            delivered = True
            _mark_delivered(db, source, sequence, batch)
    after = _class(_rows(db, source, sequence), delivered)
    if batch is None or sequence not in batch.owed:
        _move(db, source, batch, before, after)
    if batch is None and after != Outcome.DEAD_LETTERED:
        db.execute("DELETE FROM exceptions WHERE source = ? AND sequence = ?", (source, sequence))
    return closed


def _apply(db: sqlite3.Connection, source: str, sequence: int, asked: _Asked, delivered: bool) -> int:
    child, resolution = asked.event.child, asked.resolution
    if resolution.outcome == Outcome.DEAD_LETTERED:
        done = db.execute(
            "INSERT INTO exceptions "
            "(source, sequence, child, stage, outcome, reason, also_delivered, letter) "
            "VALUES (?, ?, ?, ?, 'dead_lettered', ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET reason = excluded.reason, resolved = '', outcome = excluded.outcome, "
            "letter = excluded.letter WHERE outcome IN ('dead_lettered', 'dropped')",
            (source, sequence, child, resolution.stage, redact(resolution.reason), delivered, asked.letter),
        )
    else:
        moved = resolution.moved and resolution.outcome == Outcome.DROPPED
        # A letter dropped by hand while its replay was under way was delivered all the same.
        done = db.execute(
            "UPDATE exceptions SET resolved = ? WHERE source = ? AND sequence = ? AND child = ? "
            "AND stage = ? AND outcome = 'dead_lettered' AND resolved IN ('', 'dropped', 'moved')",
            (MOVED_ON if moved else resolution.outcome.value, source, sequence, child, resolution.stage),
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
