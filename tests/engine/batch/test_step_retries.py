"""What a step says of a row, and what becomes of a row that waits for a step: without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pytest
from pyroaring import BitMap64

from signoff.engine.batch.step_retries import Wanted, add_waits, on_the_way, relevant, take_over
from signoff.engine.batch.verdict import Round, judge
from signoff.engine.plan.lineage import made_from
from signoff.engine.plan.plan import ErrorPlan, Plan
from signoff.engine.plan.retried_steps import RetriedStep
from signoff.engine.plan.task_report import ReportKind, TaskReport, pack_rows
from signoff.ledger.batch_state import BatchState, Done, OwesRows, SinkState, Untried, Wait
from signoff.ledger.outcome import Outcome, RowRef
from signoff.pipeline.model import Retry, SinkConfig
from signoff.sinks.contract import BatchRef
from signoff.transforms.row_results import Fail, RowResult, parse_result, result_text

NEW = Untried()
OUT = Wait("out", "ask")
STEPS = {"ask": RetriedStep("dead_letter", Retry(attempts=3), frozenset({"out", "other"}), frozenset({"a"}))}
CONFIG = SinkConfig(type="toy")


def waits(sequence: int, child: str = "", reason: str = "503") -> TaskReport:
    return TaskReport("ask", ReportKind.WAITS, sequence, child, reason)


def owes(sink: str, *rows: int) -> TaskReport:
    blob = pack_rows([(np.array(rows, dtype=np.int64), pa.array([""] * len(rows)))])
    return TaskReport(sink, ReportKind.OWED, text="down", number=1, blob=blob)


def first_round(results: Sequence[TaskReport], asked: Mapping[str, SinkState]) -> Round:
    entries = {name: (CONFIG, state) for name, state in asked.items()}
    verdict = judge(results, entries, {"ask": "dead_letter"}, lambda *_: None, set(), 5.0)
    add_waits(verdict, results, Wanted(asked), STEPS, {}, 5.0)
    return verdict


def next_round(
    results: Sequence[TaskReport],
    sinks: Mapping[str, SinkState],
    waits: Mapping[Wait, SinkState],
    atomic: set[str] | None = None,
) -> Round:
    """A round for all rows that wait."""
    due = {wait: state for wait, state in waits.items() if not state.done}
    asked = {wait.sink: Untried(state.wanted_rows) for wait, state in due.items()}
    entries = {name: (CONFIG, state) for name, state in asked.items()}
    verdict = judge(results, entries, {"ask": "dead_letter"}, lambda *_: "disk full", atomic or set(), 9.0)
    add_waits(verdict, results, Wanted(asked), STEPS, waits, 9.0, again="ask")
    known = BatchState(BatchRef("s", 0, 10), BitMap64(), BitMap64(range(10)), sinks, False, waits)
    take_over(verdict, known, due, atomic or set())
    return verdict


@pytest.mark.parametrize("answer", list(RowResult))
def test_what_a_step_says_is_heard_as_it_was_said(answer: RowResult) -> None:
    assert parse_result(result_text(answer, "w: of 3: no")) == (answer, "w: of 3: no")


def test_a_row_dropped_on_purpose_is_dropped_whatever_the_policy_of_the_step_is() -> None:
    verdict = judge(
        [TaskReport("ask", ReportKind.DROPPED, 1, "2", "old")],
        {},
        {"ask": "refuse"},
        lambda *_: None,
        set(),
        0,
    )
    (outcome,) = verdict.outcomes
    assert (outcome.row, outcome.stage, outcome.outcome, outcome.reason) == (
        RowRef(1, "2"),
        "ask",
        Outcome.DROPPED,
        "old",
    )


def test_a_row_that_failed_for_now_is_owed_and_the_sinks_behind_the_step_are_done() -> None:
    verdict = first_round([waits(4)], {"out": NEW, "other": NEW, "elsewhere": NEW})
    assert verdict.owed == BitMap64([4]) and not verdict.outcomes
    assert all(verdict.sinks[name].done for name in ("out", "other", "elsewhere"))
    waiting = OwesRows((RowRef(4),), attempts=1, error="503", since=5.0)
    assert verdict.waits == {OUT: waiting, Wait("other", "ask"): waiting}


def test_a_row_that_fails_again_is_counted_until_the_last_try_and_then_meets_the_policy() -> None:
    first = first_round([waits(4)], {"out": NEW})
    second = next_round([waits(4, reason="504")], first.sinks, first.waits)
    assert second.waits[OUT] == OwesRows((RowRef(4),), attempts=2, error="504", since=5.0), (
        "since the first failure"
    )
    verdict = next_round([waits(4)], first.sinks, second.waits)
    assert verdict.waits[OUT].done and not verdict.owed
    (outcome,) = verdict.outcomes
    assert outcome.outcome == Outcome.DEAD_LETTERED and outcome.stage == "ask" and outcome.transient
    assert outcome.reason == "gave up after 3 attempts: 503"


def test_only_what_fails_again_waits_on() -> None:
    first = first_round([waits(4), waits(6)], {"out": NEW})
    verdict = next_round([waits(6)], first.sinks, first.waits)
    assert verdict.waits[OUT].wanted_rows == (RowRef(6),) and verdict.owed == BitMap64([6])
    assert "out" not in verdict.sinks, "the sink's own state stays as it is"


def test_what_a_sink_does_not_take_of_rows_that_waited_it_owes_beside_the_rest() -> None:
    sinks = {"out": OwesRows((RowRef(2),), attempts=7, error="down", since=1.0)}
    waiting = {OUT: OwesRows((RowRef(4),), attempts=1, error="503", since=5.0)}
    verdict = next_round([owes("out", 4)], sinks, waiting)
    assert verdict.sinks["out"] == OwesRows((RowRef(2), RowRef(4)), attempts=7, error="down", since=1.0)
    assert verdict.waits[OUT].done and verdict.owed == BitMap64([2, 4])


def test_rows_that_waited_stay_so_while_a_sink_that_publishes_at_once_cannot() -> None:
    sinks, waiting = {"out": Done()}, {OUT: OwesRows((RowRef(4),), attempts=2, error="503", since=5.0)}
    signed = TaskReport("out", ReportKind.SIGNED, number=1, blob=BitMap64([4]).serialize())
    part = TaskReport("out", ReportKind.PART, blob=b"part")
    verdict = next_round([signed, part], sinks, waiting, atomic={"out"})
    assert verdict.waits == {OUT: OwesRows((RowRef(4),), attempts=2, error="disk full", since=5.0)}
    assert not verdict.sinks
    assert verdict.owed == BitMap64([4]) and not verdict.delivered


def test_a_sink_that_is_down_gets_all_again_and_nothing_waits_for_it_twice() -> None:
    verdict = first_round([waits(4), owes("out", 1, 2)], {"out": NEW, "other": NEW})
    assert verdict.sinks["out"].wants_all and not any(wait.sink == "out" for wait in verdict.waits)
    assert verdict.owed == BitMap64([1, 2, 4])


def test_a_sink_that_asks_again_for_rows_waits_for_those_rows_only() -> None:
    asked = {"out": OwesRows((RowRef(4, "1/a"), RowRef(5)), attempts=3, error="down", since=1.0)}
    verdict = first_round([waits(4, "1"), waits(9), waits(5, "7")], asked)
    assert verdict.waits[OUT].wanted_rows == (RowRef(4, "1/a"), RowRef(5, "7"))
    assert verdict.owed == BitMap64([4, 5])


def test_what_a_step_fails_on_in_a_later_round_counts_only_for_rows_asked_for() -> None:
    asked = Wanted({"out": Untried((RowRef(4),)), "elsewhere": Untried((RowRef(5),))})
    results = [TaskReport("ask", ReportKind.ERROR, sequence, "", "400") for sequence in (3, 4, 5)]
    assert relevant(results, asked, STEPS, BitMap64([3, 4, 5])) == [results[1]]
    assert relevant(results, asked, STEPS, BitMap64([3, 5])) == []


def test_an_event_refused_at_once_is_waited_for_by_nobody() -> None:
    verdict = first_round([waits(4), waits(6)], {"out": NEW})
    verdict.settle(BitMap64([4]))
    assert verdict.waits[OUT].wanted_rows == (RowRef(6),) and verdict.owed == BitMap64([6])
    verdict.settle(BitMap64([6]))
    assert verdict.waits[OUT].done and not verdict.owed


def test_a_failure_survives_being_sent_to_another_process() -> None:
    again = pickle.loads(pickle.dumps(Fail("later", transient=True)))
    assert str(again) == "later" and again.transient


CHAIN = {
    "ask": RetriedStep("dead_letter", Retry(), frozenset({"out"}), frozenset({"then"})),
    "then": RetriedStep("dead_letter", Retry(), frozenset({"out"})),
    "beside": RetriedStep("dead_letter", Retry(), frozenset({"out"})),
}


def said_by(step: str, kind: ReportKind, sequence: int, child: str = "") -> TaskReport:
    return TaskReport(step, kind, sequence, child, "why")


def test_rows_that_wait_for_a_step_are_not_forgotten_when_others_begin_to_wait_for_it() -> None:
    then = Wait("out", "then")
    before = {
        OUT: OwesRows((RowRef(1),), attempts=1, error="503", since=5.0),
        then: OwesRows((RowRef(0),), attempts=1, error="503", since=5.0),
    }
    verdict, asked = Round(), Wanted({"out": Untried((RowRef(1),))})
    add_waits(verdict, [said_by("then", ReportKind.WAITS, 1)], asked, CHAIN, before, 9.0, again="ask")
    assert verdict.waits[then].wanted_rows == (RowRef(0), RowRef(1))
    assert verdict.waits[then].attempts == 1, "it was tried for the one that comes to it first"


def test_in_a_round_for_a_step_what_steps_beside_it_say_counts_for_nothing() -> None:
    results = [said_by(name, ReportKind.WAITS, 4) for name in ("beside", "then")]
    assert on_the_way("ask", results, CHAIN) == results[1:]
    errors = [said_by("beside", ReportKind.ERROR, 4), said_by("plain", ReportKind.ERROR, 4)]
    assert on_the_way("ask", errors, CHAIN) == errors[1:]


@pytest.mark.parametrize("row", [RowRef(4), RowRef(4, "ask"), RowRef(4, "ask/2")])
def test_a_row_that_waits_for_a_step_waits_on_for_it_when_one_in_front_fails(row: RowRef) -> None:
    """Also where rows meet in between, and it has the name of the one in front: else it was lost, and its
    event called delivered."""
    then = Wait("out", "then")
    before = {then: OwesRows((row,), attempts=1, error="503", since=5.0)}
    verdict, asked = Round(), Wanted({"out": Untried((row,))}, frozenset({"then"}))
    results = on_the_way("then", [said_by("ask", ReportKind.WAITS, 4)], CHAIN)
    add_waits(verdict, results, asked, CHAIN, before, 9.0, again="then")
    assert verdict.owed == BitMap64([4])
    assert verdict.waits == {then: OwesRows((row,), attempts=2, error="why", since=5.0)}


def test_of_rows_that_meet_behind_a_step_only_those_that_came_through_it_wait_for_it() -> None:
    asked = Wanted({"out": Untried((RowRef(4, "ask"), RowRef(4, "other.a")))})
    assert asked.lacking("out", RowRef(4), frozenset({"ask"})) == [RowRef(4, "ask")]
    again = Wanted({"out": Untried((RowRef(4),))}, frozenset({"ask", "then"}))
    assert again.lacking("out", RowRef(4, "source")) == []
    assert again.lacking("out", RowRef(4, "1/then")) == [RowRef(4, "1/then")]


@pytest.mark.parametrize(
    ("child", "parent", "through", "made"),
    [
        ("3/high", "3", None, True),
        ("30", "3", None, False),
        ("3", "", None, True),
        ("2/ask/7", "2", frozenset({"ask"}), True),
        ("2/7/ask.b", "2", frozenset({"ask"}), True),
        ("2/source/ask", "2", frozenset({"ask"}), False),
        ("2/7", "2", frozenset({"ask"}), True),
    ],
)
def test_a_row_is_made_from_another_by_the_way_that_its_name_says(
    child: str, parent: str, through: frozenset[str] | None, made: bool
) -> None:
    assert made_from(child, parent, through) is made


def test_steps_behind_one_that_may_fail_for_now_are_heard_in_every_pass() -> None:
    errors = (
        ErrorPlan("a", "parse", "dead_letter", None),
        ErrorPlan("b", "ask", "dead_letter", None, answers=True, changeable=True),
        ErrorPlan("c", "route", "dead_letter", None, changeable=True),
    )
    plan = Plan(None, {}, errors, shuffled=False)  # type: ignore[arg-type]
    assert [error.stage for error in plan.reported_errors(all_steps=False)] == ["ask", "route"]
