"""What is owed and does not come out of the plan is a dead letter, and only that: without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from signoff.engine.missing import Way, came_to, not_coming, not_let_through, owed_by_gone, ways
from signoff.engine.result import Kind, Result, pack_rows
from signoff.engine.waiting import PatientStep
from signoff.ledger.outcome import BatchRange, BatchState, RowRef, SinkState, Wait
from signoff.ledger.sequences import to_bytes
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import Retry, Settings, SinkConfig, SourceConfig, TransformConfig

ALL = BitMap64(range(10))
WAY = Way(frozenset({"incoming", "rows", "even"}), frozenset({"incoming", "rows", "even", "routes.high"}))
TRIED = SinkState(done=False, attempts=1, error="down")


def packed(*rows: tuple[int, str]) -> bytes:
    sequences = np.array([sequence for sequence, _ in rows], dtype=np.int64)
    return pack_rows([(sequences, pa.array([child for _, child in rows], pa.string()))])


def came(*rows: tuple[int, str], sink: str = "hook") -> Result:
    return Result(sink, Kind.CAME, blob=packed(*rows))


def signed(*origins: int, sink: str = "hook") -> Result:
    return Result(sink, Kind.SIGNED, number=len(origins), blob=to_bytes(BitMap64(origins)))


def missing(
    owed: Sequence[tuple[int, str]] | None, *results: Result, rows_of: Sequence[int] | None = None
) -> list[tuple[int, str]]:
    rows = None if owed is None else tuple(RowRef(*row) for row in owed)
    before = replace(TRIED, owed=rows, rows_of=None if rows_of is None else BitMap64(rows_of))
    return [(row.sequence, row.child) for row in not_coming("hook", before, results, ALL, WAY)]


@pytest.mark.case(44)
def test_of_owed_rows_those_are_missing_that_do_not_come_under_their_name_or_one_made_from_it() -> None:
    owed = [(1, ""), (2, "even"), (3, "7"), (4, "")]
    assert missing(owed, came((1, ""), (2, "pair"), (3, "7/even"), (3, "8"))) == [(2, "even"), (4, "")]
    assert missing(owed, came(*owed)) == []


def test_rows_that_a_step_in_front_speaks_of_are_not_missing_whatever_is_said_elsewhere() -> None:
    owed = [(1, "2"), (2, ""), (3, ""), (4, "")]
    said = [
        Result("rows", Kind.ERROR, 1, "", "of the whole event"),
        Result("even", Kind.DROPPED, 2, "5", "of a row made from it"),
        Result("rows", Kind.WAITS, 3, "", "503"),
        Result("elsewhere", Kind.ERROR, 4, "", "on another way"),
    ]
    assert missing(owed, *said) == [(4, "")]


def test_of_a_whole_batch_the_events_are_missing_that_had_rows_and_have_none() -> None:
    refused = Result("hook", Kind.REFUSED, 3, "", "no")
    left = Result("hook", Kind.OWED, number=2, blob=packed((4, "")))
    assert missing(None, signed(1, 2), refused, left, rows_of=[1, 2, 3, 4, 5, 99]) == [(5, "")]
    assert missing(None, signed(1)) == [], "recorded by a release that did not note them"


def test_a_receipt_of_an_earlier_release_stands_for_all_rows_of_its_events() -> None:
    assert missing([(1, "a"), (2, "")], signed(1)) == [(2, "")]


def test_rows_that_waited_for_a_step_may_be_filtered_out_behind_it_but_not_lost_with_it() -> None:
    step = PatientStep("dead_letter", Retry(), frozenset({"hook"}))
    rows = [RowRef(1), RowRef(2, "gone"), RowRef(3, "routes.high/4"), RowRef(4, "routes.top")]
    wait = Wait("hook", "ask")
    assert not_let_through(wait, rows, step, WAY) == [rows[1], rows[3]]
    assert not_let_through(wait, rows, None, WAY) == rows, "the step is gone"
    assert not_let_through(Wait("other", "ask"), rows, step, WAY) == rows, "not in front of it any more"


def batch(**sinks: SinkState) -> BatchState:
    return BatchState(BatchRange("incoming", 0, 10), BitMap64(), BitMap64([1, 2, 3, 4]), sinks, settled=False)


@pytest.mark.case(44)
def test_what_a_sink_that_is_gone_owes_is_what_came_to_it_and_what_nobody_else_owes() -> None:
    whole = replace(TRIED, rows_of=BitMap64([1, 9]))
    other = replace(TRIED, owed=(RowRef(2), RowRef(3)))
    known = batch(hook=whole, other=other)
    assert owed_by_gone("hook", whole, known, BitMap64()) == [RowRef(1), RowRef(4)], "4 waits for a step"
    assert owed_by_gone("hook", whole, known, BitMap64([1])) == [RowRef(4)], "a new sink has 1"
    assert owed_by_gone("hook", TRIED, known, BitMap64()) == [RowRef(n) for n in (1, 2, 3, 4)], "not noted"
    some = replace(TRIED, owed=(RowRef(2, "a"), RowRef(7)))
    assert owed_by_gone("hook", some, known, BitMap64()) == [RowRef(2, "a")], "7 has expired"
    assert owed_by_gone("counts.lateness", some, known, BitMap64()) == [], "it only counts"


def test_a_new_sink_has_what_comes_to_it_also_if_it_was_not_asked() -> None:
    held = Result("new", Kind.HELD, blob=to_bytes(BitMap64([5])))
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
