"""How old an event of an earlier process is: known in spite of a clock that was set, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from signoff.clock import ClockWatch
from signoff.intake.clock_notes import NOTES, ClockNotes
from tests.clock import Clock

HOUR = 3600.0


class Machine:
    """A clock on the wall, which can be set, and one that cannot."""

    def __init__(self) -> None:
        self.wall, self.steady, self.boot = Clock(1_000_000.0), Clock(500.0), "first"

    def go_on(self, seconds: float) -> None:
        self.wall.now += seconds
        self.steady.now += seconds

    def notes(self, directory: Path) -> ClockNotes:
        return ClockNotes(directory, self.wall, self.steady, self.boot)


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_clock_that_was_set_between_two_runs_changes_no_age(
    tmp_path: Path, machine: Machine, step: float
) -> None:
    notes, received = machine.notes(tmp_path), machine.wall.now
    notes.note(0, notes.offset())
    machine.go_on(30)
    machine.wall.now += step
    assert machine.steady.now - (machine.notes(tmp_path).received(5, received) or 0) == pytest.approx(30)


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_clock_that_was_set_in_a_run_changes_no_age(tmp_path: Path, machine: Machine, step: float) -> None:
    notes, early = machine.notes(tmp_path), machine.wall.now
    notes.note(0, notes.offset())
    machine.go_on(10)
    machine.wall.now += step
    notes.note(7, notes.offset())
    late = machine.wall.now
    machine.go_on(10)
    again = machine.notes(tmp_path)
    assert again.received(6, early) == pytest.approx(500)
    assert again.received(7, late) == pytest.approx(510)


def test_after_a_restart_of_the_machine_nobody_knows(tmp_path: Path, machine: Machine) -> None:
    notes = machine.notes(tmp_path)
    notes.note(0, notes.offset())
    machine.boot, machine.steady.now = "second", 3.0
    again = machine.notes(tmp_path)
    assert again.received(0, machine.wall.now) is None
    again.note(4, again.offset())
    assert again.received(3, machine.wall.now) is None
    assert again.received(4, machine.wall.now) == pytest.approx(3.0)


def test_an_event_is_never_from_the_future(tmp_path: Path, machine: Machine) -> None:
    notes = machine.notes(tmp_path)
    notes.note(0, notes.offset())
    assert notes.received(0, machine.wall.now + HOUR) == machine.steady.now


def test_only_what_is_new_is_written_and_what_is_settled_forgotten(tmp_path: Path, machine: Machine) -> None:
    notes = machine.notes(tmp_path)
    notes.note(0, notes.offset())
    written = (tmp_path / NOTES).stat().st_mtime_ns
    machine.go_on(HOUR)
    notes.note(50, notes.offset())
    assert (tmp_path / NOTES).stat().st_mtime_ns == written
    for number in range(1, 20):
        machine.wall.now += HOUR
        notes.note(number * 100, notes.offset(), settled_upto=number * 100 - 50)
    assert (tmp_path / NOTES).read_text().count("first") == 2


@pytest.mark.parametrize("content", ["", "[[1", '{"a": 1}', "[[1, 2]]"])
def test_notes_that_cannot_be_read_are_none(tmp_path: Path, machine: Machine, content: str) -> None:
    (tmp_path / NOTES).write_text(content)
    assert machine.notes(tmp_path).received(0, machine.wall.now) is None


def test_a_step_of_the_clock_is_noticed_once_and_drift_is_none(machine: Machine) -> None:
    watch = ClockWatch(machine.wall, machine.steady)
    machine.go_on(100)
    machine.wall.now += 0.2
    assert watch.stepped() == 0
    machine.wall.now -= HOUR
    assert watch.stepped() == pytest.approx(-HOUR)
    assert watch.stepped() == 0
