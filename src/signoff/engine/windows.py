"""The query that keeps a window's state: a Structured Streaming query from one link into another.

It reads the partial rows that the sources' queries have handed on, puts them together in Spark's state
store, and hands the results on when Spark closes their windows. The order is the promise, as for any batch:
results are durable in their link before the batch is recorded, it is recorded before Spark commits the
state, and rows are removed from the log in front only after that. Killed in between, Spark brings the same
batch again with the same state, and its results are recognised.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from signoff.engine.division import StateSourceConfig, WindowJoint, buffer_place
from signoff.engine.poison import last_line
from signoff.engine.query import Shared
from signoff.engine.stream import StreamQuery
from signoff.errors import EngineError, PermanentError, PipelineError, TransientError
from signoff.ledger.outcome import SinkState
from signoff.ledger.sequences import from_range
from signoff.pipeline.graph import Graph
from signoff.pipeline.secrets import redact
from signoff.sinks.contract import EVENT_ID, ORIGIN, BatchRef, Part, Sink
from signoff.sinks.retry import next_wait_s
from signoff.state.marks import Marks, Progress
from signoff.state.windowing import MARK_ID, RESULTS, marks_path
from signoff.transforms.window import RESULT_ID, WindowConfig, merged

logger = logging.getLogger(__name__)

_SETTINGS = {
    # One operator with state, two watermarks: Spark's rule against the latter is for several operators.
    "spark.sql.streaming.statefulOperator.allowMultiple": "false",
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    # Windows are closed, and given out, by the batch after the one that has brought the mark.
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    # A division by zero in an aggregate is null: an error would end the query for good.
    "spark.sql.ansi.enabled": "false",
}


class WindowQuery(StreamQuery):
    """The state of one window."""

    def __init__(self, shared: Shared, source: str) -> None:
        super().__init__(shared, source)
        assert isinstance(self.config, StateSourceConfig)
        self._window, self._name = self.config.window, self.config.name
        self._schema = StructType.fromJson(json.loads(self.config.columns))
        self._sink_name = self._name + RESULTS
        self._results = self.runner.sinks[self._sink_name]
        self._marks = Marks(graph_marks(shared.graph, source), Progress(0), ())
        self._shape = state_shape(self._window, self.config.columns)
        self.checkpoint.keeps_state(self._shape)
        self.remind: Callable[[], None] = lambda: None
        """Have the mark put into the log once more."""
        for name, value in _SETTINGS.items():
            self.spark.conf.set(name, value)

    def start(self) -> None:
        self._marks.begin(self._shape)
        self.checkpoint.mend(self.shared.ledger.books(self.source).next)  # a torn one says what to do
        if (last := self.checkpoint.last_batch("commits")) is not None:
            self._marks.gave(self.checkpoint.watermark_ms(last) * 1000)
        if not self._marks.all_given:
            # A query that was stopped before it could give out what a mark has closed waits for new rows.
            self.remind()
        super().start()

    @property
    def idle(self) -> bool:
        """Everything in the log is in the state, and what it has closed is handed on."""
        return super().idle and self._marks.all_given

    def comes_again(self, batch: BatchRef) -> bool:
        """Until Spark has committed it: what it handed on must be recognised."""
        last = self.checkpoint.last_batch()
        if last is None or last == self.checkpoint.last_batch("commits"):
            return False
        return batch == _handed_as(self._batch_ref(last), last)

    def _begin(self, stream: DataFrame) -> DataFrame:
        rows = stream.select(F.from_json("payload", self._schema).alias("row")).select("row.*")
        return merged(self._window, self._name, rows)

    @property
    def _output_mode(self) -> str:
        return "append" if self._window.emit == "closed" else "update"

    def _do_batch(self, df: DataFrame, batch_id: int) -> None:
        batch = self._batch_ref(batch_id)
        handed = _handed_as(batch, batch_id)
        results = df.withColumnRenamed(RESULT_ID, EVENT_ID).withColumn(ORIGIN, F.lit(batch.start))
        written = results.mapInArrow(_WriteParts(self._results.sink, handed), "part BINARY").collect()
        self._commit(handed, [bytes(row["part"]) for row in written if row["part"] is not None])
        if batch.start < batch.end:
            self._record(batch)
        self._marks.gave(self.checkpoint.watermark_ms(batch_id) * 1000)

    def _commit(self, batch: BatchRef, parts: Sequence[bytes]) -> None:
        attempts = 0
        while True:
            try:
                self._results.sink.commit(batch, parts)
                return
            except PermanentError:
                raise
            except TransientError as error:
                attempts += 1
                wait = next_wait_s(self._results.config.retry, attempts)
                logger.warning(
                    'results of "%s" cannot be handed on (attempt %d, next in %.1f s): %s',
                    self._name, attempts, wait, redact(last_line(error)),
                )  # fmt: skip
                self.shared.control.wait(wait)

    def _record(self, batch: BatchRef) -> None:
        ledger = self.shared.ledger
        known = ledger.open_batch(batch.source, batch.start, batch.end, [self._sink_name])
        state = known.sinks.get(self._sink_name)
        if known.settled or (state is not None and state.handed is not None):
            return
        waiting = self._rows(batch) if self._window.acknowledge == "delivered" else BitMap64()
        wait = SinkState(done=False, attempts=1, since=time.time(), owed=(), handed=waiting)
        ledger.record(
            batch.source,
            batch.start,
            batch.end,
            delivered=from_range(batch.start, batch.end) - waiting,
            outcomes=[],
            sinks={self._sink_name: wait if waiting else SinkState(done=True)},
            owed=waiting,
        )

    def _rows(self, batch: BatchRef) -> BitMap64:
        """The events of a batch that are rows, and not marks."""
        found = BitMap64()
        for first, events in self.log.read(batch.start, batch.end, ["message_id"]):
            marks = pc.starts_with(events.column("message_id"), MARK_ID)
            found |= BitMap64((np.flatnonzero(~np.asarray(marks)) + first).tolist())
        return found


def _handed_as(batch: BatchRef, batch_id: int) -> BatchRef:
    """As what the results of a batch are known: by its range, or without events by Spark's number."""
    return batch if batch.start < batch.end else BatchRef(batch.source, batch.start, batch.end, batch_id + 1)


