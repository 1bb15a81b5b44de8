"""The time of a fold goes on evenly, whatever somebody sets the clock to."""

from __future__ import annotations

from pathlib import Path

import pytest

from signoff.stateful.fold_clock import FoldClock
from tests.clock import Clock

HOUR = 3600.0


class Machine:
    def __init__(self, directory: Path) -> None:
        self.wall, self.steady, self.boot = Clock(1_000_000.0), Clock(500.0), "first"
        self._path = directory / "clock.db"
        self.start()

    def start(self) -> None:
        self.clock = FoldClock(self._path, self.wall, self.steady, self.boot)

    def go_on(self, seconds: float) -> None:
        self.wall.now += seconds
        self.steady.now += seconds

    def batch(self, number: int) -> float:
        """The time of a batch that Spark begins now, in seconds."""
        time_ms = round(self.wall.now * 1000)
        return (time_ms - self.clock.shift_ms(number, time_ms)) / 1000


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_step_of_the_clock_is_no_time(machine: Machine, step: float) -> None:
    assert machine.batch(0) == 1_000_000
    machine.go_on(10)
    machine.wall.now += step
    assert machine.clock.now_ms() == 1_000_010_000
    assert machine.batch(1) == 1_000_010
    machine.go_on(10)
    machine.wall.now -= step
    assert machine.batch(2) == 1_000_020
    assert machine.clock.now_ms() == 1_000_020_000


def test_a_step_between_two_runs_is_no_time_either(machine: Machine) -> None:
    machine.batch(0)
    machine.clock.close()
    machine.go_on(60)
    machine.wall.now += HOUR
    machine.start()
    assert machine.batch(1) == 1_000_060


def test_a_batch_that_is_done_again_has_the_time_it_had(machine: Machine) -> None:
    machine.batch(0)
    machine.wall.now += HOUR
    time_ms = round(machine.wall.now * 1000)
    shift = machine.clock.shift_ms(1, time_ms)
    machine.wall.now -= 3 * HOUR
    assert machine.clock.shift_ms(1, time_ms) == shift == 3_600_000


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_clock_that_is_set_between_sparks_look_and_ours(machine: Machine, step: float) -> None:
    machine.batch(0)
    machine.go_on(10)
    time_ms = round(machine.wall.now * 1000)
    machine.go_on(2)
    machine.wall.now += step
    assert machine.clock.shift_ms(1, time_ms) == 0
    machine.go_on(10)
    assert machine.batch(2) == 1_000_022


def test_after_a_restart_of_the_machine_the_clock_counts(machine: Machine) -> None:
    machine.batch(0)
    machine.wall.now, machine.steady.now, machine.boot = 1_007_200.0, 3.0, "second"
    machine.start()
    assert machine.batch(1) == 1_007_200


def test_what_is_kept_does_not_grow(machine: Machine) -> None:
    for number in range(500):
        machine.go_on(1)
        machine.batch(number)
    with machine.clock._store.read() as db:
        assert db.execute("SELECT count(*) FROM batches").fetchone()[0] == 100
