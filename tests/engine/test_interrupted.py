"""What fails while a query ends was interrupted, and no event is blamed: without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyroaring import BitMap64

from signoff.engine import batch as batch_module
from signoff.engine import query as query_module
from signoff.engine.batch import BatchRunner, _Work
from signoff.engine.control import Control, Interrupted
from signoff.engine.poison import PlanFailed
from signoff.engine.query import SourceQuery
from signoff.ledger.outcome import BatchRange, BatchState, SinkState
from signoff.sinks.contract import BatchRef

BATCH = BatchRef("incoming", 0, 10)
WORK = _Work(BATCH, {"out": SinkState(done=False)}, frozenset(), True)


class Standing:
    """A plan that fails each time, and does something first."""

    def __init__(self, first: Callable[[], None] = lambda: None) -> None:
        self.first, self.runs = first, 0

    def run(self, *_: Any) -> Any:
        self.runs += 1
        self.first()
        raise Py4JError("Job 7 cancelled")


def runner(
    tmp_path: Path, standing: Standing, isolated: list[tuple[int, int]], control: Control
) -> BatchRunner:
    spark: Any = SimpleNamespace(conf=SimpleNamespace(set=lambda key, value: None))
    unused: Any = None
    return BatchRunner(
        source="incoming",
        spark=spark,
        state=tmp_path,
        log=tmp_path / "log",
        sinks={},
        policies={},
        steps={},
        departures=unused,
        fail_fast=False,
        ledger=unused,
        letters=unused,
        control=control,
        range_plan=unused,
        isolate=lambda start, end: isolated.append((start, end)),
        standing=standing,  # type: ignore[arg-type]
    )


def test_a_pass_that_fails_is_tried_again_and_then_searched(tmp_path):
    isolated: list[tuple[int, int]] = []
    standing = Standing()
    with pytest.raises(PlanFailed):
        runner(tmp_path, standing, isolated, Control())._results(WORK, None)
    assert isolated == [(0, 10)] and standing.runs == 3


@pytest.mark.parametrize("at", [1, 2])
def test_a_pass_that_fails_while_its_query_ends_is_interrupted(tmp_path, at):
    isolated: list[tuple[int, int]] = []
    halt = threading.Event()
    standing = Standing(lambda: halt.set() if standing.runs == at else None)
    made = runner(tmp_path, standing, isolated, Control())
    made.halt = halt
    with pytest.raises(Interrupted):
        made._results(WORK, None)
    assert isolated == [] and standing.runs == at


def test_a_pass_that_fails_when_the_time_to_stop_is_over_is_interrupted(tmp_path):
    isolated: list[tuple[int, int]] = []
    control = Control()
    standing = Standing(lambda: control.stop(0))
    with pytest.raises(Interrupted):
        runner(tmp_path, standing, isolated, control)._results(WORK, None)
    assert isolated == [] and standing.runs == 1


@pytest.mark.parametrize("ends", ["halt", "overdue"])
@pytest.mark.parametrize("at", [1, 2, 3, 5])
def test_a_search_that_is_cut_off_blames_nobody(tmp_path, monkeypatch, ends, at):
    """The run of the plan that is cut off fails, as do those that find the culprit."""
    control, halt, runs, blamed = Control(), threading.Event(), [0], list[Any]()

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
        _said_at=0.0,
        runner=SimpleNamespace(halt=halt, unites=False),
    )
    with pytest.raises(Interrupted):
        SourceQuery._isolate(query, 0, 10)
    assert blamed == [] and runs[0] == at


class _Broken:
    """No task is named: Spark's books cannot be read."""

    def sc(self) -> Any:
        raise Py4JError("gone")


@pytest.mark.parametrize("stateful", [True, False])
def test_a_recorded_batch_that_spark_brings_again_is_run_for_its_state_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stateful: bool
) -> None:
    touched: list[Any] = []
    monkeypatch.setattr(batch_module, "touch", touched.append)
    standing = Standing()
    one = runner(tmp_path, standing, [], Control())
    waits = {"out": SinkState(done=False, attempts=1, owed=(), handed=BitMap64([3]))}
    ref = BatchRange("incoming", 0, 10)
    one.ledger = SimpleNamespace(  # type: ignore[assignment]
        open_batch=lambda *_: BatchState(ref, BitMap64(), BitMap64([3]), waits, settled=False)
    )
    plan: Any = SimpleNamespace(stateful=stateful, df="the rows")
    one.run(BATCH, plan)
    assert touched == (["the rows"] if stateful else []) and standing.runs == 0
