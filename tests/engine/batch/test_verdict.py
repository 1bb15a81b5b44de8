"""Which refusals may be asked again: those of a sink that gave up, not those of one that said never."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from signoff.engine.batch.verdict import Final, Round, judge
from signoff.engine.plan.task_report import ReportKind, TaskReport, pack_rows
from signoff.ledger.batch_state import HandedOn, SinkState, Untried
from signoff.ledger.outcome import RowRef
from signoff.ledger.sequences import to_bytes
from signoff.pipeline.model import Retry, SinkConfig


def test_a_sink_that_gave_up_refuses_for_now_and_one_that_says_never_for_good() -> None:
    config = SinkConfig(type="toy", on_failure="refuse", retry=Retry(attempts=2))
    owed = pack_rows([(np.array([1], dtype=np.int64), pa.array([""]))])
    results = [
        TaskReport("out", ReportKind.REFUSED, 0, "", "too long"),
        TaskReport("out", ReportKind.OWED, text="down", number=2, blob=owed),
        TaskReport("parse", ReportKind.ERROR, 2, "", "not JSON"),
    ]
    asked = {"out": (config, Untried())}
    verdict = judge(results, asked, {"parse": "refuse"}, lambda *_: None, set(), 0.0)
    transient = {outcome.row: outcome.transient for outcome in verdict.outcomes}
    assert transient == {RowRef(0): False, RowRef(1): True, RowRef(2): False}


def test_a_batch_that_a_sink_never_commits_meets_its_policy_at_once() -> None:
    config = SinkConfig(type="toy", on_failure="dead_letter", retry=Retry())
    results = [TaskReport("out", ReportKind.SIGNED, number=1, blob=to_bytes(BitMap64([0])))]
    for failure, settled in ((Final("more rows than max_rows"), True), ("no permission", False)):
        verdict = judge(results, {"out": (config, Untried())}, {}, lambda *_, why=failure: why, {"out"}, 0.0)
        assert verdict.sinks["out"].done is settled
        assert [(each.reason, each.transient) for each in verdict.outcomes] == (
            [("more rows than max_rows", False)] if settled else []
        )


def test_an_event_that_is_settled_at_once_leaves_nothing_handed_on() -> None:
    verdict = Round(owed=BitMap64([1]))
    verdict.sinks["out"] = HandedOn(BitMap64([1]), attempts=1)
    verdict.settle(BitMap64([1]))
    assert verdict.sinks["out"].done and not verdict.sinks["out"].handed_on


def test_a_batch_of_which_no_rows_come_any_more_is_taken_back_also_where_it_was_asked_for_by_name() -> None:
    signed = TaskReport("out", ReportKind.SIGNED, number=1, blob=to_bytes(BitMap64([0])))
    part = TaskReport("out", ReportKind.PART, blob=b"part")
    owed = TaskReport(
        "out", ReportKind.OWED, text="down", blob=pack_rows([(np.array([0], np.int64), pa.array([""]))])
    )
    whole, rows = Untried(), Untried((RowRef(0),))
    cases: list[tuple[list[TaskReport], SinkState, tuple[str, ...], list[list[bytes]]]] = [
        ([], whole, ("out",), [[]]),
        ([TaskReport("out", ReportKind.REFUSED, 0, "", "too long")], whole, ("out",), [[]]),
        ([], whole, (), []),
        ([], rows, ("out",), [[]]),
        ([owed], whole, ("out",), []),
        ([signed, part], whole, ("out",), [[b"part"]]),
    ]
    for failure in (None, "no permission"):
        for results, before, taking_back, wanted in cases:
            committed: list[list[bytes]] = []

            def commit(_: str, parts: Sequence[bytes]) -> str | None:
                committed.append(list(parts))  # noqa: B023
                return None if parts else failure  # noqa: B023

            asked = {"out": (SinkConfig(type="toy"), before)}
            verdict = judge(results, asked, {}, commit, {"out"}, 0.0, None, taking_back)
            assert committed == wanted
            assert verdict.sinks["out"].done == (owed not in results), "nothing is owed if it cannot"
