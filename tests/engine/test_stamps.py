"""A window hears of every batch that it will get nothing more of, whoever has ended it: without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyroaring import BitMap64

from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.batch.passes import Passes
from signoff.engine.batch.runner import BatchRunner
from signoff.ledger.batch_state import Done, HandedOn, OwesAll
from signoff.ledger.ledger import Ledger
from signoff.link.handover import LinkPlace
from signoff.sinks.contract import BatchRef
from signoff.stateful.window_sinks import WindowIntake
from signoff.transforms.frame import MARK
from tests.stateful.test_window_sinks import SECOND, hand_on, intake, payloads

BATCH = BatchRef("a", 0, 2)
ALL = BitMap64([0, 1])


@pytest.fixture
def place(tmp_path: Path) -> LinkPlace:
    return LinkPlace(tmp_path / "log", tmp_path / "notes")


@pytest.fixture
def window(place: LinkPlace) -> Iterator[WindowIntake]:
    sink = intake(place)
    yield sink
    sink.release()


@pytest.fixture
def runner(tmp_path: Path, window: WindowIntake) -> Iterator[BatchRunner]:
    unused: Any = None
    entry: Any = SimpleNamespace(sink=window)
    with Ledger(tmp_path / "ledger.db") as ledger:
        passes = Passes(
            source="a",
            spark=unused,
            state=tmp_path,
            log=tmp_path / "source",
            sinks={"w.state": entry, "late": entry},
            steps={},
            control=Interrupts(),
            range_plan=unused,
            isolate=lambda start, end: None,
            windows={"w": window},
        )
        yield BatchRunner(
            passes, policies={}, stage_counts=unused, fail_fast=False, ledger=ledger, letters=unused
        )


def marks_in(place: LinkPlace) -> list[int]:
    return [row["__mark"] for row in payloads(place) if "__mark" in row]


def begin(runner: BatchRunner, window: WindowIntake, *, handed: bool) -> None:
    """The rows of a batch are in the window's log, its late ones are not taken, and then comes a kill."""
    runner.open(BATCH)
    hand_on(window, BATCH, [[[(0, 10, "x", 1), (1, 130, "x", 1)]]])
    state = HandedOn(ALL) if handed else Done()
    sinks = {"w.state": state, "late": OwesAll(attempts=1, error="down")}
    runner.ledger.record(
        "a", 0, 2, delivered=BitMap64() if handed else ALL, outcomes=[], sinks=sinks, owed=ALL
    )


@pytest.mark.parametrize("handed", [False, True])
def test_a_batch_whose_rows_were_handed_on_before_a_kill_holds_up_no_window(
    runner: BatchRunner, window: WindowIntake, place: LinkPlace, handed: bool
) -> None:
    begin(runner, window, handed=handed)
    assert marks_in(place) == []
    runner.tidy([BATCH])
    runner.open(BATCH)
    assert marks_in(place) == [130 * SECOND]


def test_a_sink_of_late_events_that_gets_its_batch_later_finds_the_same_ones_late(
    runner: BatchRunner, window: WindowIntake
) -> None:
    begin(runner, window, handed=False)
    runner.open(BATCH)
    assert window.marks.mark == 130 * SECOND
    assert runner.passes.stamps_at(0) == {MARK + "w": None}, "nothing was late when it began"


def test_a_batch_whose_events_have_expired_holds_up_no_window(
    runner: BatchRunner, window: WindowIntake, place: LinkPlace
) -> None:
    runner.open(BATCH)
    window.marks.reach(60 * SECOND)
    window.tell()
    assert marks_in(place) == []
    runner.ledger.expire("a", {0: "too late", 1: "too late"})
    assert runner.open(BATCH).settled
    assert marks_in(place) == [60 * SECOND]


def test_a_batch_is_stamped_before_anybody_sees_that_its_events_are_taken(
    runner: BatchRunner, window: WindowIntake, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamped: list[bool] = []
    open_batch = runner.ledger.open_batch

    def opened(*given: Any) -> Any:
        stamped.append(window.marks._known(BATCH))
        return open_batch(*given)

    monkeypatch.setattr(runner.ledger, "open_batch", opened)
    runner.open(BATCH)
    assert stamped == [True]


def test_a_settled_batch_that_is_opened_again_leaves_no_stamp(
    runner: BatchRunner, window: WindowIntake
) -> None:
    runner.open(BATCH)
    sinks = {"w.state": Done(), "late": Done()}
    runner.ledger.record("a", 0, 2, delivered=ALL, outcomes=[], sinks=sinks, owed=BitMap64())
    assert runner.open(BATCH).settled
    assert not window.marks._known(BATCH)
