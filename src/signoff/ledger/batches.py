"""The life of a batch inside one transaction: open, record attempts until nothing is owed.

    open_batch   owed = every origin of the range, but those that expired before
    record       owed shrinks; each origin that leaves it is counted once, under its worst row
    settled      owed is empty; later the batch is folded (see `compaction`)

Meanwhile origins may leave `owed` because the source stops waiting for them (see `expiry`).

Every function here runs inside a transaction of its caller and leaves the invariant of `schema` true.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap64

from signoff.batch import BatchRef
from signoff.errors import StateError
from signoff.ledger import stage_totals
from signoff.ledger.batch_state import BatchState, Debtor, Done, SinkState, Untried, Wait
from signoff.ledger.outcome import FINAL, Outcome, RowOutcome, RowRef
from signoff.ledger.resolution import closed_as
from signoff.ledger.sequences import describe, from_bytes, from_range, to_bytes
from signoff.ledger.sink_rows import load_numbers, load_states, number, save_sinks
from signoff.pipeline.secrets import redact

_REPORTABLE = frozenset({Outcome.DEAD_LETTERED, Outcome.REFUSED, Outcome.DROPPED, Outcome.FAILED})

# The worst that happened to a row at a stage stands: an attempt that is repeated with another result
# (a policy changed between two runs) must not make it better. An equal one opens a closed letter again.
_RANK = "CASE {} WHEN 'failed' THEN 0 WHEN 'dropped' THEN 1 WHEN 'dead_lettered' THEN 2 ELSE 3 END"
_UPSERT = f"""
INSERT INTO exceptions (source, sequence, child, stage, outcome, reason, transient, letter)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET outcome = excluded.outcome, reason = excluded.reason, resolved = '',
transient = excluded.transient, letter = excluded.letter
WHERE {_RANK.format("excluded.outcome")} >= {_RANK.format("exceptions.outcome")}
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt at a batch gave; see `Ledger.record`."""

    delivered: BitMap64
    outcomes: Sequence[RowOutcome]
    sinks: Mapping[str, SinkState]
    waits: Mapping[Wait, SinkState]
    owed: BitMap64
    rows: Mapping[str, int]
    filtered: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    at_once: bool = False
    published: Collection[Debtor] = ()


def state(db: sqlite3.Connection, source: str, start: int, end: int) -> BatchState | None:
    ref = BatchRef(source, start, end)
    row = _find(db, source, start, end)
    if row is None:
        known = db.execute("SELECT folded FROM sources WHERE source = ?", (source,)).fetchone()
        if known is None or end > known["folded"]:
            return None
        return BatchState(ref, BitMap64(), BitMap64(), {}, settled=True)
    owed = from_bytes(row["owed"])
    sinks, waits = load_states(db, source, start)
    numbers = load_numbers(db, source, start)
    return BatchState(ref, from_bytes(row["delivered_set"]), owed, sinks, not owed, waits, numbers)


def open_batch(
    db: sqlite3.Connection, source: str, start: int, end: int, sinks: Sequence[str], now: float
) -> BatchState:
    if not 0 <= start < end:
        raise ValueError(f"a batch of {source} cannot be [{start}, {end}): it has no events")
    known = state(db, source, start, end)
    if known is not None:
        return _with_numbers(db, _with_new_sinks(db, known, sinks))
    following = source_row(db, source)["next"]
    if start != following:
        raise StateError(_misfit(source, start, end, following))
    expired = expired_between(db, source, start, end)
    owed = from_range(start, end) - BitMap64(expired)
    db.execute(
        'INSERT INTO batches (source, start, "end", owed, owed_count, delivered_set, change, opened_at, '
        "settled_at, expired) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (source, start, end, to_bytes(owed), len(owed), b"", tick(db) if expired else 0, now,
         None if owed else now, len(expired)),
    )  # fmt: skip
    save_sinks(db, source, start, dict.fromkeys(sinks, Untried() if owed else Done()))
    db.execute("UPDATE sources SET next = ? WHERE source = ?", (end, source))
    opened = state(db, source, start, end)
    assert opened is not None
    return opened


def _with_new_sinks(db: sqlite3.Connection, known: BatchState, sinks: Sequence[str]) -> BatchState:
    """A sink that came into the pipeline since gets what is still owed: it may be an old one, renamed.

    Under a number of its own, so that nothing is replaced which the old one has published."""
    new = [sink for sink in sinks if sink not in known.sinks]
    if known.settled or not new:
        return known
    ref = known.ref
    # What one that is gone has handed on is on its way, under whatever name.
    owed = known.owed - _all_handed(old for name, old in known.sinks.items() if name not in sinks)
    all_owed = len(owed) == ref.end - ref.start
    rows = None if all_owed else tuple(map(RowRef, owed))
    save_sinks(db, ref.source, ref.start, dict.fromkeys(new, Untried(rows)), new)
    again = state(db, ref.source, ref.start, ref.end)
    assert again is not None
    return again


def _with_numbers(db: sqlite3.Connection, known: BatchState) -> BatchState:
    """An earlier version has given none."""
    lacking = [
        who for who, each in known.debtors.items() if each.wanted_rows and who not in known.published_as
    ]
    for who in lacking:
        number(db, known.ref.source, known.ref.start, str(who))
    again = state(db, known.ref.source, known.ref.start, known.ref.end) if lacking else known
    assert again is not None
    return again


def record(db: sqlite3.Connection, source: str, start: int, end: int, attempt: Attempt, now: float) -> None:
    row = _find(db, source, start, end)
    if row is None:
        if state(db, source, start, end) is None:
            raise StateError(f"batch [{start}, {end}) of {source} was not opened; open_batch comes first")
        _count_ignored(db, source, len(attempt.delivered) + len(attempt.outcomes))
        return
    before = from_bytes(row["owed"])
    _check(attempt, before, start, end)
    accepted = [outcome for outcome in attempt.outcomes if outcome.row.sequence in before]
    late = attempt.delivered - before
    _count_ignored(db, source, len(late) + len(attempt.outcomes) - len(accepted))
    if not before:
        return
    stage_totals.count(db, source, start, end, accepted, attempt.filtered)
    _save_outcomes(db, source, start, end, accepted)
    known, _ = load_states(db, source, start)
    sinks = {name: _with_handed(new, known.get(name)) for name, new in attempt.sinks.items()}
    after = before & (attempt.owed | _all_handed({**known, **sinks}.values()))
    if attempt.at_once:
        after -= BitMap64(o.row.sequence for o in accepted if o.outcome == Outcome.REFUSED)
    _settle(db, row, attempt.delivered, after, now)
    save_sinks(db, source, start, {**sinks, **attempt.waits}, attempt.published)
    for sink, sink_state in sinks.items():  # not the waits: there a step fails
        since = None if sink_state.done or not sink_state.error else (sink_state.since or now)
        note_sink(db, sink, source, attempt.rows.get(sink, 0), sink_state.error, since)
        if sink_state.done:  # whatever was noted of it outside of a batch is over
            db.execute("UPDATE sinks SET since = NULL WHERE sink = ? AND source = ''", (sink,))
    for sink in attempt.rows.keys() - attempt.sinks.keys():
        note_sink(db, sink, source, attempt.rows[sink], "", None)


def _with_handed(new: SinkState, known: SinkState | None) -> SinkState:
    """With what was handed on before, and is not answered: an attempt knows only what it handed on itself."""
    handed = None if known is None else known.handed_on
    return new.also_handed(handed) if handed else new


def _all_handed(sinks: Iterable[SinkState]) -> BitMap64:
    return BitMap64.union(BitMap64(), *(handed for sink in sinks if (handed := sink.handed_on)))


def _settle(
    db: sqlite3.Connection, row: sqlite3.Row, delivered: BitMap64, after: BitMap64, now: float
) -> None:
    """Count the origins of a batch that are owed no more; `after` are those that still are."""
    source, start, before = row["source"], row["start"], from_bytes(row["owed"])
    delivered = from_bytes(row["delivered_set"]) | (delivered & before)
    counts = classify(db, source, start, row["end"], before - after, delivered)
    added = ", ".join(f"{outcome} = {outcome} + ?" for outcome in FINAL)
    db.execute(
        "UPDATE batches SET owed = ?, owed_count = ?, delivered_set = ?, change = ?, settled_at = ?, "
        f"{added} WHERE source = ? AND start = ?",
        (to_bytes(after), len(after), to_bytes(delivered), row["change"] if after == before else tick(db),
         None if after else now, *(counts[outcome] for outcome in FINAL), source, start),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class HandedOnOutcome:
    """What is known of rows that a sink has handed on; see `Ledger.release`."""

    asked: BitMap64
    still: BitMap64
    delivered: BitMap64
    outcomes: Sequence[RowOutcome] = ()
    at_once: bool = False
    """A refusal settles its event, also if it is undelivered at other sinks."""


def release(
    db: sqlite3.Connection, source: str, start: int, end: int, sink: str, answer: HandedOnOutcome, now: float
) -> SinkState | None:
    row = _find(db, source, start, end)
    if row is None:
        return Done() if state(db, source, start, end) else None
    sinks, waits = load_states(db, source, start)
    known = sinks.get(sink)
    if known is None or known.handed_on is None:
        over = not row["owed_count"] or (known is not None and known.done)
        return Done() if over else None
    gone = (known.handed_on & answer.asked) - answer.still
    if not gone:
        return known
    before = from_bytes(row["owed"])
    late = sum(o.row.sequence in gone and o.row.sequence not in before for o in answer.outcomes)
    _count_ignored(db, source, late + len((answer.delivered & gone) - before))
    named = [(o, closed_as(db, o)) for o in answer.outcomes if o.row.sequence in gone & before]
    accepted = [o for o, closed in named if not closed]
    replayed = BitMap64(o.row.sequence for o, closed in named if closed == Outcome.DELIVERED)
    _save_outcomes(db, source, start, end, accepted, tried=False)
    sinks[sink] = known.with_answer(known.handed_on - gone)
    owed = [each.owes(before) for each in (*sinks.values(), *waits.values())]
    after = before & (BitMap64.union(BitMap64(), *owed) | _all_handed(sinks.values()))
    if answer.at_once:
        after -= BitMap64(o.row.sequence for o in accepted if o.outcome == Outcome.REFUSED)
    _settle(db, row, (answer.delivered & gone) | replayed, after, now)
    save_sinks(db, source, start, {sink: sinks[sink]})
    return sinks[sink]


def classify(
    db: sqlite3.Connection, source: str, start: int, end: int, settled: BitMap64, delivered: BitMap64
) -> dict[Outcome, int]:
    """How many of the origins in `settled` count under each outcome, from what is recorded of their rows."""
    by_outcome: dict[str, list[int]] = {Outcome.EXPIRED: [], Outcome.REFUSED: [], Outcome.DEAD_LETTERED: []}
    for sequence, outcome in db.execute(
        "SELECT sequence, outcome FROM exceptions WHERE source = ? AND sequence >= ? AND sequence < ? "
        "AND resolved = '' AND outcome IN ('expired', 'refused', 'dead_lettered')",
        (source, start, end),
    ):
        by_outcome[outcome].append(sequence)
    counts, rest = dict.fromkeys(FINAL, 0), settled
    for outcome in (Outcome.EXPIRED, Outcome.REFUSED, Outcome.DEAD_LETTERED):
        found = rest & BitMap64(by_outcome[outcome])
        counts[outcome] = len(found)
        rest = rest - found
    counts[Outcome.DELIVERED] = len(rest & delivered)
    counts[Outcome.DROPPED] = len(rest) - counts[Outcome.DELIVERED]
    return counts


def note_sink(
    db: sqlite3.Connection, sink: str, source: str, rows: int, error: str, since: float | None
) -> None:
    """Add to a sink's totals. It is failing since the first error after it last worked."""
    db.execute(
        "INSERT INTO sinks (sink, source, rows, error, since) VALUES (?, ?, ?, ?, ?) "
        "ON CONFLICT DO UPDATE SET rows = rows + excluded.rows, "
        "error = CASE excluded.error WHEN '' THEN error ELSE excluded.error END, "
        "since = CASE WHEN excluded.since IS NULL THEN NULL ELSE coalesce(since, excluded.since) END",
        (sink, source, rows, redact(error), since),
    )


