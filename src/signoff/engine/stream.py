"""A source with steps that keep state: a Structured Streaming query, from its log into the batch runner.

Spark decides the ranges and calls `_batch` for each, again and with the same range after a crash.
The range comes from Spark's write-ahead log, not from the batch id, which only names the file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql.streaming import DataStreamReader, StreamingQuery

from signoff.engine.batch import touch
from signoff.engine.checkpoint import Checkpoint
from signoff.engine.compile import Plan
from signoff.engine.control import GaveUp, Interrupted
from signoff.engine.poison import last_line
from signoff.engine.query import Shared, SourceQuery
from signoff.errors import EngineError
from signoff.private import make_private
from signoff.sinks.contract import BatchRef

logger = logging.getLogger(__name__)


class StreamQuery(SourceQuery):
    """Batches as Spark's streaming engine cuts them."""

    def __init__(self, shared: Shared, source: str) -> None:
        super().__init__(shared, source)
        # Its batches cannot be read again, and its rows bear no marks: see `division`.
        assert not self.runner.windows and not self.runner.unites
        self.checkpoint = Checkpoint(shared.graph, source)
        self._first = 0
        self._last_commit: int | None = None
        self._query: StreamingQuery | None = None
        self._plan: Plan | None = None

    def start(self) -> None:
        """Start where the ledger and the checkpoint say it stands."""
        self._error = ""
        make_private(self.log_directory, durable=False)
        self.checkpoint.mend(self.shared.ledger.books(self.source).next)
        if not self.checkpoint.exists():
            # Nobody will bring an open batch again: do it now.
            try:
                self._finish_open()
            except (Interrupted, GaveUp) as ended:
                self.ended = ended
                return
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

    def _begin(self, stream: DataFrame) -> DataFrame:
        """What is computed of the events of the log."""
        self._plan = self._compile(stream, streaming=True)
        return self._plan.df

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
        owing = self.runner.waits_for
        return f"a batch waits for {', '.join(owing)}" if owing else ""

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

    def _do_batch(self, df: DataFrame, batch_id: int) -> None:
        assert self._plan is not None
        batch = self._batch_ref(batch_id)
        plan = replace(self._plan, df=df)
        self.checkpoint.synced.sync(batch_id)
        if batch.start >= batch.end:
            if plan.stateful:
                touch(df)
            return
        self.runner.run(batch, plan)

    def _batch_ref(self, batch_id: int) -> BatchRef:
        end = self.checkpoint.end_of(batch_id)
        start = self.checkpoint.end_of(batch_id - 1) if batch_id else self._first
        if end is None or start is None:
            raise EngineError(f"Spark's offset log {self.checkpoint.path}/offsets lacks batch {batch_id}")
        return BatchRef(self.source, start, end)
