"""A sink whose own code fails: rows are retried, and the log says once where. Without Spark."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.batch.passes import Passes, Work
from signoff.engine.delivery.sink_pass import Pass, SinkTask
from signoff.engine.delivery.surprises import Surprises
from signoff.engine.plan.plan import SinkDelivery
from signoff.engine.plan.task_report import ReportKind, TaskReport, from_table
from signoff.errors import TransientError
from signoff.ledger.batch_state import Untried
from signoff.pipeline.model import Retry
from signoff.pipeline.secrets import register_secret
from signoff.sinks.contract import BatchRef, Part, Refusal, Sink, Writer

BATCH = BatchRef("incoming", 0, 3)
ROWS = pa.RecordBatch.from_pylist(
    [{"_sequence": n, "_child": "", "_others": None, "alive": True} for n in range(3)],
    schema=pa.schema(
        [
            ("_sequence", pa.int64()),
            ("_child", pa.string()),
            ("_others", pa.list_(pa.int64())),
            ("alive", pa.bool_()),
        ]
    ),
)


@dataclass(frozen=True)
class Broken(Sink):
    fail: Callable[[], None] = field(default=lambda: None)

    def open(self, part: Part) -> Writer:
        return _BrokenWriter(self)


@dataclass
class _BrokenWriter(Writer):
    sink: Broken

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        self.sink.fail()
        return []

    def close(self) -> None:
        pass


def look_up_nine() -> None:
    {}["nine"]


def be_down() -> None:
    raise TransientError("down")


def say_much() -> None:
    raise ValueError("s3cret-of-the-sink " + "x" * 50_000)


@pytest.fixture(autouse=True)
def one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(partitionId=lambda: 0, taskAttemptId=lambda: 0, attemptNumber=lambda: 0)
    monkeypatch.setattr("signoff.engine.delivery.sink_pass.TaskContext", SimpleNamespace(get=lambda: context))


def one_pass(fail: Callable[[], None], sink: str = "kv") -> list[TaskReport]:
    return from_table(reported(fail, sink))


def reported(fail: Callable[[], None], sink: str = "kv") -> pa.RecordBatch:
    retry = Retry(attempts=None, initial_ms=0, max_ms=0)
    task = SinkTask(sink, Broken(fail), retry, (SinkDelivery("alive", (), ""),), pa.schema([]))
    (batch,) = Pass(BATCH, (task,), (), None)([ROWS])
    return batch


def test_the_traceback_of_a_sinks_own_error_is_logged_once_for_each_sink_and_type(
    caplog: pytest.LogCaptureFixture,
) -> None:
    surprises = Surprises()
    for fail, sink in ((look_up_nine, "kv"), (look_up_nine, "kv"), (look_up_nine, "other"), (say_much, "kv")):
        left = surprises.take(one_pass(fail, sink))
        assert [report.kind for report in left] == [ReportKind.OWED], "its rows wait, as ever"
    first, second, third = (record.getMessage() for record in caplog.records)
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert 'sink "kv" raised an error of its own, KeyError' in first
    assert "in look_up_nine" in first and first.endswith("KeyError: 'nine'")
    assert second.startswith('sink "other"') and third.startswith('sink "kv"') and "ValueError" in third


def test_the_passes_of_a_source_log_it_with_the_first_of_many_tries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unused: Any = None
    spark: Any = SimpleNamespace(conf=SimpleNamespace(set=lambda key, value: None))
    prepared: Any = SimpleNamespace(run=lambda *_: (reported(look_up_nine), {}))
    passes = Passes(
        "incoming", spark, tmp_path, tmp_path / "log", {}, Interrupts(), unused, {}, unused, prepared=prepared
    )
    for _ in range(3):
        (owed,) = passes.results(Work(BATCH, {"kv": Untried()}, frozenset(), with_errors=True))
        assert owed.kind == ReportKind.OWED and owed.text == "KeyError: 'nine'"
    (record,) = caplog.records
    assert "in look_up_nine" in record.getMessage()


def test_a_traceback_is_masked_and_not_without_end(caplog: pytest.LogCaptureFixture) -> None:
    register_secret("s3cret-of-the-sink")
    (surprise,) = [one for one in one_pass(say_much) if one.kind == ReportKind.SURPRISE]
    assert len(surprise.text or "") < 7000
    Surprises().take([surprise])
    assert "s3cret" not in caplog.text

    def chained() -> None:
        raise RuntimeError("s3cret-of-the-sink")

    (surprise,) = [one for one in one_pass(chained) if one.kind == ReportKind.SURPRISE]
    assert "RuntimeError" in (surprise.text or "") and "s3cret" not in (surprise.text or "")


def test_a_sink_that_says_it_is_down_gets_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    reports: list[Any] = Surprises().take(one_pass(be_down))
    assert [report.text for report in reports] == ["down"]
    assert not caplog.records
