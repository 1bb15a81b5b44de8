"""What fails while a query ends was interrupted, and no event is blamed: without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from signoff.engine.batch.interrupts import Interrupted, Interrupts
from signoff.engine.batch.passes import Passes, Work
from signoff.engine.batch.poison_search import PlanFailed
from signoff.engine.query import base as query_module
from signoff.engine.query.base import SourceQuery
from signoff.ledger.batch_state import Untried
from signoff.sinks.contract import BatchRef

BATCH = BatchRef("incoming", 0, 10)
WORK = Work(BATCH, {"out": Untried()}, frozenset(), True)


class Prepared:
    """A plan that fails each time, and does something first."""

    def __init__(self, first: Callable[[], None] = lambda: None) -> None:
        self.first, self.runs = first, 0

    def run(self, *_: Any) -> Any:
        self.runs += 1
        self.first()
        raise Py4JError("Job 7 cancelled")


def passes(
    tmp_path: Path, prepared: Prepared, isolated: list[tuple[int, int]], control: Interrupts
) -> Passes:
    spark: Any = SimpleNamespace(conf=SimpleNamespace(set=lambda key, value: None))
    unused: Any = None
    return Passes(
        source="incoming",
        spark=spark,
        state=tmp_path,
        log=tmp_path / "log",
        sinks={},
        steps={},
        control=control,
        range_plan=unused,
        isolate=lambda start, end: isolated.append((start, end)),
        prepared=prepared,  # type: ignore[arg-type]
    )


def test_a_pass_that_fails_is_tried_again_and_then_searched(tmp_path):
    isolated: list[tuple[int, int]] = []
    prepared = Prepared()
    with pytest.raises(PlanFailed):
        passes(tmp_path, prepared, isolated, Interrupts()).results(WORK)
    assert isolated == [(0, 10)] and prepared.runs == 3


@pytest.mark.parametrize("at", [1, 2])
def test_a_pass_that_fails_while_its_query_ends_is_interrupted(tmp_path, at):
    isolated: list[tuple[int, int]] = []
    halt = threading.Event()
    prepared = Prepared(lambda: halt.set() if prepared.runs == at else None)
    made = passes(tmp_path, prepared, isolated, Interrupts())
    made.halt = halt
    with pytest.raises(Interrupted):
        made.results(WORK)
    assert isolated == [] and prepared.runs == at


def test_a_pass_that_fails_when_the_time_to_stop_is_over_is_interrupted(tmp_path):
    isolated: list[tuple[int, int]] = []
    control = Interrupts()
    prepared = Prepared(lambda: control.stop(0))
    with pytest.raises(Interrupted):
        passes(tmp_path, prepared, isolated, control).results(WORK)
    assert isolated == [] and prepared.runs == 1


@pytest.mark.parametrize("ends", ["halt", "overdue"])
@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_a_search_that_is_cut_off_blames_nobody(tmp_path, monkeypatch, ends, at):
    """The run of the plan that is cut off fails, as do those that find the culprit."""
    control, halt, runs, blamed = Interrupts(), threading.Event(), [0], list[Any]()

    def touch(span: tuple[int, int]) -> None:
        runs[0] += 1
        if runs[0] == at:
            halt.set() if ends == "halt" else control.stop(0)
            raise Py4JError("cancelled")
        if span[0] <= 7 < span[1]:
            raise Py4JError("on 7")

    monkeypatch.setattr(query_module, "touch", touch)
    monkeypatch.setattr(query_module, "exclude", lambda directory, found: blamed.append(found))
    query: Any = SimpleNamespace(
        spark=SimpleNamespace(sparkContext=SimpleNamespace(addJobTag=id, removeJobTag=id, _jsc=_Broken())),
        _range=lambda low, high, without, parts: (low, high if 7 not in without else low),
        _compile=lambda span, trial: SimpleNamespace(df=span),
        shared=SimpleNamespace(control=control, graph=SimpleNamespace(state=tmp_path)),
        source="incoming",
        _calls_functions=False,
        searching="",
        _logged_at=0.0,
        runner=SimpleNamespace(passes=SimpleNamespace(halt=halt, unites=False)),
    )
    with pytest.raises(Interrupted):
        SourceQuery._isolate(query, 0, 10)
    assert blamed == [] and runs[0] == at


class _Broken:
    """No task is named: Spark's books cannot be read."""

    def sc(self) -> Any:
        raise Py4JError("gone")
