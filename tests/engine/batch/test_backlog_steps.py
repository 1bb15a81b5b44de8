"""When a step is asked again for rows that wait for it, without Spark."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from pyroaring import BitMap64

from signoff.engine.batch import backlog
from signoff.engine.batch.backlog import Backlog
from signoff.ledger.batch_state import BatchState, Debtor, Done, OwesRows, SinkState, Wait
from signoff.ledger.outcome import RowRef
from signoff.sinks.contract import BatchRef
from tests.engine.batch.test_backlog import SIZE, Runner, drain, numbered


@dataclass
class StepRunner(Runner):
    """Of each batch one row waits for the step `ask`, for both sinks."""

    failing: set[int] = field(default_factory=set)
    """Batches for which the step goes on failing."""

    def round(self, batch: BatchRef, known: BatchState, asked: Mapping[Debtor, SinkState]) -> BatchState:
        number = batch.start // SIZE
        rest = {name: state for name, state in asked.items() if not isinstance(name, Wait)}
        sinks = super().round(batch, known, rest).sinks
        waits = dict(known.waits)
        if not waits:
            waiting = OwesRows((RowRef(batch.start),), attempts=1, error="503", since=1.0)
            waits = {Wait(name, "ask"): waiting for name in self.sinks}
        for wait, state in asked.items():
            if isinstance(wait, Wait):
                self.asked.append((number, str(wait)))
                fails = number in self.failing
                waits[wait] = replace(state, attempts=state.attempts + 1) if fails else Done()
        settled = all(state.done for state in (*sinks.values(), *waits.values()))
        self.states[batch.start] = BatchState(known.ref, BitMap64(), BitMap64(), sinks, settled, waits)
        return self.states[batch.start]


@pytest.fixture
def runner() -> StepRunner:
    return StepRunner()


def test_a_step_is_asked_for_all_its_sinks_at_once_and_later_batches_go_on(runner: StepRunner) -> None:
    parking = Backlog(runner)  # type: ignore[arg-type]
    runner.failing = {0}
    parking.take(numbered(0))
    assert parking.may_take(SIZE, SIZE) and runner.of("a via ask") == []
    parking.take(numbered(1))
    assert runner.of("a") == runner.of("b") == [0, 1], "no sink is behind"
    runner.failing = set()
    drain(parking)
    assert runner.asked[4:] == [(0, "a via ask"), (0, "b via ask"), (1, "a via ask"), (1, "b via ask")]


def test_a_step_that_fails_for_all_rests_before_it_is_asked_for_others(
    runner: StepRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "_IDLE_S", 0.01)
    parking = Backlog(runner)  # type: ignore[arg-type]
    runner.failing = set(range(5))
    for number in range(5):
        parking.take(numbered(number))
    runner.wait = 3600.0
    for _ in range(10):
        parking.retry()
    assert runner.of("a via ask") == [0]


def test_what_holds_back_new_batches_is_said_as_a_step(
    runner: StepRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backlog, "_MOST", 2)
    parking = Backlog(runner)  # type: ignore[arg-type]
    parking.take(numbered(0))
    parking.take(numbered(1))
    assert parking.why_held() == '2 batches wait already for step "ask"'


def test_rows_that_always_fail_keep_no_others_from_their_turn(runner: StepRunner) -> None:
    parking = Backlog(runner)  # type: ignore[arg-type]
    runner.wait, runner.failing = 0.01, {0, 1, 2}
    for number in range(6):
        parking.take(numbered(number))
    deadline = time.monotonic() + 60
    while len(parking) > 3:
        parking.retry()
        assert time.monotonic() < deadline, runner.asked
    assert {3, 4, 5} <= set(runner.of("a via ask"))


def test_a_step_that_fails_keeps_no_sink_from_its_turn_nor_a_sink_the_step(runner: StepRunner) -> None:
    parking = Backlog(runner)  # type: ignore[arg-type]
    runner.failing, runner.down = {0, 1}, {"a"}
    parking.take(numbered(0))
    parking.take(numbered(1))
    runner.asked = []
    for _ in range(12):
        parking.retry()
    assert len(runner.of("a")) >= 4 and len(runner.of("b via ask")) >= 4