def source_row(db: sqlite3.Connection, source: str) -> sqlite3.Row:
    db.execute("INSERT INTO sources (source) VALUES (?) ON CONFLICT DO NOTHING", (source,))
    row: sqlite3.Row = db.execute("SELECT * FROM sources WHERE source = ?", (source,)).fetchone()
    return row


def expired_between(db: sqlite3.Connection, source: str, start: int, end: int) -> dict[int, str]:
    found = db.execute(
        "SELECT sequence, reason FROM exceptions WHERE source = ? AND sequence >= ? AND sequence < ? "
        "AND outcome = 'expired'",
        (source, start, end),
    )
    return dict(found.fetchall())


def tick(db: sqlite3.Connection) -> int:
    """The number of the change that is being made."""
    (change,) = db.execute("UPDATE clock SET change = change + 1 RETURNING change").fetchone()
    return int(change)


def _find(db: sqlite3.Connection, source: str, start: int, end: int) -> sqlite3.Row | None:
    row: sqlite3.Row | None = db.execute(
        'SELECT * FROM batches WHERE source = ? AND start = ? AND "end" = ?', (source, start, end)
    ).fetchone()
    return row


def _check(attempt: Attempt, before: BitMap64, start: int, end: int) -> None:
    """Refuse what contradicts itself, before anything is written."""
    named = attempt.delivered | attempt.owed | BitMap64(outcome.row.sequence for outcome in attempt.outcomes)
    if named and not start <= named.min() <= named.max() < end:
        raise ValueError(f"[{start}, {end}) does not hold {describe(named - from_range(start, end))}")
    if wrong := {outcome.outcome for outcome in attempt.outcomes} - _REPORTABLE:
        raise ValueError(f"not reported by row: {', '.join(sorted(wrong))}")
    unfinished = BitMap64(_waiting(attempt)) & before
    if early := unfinished - attempt.owed:
        raise ValueError(f"called settled while a row of theirs is to be tried again: {describe(early)}")


