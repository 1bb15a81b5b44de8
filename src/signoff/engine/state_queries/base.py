"""What the queries that keep state have in common: a Structured Streaming query from one link into another.

Spark cuts the link in front into batches, and calls `_batch` for each, again and with the same range after a
crash. The range comes from Spark's write-ahead log, not from the batch id, which only names the file.

The order is the promise, as for any batch: the state that a batch begins with, and its range, are durable
before its results are handed on; these are durable in their link before the batch is recorded; it is recorded
before Spark commits the state; and rows are removed from the log in front only when that state is durable as
well. Killed in between, or without power, Spark brings the same batch again with the same state, and its
results are recognised.
"""

from __future__ import annotations

import json
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamReader, StreamingQuery
from pyspark.sql.types import DataType, StructField, StructType

from signoff.engine.batch.interrupts import GaveUp, Interrupted
from signoff.engine.delivery.open_sinks import SinkEntry
from signoff.engine.query.base import Shared, SourceQuery
from signoff.engine.spark.checkpoints import Checkpoint
from signoff.engine.spark.stack_traces import last_line
from signoff.engine.split.boundaries import Boundary, buffer_place
from signoff.engine.split.stateful import StatefulBoundary, StateQuerySourceConfig
from signoff.errors import EngineError, PermanentError, PipelineError, Problem, TransientError
from signoff.ledger.batch_state import Done, HandedOn
from signoff.ledger.sequences import from_range
from signoff.pipeline.graph import Graph
from signoff.pipeline.secrets import excerpt, redact
from signoff.private import make_private
from signoff.sinks.contract import BatchRef, Part, Sink
from signoff.sinks.retry import next_wait_s
from signoff.stateful.lost_state import LostState
from signoff.stateful.window_sinks import MARK_ID, RESULTS, STATE

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedState:
    """What is known of a state when its pipeline is divided."""

    front: Graph
    """The part in front, with what is known now."""
    rows: str
    """Schema of the rows in the log in front of the state, as Spark writes it in JSON."""
    results: Mapping[str, DataType]


@dataclass(frozen=True)
class Surroundings:
    """What a query that keeps a state knows of its engine, whose mappings are filled while that is made."""

    boundaries: Sequence[Boundary]
    sinks: Mapping[str, SinkEntry]
    queries: Mapping[str, SourceQuery]
    why_held: Callable[[str], str]
    """Why no more events of a source come to the steps behind it, for now; '' if they do."""


