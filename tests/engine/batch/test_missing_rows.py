"""What is owed and does not come out of the plan is a dead letter, and only that: without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from signoff.batch import BatchRef
from signoff.engine.batch.missing_rows import (
    Way,
    came_to,
    lettered,
    not_coming,
    not_let_through,
    owed_by_gone,
    ways,
)
from signoff.engine.plan.retried_steps import RetriedStep
from signoff.engine.plan.task_report import ReportKind, TaskReport, pack_rows
from signoff.ledger.batch_state import BatchState, OwesAll, OwesRows, SinkState, Wait
from signoff.ledger.outcome import RowRef
from signoff.ledger.sequences import to_bytes
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import Retry, SinkConfig, SourceConfig, TransformConfig
from signoff.pipeline.settings import Settings

ALL = BitMap64(range(10))
WAY = Way(frozenset({"incoming", "rows", "even"}), frozenset({"incoming", "rows", "even", "routes.high"}))
TRIED = OwesAll(attempts=1, error="down")


def owing(rows: Sequence[RowRef] | None = None, came: Sequence[int] | None = None) -> SinkState:
    if rows is not None:
        return OwesRows(tuple(rows), attempts=1, error="down")
    return replace(TRIED, came=None if came is None else BitMap64(came))


def packed(*rows: tuple[int, str]) -> bytes:
    sequences = np.array([sequence for sequence, _ in rows], dtype=np.int64)
    return pack_rows([(sequences, pa.array([child for _, child in rows], pa.string()))])


def came(*rows: tuple[int, str], sink: str = "hook") -> TaskReport:
    return TaskReport(sink, ReportKind.CAME, blob=packed(*rows))


def signed(*origins: int, sink: str = "hook") -> TaskReport:
    return TaskReport(sink, ReportKind.SIGNED, number=len(origins), blob=to_bytes(BitMap64(origins)))


def missing(
    owed: Sequence[tuple[int, str]] | None, *results: TaskReport, came: Sequence[int] | None = None
) -> list[tuple[int, str]]:
    rows = None if owed is None else tuple(RowRef(*row) for row in owed)
    before = owing(rows) if rows is not None else owing(came=came)
    return [(row.sequence, row.child) for row in not_coming("hook", before, results, ALL, WAY)]


def test_the_reason_of_a_row_that_is_left_out_names_the_conditions_in_front_unless_its_input_is_gone() -> (
    None
):
    way = replace(WAY, conditions=("even",))
    (said,) = {outcome.reason for outcome in lettered([RowRef(1), RowRef(2, "even")], "hook", way)}
    assert 'changed (the condition of "even"); replay it' in said
    (renamed,) = lettered([RowRef(1, "gone")], "hook", way)
    assert "changed; replay it" in renamed.reason
    (several,) = lettered([RowRef(1)], "hook", replace(WAY, conditions=("even", "high")))
    assert 'the condition of one of "even", "high"' in several.reason


@pytest.mark.case(44)
def test_of_owed_rows_those_are_missing_that_do_not_come_under_their_name_or_one_made_from_it() -> None:
    owed = [(1, ""), (2, "even"), (3, "7"), (4, "")]
    assert missing(owed, came((1, ""), (2, "pair"), (3, "7/even"), (3, "8"))) == [(2, "even"), (4, "")]
    assert missing(owed, came(*owed)) == []


def test_rows_that_a_step_in_front_speaks_of_are_not_missing_whatever_is_said_elsewhere() -> None:
    owed = [(1, "2"), (2, ""), (3, ""), (4, "")]
    said = [
        TaskReport("rows", ReportKind.ERROR, 1, "", "of the whole event"),
        TaskReport("even", ReportKind.DROPPED, 2, "5", "of a row made from it"),
        TaskReport("rows", ReportKind.WAITS, 3, "", "503"),
        TaskReport("elsewhere", ReportKind.ERROR, 4, "", "on another way"),
    ]
    assert missing(owed, *said) == [(4, "")]


def test_of_a_whole_batch_the_events_are_missing_that_had_rows_and_have_none() -> None:
    refused = TaskReport("hook", ReportKind.REFUSED, 3, "", "no")
    left = TaskReport("hook", ReportKind.OWED, number=2, blob=packed((4, "")))
    assert missing(None, signed(1, 2), refused, left, came=[1, 2, 3, 4, 5, 99]) == [(5, "")]
    assert missing(None, signed(1)) == [], "recorded by a release that did not note them"


def test_a_receipt_of_an_earlier_release_stands_for_all_rows_of_its_events() -> None:
    assert missing([(1, "a"), (2, "")], signed(1)) == [(2, "")]


def test_rows_that_waited_for_a_step_may_be_filtered_out_behind_it_but_not_lost_with_it() -> None:
    step = RetriedStep("dead_letter", Retry(), frozenset({"hook"}))
    rows = [RowRef(1), RowRef(2, "gone"), RowRef(3, "routes.high/4"), RowRef(4, "routes.top")]
    wait = Wait("hook", "ask")
    assert not_let_through(wait, rows, step, WAY) == [rows[1], rows[3]]
    assert not_let_through(wait, rows, None, WAY) == rows, "the step is gone"
    assert not_let_through(Wait("other", "ask"), rows, step, WAY) == rows, "not in front of it any more"


def batch(**sinks: SinkState) -> BatchState:
    return BatchState(BatchRef("incoming", 0, 10), BitMap64(), BitMap64([1, 2, 3, 4]), sinks, settled=False)


@pytest.mark.case(44)
def test_what_a_sink_that_is_gone_owes_is_what_came_to_it_and_what_nobody_else_owes() -> None:
    whole = owing(came=[1, 9])
    other = owing((RowRef(2), RowRef(3)))
    known = batch(hook=whole, other=other)
    assert owed_by_gone("hook", whole, known, BitMap64()) == [RowRef(1), RowRef(4)], "4 waits for a step"
    assert owed_by_gone("hook", whole, known, BitMap64([1])) == [RowRef(4)], "a new sink has 1"
    assert owed_by_gone("hook", TRIED, known, BitMap64()) == [RowRef(n) for n in (1, 2, 3, 4)], "not noted"
    some = owing((RowRef(2, "a"), RowRef(7)))
    assert owed_by_gone("hook", some, known, BitMap64()) == [RowRef(2, "a")], "7 has expired"
    assert owed_by_gone("counts.lateness", some, known, BitMap64()) == [], "it only counts"


def test_a_new_sink_has_what_comes_to_it_also_if_it_was_not_asked() -> None:
    held = TaskReport("new", ReportKind.HELD, blob=to_bytes(BitMap64([5])))
    assert came_to(["new"], [signed(1, sink="new"), held, signed(2)]) == BitMap64([1, 5])


def test_the_way_to_a_sink_names_its_inputs_as_ids_of_rows_do() -> None:
    nodes = {
        "incoming": Node("incoming", "source", SourceConfig(type="toy")),
        "routes": Node("routes", "transform", TransformConfig(type="toy"), (Port("incoming"),)),
        "side": Node("side", "transform", TransformConfig(type="toy"), (Port("incoming"),)),
        "hook": Node("hook", "sink", SinkConfig(type="toy"), (Port("routes", "high"), Port("routes", "low"))),
    }
    way = ways(Graph(Settings(name="x", state="state"), "x.yaml", Path(), nodes))["hook"]
    assert way.nodes == {"incoming", "routes"}
    assert way.leads("3/routes.high/~ab") and not way.leads("routes.top") and not way.leads("side")