def _waiting(attempt: Attempt) -> Iterable[int]:
    for outcome in attempt.outcomes:
        if outcome.outcome == Outcome.FAILED:
            yield outcome.row.sequence
    for state in (*attempt.sinks.values(), *attempt.waits.values()):
        yield from (row.sequence for row in state.wanted_rows)


def _save_outcomes(
    db: sqlite3.Connection,
    source: str,
    start: int,
    end: int,
    outcomes: Sequence[RowOutcome],
    *,
    tried: bool = True,
) -> None:
    if tried:
        # What failed before and is not named again has been delivered, or is named with its final outcome.
        db.execute(
            "DELETE FROM exceptions "
            "WHERE source = ? AND sequence >= ? AND sequence < ? AND outcome = 'failed'",
            (source, start, end),
        )
    clean: dict[str, str] = {}
    for outcome in outcomes:
        if outcome.reason not in clean:
            clean[outcome.reason] = redact(outcome.reason)
    db.executemany(
        _UPSERT,
        [
            (source, o.row.sequence, o.row.child, o.stage, o.outcome.value, clean[o.reason], o.transient,
             o.letter)
            for o in outcomes
        ],
    )  # fmt: skip


def _count_ignored(db: sqlite3.Connection, source: str, number: int) -> None:
    if number:
        db.execute("UPDATE sources SET ignored = ignored + ? WHERE source = ?", (number, source))


def _misfit(source: str, start: int, end: int, following: int) -> str:
    if start < following:
        return (
            f"batch [{start}, {end}) of {source} overlaps batches the ledger has with other limits (all up "
            f"to {following}); Spark's checkpoint and the ledger do not belong together: was one removed?"
        )
    return (
        f"batch [{start}, {end}) of {source} would leave out the events from {following} on; "
        "the ledger is older than the log: was it removed or restored?"
    )
