"""Which batch and which sink is asked next, without Spark: a runner whose sinks do as they are told."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyroaring import BitMap64

from signoff.engine.batch import backlog
from signoff.engine.batch.backlog import Backlog
from signoff.ledger.batch_state import (
    BatchState,
    Debtor,
    Done,
    HandedOn,
    OwesAll,
    OwesRows,
    SinkState,
    Untried,
)
from signoff.ledger.outcome import RowRef
from signoff.sinks.contract import BatchRef

SIZE = 10


def numbered(number: int) -> BatchRef:
    return BatchRef("s", number * SIZE, (number + 1) * SIZE)


@dataclass
class Runner:
    """Keeps the states of batches; `down` and `stuck` say what the sinks do."""

    source: str = "s"
    sinks: dict[str, None] = field(default_factory=lambda: dict.fromkeys(("a", "b")))
    wait: float = 0.0
    forgets: bool = False
    """Of a batch that is settled only that is known."""
    down: set[str] = field(default_factory=set)
    stuck: dict[str, int] = field(default_factory=dict)
    """By sink a row it does not take, while it takes all others."""
    asked: list[tuple[int, str]] = field(default_factory=list)
    """Batch number and sink, in the order of asking."""
    states: dict[int, BatchState] = field(default_factory=dict)

    @property
    def ledger(self) -> Any:
        open_ones = [state for state in self.states.values() if not state.settled]
        return SimpleNamespace(open_batches=lambda source: open_ones)

    def open(self, batch: BatchRef) -> BatchState:
        ref = BatchRef(batch.source, batch.start, batch.end)
        owed = BitMap64(range(batch.start, batch.end))
        fresh = BatchState(ref, BitMap64(), owed, dict.fromkeys(self.sinks, Untried()), False)
        return self.states.setdefault(batch.start, fresh)

    def follows(self, step: str) -> bool:
        return False

    def blocked(self, who: Debtor, state: SinkState) -> bool:
        return False

    def owing(self, known: BatchState) -> dict[Debtor, SinkState]:
        return {who: state for who, state in known.debtors.items() if state.to_ask}

    ordered: frozenset[str] = frozenset()

    def tidy(self, unfinished: list[BatchRef]) -> None:
        pass

    @property
    def waits(self) -> Runner:
        return self

    def see_patience(self, known: BatchState) -> None:
        """There is no other pipeline."""

    def waits_elsewhere(self, known: BatchState) -> bool:
        return not self.owing(known) and any(state.handed_on for state in known.sinks.values())

    def round(self, batch: BatchRef, known: BatchState, asked: Mapping[Debtor, SinkState]) -> BatchState:
        sinks = dict(known.sinks)
        for name, state in asked.items():
            assert isinstance(name, str)
            self.asked.append((batch.start // SIZE, name))
            attempts = state.attempts + 1
            row = self.stuck.get(name, -1)
            if name in self.down:
                sinks[name] = OwesAll(attempts=attempts, error="down")
            elif batch.start <= row < batch.end:
                sinks[name] = OwesRows((RowRef(row),), attempts=attempts, error="stuck")
            else:
                sinks[name] = Done(attempts=attempts)
        settled = all(state.done for state in sinks.values())
        sinks = {} if settled and self.forgets else sinks
        self.states[batch.start] = BatchState(known.ref, BitMap64(), BitMap64(), sinks, settled)
        return self.states[batch.start]

    def wait_s(self, batch: BatchRef, who: Debtor, state: SinkState, took_s: float) -> float:
        return self.wait

    def of(self, sink: str) -> list[int]:
        return [number for number, name in self.asked if name == sink]


@pytest.fixture
def runner() -> Runner:
    return Runner()


@pytest.fixture
def parking(runner: Runner) -> Backlog:
    return Backlog(runner)  # type: ignore[arg-type]


def drain(parking: Backlog) -> None:
    deadline = time.monotonic() + 10
    while len(parking):
        parking.retry()
        assert time.monotonic() < deadline, "it never ends"


def test_a_batch_that_is_taken_by_all_does_not_wait(runner, parking):
    parking.take(numbered(0))
    assert not len(parking) and runner.asked == [(0, "a"), (0, "b")]


def test_other_sinks_go_on_while_one_is_down_and_are_asked_once(runner, parking):
    runner.down = {"a"}
    for number in range(5):
        parking.take(numbered(number))
        parking.retry()
    assert runner.of("b") == [0, 1, 2, 3, 4]
    assert set(runner.of("a")) == {0}, "only the first that waits is tried"


def test_a_sink_that_was_down_gets_its_batches_in_order(runner, parking):
    runner.down = {"a"}
    for number in range(5):
        parking.take(numbered(number))
    runner.down = set()
    drain(parking)
    assert runner.of("a")[1:] == [0, 1, 2, 3, 4] and runner.of("b") == [0, 1, 2, 3, 4]


def test_a_new_batch_does_not_overtake_those_that_wait_at_a_sink(runner, parking):
    runner.down = {"a"}
    for number in range(3):
        parking.take(numbered(number))
    runner.down = set()
    parking.retry()
    parking.take(numbered(3))
    drain(parking)
    assert runner.of("a") == [0, 0, 1, 2, 3]


def test_a_row_that_fails_alone_holds_up_nothing(runner, parking):
    runner.stuck = {"a": 3}
    for number in range(3):
        parking.take(numbered(number))
    assert runner.of("a") == [0, 1, 2] and len(parking) == 1
    runner.stuck = {}
    drain(parking)
    assert runner.of("a") == [0, 1, 2, 0]


def test_nothing_is_asked_again_before_its_time(runner, parking):
    runner.down, runner.wait = {"a"}, 3600.0
    parking.take(numbered(0))
    parking.take(numbered(1))
    parking.retry()
    assert runner.of("a") == [0]


def test_a_sink_that_is_behind_catches_up_although_new_batches_never_end(runner, parking):
    runner.down = {"a"}
    for number in range(10):
        assert parking.may_take(SIZE, SIZE), "nothing is held up by a sink that is down"
        parking.take(numbered(number))
    runner.down = set()
    taken = 10
    while len(parking):
        parking.retry()
        if len(parking) and parking.may_take(SIZE, SIZE):
            parking.take(numbered(taken))
            taken += 1
        assert taken < 100, "it never catches up"
    assert runner.of("a")[1:] == list(range(taken)) and taken > 10, "the others went on meanwhile"


def test_what_waits_is_bounded_and_small_batches_become_larger(runner, parking, monkeypatch):
    monkeypatch.setattr(backlog, "_MOST", 30)
    for wait in ("_SLOWER_S", "_SLOWEST_S"):
        monkeypatch.setattr(backlog, wait, 3600.0)
    runner.down, runner.wait = {"a"}, 3600.0
    for number in range(29):
        parking.take(numbered(number))
    assert not parking.may_take(1, SIZE), "more may come into it in a moment"
    assert parking.may_take(SIZE, SIZE), "but it is full"
    parking.take(numbered(29))
    assert not parking.may_take(SIZE, SIZE)


def test_batches_that_wait_for_results_do_not_keep_others_from_being_taken(runner, parking, monkeypatch):
    monkeypatch.setattr(backlog, "_MOST", 30)
    for number in range(40):
        handed = HandedOn(BitMap64([number * SIZE]), attempts=1)
        batch = runner.open(numbered(number))
        runner.states[number * SIZE] = replace(batch, sinks={"a": handed, "b": Done()})
    parking.resume()
    assert len(parking) == 40 and parking.may_take(SIZE, SIZE)


def test_when_nobody_could_take_it_a_batch_is_left_in_the_log(runner, parking):
    runner.down, runner.wait = {"a", "b"}, 3600.0
    parking.take(numbered(0))
    assert not parking.may_take(SIZE, SIZE)


def test_a_sink_that_fails_again_is_not_waited_for(runner, parking):
    runner.down = {"a"}
    parking.take(numbered(0))
    runner.down = set()
    drain(parking)
    runner.down, runner.wait = {"a"}, 3600.0
    parking.take(numbered(1))
    assert parking.may_take(SIZE, SIZE)


def test_what_was_settled_otherwise_is_not_asked_again(runner, parking):
    runner.down = {"a"}
    parking.take(numbered(0))
    runner.states[0] = replace(runner.states[0], settled=True)  # it expired
    runner.asked = []
    drain(parking)
    assert runner.asked == []


def test_what_an_earlier_run_left_open_is_asked_for_again(runner, parking):
    runner.down = {"a"}
    for number in range(3):
        parking.take(numbered(number))
    runner.down, runner.asked = set(), []
    after = Backlog(runner)  # type: ignore[arg-type]
    after.resume()
    after.take(numbered(3))
    drain(after)
    assert runner.of("a") == [0, 1, 2, 3] and runner.of("b") == [3]


def test_it_says_why_new_batches_are_not_taken(runner, parking, monkeypatch):
    assert parking.why_held() == ""
    runner.down, runner.wait = {"a"}, 0.0
    parking.take(numbered(0))
    assert parking.why_held() == "", "the other sink goes on"
    runner.down = {"a", "b"}
    parking.take(numbered(1))
    assert parking.why_held().startswith('no sink can take a new batch: sinks "a", "b" delivered nothing')
    monkeypatch.setattr(backlog, "_MOST", 1)
    runner.sinks["c"] = None  # which would take it
    assert parking.why_held() == '2 batches wait already for sinks "a", "b"'
    runner.down = set()
    drain(parking)
    assert parking.why_held() == ""


def test_a_batch_that_a_killed_run_left_open_does_not_read_like_an_outage_until_sinks_have_failed(
    runner, parking
):
    runner.open(numbered(0))
    parking.resume()
    assert not parking.may_take(SIZE, SIZE)
    assert parking.why_held() == "the batch that the last run or engine left open is done first"
    runner.down, runner.wait = {"a", "b"}, 3600.0
    parking.retry()
    assert parking.why_held().startswith('no sink can take a new batch: sinks "a", "b" delivered nothing')


def test_of_batches_that_a_killed_run_left_open_only_the_sink_that_was_asked_is_said_to_have_failed(
    runner, parking
):
    for number, sink in enumerate("ab"):
        left = runner.open(numbered(number))
        runner.states[number * SIZE] = replace(left, sinks={**dict.fromkeys("ab", Done()), sink: Untried()})
    parking.resume()
    assert parking.why_held() == "the 2 batches that the last run or engine left open are done first"
    runner.down, runner.wait = {"a"}, 3600.0
    parking.retry()
    assert parking.why_held() == (
        'no sink can take a new batch: sink "a" delivered nothing of an earlier one; not asked yet: sink "b"'
    )


def test_sinks_that_take_what_a_killed_run_left_open_are_not_said_to_have_failed(runner, parking):
    for number in range(2):
        runner.open(numbered(number))
    parking.resume()
    parking.retry()
    assert len(parking) == 1 and not parking.may_take(SIZE, SIZE)
    assert parking.why_held() == "the batch that the last run or engine left open is done first"
    parking.retry()
    assert parking.why_held() == ""


def test_sinks_that_work_again_are_not_said_to_deliver_nothing(runner, parking):
    runner.down = {"a", "b"}
    for number in range(3):
        parking.take(numbered(number))
    runner.down = set()
    parking.retry()
    assert parking.why_held() == "earlier batches are done first"


def test_a_sink_that_catches_up_is_named_as_long_as_it_is_behind(runner, parking):
    runner.down = {"a"}
    for number in range(5):
        parking.take(numbered(number))
    runner.down = set()
    parking.retry()
    assert parking.why_held() == 'sink "a" is catching up: one in three batches is new'
    drain(parking)
    assert parking.why_held() == ""


def test_a_batch_that_is_settled_may_have_been_forgotten_by_the_ledger(runner, parking):
    """It waited while more batches were settled than the ledger keeps."""
    runner.down = {"a"}
    parking.take(numbered(0))
    runner.down, runner.forgets = set(), True
    drain(parking)
    assert runner.of("a") == [0, 0]


def test_rows_that_fail_again_and_again_keep_no_later_batch_from_its_turn(
    runner: Runner, parking: Backlog
) -> None:
    runner.stuck["a"] = 5
    parking.take(numbered(0))
    runner.down.add("a")
    for number in (1, 2):
        parking.take(numbered(number))
    runner.down.clear()
    for _ in range(6):
        parking.retry()
    assert {1, 2} <= set(runner.of("a")[2:])
    assert len(parking) == 1, "only the row that nobody takes is left"


def test_a_sink_that_catches_up_keeps_no_rows_of_another_from_their_turn(
    runner: Runner, parking: Backlog
) -> None:
    runner.stuck["b"] = 5
    runner.down.add("a")
    for number in range(10):
        parking.take(numbered(number))
    runner.down.clear()
    for _ in range(8):
        parking.retry()
    assert runner.of("b").count(0) >= 3
    assert len(set(runner.of("a"))) >= 4
