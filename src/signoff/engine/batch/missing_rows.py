"""Rows that are owed and do not come out of the plan any more. Runs on the driver.

A row is owed because an earlier pass has seen it on its way to a sink. If a later pass does not see it, the
pipeline has changed in between: a node on the way was renamed or removed (where ways meet, the names of the
inputs are part of the rows' ids), a condition was changed, or the sink itself is gone. Nobody decided
that the row may be forgotten, so it becomes a dead letter of that sink, whatever `on_failure` says: with its
event, to be replayed when the pipeline is as it was, or to be dropped. It never counts as done.

Not missing are
- rows a step has spoken of in this pass: it failed, waits, or dropped the row on purpose;
- rows of a sink that is new: nobody has seen yet what comes to it;
- what a sink that is gone owed, if a sink that is new gets rows of the same event: it is the old one,
  renamed. It stands for one: if more are gone than new ones get rows of the event, nobody knows which of
  them it is, and what they owe of the event is missing;
- rows that waited for a step which has now let them pass: they may be filtered out behind it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyroaring import BitMap64

from signoff.engine.batch.step_retries import row_of
from signoff.engine.batch.verdict import SinkReply
from signoff.engine.plan.lineage import made_from
from signoff.engine.plan.retried_steps import RetriedStep
from signoff.engine.plan.task_report import ReportKind, TaskReport, unpack_rows
from signoff.ledger.batch_state import BatchState, Debtor, OwesAll, SinkState, Wait
from signoff.ledger.outcome import Outcome, RowOutcome, RowRef, is_united
from signoff.ledger.sequences import from_bytes
from signoff.pipeline.graph import Graph
from signoff.stateful.window_sinks import LATENESS

NOT_COMING = (
    "the row was on its way here and does not come any more: a node in front was renamed, removed or "
    "changed{}; replay it when that is undone, or drop it"
)

_CONDITIONS = frozenset({"filter", "route", "sample"})
_REPORTED = frozenset({ReportKind.ERROR, ReportKind.WAITS, ReportKind.DROPPED})


@dataclass(frozen=True)
class Way:
    """What rows go through before they come to a sink."""

    nodes: frozenset[str]
    labels: frozenset[str]
    """The inputs on the way, as they are called in the ids of rows."""
    conditions: tuple[str, ...] = ()
    """The steps on the way that leave rows out by a condition of the pipeline."""

    def leads(self, child: str) -> bool:
        """Whether a row may still have this name: all inputs in it are on the way."""
        return all(part in self.labels for part in child.split("/") if part[:1].isalpha())


def ways(graph: Graph) -> dict[str, Way]:
    """By sink of a graph."""
    found = {}
    for name in graph.sinks:
        nodes = graph.upstream(name)
        inputs = (port for node in (*nodes, name) for port in graph.nodes[node].inputs)
        steps = (node for node in graph.transforms if node in nodes)
        conditions = tuple(step for step in steps if graph.nodes[step].config.type in _CONDITIONS)
        found[name] = Way(frozenset(nodes), frozenset(map(str, inputs)), conditions)
    return found


def why_not_coming(way: Way | None, child: str) -> str:
    """The reason of a row that does not come. Where all its inputs are on the way, nothing was renamed, and a
    condition is what was changed, if there is one."""
    if way is None or not way.conditions or not way.leads(child):
        return NOT_COMING.format("")
    return NOT_COMING.format(_by_condition(way.conditions))


def left_out_before(new: Sequence[str], of: Mapping[str, Way]) -> str:
    """Why a row of a sink that is gone does not go to the new ones that get others of its rows; '' where
    there are none."""
    if not new:
        return ""
    conditions = dict.fromkeys(step for name in new if name in of for step in of[name].conditions)
    names = ", ".join(f'"{name}"' for name in new)
    return f", and the row does not come to {names}, which is new{_by_condition(tuple(conditions))}"


def _by_condition(names: Sequence[str]) -> str:
    told = ", ".join(f'"{name}"' for name in names)
    return f" (the condition of {'one of ' if len(names) > 1 else ''}{told})" if names else ""


def not_coming(
    sink: str, before: SinkState, results: Sequence[TaskReport], open_ones: BitMap64, way: Way | None
) -> list[RowRef]:
    """The rows a sink was asked for, in vain, of a pass that has ended with these results."""
    reported = _reported_rows(results, way)
    mine = [result for result in results if result.name == sink]
    if not isinstance(before, OwesAll):
        return _not_among(before.wanted_rows, mine, reported, open_ones)
    came = _came_at_all(mine) | BitMap64(reported)
    events = ((before.came or BitMap64()) & open_ones) - came
    named = [RowRef(*row) for row in json.loads(before.named or "[]")]
    rows = _not_among(named, mine, reported, open_ones - events)
    return [RowRef(int(sequence)) for sequence in events] + rows


def _not_among(
    wanted: Iterable[RowRef],
    mine: Sequence[TaskReport],
    reported: Mapping[int, list[RowRef]],
    open_ones: BitMap64,
) -> list[RowRef]:
    """Of rows that were asked for by name: those of which neither the sink nor a step has spoken."""
    names = came_names(mine)
    unnamed = _came_at_all(mine) - BitMap64(names)  # of a receipt that an earlier version has written
    return [
        row
        for row in wanted
        if row.sequence in open_ones
        and row.sequence not in unnamed
        and not is_united(row.child)  # see `ask_for_new_rows`
        and not any(made_from(child, row.child) for child in names.get(row.sequence, ()))
        and not any(row.holds(other) or other.holds(row) for other in reported.get(row.sequence, ()))
    ]


def not_let_through(
    wait: Wait, rows: Sequence[RowRef], step: RetriedStep | None, way: Way | None
) -> list[RowRef]:
    """Of rows that waited for a step and have not come: those that cannot come. The others came to the step,
    and have been filtered out behind it."""
    if step is None or wait.sink not in step.sinks:
        return list(rows)
    return [row for row in rows if way is not None and not way.leads(row.child)]


def owed_by_gone(who: Debtor, state: SinkState, known: BatchState, taken_over: BitMap64) -> list[RowRef]:
    """What a sink that is not in the pipeline any more owes of a batch; without the events of which a sink
    that is new gets rows."""
    if isinstance(who, str) and who.endswith(LATENESS):
        return []  # it only counts what goes by
    if not state.wants_all:
        rows: Iterable[RowRef] = (row for row in state.wanted_rows if row.sequence in known.owed)
    elif state.arrived is None:
        rows = map(RowRef, known.owed)
    else:
        # What waits for a step in front of it was not seen to come to it: nobody else owes that.
        others = [_claimed(other) for key, other in known.debtors.items() if key != who and not other.done]
        rows = map(RowRef, known.owed & (state.arrived | (known.owed - BitMap64.union(BitMap64(), *others))))
    return [row for row in rows if row.sequence not in taken_over]


def came_to(sinks: Iterable[str], results: Sequence[TaskReport]) -> BitMap64:
    """The origins of rows that came to some of the sinks in a pass, asked or not."""
    names = set(sinks)
    mine = [result for result in results if result.name in names]
    held = (from_bytes(result.blob) for result in mine if result.kind == ReportKind.HELD)
    return BitMap64.union(_came_at_all(mine), *held)


def stood_for(gone: Collection[str], new: Sequence[BitMap64]) -> BitMap64:
    """The events of which every sink that is gone has a new one to stand for it. `gone`: also those that
    owe nothing, as one that is renamed may have had all its rows. `new`: by new sink, what comes to it."""
    numbers = Counter(sequence for origins in new for sequence in origins)
    return BitMap64(sequence for sequence, number in numbers.items() if number >= len(gone))


def lettered(rows: Iterable[RowRef], stage: str, why: str | Way | None) -> list[RowOutcome]:
    """Their outcome. `why`: the reason, or the way on which they do not come any more."""
    return [
        RowOutcome(
            row, stage, Outcome.DEAD_LETTERED, why if isinstance(why, str) else why_not_coming(why, row.child)
        )
        for row in rows
    ]


def _claimed(state: SinkState) -> BitMap64:
    """The origins that are known to be owed by one."""
    rows = BitMap64(row.sequence for row in state.wanted_rows)
    return BitMap64.union(rows, state.arrived or BitMap64(), state.handed_on or BitMap64())


def _came_at_all(mine: Sequence[TaskReport]) -> BitMap64:
    answer = SinkReply.of(mine)
    rows = [*answer.owed, *(row for row, _ in answer.refused)]
    return answer.signed | BitMap64(row.sequence for row in rows)


def came_names(mine: Sequence[TaskReport]) -> Mapping[int, list[str]]:
    """The rows of a sink's results that came to it, as children by sequence."""
    found: dict[int, list[str]] = {}
    for result in mine:
        if result.kind == ReportKind.CAME and result.blob is not None:
            sequences, children = unpack_rows(result.blob)
            for sequence, child in zip(sequences.tolist(), children.to_pylist(), strict=True):
                found.setdefault(sequence, []).append(child)
    return found


def _reported_rows(results: Sequence[TaskReport], way: Way | None) -> Mapping[int, list[RowRef]]:
    """The rows that steps in front of a sink have spoken of."""
    found: dict[int, list[RowRef]] = {}
    for result in results:
        if result.kind in _REPORTED and (way is None or result.name in way.nodes):
            row = row_of(result)
            found.setdefault(row.sequence, []).append(row)
    return found
