"""Passes over the rows of a batch: planned, tried again, and searched for poison. Runs on the driver.

A pass over a whole batch is prepared once for all batches (`prepared_pass`). One for undelivered rows reads
only their events, unless a step makes one row of several events: then the same rows come only of the whole
batch.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from signoff.engine.batch.interrupts import Interrupted, Interrupts
from signoff.engine.batch.poison_search import PlanFailed
from signoff.engine.batch.stage_counts import of_counts
from signoff.engine.delivery.open_sinks import SinkEntry, says_rows, sink_task
from signoff.engine.delivery.prepared_pass import PreparedPass
from signoff.engine.delivery.receipts import receipts_directory, valid_receipts
from signoff.engine.delivery.sink_pass import Carried, Pass, SinkTask, Span
from signoff.engine.delivery.surprises import Surprises
from signoff.engine.plan.drop_counters import ended
from signoff.engine.plan.failure_reasons import explained, unexplained
from signoff.engine.plan.plan import Plan
from signoff.engine.plan.retried_steps import RetriedStep
from signoff.engine.plan.task_report import RESULT_DDL, TaskReport, from_table
from signoff.engine.spark.stack_traces import last_line
from signoff.ledger.batch_state import SinkState, Untried
from signoff.log import LogReader
from signoff.log.disk_proof import not_shared
from signoff.sinks.contract import BatchRef
from signoff.stateful.window_sinks import WindowIntake
from signoff.transforms.frame import MARK

logger = logging.getLogger(__name__)

_ARROW_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_ARROW_BATCH = str(16 * 1024**2)
_UNMEASURED = str(2**31 - 1)
_SMALL_BATCH = 256 * 1024**2
_SMALL_EVENT = 8 * 1024

RangePlan = Callable[[int, int, set[str] | None, frozenset[int] | None], Plan]
"""Compile the source's plan over a fixed range of the log, for some sinks or all, over some events or all."""


@dataclass(frozen=True)
class Work:
    """What one pass is for."""

    batch: BatchRef
    asked: Mapping[str, SinkState]
    held: frozenset[str]
    """Sinks that are not asked, and of which it is not known yet what they are to get."""
    with_errors: bool
    """Whether what the steps fail on is said."""
    step: str | None = None
    """The step the rows have waited for, if they have."""
    carried: Carried = field(default_factory=dict)
    """Trace contexts that the sinks send along."""
    published_as: Mapping[str, int] = field(default_factory=dict)
    """By sink that publishes whole batches and is asked for rows by name: under which number."""

    def batch_for(self, sink: str) -> BatchRef:
        """The batch under the name by which a sink publishes what it is given."""
        return replace(self.batch, replay=self.published_as.get(sink, 0))


