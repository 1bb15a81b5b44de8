"""The search for the events a plan fails on, without Spark: probes that count and that lie."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from signoff.engine.batch.poison_notes import PoisonNotes
from signoff.engine.batch.poison_search import PARTS, Failure, PlanFailed, isolate
from signoff.engine.spark.stack_traces import last_line
from signoff.log.reader import evenly

Span = tuple[int, int]


@dataclass
class Plan:
    """Fails where a culprit is among the events; names tasks rightly, wrongly or not at all."""

    culprits: Collection[int]
    names: str = "right"
    outage: Callable[[int], bool] = lambda run: False
    """Whether a run, by its number, fails whatever it is about."""
    runs: list[tuple[Span, frozenset[int], bool]] = field(default_factory=list)
    """What was run, without which events, and whether it failed."""

    def __call__(self, low: int, high: int, without: frozenset[int]) -> Failure | None:
        bad = sorted(n for n in set(self.culprits) - without if low <= n < high)
        down = self.outage(len(self.runs))
        failed = bool(bad) or down
        self.runs.append(((low, high), without, failed))
        if not failed:
            return None
        return Failure("outage" if down else f"on {bad[0]}", self._named(low, high, bad))

    def _named(self, low: int, high: int, bad: list[int]) -> Span | None:
        shares = evenly(low, high, PARTS)
        if self.names == "none" or not shares:
            return None
        if self.names == "wrong":
            return next((share for share in shares if not any(share[0] <= n < share[1] for n in bad)), None)
        first = bad[-1] if bad else low  # not always the lowest: tasks run side by side
        return next(share for share in shares if share[0] <= first < share[1])


@pytest.mark.parametrize(
    ("events", "most"), [(100, 6), (2_500, 6), (100_000, 7), (125_000, 7), (1_000_000, 8)]
)
def test_one_culprit_is_found_in_few_runs_where_tasks_are_named(events, most):
    for culprit in {0, 1, events // 3, events // 2, events - 2, events - 1}:
        plan = Plan({culprit})
        assert isolate(plan, 0, events).keys() == {culprit}
        assert len(plan.runs) <= most


@pytest.mark.parametrize("names", ["none", "wrong"])
@pytest.mark.parametrize(("events", "most"), [(100, 13), (100_000, 23), (1_000_000, 26)])
def test_it_is_found_by_halves_where_no_task_or_the_wrong_one_is_named(events, most, names):
    for culprit in {0, 1, events // 3, events // 2, events - 2, events - 1}:
        plan = Plan({culprit}, names)
        assert isolate(plan, 0, events).keys() == {culprit}
        assert len(plan.runs) <= most


def test_each_further_culprit_costs_a_few_runs_more():
    culprits = {3, 4, 49_999, 50_000, 99_999}
    plan = Plan(culprits)
    assert isolate(plan, 0, 100_000).keys() == culprits
    assert len(plan.runs) <= 7 + 5 * (len(culprits) - 1)


def test_the_reason_is_that_of_the_event_alone():
    assert isolate(Plan({7, 11}), 0, 20) == {7: "on 7", 11: "on 11"}


def test_nobody_is_blamed_when_the_range_passes():
    plan = Plan(set())
    assert isolate(plan, 0, 100) == {} and len(plan.runs) == 1


def test_a_plan_that_always_fails_is_not_searched():
    plan = Plan({5}, outage=lambda run: True)
    with pytest.raises(PlanFailed, match="even without events"):
        isolate(plan, 0, 100)
    assert len(plan.runs) == 2


def test_a_failure_that_needs_two_events_is_blamed_on_none():
    def together(low: int, high: int, without: frozenset[int]) -> Failure | None:
        return Failure("both") if low <= 20 and high > 70 else None

    with pytest.raises(PlanFailed, match="no single event"):
        isolate(together, 0, 100)


@settings(max_examples=500)
@given(
    events=st.integers(1, 3_000),
    culprits=st.sets(st.integers(0, 2_999), max_size=4),
    names=st.sampled_from(["right", "wrong", "none"]),
)
def test_exactly_the_culprits_are_found(events, culprits, names):
    plan = Plan({n for n in culprits if n < events}, names)
    assert isolate(plan, 0, events).keys() == plan.culprits


@settings(max_examples=1_000)
@given(
    events=st.integers(1, 3_000),
    culprits=st.sets(st.integers(0, 2_999), max_size=2),
    names=st.sampled_from(["right", "wrong", "none"]),
    begins=st.integers(0, 30),
    lasts=st.integers(1, 40),
)
def test_an_outage_at_any_moment_blames_no_event(events, culprits, names, begins, lasts):
    """Disk full, memory short, a node gone: it begins, everything fails, it ends."""
    plan = Plan({n for n in culprits if n < events}, names, lambda run: begins <= run < begins + lasts)
    try:
        blamed = isolate(plan, 0, events)
    except PlanFailed:
        return
    assert blamed.keys() <= set(plan.culprits)


@settings(max_examples=1_000)
@given(
    events=st.integers(1, 300),
    culprits=st.sets(st.integers(0, 299), max_size=2),
    names=st.sampled_from(["right", "wrong", "none"]),
    failing=st.lists(st.booleans(), max_size=60),
)
def test_whoever_is_blamed_failed_alone_before_and_after_the_others_passed(events, culprits, names, failing):
    """Whatever fails, however often, at random."""
    plan = Plan({n for n in culprits if n < events}, names, lambda run: run < len(failing) and failing[run])
    try:
        blamed = isolate(plan, 0, events)
    except PlanFailed:
        return
    if not blamed:
        assert not plan.runs[-1][2], "the range has passed"
        return
    spans = [span for span, _, failed in plan.runs if not failed]
    assert any(low == high for low, high in spans), "the plan passes without any event"
    (passed,) = (n for n, run in enumerate(plan.runs) if run == ((0, events), frozenset(blamed), False))
    for event in blamed:
        alone = [(n, failed) for n, (span, _, failed) in enumerate(plan.runs) if span == (event, event + 1)]
        whole = (0, events) == (event, event + 1)
        assert any(failed for n, failed in alone if n < passed)
        assert [failed for n, failed in alone if n > passed] == [True] or whole


def test_the_event_with_which_united_events_begin_to_fail_is_blamed() -> None:
    def probe(low: int, high: int, without: frozenset[int]) -> Failure | None:
        present = [n for n in (10, 40, 70, 90) if low <= n < high and n not in without]
        return Failure("overflow") if len(present) > 2 else None

    assert isolate(probe, 0, 100, together=True) == {70: "overflow", 90: "overflow"}
    with pytest.raises(PlanFailed, match="on no single event"):
        isolate(probe, 0, 100)


@dataclass
class Deadly:
    """A plan in whose tasks workers die of some events, up to a number of them in a run."""

    killers: Collection[int]
    most: int = 150
    innocent: Collection[int] = ()
    """Events that were at hand once when a worker was killed by somebody else."""
    runs: int = 0

    def __call__(self, low: int, high: int, without: frozenset[int]) -> dict[int, str]:
        self.runs += 1
        once = self.innocent if self.runs == 1 else ()
        found = sorted((set(self.killers) | set(once)) - without)
        return (
            {n: f"died of {n}" for n in found if low <= n < high}
            if len(found) <= self.most
            else {n: f"died of {n}" for n in found[: self.most]}
        )


def test_events_that_workers_die_of_are_found_together_in_few_runs() -> None:
    killers = range(249, 5000, 250)
    plan, deaths = Plan(killers), Deadly(killers)
    assert isolate(plan, 0, 5000, deaths=deaths).keys() == set(killers)
    assert len(plan.runs) == 1, "all of it, without them"
    assert deaths.runs == 4, "one to find them, one that finds no more, two that confirm them"


def test_more_deaths_than_a_run_can_find_take_more_runs() -> None:
    plan, deaths = Plan(range(100)), Deadly(range(100), most=30)
    assert isolate(plan, 0, 5000, deaths=deaths).keys() == set(range(100))


def test_an_event_whose_worker_was_killed_by_somebody_else_is_not_blamed() -> None:
    assert isolate(Plan({7}), 0, 100, deaths=Deadly({7}, innocent={50})).keys() == {7}


def test_what_else_a_plan_fails_on_is_searched_for_besides() -> None:
    plan = Plan({7, 9, 60})
    assert isolate(plan, 0, 100, deaths=Deadly({7})).keys() == {7, 9, 60}


def test_a_search_that_is_cut_off_goes_on_where_it_was(tmp_path: Path) -> None:
    notes = PoisonNotes(tmp_path / "suspects" / "incoming.json")
    culprits = {n * 100 for n in range(1, 9)}
    whole = Plan(culprits)
    assert isolate(whole, 0, 1000).keys() == culprits

    class Killed(BaseException):
        pass

    plan = Plan(culprits)

    def cut_off(low: int, high: int, without: frozenset[int]) -> Failure | None:
        if len(plan.runs) == len(whole.runs) // 2:
            raise Killed
        return plan(low, high, without)

    with pytest.raises(Killed):
        isolate(cut_off, 0, 1000, notes=notes)
    known = notes.read(0, 1000)
    assert known and known.keys() < culprits
    assert notes.read(0, 999) == {}, "of another range it says nothing"
    again = Plan(culprits)
    assert isolate(again, 0, 1000, notes=notes).keys() == culprits
    assert len(again.runs) < len(whole.runs)


def test_what_was_noted_is_confirmed_before_anybody_is_blamed(tmp_path: Path) -> None:
    notes = PoisonNotes(tmp_path / "suspects" / "incoming.json")
    notes.write(0, 100, {5: "an outage"})
    with pytest.raises(PlanFailed, match="and then it did not"):
        isolate(Plan(()), 0, 100, notes=notes)
    assert notes.read(0, 100) == {}


def test_the_reason_of_a_python_worker_is_what_its_traceback_ends_with() -> None:
    text = (
        "An error occurred while calling o1.save.\n: org.apache.spark.api.python.PythonException: \n"
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "x.py", line 3, in f\n    raise ValueError("no 7")\nValueError: no 7\n\n\tat org.x\n'
    )
    assert last_line(Exception(text)) == "ValueError: no 7"
