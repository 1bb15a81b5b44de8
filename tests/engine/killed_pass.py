"""A batch whose run is killed and done again: the engine's own parts, and a stand-in for Spark's frame."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql.types import StringType

from signoff.engine.batch import passes as passes_module
from signoff.engine.batch.backlog import Backlog
from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.batch.letters import LetterStore
from signoff.engine.batch.passes import Passes
from signoff.engine.batch.runner import BatchRunner
from signoff.engine.batch.stage_counts import StageCounts
from signoff.engine.delivery import sink_pass as delivery
from signoff.engine.delivery.open_sinks import SinkEntry
from signoff.engine.delivery.receipts import receipts_directory
from signoff.engine.plan.plan import ErrorPlan, Plan, SinkDelivery, SinkPlan
from signoff.engine.plan.retried_steps import RetriedStep
from signoff.ledger import DeadLetters, Ledger
from signoff.ledger.batch_state import BatchState
from signoff.log import LogReader, LogWriter
from signoff.pipeline.model import LogSettings, Retry
from signoff.sinks.contract import BatchRef, Part, Refusal, Sink, Writer
from signoff.transforms.frame import CHILD, SEQUENCE
from signoff.transforms.row_results import RowResult, result_text
from tests.engine.simulated_run import ToySinkConfig
from tests.log.events import numbered

STEP = "call"
BATCH = BatchRef("incoming", 0, 8)


class Killed(BaseException):
    """The end of a run, as a kill is: nobody handles it."""


@dataclass
class Frame:
    """What the tasks of a job read: each a slice of the log. Attempts are counted from 0 by each Spark."""

    tasks: Sequence[range]
    fails: Mapping[int, str] = field(default_factory=dict)
    """What the step says of events."""
    order: Sequence[int] | None = None
    """In which the tasks are done, and which of them; a kill comes if it is not all."""
    function: Any = None

    def mapInArrow(self, function: Any, _: str) -> Frame:  # noqa: N802
        return Frame(self.tasks, self.fails, self.order, function)

    def toArrow(self) -> pa.Table:  # noqa: N802
        done = []
        for number in range(len(self.tasks)) if self.order is None else self.order:
            context = SimpleNamespace(
                partitionId=lambda n=number: n, taskAttemptId=lambda n=number: n, attemptNumber=lambda: 0
            )
            with patch.object(delivery, "TaskContext", SimpleNamespace(get=lambda c=context: c)):
                done += list(self.function(iter([self._rows(self.tasks[number])])))
        if self.order is not None and len(self.order) < len(self.tasks):
            raise Killed
        return pa.Table.from_batches(done)

    def _rows(self, events: range) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(
            {
                SEQUENCE: pa.array(events, pa.int64()),
                CHILD: pa.repeat("", len(events)),
                "v": [f"v{number}" for number in events],
                "alive": [number not in self.fails for number in events],
                "error": pa.array([self.fails.get(number) for number in events], pa.string()),
            }
        )


class Slow(Sink):
    """Takes the rows of some tasks only when another sink has left its receipt for them."""

    def __init__(self, receipts: Path, behind: str, tasks: Collection[int]) -> None:
        self.receipts, self.behind, self.tasks = receipts, behind, tasks

    def open(self, part: Part) -> Writer:
        return _SlowWriter(self, part.partition)


class _SlowWriter(Writer):
    def __init__(self, sink: Slow, task: int) -> None:
        self.sink, self.task = sink, task

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        end = time.monotonic() + 60
        while self.task in self.sink.tasks and not list(
            self.sink.receipts.glob(f"{self.sink.behind}.{self.task}.*")
        ):
            assert time.monotonic() < end, "no receipt"
            time.sleep(0.01)
        return []

    def close(self) -> bytes | None:
        return None


def run(
    state: Path,
    sink: Sink,
    frame: Frame,
    *,
    receipts: Collection[int] = (),
    record: bool = True,
    form: str = "as it is",
) -> BatchState:
    """Do the batch in a run of its own, for the sink "out" and a slow one. `receipts`: tasks for which "out"
    leaves one. Without `record` the run is killed before the ledger knows anything.
    `form`: of the pipeline."""
    policies: Mapping[str, Any] = {STEP: "dead_letter"}
    slow = Slow(receipts_directory(state, BATCH), "out", receipts)
    config = ToySinkConfig(retry=Retry(initial_ms=1))
    answers = any(text.startswith(result_text(RowResult.WAITS, "")) for text in frame.fails.values())
    plans = {
        name: SinkPlan(name, (SinkDelivery("alive", (("v", "v"),), ""),), {"v": StringType()})
        for name in ("out", "slow")
    }
    plan = Plan(frame, plans, (ErrorPlan("error", STEP, "dead_letter", None, answers),), False)  # type: ignore[arg-type]
    with ExitStack() as stack:
        stack.enter_context(patch.object(passes_module, "ended", lambda _: {}))
        stack.enter_context(patch.object(delivery, "prove_shared", lambda: None))
        ledger = stack.enter_context(Ledger(state / "ledger.db"))
        letters = stack.enter_context(DeadLetters(state / "dead_letters.db"))
        _fill(state / "log")
        if not record:
            stack.enter_context(patch.object(ledger, "record", side_effect=Killed))
        passes = Passes(
            source="incoming",
            spark=SimpleNamespace(conf=SimpleNamespace(set=lambda *_: None)),  # type: ignore[arg-type]
            state=state,
            log=state / "log",
            sinks={"out": SinkEntry(config, sink, form), "slow": SinkEntry(config, slow, form)},
            control=Interrupts(),
            range_plan=lambda *_: plan,
            steps={STEP: RetriedStep("dead_letter", Retry(), frozenset({"out", "slow"}))} if answers else {},
            isolate=lambda *_: None,
        )
        runner = BatchRunner(
            passes,
            policies=policies,
            stage_counts=StageCounts("incoming", {}),
            fail_fast=False,
            ledger=ledger,
            letters=LetterStore("incoming", letters, LogReader(state / "log")),
        )
        stack.callback(sink.release)
        sink.prepare()
        _until_settled(runner)
        return runner.open(BATCH)


def _until_settled(runner: BatchRunner) -> None:
    backlog = Backlog(runner)
    backlog.take(BATCH)
    end = time.monotonic() + 60
    while len(backlog):
        assert time.monotonic() < end, runner.open(BATCH)
        backlog.retry()


def _fill(log: Path) -> None:
    if not log.exists():
        with closing(LogWriter(log, LogSettings())) as writer:
            writer.append(numbered(0, BATCH.end))
            writer.sync()
