"""From what the tasks said to what the ledger records: one round of one batch, judged per sink.

A round is one pass over (part of) a batch. After it every sink is either done with the batch or
owes known rows; every row that could not be computed or delivered has an outcome by the policy of
its step or sink; and an origin of which nothing is owed is settled.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pyroaring import BitMap64

from signoff.engine.plan.task_report import ReportKind, TaskReport, unpack_rows
from signoff.errors import Discarded
from signoff.ledger.batch_state import Done, HandedOn, OwesAll, OwesRows, SinkState, Wait
from signoff.ledger.outcome import Outcome, RowOutcome, RowRef, is_united
from signoff.ledger.sequences import from_bytes, from_numpy
from signoff.pipeline.model import OnFailure, SinkConfig
from signoff.sinks.retry import exhausted
from signoff.transforms.route import NO_MATCH

logger = logging.getLogger(__name__)

Commit = Callable[[str, Sequence[bytes]], str | None]


class Final(str):
    """Why a commit failed, where no repeat of it helps."""

    __slots__ = ()


MOST_SPLIT = 10_000
"""So many rows are noted by name of a batch that a sink owes as a whole; of others only their events."""

BY_POLICY: dict[OnFailure, Outcome] = {
    "dead_letter": Outcome.DEAD_LETTERED,
    "refuse": Outcome.REFUSED,
    "drop": Outcome.DROPPED,
}


@dataclass
class Round:
    """What one round found out; what `Ledger.record` takes."""

    delivered: BitMap64 = field(default_factory=BitMap64)
    owed: BitMap64 = field(default_factory=BitMap64)
    outcomes: list[RowOutcome] = field(default_factory=list)
    sinks: dict[str, SinkState] = field(default_factory=dict)
    waits: dict[Wait, SinkState] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    published: set[str] = field(default_factory=set)
    """Sinks that have published what they were given."""

    def settle(self, origins: BitMap64) -> None:
        """Of these events nothing more is waited for, whoever still owes them."""
        if not origins:
            return
        self.owed -= origins
        self.sinks = {name: state.without(origins) for name, state in self.sinks.items()}
        self.waits = {wait: state.without(origins) for wait, state in self.waits.items()}

    @property
    def dead(self) -> list[RowOutcome]:
        return [outcome for outcome in self.outcomes if outcome.outcome == Outcome.DEAD_LETTERED]


@dataclass(frozen=True)
class SinkReply:
    """What all tasks of a round said about one sink, put together."""

    signed: BitMap64
    rows: int
    refused: list[tuple[RowRef, str]]
    owed: list[RowRef]
    attempts: int
    error: str
    parts: list[bytes]
    taken: list[RowRef] = field(default_factory=list)
    """The rows it signed for, where they were said one by one."""

    @classmethod
    def of(cls, results: Sequence[TaskReport]) -> SinkReply:
        signed, rows, attempts, error = BitMap64(), 0, 0, ""
        refused: list[tuple[RowRef, str]] = []
        owed: list[RowRef] = []
        parts: list[bytes] = []
        taken: list[RowRef] = []
        for result in results:
            if result.kind == ReportKind.SIGNED:
                signed |= from_bytes(result.blob)
                rows += result.number or 0
            elif result.kind == ReportKind.REFUSED:
                assert result.sequence is not None
                refused.append((RowRef(result.sequence, result.child or ""), result.text or ""))
            elif result.kind == ReportKind.OWED:
                owed += _rows(result)
                attempts = max(attempts, result.number or 0)
                error = result.text or error
            elif result.kind == ReportKind.PART and result.blob is not None:
                parts.append(result.blob)
            elif result.kind == ReportKind.ROWS:
                taken += _rows(result)
        return cls(signed, rows, refused, owed, attempts, error, parts, taken)

    def signed_rows(self) -> list[RowRef]:
        """The rows it signed for; where they were not said one by one, by the event they are made from."""
        return self.taken or [RowRef(int(sequence)) for sequence in self.signed]


def judge(
    results: Sequence[TaskReport],
    asked: Mapping[str, tuple[SinkConfig, SinkState]],
    policies: Mapping[str, OnFailure],
    commit: Commit,
    atomic: set[str],
    now: float,
    links: Mapping[str, bool] | None = None,
    taking_back: Collection[str] = (),
) -> Round:
    """Judge one round. `asked`: the sinks it was for; `policies`: `on_error` by stage. `links`: those of
    them that hand rows on to another log, and whether events wait for what becomes of the rows there.

    `commit` makes an atomic sink's batch visible and returns None, or why it could not (`Final`: and never
    will); it raises Discarded when the rows were dropped. `taking_back`: sinks for which it is called also if
    there are no rows: what a pass published under the same name, that was not recorded, is not what is
    recorded now. So it is before they give rows up: a dead letter is replayed under another name, and what a
    commit that failed has left visible would be there twice. Rows that cannot be taken back are still owed.
    """
    verdict = Round()
    for result in results:
        if result.kind in (ReportKind.ERROR, ReportKind.DROPPED):
            assert result.sequence is not None
            row = RowRef(result.sequence, result.child or "")
            dropped = result.kind == ReportKind.DROPPED
            outcome = Outcome.DROPPED if dropped else BY_POLICY[_policy(result, policies)]
            verdict.outcomes.append(RowOutcome(row, result.name, outcome, result.text or ""))
    for name, (config, before) in asked.items():
        mine = [result for result in results if result.name == name and result.kind != ReportKind.ERROR]
        answer = SinkReply.of(mine)
        link = (links or {}).get(name)
        if name in taking_back and not (answer.parts or answer.rows or answer.owed):
            _take_back(name, commit)
        try:
            takes_back = name in taking_back
            _judge_sink(verdict, name, config, before, answer, commit, name in atomic, takes_back, now, link)
        except Discarded as reason:
            refused = BY_POLICY[config.on_failure]
            verdict.outcomes += [RowOutcome(row, name, refused, why) for row, why in answer.refused]
            verdict.outcomes += [
                RowOutcome(row, name, Outcome.DROPPED, str(reason)) for row in answer.signed_rows()
            ]
            verdict.sinks[name] = Done(attempts=before.attempts + 1, error=str(reason))
    return verdict


def no_match(stage: str) -> str:
    """Where the policies say what becomes of a row that a route has no output for, if they do."""
    return f"{stage} no match"


def _policy(result: TaskReport, policies: Mapping[str, OnFailure]) -> OnFailure:
    if result.text == NO_MATCH and (given := policies.get(no_match(result.name))) is not None:
        return given
    return policies[result.name]


def ask_for_new_rows(verdict: Round, results: Sequence[TaskReport], asked: Mapping[str, SinkState]) -> None:
    """Of rows made of several events that were owed and did not come again: ask for whatever is made of their
    events now. One of the events was found to be poison since, or the pipeline has been changed."""
    steps = {
        r.sequence for r in results if r.kind in (ReportKind.ERROR, ReportKind.WAITS, ReportKind.DROPPED)
    }
    for name, before in asked.items():
        answer = SinkReply.of([r for r in results if r.name == name and r.kind != ReportKind.ERROR])
        named = {row.sequence for row, _ in answer.refused} | {row.sequence for row in answer.owed} | steps
        owed = {row.sequence for row in before.wanted_rows if is_united(row.child)}
        gone = owed - named - set(answer.signed)
        state = verdict.sinks[name]
        if gone and not state.wants_all:
            verdict.owed |= BitMap64(gone)
            rows = map(RowRef, sorted(gone))
            verdict.sinks[name] = state.also_owing(rows, "its events are united with others now")


def note_split(rows: Iterable[RowRef]) -> str:
    """What a sink that owes a whole batch notes of rows with names of their own: one of an event's rows may
    not come again while others do. Not of united ones: they are asked for by their events."""
    named = sorted({(row.sequence, row.child) for row in rows if row.child and not is_united(row.child)})
    return json.dumps(named[:MOST_SPLIT]) if named else ""


def _rows(result: TaskReport) -> Iterable[RowRef]:
    assert result.blob is not None
    sequences, children = unpack_rows(result.blob)
    return map(RowRef, sequences.tolist(), children.to_pylist())


def _take_back(name: str, commit: Commit) -> None:
    """What it published of the batch before a kill. Nothing is owed, so nobody would ask again."""
    if (failed := commit(name, ())) is not None:
        logger.warning('sink "%s" may hold rows that the batch has no more: %s', name, failed)


def _judge_sink(
    verdict: Round,
    name: str,
    config: SinkConfig,
    before: SinkState,
    answer: SinkReply,
    commit: Commit,
    atomic: bool,
    takes_back: bool,
    now: float,
    link: bool | None,
) -> None:
    policy = BY_POLICY[config.on_failure]
    attempts, error, owed = answer.attempts, answer.error, answer.owed
    failed: str | None = error if owed else None
    if atomic and not owed and (answer.parts or answer.rows):
        failed = commit(name, answer.parts)
        attempts = before.attempts + 1
        if failed is None:
            verdict.published.add(name)
    whole = atomic and failed is not None
    for row, reason in answer.refused:
        verdict.outcomes.append(RowOutcome(row, name, policy, reason))
    final = isinstance(failed, Final)
    gives_up = failed is not None and (final or exhausted(config.retry, attempts))
    if gives_up and whole and takes_back and (left := commit(name, ())) is not None:
        failed, gives_up = f"{failed}; what it may have published cannot be taken back: {left}", False
    if gives_up:
        reason = str(failed) if final else f"gave up after {attempts} attempts: {failed}"
        rows = owed if not whole else owed + answer.signed_rows()
        verdict.outcomes += [RowOutcome(row, name, policy, reason, transient=not final) for row in rows]
        failed = None
        if whole:
            answer = SinkReply(BitMap64(), 0, answer.refused, [], attempts, error, [])
    if failed is None and link and answer.signed:
        verdict.owed |= answer.signed
        verdict.sinks[name] = HandedOn(answer.signed, attempts=attempts, since=now)
        return
    if failed is None:
        verdict.delivered |= answer.signed
        if link is None:  # rows that were handed on are counted where they arrive
            verdict.rows[name] = answer.rows
        verdict.sinks[name] = Done(attempts=attempts)
        return
    origins = from_numpy(np.array([row.sequence for row in owed], dtype=np.uint64))
    if whole:
        origins |= answer.signed
    else:
        verdict.delivered |= answer.signed
        verdict.rows[name] = answer.rows
    untouched = before.wants_all and not answer.signed and not answer.refused
    verdict.owed |= origins
    since = before.since or now
    if whole and not before.wants_all:
        rows = [row for row in before.wanted_rows if row.sequence in origins]
        verdict.sinks[name] = OwesRows(tuple(rows), attempts=attempts, error=failed, since=since)
    elif whole or untouched:
        named = note_split(owed)
        verdict.sinks[name] = OwesAll(origins, named, attempts=attempts, error=failed, since=since)
    else:
        verdict.sinks[name] = OwesRows(tuple(owed), attempts=attempts, error=failed, since=since)
