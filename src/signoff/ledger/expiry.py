"""Expiry: the source stops waiting for origins that are still undelivered, and the sinks they waited for are
recorded.

An expired origin leaves `owed` as any settled one does, or, if no batch has taken it yet, is left out of
the batch that will. Which sinks had not signed for it is known at this moment only, from the batch: it
becomes part of the reason, for `signoff explain`, the run's log and the source's own answer.

Runs inside a transaction of its caller and leaves the invariant of `schema` true.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence

from pyroaring import BitMap64

from signoff.ledger.batches import expired_between, source_row, tick
from signoff.ledger.outcome import Outcome
from signoff.ledger.sequences import from_bytes, to_bytes
from signoff.ledger.sink_rows import OwingSink, load_owing
from signoff.pipeline.secrets import excerpt, redact

MOST_NAMED = 10
"""Sinks that are named in a reason."""
_ERROR_LENGTH = 200
"""A reason is stored with each event: so much of a sink's error is enough."""
_IN_THE_LOG = "no batch had taken it from the log then"
_NOBODY = "its batch was being worked on"


def expire(db: sqlite3.Connection, source: str, reasons: Mapping[int, str], now: float) -> dict[int, str]:
    """See `Ledger.expire`."""
    known = source_row(db, source)
    asked = BitMap64(reasons)
    accepted: dict[int, str] = {}
    for row in db.execute(
        'SELECT start, owed FROM batches WHERE source = ? AND owed_count > 0 AND start <= ? AND "end" > ?',
        (source, asked.max(), asked.min()),
    ).fetchall():
        owed = from_bytes(row["owed"])
        if found := owed & asked:
            _leave_batch(db, source, row["start"], owed - found, len(found), now)
            for part, sinks in _by_sinks(load_owing(db, source, row["start"]), found):
                accepted |= _with_debt(reasons, part, _owed_by(sinks))
    ahead = BitMap64(sequence for sequence in reasons if sequence >= known["next"])
    if ahead:
        ahead -= BitMap64(expired_between(db, source, ahead.min(), ahead.max() + 1))
    if ahead:
        db.execute("UPDATE sources SET ahead_change = ? WHERE source = ?", (tick(db), source))
        accepted |= _with_debt(reasons, ahead, _IN_THE_LOG)
    db.executemany(
        "INSERT INTO exceptions (source, sequence, child, stage, outcome, reason) "
        "VALUES (?, ?, '', '', ?, ?)",
        [(source, sequence, Outcome.EXPIRED, reason) for sequence, reason in accepted.items()],
    )
    return accepted


def _leave_batch(
    db: sqlite3.Connection, source: str, start: int, left: BitMap64, expired: int, now: float
) -> None:
    db.execute(
        "UPDATE batches SET owed = ?, owed_count = ?, expired = expired + ?, change = ?, settled_at = ? "
        "WHERE source = ? AND start = ?",
        (to_bytes(left), len(left), expired, tick(db), None if left else now, source, start),
    )


def _by_sinks(
    sinks: Sequence[OwingSink], origins: BitMap64
) -> Iterator[tuple[BitMap64, tuple[OwingSink, ...]]]:
    """The origins, by the sinks that have not delivered them."""
    parts: list[tuple[BitMap64, tuple[OwingSink, ...]]] = [(origins, ())]
    for sink in sinks:
        divided = []
        for part, owing in parts:
            owes = part if sink.owed is None else part & sink.owed
            divided += [(owes, (*owing, sink)), (part - owes, owing)]
        parts = [each for each in divided if each[0]]
    yield from parts


def _with_debt(reasons: Mapping[int, str], origins: BitMap64, debt: str) -> dict[int, str]:
    """The reasons of these origins, each distinct one made once."""
    texts: dict[str, str] = {}
    for sequence in origins:
        reason = reasons[sequence]
        if reason not in texts:
            texts[reason] = redact(f"{reason}; {debt}")
    return {sequence: texts[reasons[sequence]] for sequence in origins}


def _owed_by(sinks: Sequence[OwingSink]) -> str:
    if not sinks:
        return _NOBODY
    named = ", ".join(f"{sink.name} ({_how(sink)})" for sink in sinks[:MOST_NAMED])
    more = f" and {len(sinks) - MOST_NAMED} more" if len(sinks) > MOST_NAMED else ""
    return f"owed by {named}{more}"


def _how(sink: OwingSink) -> str:
    if sink.waits:
        return "handed on, not settled there yet"
    error = excerpt(sink.error, _ERROR_LENGTH)
    if sink.attempts:
        return f"tried {sink.attempts} times{': ' + error if error else ''}"
    return error or "no answer yet"
