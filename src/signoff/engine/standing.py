"""The first pass over a batch, planned once for all batches of a source.

What differs between batches is only the range, which goes to the tasks with the job. Everything else
that a pass may need, the rows still owed or covered by receipts, belongs to a second try, which is rare
and gets a plan of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame

from signoff.engine.compile import ErrorPlan, Plan
from signoff.engine.delivery import Pass, SinkTask
from signoff.engine.receipts import receipts_directory
from signoff.engine.result import RESULT_DDL
from signoff.log.spark import RangeReader, told_range
from signoff.sinks.contract import BatchRef


class StandingPass:
    """Runs first passes. Plans when it is first asked, once for one task and once for all."""

    def __init__(
        self,
        reader: RangeReader,
        compile_rows: Callable[[DataFrame], Plan],
        tasks: Callable[[Plan], tuple[SinkTask, ...]],
        state: Path,
    ) -> None:
        self.spark = reader.spark
        self._reader, self._compile, self._tasks, self._state = reader, compile_rows, tasks, state
        self._planned: dict[int, DataFrame] = {}

    def run(self, batch: BatchRef) -> pa.Table:
        """Hand the rows of a batch to all sinks."""
        tasks = self._reader.tell(batch.start, batch.end)
        if tasks not in self._planned:
            plan = self._compile(self._reader.rows(tasks))
            receipts = None if plan.shuffled else self._state
            one_pass = _ToldPass(batch.source, self._tasks(plan), plan.errors, receipts)
            self._planned[tasks] = plan.df.mapInArrow(one_pass, RESULT_DDL)
        return self._planned[tasks].toArrow()


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
        return Pass(batch, self.sinks, self.errors, receipts)(batches)