class StateQuery(SourceQuery):
    """The state of one step that was cut out of its pipeline."""

    settings: ClassVar[dict[str, str]] = {}
    """Of its own session."""

    @classmethod
    @abstractmethod
    def plan(
        cls,
        whole: Graph,
        front: Graph,
        boundary: StatefulBoundary,
        columns: Mapping[str, DataType],
        spark: SparkSession,
    ) -> PlannedState:
        """What becomes of rows with these columns. Raises PipelineError where Spark cannot keep such a state,
        and where the one that is kept holds events and is of another form."""

    def __init__(self, shared: Shared, source: str, shape: str, around: Surroundings) -> None:
        """`shape`: what its state depends on."""
        super().__init__(shared, source)
        self._around = around
        assert isinstance(self.config, StateQuerySourceConfig)
        self.checkpoint = Checkpoint(shared.graph.state, source, shape)
        self._name = self.config.name
        self._waits_for_results = self.config.waits_for_results
        self._sink_name = self._name + RESULTS
        self._place = buffer_place(shared.graph, source)
        self._results = self.runner.sinks[self._sink_name]
        self._intake = around.sinks[self._name + STATE].sink
        """Hands rows on into the log in front of the state."""
        self._first = 0
        self._last_commit: int | None = None
        self._query: StreamingQuery | None = None
        for name, value in self.settings.items():
            self.spark.conf.set(name, value)

    def start(self) -> None:
        """Start where the ledger and the checkpoint say it stands."""
        self._error = ""
        self._find_state()
        self._resume()
        make_private(self.log_directory, durable=False)
        if not self.checkpoint.exists():
            # Not from where the log is needed: batches may be open whose rows were handed on.
            self.checkpoint.begin(self.shared.ledger.books(self.source).next)
        first = self.checkpoint.first
        self._first = self.shared.ledger.books(self.source).next if first is None else first
        stream = (
            self._reader()
            .options(
                path=str(self.log_directory),
                encoding=self.config.encoding,
                startingSequence=str(self._first),
                maxEventsPerBatch=str(self.config.max_events_per_batch),
                maxBytesPerBatch=str(self.config.max_bytes_per_batch),
                parallelism=str(self.spark.sparkContext.defaultParallelism),
            )
            .load()
        )
        self._query = (
            self._begin(stream)
            .writeStream.foreachBatch(self._batch)
            .outputMode(self._output_mode)
            .queryName(self.source)
            .option("checkpointLocation", str(self.checkpoint.path))
            .start()
        )

    def _reader(self) -> DataStreamReader:
        """Who reads the log."""
        return self.spark.readStream.format("signoff")

    @abstractmethod
    def _begin(self, stream: DataFrame) -> DataFrame:
        """What is computed of the rows of the log."""

    @property
    def _output_mode(self) -> str:
        return "append"

    def failure(self) -> str | None:
        if self._query is None:
            return "not started"
        if self._query.isActive:
            return None
        error = self._query.exception()
        return self._error or (last_line(error) if error is not None else "stopped")

    def stop(self) -> None:
        if self._query is not None:
            self._query.stop()
            self._sync_committed()

    def why_held(self) -> str:
        return ""

    def finished_upto(self) -> int:
        return min(self.checkpoint.finished(), self.shared.ledger.needed_from(self.source))

    def tidy(self) -> None:
        """Without a next batch, which would do so, what Spark has committed is made durable here."""
        last = self.checkpoint.last_batch("commits")
        if last == self._last_commit:
            self._sync_committed()
        self._last_commit = last
        super().tidy()

    def _sync_committed(self) -> None:
        try:
            self.checkpoint.sync_committed()
        except OSError as error:
            logger.warning("%s cannot be made durable, and is tried again: %s", self.checkpoint.path, error)

    @contextmanager
    def _syncing(self, batch_id: int) -> Iterator[None]:
        """Meanwhile that which a batch begins with is made durable: its range, and the state before it.

        Beside Spark's work, which takes longer. What becomes of the batch must not be seen before.
        """
        with ThreadPoolExecutor(1, "checkpoint") as pool:
            synced = pool.submit(self.checkpoint.synced.sync, batch_id)
            yield
            synced.result()

    def _batch(self, df: DataFrame, batch_id: int) -> None:
        """Called by Spark for each micro-batch, in a thread of its own.

        What is raised here ends the query. Spark matches the whole traceback against a pattern that
        overflows its stack on a long one, so the exception it gets is short; the rest is kept here.
        """
        try:
            self._do_batch(df, batch_id)
        except (Interrupted, GaveUp) as ended:
            self.ended = ended
        except Exception as error:  # told to whoever looks after the query
            logger.debug("batch %d failed", batch_id, exc_info=True)
            self._error = last_line(error)
        else:
            return
        raise EngineError("the batch was not finished")

    @abstractmethod
    def _do_batch(self, df: DataFrame, batch_id: int) -> None:
        """Hand the results of a batch on, and record that its rows are in the state."""

    def _batch_ref(self, batch_id: int) -> BatchRef:
        end = self.checkpoint.end_of(batch_id)
        start = self.checkpoint.end_of(batch_id - 1) if batch_id else self._first
        if end is None or start is None:
            raise EngineError(f"Spark's offset log {self.checkpoint.path}/offsets lacks batch {batch_id}")
        return BatchRef(self.source, start, end)

    @abstractmethod
    def _resume(self) -> None:
        """Bring the notes about the state in line with it, before the query goes on."""

    @abstractmethod
    def tend(self, *, ending: bool) -> None:
        """Called between batches: have what it holds end whose time is over. `ending`: the run ends, and what
        it holds may get more events in the next."""

    @property
    @abstractmethod
    def is_calm(self) -> bool:
        """Nothing that has ended is still to be handed on."""

    @abstractmethod
    def _holds_events(self) -> bool:
        """Whether the state holds events, as far as the notes about it say."""

    def _begin_anew(self) -> None:
        """The state is empty, although the notes about it may say otherwise."""

    def _find_state(self) -> None:
        """Raises PipelineError where the state is gone and held events: it begins anew only if somebody has
        said so (`signoff buffers drop`)."""
        taken, loss = self.shared.ledger.books(self.source).next, LostState(self._place)
        if loss.given_up == taken:
            self.checkpoint.begin_anew(taken)
            self._begin_anew()
            logger.warning('the state of "%s" was lost and given up; it begins anew', self._name)
        try:
            self.checkpoint.make_usable(taken, keep=self._holds_events())
            self._check_open()
        except EngineError as error:
            loss.note(taken)
            node = self.shared.graph.nodes[self.source]
            text = f'transform "{self._name}" has lost its state: {error}'
            hint = f"restore it; or give up what it held: signoff buffers drop FILE {self._name}"
            raise PipelineError([Problem("state-lost", text, hint, node.file, node.line)]) from error
        loss.forget()

    def _check_open(self) -> None:
        """Raises EngineError where nobody will bring a batch again that is open in the ledger."""
        if not self.checkpoint.exists() and any(
            self.runner.owing(known) for known in self.shared.ledger.open_batches(self.source)
        ):
            raise EngineError(f"the checkpoint {self.checkpoint.path} is gone")

    def comes_again(self, batch: BatchRef) -> bool:
        """Until Spark's commit of it is durable: what it handed on must be recognised."""
        last, done = self.checkpoint.last_batch(), self.checkpoint.synced.done
        if last is None:
            return False
        numbers = range(last if done is None else done, last + 1)
        return any(batch == self._as_handed(self._batch_ref(number), number) for number in numbers)

    @staticmethod
    def _as_handed(batch: BatchRef, batch_id: int) -> BatchRef:
        """As what the results of a batch are known: by its range, or without events by Spark's number."""
        return batch if batch.start < batch.end else replace(batch, replay=batch_id + 1)

    def _commit(self, batch: BatchRef, parts: Sequence[bytes]) -> None:
        """Hand the results of a batch on."""
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
        """Tell the ledger that the rows of a batch are in the state."""
        if batch.start == batch.end:
            return
        ledger = self.shared.ledger
        known = ledger.open_batch(batch.source, batch.start, batch.end, [self._sink_name])
        state = known.sinks.get(self._sink_name)
        if known.settled or (state is not None and state.handed_on is not None):
            return
        waiting = self._rows(batch) if self._waits_for_results else BitMap64()
        wait = HandedOn(waiting, attempts=1, since=time.time())
        ledger.record(
            batch.source,
            batch.start,
            batch.end,
            delivered=from_range(batch.start, batch.end) - waiting,
            outcomes=[],
            sinks={self._sink_name: wait if waiting else Done()},
            owed=waiting,
        )

    def _rows(self, batch: BatchRef) -> BitMap64:
        """The events of a batch that are rows, and not marks."""
        found = BitMap64()
        for first, events in self.log.read(batch.start, batch.end, ["message_id"]):
            marks = pc.starts_with(events.column("message_id"), MARK_ID)
            found |= BitMap64((np.flatnonzero(~np.asarray(marks)) + first).tolist())
        return found


def write_part(sink: Sink, batch: BatchRef, results: Iterable[pa.RecordBatch]) -> bytes | None:
    """Executor: a task's results, into a part of the link."""
    context = TaskContext.get()
    assert context is not None
    writer = sink.open(Part(batch, context.partitionId(), context.taskAttemptId()))
    try:
        for rows in results:
            if rows.num_rows and (refused := writer.write(rows)):
                raise EngineError(f"a result cannot be handed on: {refused[0].reason}")
        return writer.close()
    except BaseException:
        writer.abort()
        raise


def as_json(columns: Mapping[str, DataType]) -> str:
    """A schema, as Spark writes it in JSON."""
    return str(StructType([StructField(name, kind) for name, kind in columns.items()]).json())


def shown(value: object) -> str:
    """What a state was begun with, for a message."""
    return excerpt(json.dumps(value), 80)
