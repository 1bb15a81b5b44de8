"""Rows that wait for a step: it failed for now, and is run again for them alone, after growing waits.

Per sink, because what one sink still lacks another may have: a row that was computed once, but which a
sink did not take, is computed again for that sink, and the step may fail then. So the ledger keeps, for
each sink behind the step, the rows it does not get yet (`Wait`), beside what the sink itself owes. The sink
may be done with all others, and nobody calls it failing.

A row that waits is asked for in a round of its own, in which the sinks get it as they get a replayed dead
letter: under its id, and beside its batch where a sink publishes whole batches (`BatchState.published_as`).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from pyroaring import BitMap64

from signoff.engine.batch.verdict import BY_POLICY, Round
from signoff.engine.plan.lineage import made_from
from signoff.engine.plan.retried_steps import RetriedStep
from signoff.engine.plan.task_report import ReportKind, TaskReport
from signoff.ledger.batch_state import (
    BatchState,
    Debtor,
    Done,
    HandedOn,
    OwesRows,
    SinkState,
    Untried,
    Wait,
)
from signoff.ledger.outcome import RowOutcome, RowRef
from signoff.sinks.retry import exhausted


class Wanted:
    """The rows each sink was asked for in a round; None: all.

    `way`: of what is made from them only what comes out of one of these steps.
    """

    def __init__(self, asked: Mapping[str, SinkState], way: frozenset[str] | None = None) -> None:
        self.sinks, self._way = tuple(asked), way
        self._rows: dict[str, dict[int, list[RowRef]] | None] = {}
        for name, state in asked.items():
            rows: dict[int, list[RowRef]] = defaultdict(list)
            for row in state.wanted_rows:
                rows[row.sequence].append(row)
            self._rows[name] = None if state.wants_all else rows

    def lacking(self, sink: str, failed: RowRef, through: frozenset[str] | None = None) -> list[RowRef]:
        """What the sink wanted of a row, or made from it, or that it was made from.

        `through`: of what was made from it only what came out of one of these steps.
        """
        rows = self._rows[sink]
        if rows is None:
            return [failed]
        near = rows.get(failed.sequence, ())
        below = [row for row in near if made_from(row.child, failed.child, through)]
        return below or [failed for row in near if made_from(failed.child, row.child, self._way)]


def relevant(
    results: Sequence[TaskReport], wanted: Wanted, steps: Mapping[str, RetriedStep], open_ones: BitMap64
) -> list[TaskReport]:
    """Of a later round, only what steps say of rows that somebody has asked for: the rest was said before."""

    def concerns(result: TaskReport) -> bool:
        step = steps.get(result.name)
        if step is None or result.kind not in (ReportKind.ERROR, ReportKind.DROPPED):
            return True
        row = row_of(result)
        return row.sequence in open_ones and any(
            sink in step.sinks and wanted.lacking(sink, row) for sink in wanted.sinks
        )

    return [result for result in results if concerns(result)]


def fails_by_itself(result: TaskReport, steps: Mapping[str, RetriedStep]) -> bool:
    """Whether this is said by a step that fails on the same rows each time."""
    return result.kind == ReportKind.ERROR and result.name not in steps


def on_the_way(
    step: str, results: Iterable[TaskReport], steps: Mapping[str, RetriedStep]
) -> list[TaskReport]:
    """Of a round for rows that wait for a step: without what steps on other ways to the same sinks say.

    If one in front of it fails for now, that is kept: the rows wait on (see `add_waits`).
    """
    way = steps[step].behind | {step} if step in steps else steps.keys()
    found = []
    for result in results:
        other = steps.get(result.name)
        if other is None or step in other.behind or result.name in way:
            found.append(result)
    return found


def waiting_for(results: Iterable[TaskReport], steps: Mapping[str, RetriedStep], sink: str) -> BitMap64:
    """The origins of rows that failed for now before they could come to a sink."""
    return BitMap64(
        row_of(result).sequence
        for result in results
        if result.kind == ReportKind.WAITS and sink in steps[result.name].sinks
    )


def add_waits(
    verdict: Round,
    results: Iterable[TaskReport],
    wanted: Wanted,
    steps: Mapping[str, RetriedStep],
    before: Mapping[Wait, SinkState],
    now: float,
    *,
    again: str | None = None,
) -> None:
    """Add to a verdict what failed for now, for every sink that wanted rows of it.

    `before`: what waits already. `again`: a step whose rows were tried now: of those only
    what failed again waits on. They wait on for the same step where one in front of it failed: if they waited
    for that one, they would be given again what has come to the sink by other ways behind it.
    """
    given_up: dict[tuple[RowRef, str], RowOutcome] = {}
    for wait, failures in _failures(results, wanted, steps, again).items():
        origins = BitMap64(row.sequence for row in failures)
        sink = verdict.sinks.get(wait.sink)
        tried = wait.step == again
        if again is None and sink is not None and sink.wants_all:
            verdict.owed |= origins  # it gets the whole batch again, and the step is run for all of it
            continue
        step, known = steps[wait.step], before.get(wait)
        earlier = known if known is not None and not known.done else Untried()
        attempts = earlier.attempts + 1 if tried else max(earlier.attempts, 1)
        if step.follows:
            attempts = 0
        if exhausted(step.retry, attempts):
            for row, reason in failures.values():
                text = f"gave up after {attempts} attempts: {reason}"
                outcome = RowOutcome(row, wait.step, BY_POLICY[step.policy], text, transient=True)
                given_up[row, wait.step] = outcome
            continue
        verdict.owed |= origins
        verdict.waits[wait] = OwesRows(
            tuple(sorted({*failures, *(() if tried else earlier.wanted_rows)})),
            attempts=attempts,
            error=next(reason for _, reason in failures.values()),
            since=earlier.since or now,
        )
    verdict.outcomes += given_up.values()


def _failures(
    results: Iterable[TaskReport], wanted: Wanted, steps: Mapping[str, RetriedStep], again: str | None
) -> dict[Wait, dict[RowRef, tuple[RowRef, str]]]:
    """By the row a sink lacks: the row a step failed for, and why."""
    found: dict[Wait, dict[RowRef, tuple[RowRef, str]]] = defaultdict(dict)
    for result in results:
        if result.kind != ReportKind.WAITS:
            continue
        failed, step = row_of(result), steps[result.name]
        waits_for = again if again is not None and again in step.behind else result.name
        for sink in wanted.sinks:
            if sink in steps[waits_for].sinks:
                for row in wanted.lacking(sink, failed, step.behind | {result.name}):
                    found[Wait(sink, waits_for)][row] = (failed, result.text or "")
    return found


def take_over(verdict: Round, known: BatchState, waits: Mapping[Wait, SinkState], atomic: set[str]) -> None:
    """After a round for rows that waited: what the sinks did not take is theirs to owe, beside the rest.

    A sink that publishes a batch at once cannot have single rows of it: for such a sink they go on waiting.
    """
    for wait, state in waits.items():
        verdict.waits.setdefault(wait, Done(attempts=state.attempts))
        answer = verdict.sinks.pop(wait.sink, None)
        if answer is None or answer.done:
            continue
        if wait.sink in atomic and answer.handed_on is None:
            verdict.waits[wait] = replace(state, error=answer.error)
            continue
        own = known.sinks[wait.sink]
        verdict.sinks[wait.sink] = answer if own.done else _together(own, answer)
    sinks, waiting = {**known.sinks, **verdict.sinks}, {**known.waits, **verdict.waits}
    for state in (*sinks.values(), *waiting.values()):
        verdict.owed |= state.owes(known.owed)


def _together(own: SinkState, more: SinkState) -> SinkState:
    if own.wants_all:
        return own
    rows = tuple(sorted({*own.wanted_rows, *more.wanted_rows}))
    attempts, since, handed = max(own.attempts, more.attempts), own.since or more.since, more.handed_on
    if not rows and handed is not None:
        return HandedOn(handed, attempts=attempts, error=more.error, since=since)
    return OwesRows(rows, handed, attempts=attempts, error=more.error, since=since)


def only_open(state: SinkState, open_ones: BitMap64) -> SinkState:
    """Without rows of events that are settled meanwhile: expired, or refused at once."""
    return state.filtered(lambda row: row.sequence in open_ones)


def by_event(state: SinkState) -> SinkState:
    """The same rows, named by their events alone: their own names are lost in a step that unites events. An
    event that was split before may be written once more than it must, under another id."""
    rows = tuple(sorted({RowRef(row.sequence) for row in state.wanted_rows}))
    return OwesRows(rows, attempts=state.attempts, error=state.error, since=state.since)


def due_again(
    owing: Mapping[Debtor, SinkState],
    asked: Collection[Debtor],
    due: Mapping[Debtor, float],
    wait_s: Callable[[Debtor, SinkState], float],
) -> dict[Debtor, float]:
    """When to ask again those that were asked in vain, and steps that rows have begun to wait for."""
    now, times, found = time.monotonic(), dict[tuple[str, int], float](), dict[Debtor, float]()
    for who, state in owing.items():
        waits = isinstance(who, Wait)
        if who in asked or (waits and who not in due):
            key = (who.step if isinstance(who, Wait) else who, state.attempts)
            if key not in times:  # a step is asked for all its sinks at once
                times[key] = now + wait_s(who, state)
            found[who] = times[key]
    return found


def row_of(result: TaskReport) -> RowRef:
    assert result.sequence is not None
    return RowRef(result.sequence, result.child or "")
