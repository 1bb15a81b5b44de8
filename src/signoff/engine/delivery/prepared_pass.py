"""The pass over a whole batch, planned once for all batches of a source.

What differs between batches is the range and how often each sink was asked, which go to the tasks with
the job. A pass for single rows that are still owed, or after a crash that left receipts, is rare and gets
a plan of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from signoff.engine.delivery.receipts import receipts_directory
from signoff.engine.delivery.sink_pass import Carried, Pass, SinkTask
from signoff.engine.plan.drop_counters import ended
from signoff.engine.plan.plan import ErrorPlan, Plan
from signoff.engine.plan.task_report import RESULT_DDL
from signoff.log.spark import RangeReader, told_range
from signoff.sinks.contract import BatchRef

_Key = tuple[int, frozenset[str], bool]
"""Number of tasks, sinks, and whether what the steps fail on is said."""


@dataclass(frozen=True)
class _Planned:
    df: DataFrame
    ready: Callable[[], AbstractContextManager[None]]
    """See `Plan.ready`."""


Compile = Callable[[DataFrame, set[str] | None], Plan]
"""Compile a source's plan over rows, for some sinks or all."""


class PreparedPass:
    """Runs passes over whole batches. Plans when it is first asked, once for each set of sinks."""

    def __init__(
        self,
        source: str,
        sinks: Iterable[str],
        reader: RangeReader,
        compile_rows: Compile,
        tasks: Callable[[Plan], tuple[SinkTask, ...]],
        state: Path,
        version: Callable[[], object] = lambda: None,
    ) -> None:
        self._source, self._sinks = source, frozenset(sinks)
        self._reader, self._compile, self._tasks, self._state = reader, compile_rows, tasks, state
        self._planned: dict[_Key, list[_Planned]] = {}
        """Plans that no job is using. The counts of a plan are those of its last job: one at a time."""
        self._choosing = threading.Lock()
        self._version, self._planned_for = version, version()
        """What plans were made for; see `Transform.version`."""
        self._renewed = False
        """A plan of these shuffles, or tells the time; see `run`."""

    def prepare(self) -> None:
        """Plan the pass to all sinks. Raises PipelineError where Spark does not accept an expression."""
        key = (1, self._sinks, True)
        self._planned[key] = [self._plan(*key)]

    def run(
        self,
        batch: BatchRef,
        sinks: Mapping[str, int | None],
        with_errors: bool,
        stamps: Mapping[str, int | None] | None = None,
        carried: Carried | None = None,
    ) -> tuple[pa.Table, dict[str, int]]:
        """Hand the rows of a batch to some sinks. `sinks`: how often each was asked before; None: is held.
        `stamps`: what all rows of the batch are stamped with. `carried`: see `Pass`.

        Returns the results, and with errors how many rows ended at which step.
        """
        note = {"asked": dict(sinks), "carried": carried or {}}
        tasks = self._reader.tell(batch.start, batch.end, note, stamps)
        key = (tasks, frozenset(sinks), with_errors)
        with self._choosing:
            if (version := self._version()) != self._planned_for:
                self._planned, self._planned_for = {}, version
            idle = self._planned.setdefault(key, [])
            found = idle.pop() if idle else None
        planned = self._plan(*key) if found is None else found
        try:
            # When a plan is run again, Spark takes again what it has shuffled, and the time it had the first
            # time; a selection is a new plan.
            df = planned.df.select("*") if self._renewed else planned.df
            with planned.ready():
                results = df.toArrow()
            return results, ended(df) if with_errors else {}
        finally:
            idle.append(planned)

    def _plan(self, tasks: int, sinks: frozenset[str], with_errors: bool) -> _Planned:
        # What the steps fail on is said for all sinks at once, also for those that are not asked now.
        plan = self._compile(self._reader.rows(tasks), None if with_errors else set(sinks))
        one_pass = _ToldPass(
            self._source,
            tuple(task for task in self._tasks(plan) if task.name in sinks),
            plan.reported_errors(all_steps=with_errors),
            None if plan.shuffled else self._state,
        )
        self._renewed |= plan.shuffled or _tells_the_time(plan.df)
        return _Planned(plan.df.mapInArrow(one_pass, RESULT_DDL), plan.ready)


def _tells_the_time(df: DataFrame) -> bool:
    """Whether an expression asks for the current time or date, which Spark looks up once for a plan."""
    jvm = df.sparkSession._jvm
    assert jvm is not None
    patterns = jvm.org.apache.spark.sql.catalyst.trees.TreePattern
    return bool(df._jdf.queryExecution().analyzed().containsPattern(patterns.CURRENT_LIKE()))


@dataclass(frozen=True)
class _ToldPass:
    """Executor: the pass over the range the job was told."""

    source: str
    sinks: tuple[SinkTask, ...]
    errors: tuple[ErrorPlan, ...]
    state: Path | None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        told = told_range()
        batch = BatchRef(self.source, told.start, told.end)
        receipts = None if self.state is None else receipts_directory(self.state, batch)
        asked: dict[str, int | None] = told.note["asked"]
        sinks = tuple(
            replace(task, attempts=asked[task.name] or 0, held=asked[task.name] is None)
            for task in self.sinks
        )
        return Pass(batch, sinks, self.errors, receipts, told.note["carried"])(batches)
