"""What the queries that keep state have in common: a Structured Streaming query from one link into another.

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
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64
from pyspark import TaskContext

from signoff.engine.joints import KeepingSourceConfig, buffer_place
from signoff.engine.poison import last_line
from signoff.engine.query import Shared
from signoff.engine.stream import StreamQuery
from signoff.errors import EngineError, PermanentError, PipelineError, Problem, TransientError
from signoff.ledger.outcome import SinkState
from signoff.ledger.sequences import from_range
from signoff.pipeline.secrets import excerpt, redact
from signoff.sinks.contract import BatchRef, Part, Sink
from signoff.sinks.retry import next_wait_s
from signoff.state.loss import Loss
from signoff.state.windowing import MARK_ID, RESULTS

logger = logging.getLogger(__name__)


class KeepingQuery(StreamQuery):
    """The state of one step that was cut out of its pipeline."""

    settings: ClassVar[dict[str, str]] = {}
    """Of its own session."""

    def __init__(self, shared: Shared, source: str) -> None:
        super().__init__(shared, source)
        assert isinstance(self.config, KeepingSourceConfig)
        self._name = self.config.name
        self._waits_for_results = self.config.waits_for_results
        self._sink_name = self._name + RESULTS
        self._place = buffer_place(shared.graph, source)
        self._results = self.runner.sinks[self._sink_name]
        for name, value in self.settings.items():
            self.spark.conf.set(name, value)

    def start(self) -> None:
        self._find_state()
        self._resume()
        super().start()

    @abstractmethod
    def _resume(self) -> None:
        """Bring the notes about the state in line with it, before the query goes on."""

    @abstractmethod
    def _holds_events(self) -> bool:
        """Whether the state holds events, as far as the notes about it say."""

    def _begin_anew(self) -> None:
        """The state is empty, although the notes about it may say otherwise."""

    def _find_state(self) -> None:
        """Raises PipelineError where the state is gone and held events: it begins anew only if somebody has
        said so (`signoff buffers drop`)."""
        taken, loss = self.shared.ledger.books(self.source).next, Loss(self._place)
        if loss.given_up == taken:
            self.checkpoint.begin_anew(taken)
            self._begin_anew()
            logger.warning('the state of "%s" was lost and given up; it begins anew', self._name)
        try:
            self.checkpoint.mend(taken, keep=self._holds_events())
        except EngineError as error:
            loss.note(taken)
            node = self.shared.graph.nodes[self.source]
            text = f'transform "{self._name}" has lost its state: {error}'
            hint = f"restore it; or give up what it held: signoff buffers drop FILE {self._name}"
            raise PipelineError([Problem("state-lost", text, hint, node.file, node.line)]) from error
        loss.forget()

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
        if known.settled or (state is not None and state.handed is not None):
            return
        waiting = self._rows(batch) if self._waits_for_results else BitMap64()
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


def said(value: object) -> str:
    """What a state was begun with, for a message."""
    return excerpt(json.dumps(value), 80)
