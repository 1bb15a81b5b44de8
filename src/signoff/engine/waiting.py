"""Rows that wait for a step: it failed for now, and is run again for them alone, after growing waits.

Per sink, because what one sink still lacks another may have: a row that was computed once, but which a
sink did not take, is computed again for that sink, and the step may fail then. So the ledger keeps, for
each sink behind the step, the rows it does not get yet (`Wait`), beside what the sink itself owes. The sink
may be done with all others, and nobody calls it failing.

A row that waits is asked for in a round of its own, in which the sinks get it as they get a replayed dead
letter: under its id, and as a batch of its own where a sink publishes whole batches.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyroaring import BitMap64

from signoff.engine.result import Kind, Result
from signoff.engine.verdict import BY_POLICY, Round
from signoff.ledger.outcome import BatchState, RowOutcome, RowRef, SinkState, Wait
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import OnFailure, Retry, TransformConfig
from signoff.sinks.contract import BatchRef
from signoff.sinks.retry import exhausted


@dataclass(frozen=True)
class PatientStep:
    """A step that may fail for now."""

    policy: OnFailure
    """What becomes of a row after the last try."""
    retry: Retry
    sinks: frozenset[str]
    """Those behind it."""


def patient_steps(graph: Graph) -> dict[str, PatientStep]:
    """The steps of a pipeline that have a `retry`."""
    found = {}
    for name, node in graph.transforms.items():
        assert isinstance(node.config, TransformConfig)
        retry = getattr(node.config, "retry", None)
        if isinstance(retry, Retry):
            behind = frozenset(graph.downstream(name) & graph.sinks.keys())
            found[name] = PatientStep(node.config.on_error, retry, behind)
    return found


class Wanted:
    """The rows each sink was asked for in a round; None: all."""

    def __init__(self, asked: Mapping[str, SinkState]) -> None:
        self.sinks = tuple(asked)
        self._rows: dict[str, dict[int, list[RowRef]] | None] = {}
        for name, state in asked.items():
            rows: dict[int, list[RowRef]] = defaultdict(list)
            for row in state.owed or ():
                rows[row.sequence].append(row)
            self._rows[name] = None if state.owed is None else rows

    def lacking(self, sink: str, failed: RowRef) -> list[RowRef]:
        """What the sink wanted of a row, or made from it, or that it was made from."""
        rows = self._rows[sink]
        if rows is None:
            return [failed]
        near = rows.get(failed.sequence, ())
        below = [row for row in near if failed.holds(row)]
        return below or [failed for row in near if row.holds(failed)]


def relevant(
    results: Sequence[Result], wanted: Wanted, steps: Mapping[str, PatientStep], open_ones: BitMap64
) -> list[Result]:
    """Of a later round, only what steps say of rows that somebody has asked for: the rest was said before."""

    def concerns(result: Result) -> bool:
        step = steps.get(result.name)
        if step is None or result.kind not in (Kind.ERROR, Kind.DROPPED):
            return True
        row = _row(result)
        return row.sequence in open_ones and any(
            sink in step.sinks and wanted.lacking(sink, row) for sink in wanted.sinks
        )

    return [result for result in results if concerns(result)]


def waiting_for(results: Iterable[Result], steps: Mapping[str, PatientStep], sink: str) -> BitMap64:
    """The origins of rows that failed for now before they could come to a sink."""
    return BitMap64(
        _row(result).sequence
        for result in results
        if result.kind == Kind.WAITS and sink in steps[result.name].sinks
    )


def add_waits(
    verdict: Round,
    results: Iterable[Result],
    wanted: Wanted,
    steps: Mapping[str, PatientStep],
    before: Mapping[str, SinkState],
    now: float,
    *,
    again: bool = False,
) -> None:
    """Add to a verdict what failed for now, for every sink that wanted rows of it.

    `before`: what waits already. `again`: it was tried now, so that only what failed again waits on.
    """
    given_up: dict[tuple[RowRef, str], RowOutcome] = {}
    for wait, failures in _failures(results, wanted, steps).items():
        origins = BitMap64(row.sequence for row in failures)
        sink = verdict.sinks.get(wait.sink)
        if not again and sink is not None and not sink.done and sink.owed is None:
            verdict.owed |= origins  # it gets the whole batch again, and the step is run for all of it
            continue
        step, known = steps[wait.step], before.get(str(wait))
        earlier = known if known is not None and not known.done else SinkState(done=False)
        attempts = earlier.attempts + 1 if again else max(earlier.attempts, 1)
        if exhausted(step.retry, attempts):
            for row, reason in failures.values():
                text = f"gave up after {attempts} attempts: {reason}"
                outcome = RowOutcome(row, wait.step, BY_POLICY[step.policy], text, transient=True)
                given_up[row, wait.step] = outcome
            continue
        verdict.owed |= origins
        verdict.sinks[str(wait)] = SinkState(
            done=False,
            attempts=attempts,
            error=next(reason for _, reason in failures.values()),
            since=earlier.since or now,
            owed=tuple(sorted({*failures, *(() if again else earlier.owed or ())})),
        )
    verdict.outcomes += given_up.values()


def _failures(
    results: Iterable[Result], wanted: Wanted, steps: Mapping[str, PatientStep]
) -> dict[Wait, dict[RowRef, tuple[RowRef, str]]]:
    """By the row a sink lacks: the row the step failed for, and why."""
    found: dict[Wait, dict[RowRef, tuple[RowRef, str]]] = defaultdict(dict)
    for result in results:
        if result.kind != Kind.WAITS:
            continue
        failed = _row(result)
        for sink in wanted.sinks:
            if sink in steps[result.name].sinks:
                for row in wanted.lacking(sink, failed):
                    found[Wait(sink, result.name)][row] = (failed, result.text or "")
    return found


def take_over(verdict: Round, known: BatchState, waits: Mapping[Wait, SinkState], atomic: set[str]) -> None:
    """After a round for rows that waited: what the sinks did not take is theirs to owe, beside the rest.

    A sink that publishes a batch at once cannot have single rows of it: for such a sink they go on waiting.
    """
    for wait, state in waits.items():
        verdict.sinks.setdefault(str(wait), SinkState(done=True, attempts=state.attempts))
        answer = verdict.sinks.pop(wait.sink, None)
        if answer is None or answer.done:
            continue
        if wait.sink in atomic and answer.handed is None:
            verdict.sinks[str(wait)] = replace(state, error=answer.error)
            continue
        own = known.sinks[wait.sink]
        verdict.sinks[wait.sink] = answer if own.done else _together(own, answer)
    for state in {**known.sinks, **verdict.sinks}.values():
        verdict.owed |= state.owes(known.owed)


def _together(own: SinkState, more: SinkState) -> SinkState:
    if own.owed is None:
        return own
    rows = tuple(sorted({*own.owed, *(more.owed or ())}))
    handed = own.handed if more.handed is None else more.handed | (own.handed or BitMap64())
    attempts = max(own.attempts, more.attempts)
    return SinkState(False, attempts, more.error, own.since or more.since, rows, handed)


def only_open(state: SinkState, open_ones: BitMap64) -> SinkState:
    """Without rows of events that are settled meanwhile: expired, or refused at once."""
    return replace(state, owed=tuple(row for row in state.owed or () if row.sequence in open_ones))


def by_event(state: SinkState) -> SinkState:
    """The same rows, named by their events alone: their own names are lost in a step that unites events. An
    event that was split before may be written once more than it must, under another id."""
    return replace(state, owed=tuple(sorted({RowRef(row.sequence) for row in state.owed or ()})))


def due_again(
    owing: Mapping[str, SinkState],
    asked: Iterable[str],
    due: Mapping[str, float],
    wait_s: Callable[[str, SinkState], float],
) -> dict[str, float]:
    """When to ask again those that were asked in vain, and steps that rows have begun to wait for."""
    now, times, found = time.monotonic(), dict[tuple[str, int], float](), dict[str, float]()
    for name, state in owing.items():
        wait = Wait.parse(name)
        if name in asked or (wait is not None and name not in due):
            key = (wait.step if wait else name, state.attempts)
            if key not in times:  # a step is asked for all its sinks at once
                times[key] = now + wait_s(name, state)
            found[name] = times[key]
    return found


def rows_alone(batch: BatchRef, waits: Mapping[Wait, SinkState]) -> BatchRef:
    """The batch under another name, which is the same whenever the same rows are asked for."""
    rows = sorted(f"{wait} {row.sequence}/{row.child}" for wait, s in waits.items() for row in s.owed or ())
    tag = hashlib.sha256("\n".join(rows).encode()).hexdigest()[:8]
    return replace(batch, replay=int(tag, 16))


def _row(result: Result) -> RowRef:
    assert result.sequence is not None
    return RowRef(result.sequence, result.child or "")
