"""Samples are bounded, and what is drawn of them are differences of counts."""

from __future__ import annotations

import pytest

from signoff.intake.settle_times import BOUNDS_S
from signoff.operate.graph_view import EdgeView, GraphView, NodeView
from signoff.page import charts
from signoff.page.flow import edge_rates
from signoff.page.history import LENGTH_S, History, Sample

TAKEN = ("taken", "table")


def filled(counts: list[float], every_s: float = 1.0) -> History:
    history = History()
    for index, count in enumerate(counts):
        history.add(Sample(index * every_s, 0.0, {TAKEN: count}))
    return history


def test_a_day_is_kept_by_the_minute_and_a_quarter_by_the_second() -> None:
    history = filled([float(index) for index in range(100_000)])
    assert len(history.samples("quarter")) <= LENGTH_S["quarter"] + 1
    assert len(history.samples("day")) <= LENGTH_S["day"] / 30 + 1
    assert history.samples("day")[0].steady >= 100_000 - 1 - LENGTH_S["day"]


def test_rate_is_of_the_last_seconds_and_never_negative() -> None:
    assert filled([0.0]).rate(TAKEN) is None
    assert filled([0.0, 100.0]).rate(("taken", "new")) is None
    assert filled([0.0] * 50 + [10.0 * n for n in range(8)]).rate(TAKEN) == pytest.approx(10.0)
    assert filled([100.0, 0.0]).rate(TAKEN) == 0.0  # the state was begun anew


def test_series_say_what_is_not_known() -> None:
    series = filled([10.0 * n for n in range(100)]).rates(TAKEN, "quarter", points=90)
    assert len(series.values) == 90
    assert series.values[0] is None and series.last == pytest.approx(10.0)
    assert all(value == pytest.approx(10.0) for value in series.values if value is not None)
    chart = charts.line("Taken", series)
    assert chart.label == "Taken over the last 15 minutes: now 10/s, at most 10/s"
    empty = History().values(TAKEN, "day")
    assert (empty.last, charts.line("Taken", empty).line) == (None, "")


def test_settle_times_of_a_new_intake_add_to_those_of_the_old_one() -> None:
    history = History()
    for index, (fast, slow) in enumerate([(0, 0), (90, 0), (98, 2), (3, 0)]):  # the last is of a new process
        counts = {(f"took {bucket}", "incoming"): 0.0 for bucket in range(len(BOUNDS_S) + 1)}
        counts |= {("took 0", "incoming"): fast, (f"took {len(BOUNDS_S)}", "incoming"): slow}
        history.add(Sample(float(index), 0.0, counts))
    times = history.settle_times("incoming", "quarter")
    assert times is not None
    assert (times.events, times.bound(0.5), times.bound(0.99)) == (103, BOUNDS_S[0], None)
    assert [bar.number for bar in charts.histogram(times)][:: len(BOUNDS_S)] == [101, 2]
    assert history.settle_times("other", "quarter") is None


def node(name: str, kind: str, type_: str) -> NodeView:
    return NodeView(name, kind, type_, "", True, {}, (), "", 0)  # type: ignore[arg-type]


def test_rows_along_an_edge_follow_from_what_is_counted_and_are_not_guessed() -> None:
    view = GraphView(
        "p",
        (
            node("in", "source", "files"), node("parsed", "transform", "parse_json"),
            node("kept", "transform", "filter"), node("items", "transform", "unfold"),
            node("table", "sink", "sqlite"), node("rows", "sink", "files"),
        ),
        (
            EdgeView("in", None, "parsed"), EdgeView("parsed", None, "kept"),
            EdgeView("parsed", None, "items"), EdgeView("kept", None, "table"),
            EdgeView("items", None, "rows"),
        ),
    )  # fmt: skip
    known = {
        ("received", "in"): 100.0, ("left", "parsed"): 10.0, ("left", "kept"): 60.0,
        ("taken", "table"): 30.0, ("taken", "rows"): 500.0,
    }  # fmt: skip
    found = edge_rates(view, lambda what, name: known.get((what, name)))
    rates = {(edge.source, edge.target): rate for edge, rate in found.items()}
    assert rates == {
        ("in", "parsed"): 100.0, ("parsed", "kept"): 90.0, ("parsed", "items"): 90.0, ("kept", "table"): 30.0,
        ("items", "rows"): 500.0,
    }  # fmt: skip
