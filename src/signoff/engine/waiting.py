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

from signoff.engine.lineage import made_from
from signoff.engine.result import Kind, Result
from signoff.engine.verdict import BY_POLICY, Round
from signoff.ledger.outcome import BatchState, RowOutcome, RowRef, SinkState, Wait
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import OnFailure, Retry, TransformConfig
from signoff.sinks.contract import BatchRef
from signoff.sinks.retry import exhausted

FOLLOWING = Retry(initial_ms=40, max_ms=40)
"""How soon it is looked again whether the event that a row waits for is settled."""


@dataclass(frozen=True)
class PatientStep:
    """A step that may fail for now."""

    policy: OnFailure
    """What becomes of a row after the last try."""
    retry: Retry
    sinks: frozenset[str]
    """Those behind it."""
    behind: frozenset[str] = frozenset()
    """The steps behind it."""
    follows: bool = False
    """It did not fail: its rows wait for other events (see `repeats`), and are no attempts of anybody."""


def patient_steps(graph: Graph) -> dict[str, PatientStep]:
    """The steps of a pipeline that have a `retry`, or whose rows wait for other events."""
    found = {}
    for name, node in graph.transforms.items():
        assert isinstance(node.config, TransformConfig)
        retry = getattr(node.config, "retry", None)
        follows = bool(getattr(node.config, "follows", False))
        if isinstance(retry, Retry) or follows:
            behind = graph.downstream(name)
            sinks = frozenset(behind & graph.sinks.keys())
            found[name] = PatientStep(
                node.config.on_error,
                FOLLOWING if follows or not isinstance(retry, Retry) else retry,
                sinks,
                frozenset(behind - sinks),
                follows,
            )
    return found


class Wanted:
    """The rows each sink was asked for in a round; None: all.

    `way`: of what is made from them only what comes out of one of these steps.
    """

    def __init__(self, asked: Mapping[str, SinkState], way: frozenset[str] | None = None) -> None:
        self.sinks, self._way = tuple(asked), way
        self._rows: dict[str, dict[int, list[RowRef]] | None] = {}
        for name, state in asked.items():
            rows: dict[int, list[RowRef]] = defaultdict(list)
            for row in state.owed or ():
                rows[row.sequence].append(row)
            self._rows[name] = None if state.owed is None else rows

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
    results: Sequence[Result], wanted: Wanted, steps: Mapping[str, PatientStep], open_ones: BitMap64
) -> list[Result]:
    """Of a later round, only what steps say of rows that somebody has asked for: the rest was said before."""

    def concerns(result: Result) -> bool:
        step = steps.get(result.name)
        if step is None or result.kind not in (Kind.ERROR, Kind.DROPPED):
            return True
        row = row_of(result)
        return row.sequence in open_ones and any(
            sink in step.sinks and wanted.lacking(sink, row) for sink in wanted.sinks
        )

    return [result for result in results if concerns(result)]


def fails_by_itself(result: Result, steps: Mapping[str, PatientStep]) -> bool:
    """Whether this is said by a step that fails on the same rows each time."""
    return result.kind == Kind.ERROR and result.name not in steps


def on_the_way(step: str, results: Iterable[Result], steps: Mapping[str, PatientStep]) -> list[Result]:
    """Of a round for rows that wait for a step: without what steps on other ways to the same sinks say.

    If one in front of it fails for now, the rows wait on for the same one: if they waited for the one in
    front, they would be given again what has come to the sink by other ways behind that.
    """
    way = steps[step].behind | {step} if step in steps else steps.keys()
    found = []
    for result in results:
        other = steps.get(result.name)
        in_front = other is not None and step in other.behind
        if in_front and result.kind == Kind.WAITS:
            found.append(replace(result, name=step))
        elif other is None or in_front or result.name in way:
            found.append(result)
    return found


def waiting_for(results: Iterable[Result], steps: Mapping[str, PatientStep], sink: str) -> BitMap64:
    """The origins of rows that failed for now before they could come to a sink."""
    return BitMap64(
        row_of(result).sequence
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
    again: str | None = None,
) -> None:
    """Add to a verdict what failed for now, for every sink that wanted rows of it.

    `before`: what waits already. `again`: a step whose rows were tried now: of those only
    what failed again waits on.
    """
    given_up: dict[tuple[RowRef, str], RowOutcome] = {}
    for wait, failures in _failures(results, wanted, steps).items():
        origins = BitMap64(row.sequence for row in failures)
        sink = verdict.sinks.get(wait.sink)
        tried = wait.step == again
        if again is None and sink is not None and not sink.done and sink.owed is None:
            verdict.owed |= origins  # it gets the whole batch again, and the step is run for all of it
            continue
        step, known = steps[wait.step], before.get(str(wait))
        earlier = known if known is not None and not known.done else SinkState(done=False)
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
        verdict.sinks[str(wait)] = SinkState(
            done=False,
            attempts=attempts,
            error=next(reason for _, reason in failures.values()),
            since=earlier.since or now,
            owed=tuple(sorted({*failures, *(() if tried else earlier.owed or ())})),
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
        failed = row_of(result)
        for sink in wanted.sinks:
            if sink in steps[result.name].sinks:
                through = steps[result.name].behind | {result.name}
                for row in wanted.lacking(sink, failed, through):
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
    attempts = max(own.attempts, more.attempts)
    return SinkState(False, attempts, more.error, own.since or more.since, rows, more.handed)


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


def row_of(result: Result) -> RowRef:
    assert result.sequence is not None
    return RowRef(result.sequence, result.child or "")