@dataclass
class Passes:
    """Of one source. Two threads may do a pass each, over different batches."""

    source: str
    spark: SparkSession
    """A session of its own."""
    state: Path
    log: Path
    sinks: Mapping[str, SinkEntry]
    control: Interrupts
    range_plan: RangePlan
    steps: Mapping[str, RetriedStep]
    """The steps that may fail for now."""
    isolate: Callable[[int, int], None]
    """Find the events a plan fails on, store them as dead letters, exclude them from reading.
    Raises PlanFailed if it is not the events."""
    windows: Mapping[str, WindowIntake] = field(default_factory=dict)
    """The windows that rows come to."""
    unites: bool = False
    """A step makes one row of several events: they are read together whenever one is asked for again."""
    before_uniting: frozenset[str] = frozenset()
    """Such steps, and those that have one behind them."""
    halt: threading.Event = field(default_factory=threading.Event)
    """Set when the query ends: what fails then has been interrupted, and nobody is to blame."""
    prepared: PreparedPass | None = None
    """Does passes over whole batches, where each is a job of its own."""
    surprises: Surprises = field(default_factory=Surprises)
    _measuring: threading.Lock = field(default_factory=threading.Lock)
    _measured: int = 0
    """Passes under way over large events."""
    _isolating: threading.Lock = field(default_factory=threading.Lock)

    def sink_tasks(self, plan: Plan) -> tuple[SinkTask, ...]:
        """What a pass over a whole batch has to do for each sink of a plan."""
        return tuple(sink_task(name, self.sinks[name], Untried(), plan) for name in plan.sinks)

    def stamps_at(self, sequence: int) -> dict[str, int | None]:
        """What the events of the batch that one is in are stamped with."""
        return {
            MARK + name: window.marks.stamp_at(self.source, sequence) for name, window in self.windows.items()
        }

    def way_through(self, step: str) -> frozenset[str] | None:
        """A step that is waited for, and those behind it; None if it is gone from the pipeline."""
        return self.steps[step].behind | {step} if step in self.steps else None

    def results(self, work: Work) -> list[TaskReport]:
        """What sinks and steps report. Raises Interrupted, and PlanFailed where no event is at fault."""
        results = self.surprises.take(self._results_of_passes(work))
        return self._explained(work.batch, results)

    def _explained(self, batch: BatchRef, results: list[TaskReport]) -> list[TaskReport]:
        """With the reasons of expressions that failed: their rows are computed once more."""
        events = frozenset(result.sequence or 0 for result in unexplained(results))
        if not events:
            return results
        if self.unites:  # the same rows come out only of the same events
            plan = self.range_plan(batch.start, batch.end, None, None)
        else:
            plan = self.range_plan(min(events), max(events) + 1, None, events)
        needs_kept = any(result.name in plan.read_kept for result in unexplained(results))
        try:
            with plan.ready() if needs_kept else nullcontext():
                return explained(results, plan.attempts)
        except (PySparkException, Py4JError):
            logger.debug("the reasons of batch %s cannot be found out", batch.key, exc_info=True)
            return explained(results, {})

    def _results_of_passes(self, work: Work) -> list[TaskReport]:
        try:
            return self._try_pass(work)
        except PlanFailed as failure:
            logger.warning("batch %s failed, trying it again: %s", work.batch.key, failure)
        try:
            return self._try_pass(work)
        except PlanFailed:
            with self._isolating:
                self.isolate(work.batch.start, work.batch.end)
        return self._try_pass(work)

    def _try_pass(self, work: Work) -> list[TaskReport]:
        try:
            with self._arrow_sized(work.batch):
                return self._pass(work)
        except (PySparkException, Py4JError) as failure:
            if self.control.overdue or self.halt.is_set():
                raise Interrupted from failure
            raise PlanFailed(not_shared(failure) or last_line(failure)) from failure

    def _pass(self, work: Work) -> list[TaskReport]:
        if work.step is not None:
            return self._pass_for_step(work, work.step)
        batch, asked = work.batch, work.asked
        directory = receipts_directory(self.state, batch)
        # Receipts are not written for such plans; those of an earlier form of the pipeline say nothing of it.
        forms = {name: entry.form for name, entry in self.sinks.items()}
        known = [] if self.unites else valid_receipts(directory, forms)
        receipts = [receipt for receipt in known if receipt.sink in asked]
        whole = not receipts and all(state.wants_all and not says_rows(state) for state in asked.values())
        if self.prepared is not None and whole and not work.published_as:
            sinks = {name: state.attempts for name, state in asked.items()} | dict.fromkeys(work.held)
            stamps = self.stamps_at(batch.start)
            table, counts = self.prepared.run(batch, sinks, work.with_errors, stamps, work.carried)
            return from_table(table) + of_counts(counts)
        whole = work.with_errors or bool(work.held) or self.unites
        start, end = _span(batch, asked, whole=whole)
        rows = None if whole else _owed_rows(asked)
        plan = self.range_plan(start, end, None if work.with_errors else {*asked, *work.held}, rows)
        covered: dict[str, list[Span]] = {}
        for receipt in receipts:
            covered.setdefault(receipt.sink, []).append(receipt.span)
        tasks = [
            sink_task(
                name, self.sinks[name], state, plan, covered.get(name, ()),
                published_as=work.published_as.get(name, 0),
            )
            for name, state in asked.items()
        ]  # fmt: skip
        tasks += [replace(sink_task(n, self.sinks[n], Untried(), plan), held=True) for n in work.held]
        errors = plan.reported_errors(all_steps=work.with_errors)
        receipts_at = None if plan.shuffled else directory
        one_pass = Pass(batch, tuple(tasks), errors, receipts_at, carried=work.carried)
        df = plan.df.mapInArrow(one_pass, RESULT_DDL)
        with plan.ready():
            results = from_table(df.toArrow()) + of_counts(ended(df) if work.with_errors else {})
        return results + [result for receipt in receipts for result in receipt.results]

    def _pass_for_step(self, work: Work, step: str) -> list[TaskReport]:
        rows = _owed_rows(work.asked)
        assert rows
        start, end = min(rows), max(rows) + 1
        if self.unites and step not in self.before_uniting:
            start, end, rows = work.batch.start, work.batch.end, None
        plan = self.range_plan(start, end, set(work.asked), rows)
        tasks = [
            sink_task(
                name, self.sinks[name], state, plan, step=step,
                published_as=work.published_as.get(name, 0),
            )
            for name, state in work.asked.items()
        ]  # fmt: skip
        tasks = [replace(task, through=self.way_through(step)) for task in tasks]
        one_pass = Pass(
            work.batch, tuple(tasks), plan.reported_errors(all_steps=False), None, carried=work.carried
        )
        with plan.ready():
            return from_table(plan.df.mapInArrow(one_pass, RESULT_DDL).toArrow())

    @contextmanager
    def _arrow_sized(self, batch: BatchRef) -> Iterator[None]:
        """Let Spark measure what it sends to Python, row by row, only where rows may be large."""
        size = LogReader(self.log).size(batch.start, batch.end)
        large = size > _SMALL_BATCH or size > _SMALL_EVENT * (batch.end - batch.start)
        with self._measuring:
            self._measured += large
            self.spark.conf.set(_ARROW_BYTES, _ARROW_BATCH if self._measured else _UNMEASURED)
        try:
            yield
        finally:
            with self._measuring:
                self._measured -= large


def _owed_rows(asked: Mapping[str, SinkState]) -> frozenset[int] | None:
    """The events that hold all that is asked for; None where somebody is asked for a whole batch."""
    if any(state.wants_all for state in asked.values()):
        return None
    return frozenset(row.sequence for state in asked.values() for row in state.wanted_rows) or None


def _span(batch: BatchRef, asked: Mapping[str, SinkState], *, whole: bool) -> Span:
    """The part of the batch that holds the rows still owed."""
    rows = [row.sequence for state in asked.values() for row in state.wanted_rows]
    if whole or not rows or any(state.wants_all for state in asked.values()):
        return batch.start, batch.end
    return min(rows), max(rows) + 1
