"""The search for the events a plan fails on, without Spark: probes that count and that lie."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from signoff.engine.poison import PARTS, Failure, PlanFailed, isolate
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
