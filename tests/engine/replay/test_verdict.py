"""What a pass over replayed letters says of each of them: without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyroaring import BitMap64

from signoff.engine.batch.verdict import Round
from signoff.engine.plan.task_report import ReportKind, TaskReport
from signoff.engine.replay.verdict import ReplayReports, Verdict, judge_letters
from signoff.ledger import DeadLetter, Outcome, RowOutcome, RowRef
from signoff.ledger.batch_state import HandedOn, SinkState
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import SinkConfig, SourceConfig, TransformConfig
from signoff.pipeline.settings import Settings
from tests.engine.batch.test_missing_rows import came

STEP, SINK = TransformConfig(type="toy"), SinkConfig(type="toy")
GRAPH = Graph(
    Settings(name="x", state="state"), "x.yaml", Path(),
    {
        "incoming": Node("incoming", "source", SourceConfig(type="toy")),
        "rows": Node("rows", "transform", STEP, (Port("incoming"),)),
        "few": Node("few", "transform", STEP, (Port("rows"),)),
        "hook": Node("hook", "sink", SINK, (Port("few"),)),
        "counts.lateness": Node("counts.lateness", "sink", SINK, (Port("few"),)),
    },
)  # fmt: skip


def replayed(
    stage: str,
    events: Sequence[str],
    *results: TaskReport,
    outcomes: Sequence[RowOutcome] = (),
    sinks: dict[str, SinkState] | None = None,
) -> Verdict:
    letters = [DeadLetter(f"incoming/{event}", stage, "no", b"") for event in events]
    heard = ReplayReports(GRAPH, stage, results, anew=False, observers=frozenset({"counts.lateness"}))
    return judge_letters("incoming", letters, Round(outcomes=list(outcomes), sinks=sinks or {}), heard)


def ends(verdict: Verdict) -> list[tuple[str, str]]:
    return [(one.outcome.value, one.reason) for one in verdict.resolutions]


def said(kind: ReportKind, stage: str, sequence: int, child: str = "", text: str = "") -> TaskReport:
    return TaskReport(stage, kind, sequence, child, text)


def test_a_letter_of_a_sink_is_delivered_by_a_row_that_came_under_its_name() -> None:
    found = replayed("hook", ["1/3", "2/4"], came((1, "3"), (2, "5")))
    assert ends(found)[0] == ("delivered", "delivered")
    assert ends(found)[1][0] == "dead_lettered" and "does not come to sink" in ends(found)[1][1]


def test_a_row_that_is_left_out_in_front_of_the_stage_is_no_replay_and_behind_it_is_dropped() -> None:
    left_out = said(ReportKind.LEFT_OUT, "few", 1, text="the condition does not hold")
    (one,) = ends(replayed("hook", ["1"], left_out))
    assert one[0] == "dead_lettered" and 'left out by "few" (the condition does not hold)' in one[1]
    reached = said(ReportKind.REACHED, "rows", 1)
    assert ends(replayed("rows", ["1"], reached, left_out)) == [
        ("dropped", 'dropped by "few" (the condition does not hold)')
    ]
    assert ends(replayed("rows", ["1"], left_out))[0][0] == "dead_lettered", "it never came to the step"


def test_what_fails_again_stays_and_what_fails_later_is_a_letter_of_its_own() -> None:
    again = RowOutcome(RowRef(1), "rows", Outcome.DEAD_LETTERED, "still no")
    later = RowOutcome(RowRef(2, "4"), "hook", Outcome.DEAD_LETTERED, "422")
    beside = RowOutcome(RowRef(2), "incoming", Outcome.DEAD_LETTERED, "no")
    reached = said(ReportKind.REACHED, "rows", 2)
    found = replayed("rows", ["1", "2"], reached, came((2, "4")), outcomes=[again, later])
    assert ends(found) == [("dead_lettered", "still no"), ("dropped", 'failed at a later stage: "hook": 422')]
    assert [(x.event_id, x.stage, x.reason) for x in found.further] == [("incoming/2/4", "hook", "422")]
    assert ends(replayed("rows", ["2"], outcomes=[beside])) == [
        ("dead_lettered", 'step "incoming" failed: no')
    ]


def test_what_a_full_buffer_discards_has_failed() -> None:
    full = RowOutcome(RowRef(1), "hook", Outcome.DROPPED, "the buffer is full")
    assert ends(replayed("hook", ["1"], came((1, "")), outcomes=[full])) == [
        ("dead_lettered", "the buffer is full")
    ]


def test_a_row_that_was_handed_on_is_not_decided() -> None:
    handed = {"hook": HandedOn(BitMap64([1]))}
    found = replayed("hook", ["1"], came((1, "")), sinks=handed)
    assert not found.resolutions and list(found.handed) == [("hook",)]


@pytest.mark.parametrize("stage", ["rows", "incoming"])
def test_a_row_that_is_only_looked_at_was_not_delivered(stage: str) -> None:
    reached = said(ReportKind.REACHED, "rows", 1)
    (one,) = ends(replayed(stage, ["1"], reached, came((1, ""), sink="counts.lateness")))
    assert one == ("dropped", 'dropped by "counts.lateness"')


def test_a_row_does_not_wait_for_what_becomes_of_a_row_beside_it() -> None:
    handed = {"hook": HandedOn(BitMap64([5]))}
    reached = [said(ReportKind.REACHED, "rows", 5, child) for child in "012"]
    left_out = said(ReportKind.LEFT_OUT, "few", 5, "1", "the condition does not hold")
    later = RowOutcome(RowRef(5, "2"), "hook", Outcome.DEAD_LETTERED, "too large")
    found = replayed("rows", ["5/0", "5/1", "5/2"], came((5, "0"), (5, "2")), *reached, left_out,
                     outcomes=[later], sinks=handed)  # fmt: skip
    assert [letter.event_id for letter in found.handed[("hook",)]] == ["incoming/5/0"]
    assert ends(found) == [
        ("dropped", 'dropped by "few" (the condition does not hold)'),
        ("dropped", 'failed at a later stage: "hook": too large'),
    ]
    unnamed = replayed("rows", ["5/0", "5/1"], *reached, sinks=handed)
    assert len(unnamed.handed[("hook",)]) == 2, "which of them is there cannot be told"


def test_a_step_that_fails_on_another_way_to_the_sink_is_not_the_rows_failure() -> None:
    nodes = {**GRAPH.nodes, "hook": Node("hook", "sink", SINK, (Port("few"), Port("incoming")))}
    graph = Graph(GRAPH.settings, GRAPH.file, GRAPH.base, nodes)
    letters = [DeadLetter(f"incoming/1/{way}", "hook", "no", b"") for way in ("incoming", "few")]
    failed = RowOutcome(RowRef(1), "rows", Outcome.DEAD_LETTERED, "it does not parse")
    heard = ReplayReports(graph, "hook", [came((1, "incoming"))], anew=False)
    one, other = ends(judge_letters("incoming", letters, Round(outcomes=[failed], sinks={}), heard))
    assert one == ("delivered", "delivered")
    assert other == ("dead_lettered", 'step "rows" failed: it does not parse')


def test_thousands_of_letters_are_judged_each_by_what_was_said_of_it_alone() -> None:
    looks = 0
    number = 3000

    class Counted(RowRef):
        def holds(self, other: RowRef) -> bool:
            nonlocal looks
            looks += 1
            return super().holds(other)

    results = [said(ReportKind.REACHED, "rows", n) for n in range(number)]
    results += [said(ReportKind.LEFT_OUT, "few", n, text="no") for n in range(number)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("signoff.ledger.letter.EventId.row", property(lambda e: Counted(e.sequence, e.child)))
        found = replayed("rows", [str(n) for n in range(number)], *results)
    assert {one.outcome for one in found.resolutions} == {Outcome.DROPPED}
    assert looks < 10 * number