def graph_marks(graph: Graph, source: str) -> Path:
    return marks_path(buffer_place(graph, source))


def state_shape(window: WindowConfig, columns: str) -> str:
    """What the state of a window depends on."""
    return json.dumps({**window.shape, "columns": columns}, sort_keys=True)


def check_shape(graph: Graph, joint: WindowJoint, columns: str) -> None:
    """Raises PipelineError where the state was begun for another form of the window and holds events."""
    marks = Marks(graph_marks(graph, joint.source), Progress(0), (), readonly=True)
    try:
        known, wanted = marks.shape, state_shape(joint.window, columns)
        held = marks.open_windows or not marks.all_given
    finally:
        marks.close_store()
    if not known or known == wanted or not held:
        return
    before, now = json.loads(known), json.loads(wanted)
    changed = next(name for name in (*joint.window.shape, "columns") if before.get(name) != now.get(name))
    raise PipelineError(
        [
            joint.node.problem(
                "state-changed",
                f'has open windows that were begun with another "{changed}" ({_said(before.get(changed))})',
                at=changed,
                hint="let them be closed first: run the pipeline as it was once more, with idle_after: 1s; "
                "or give the step another name: its state begins anew, and the old windows are never closed",
            )
        ]
    )


def _said(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True)
class _WriteParts:
    """Executor: a task's results, into a part of the link."""

    sink: Sink
    batch: BatchRef

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        writer = self.sink.open(Part(self.batch, context.partitionId(), context.taskAttemptId()))
        try:
            for rows in batches:
                if rows.num_rows and (refused := writer.write(rows)):
                    raise EngineError(f"a result cannot be handed on: {refused[0].reason}")
            part = writer.close()
        except BaseException:
            writer.abort()
            raise
        yield pa.RecordBatch.from_pydict({"part": pa.array([part], pa.binary())})
