"""A source without state: the engine cuts its log into batches and runs each as one Spark job.

The ledger knows where the last batch ended and which are not settled: all that Spark's streaming engine
would keep in a checkpoint of a stateless query. Without it a batch has no offset and commit files to
wait for, its rows are not copied once more, and the plan is made once for all batches; see
docs/decisions/0006.
"""

from __future__ import annotations

import logging
import threading
import time

from signoff.engine.control import GaveUp, Interrupted
from signoff.engine.poison import last_line
from signoff.engine.query import Shared, SourceQuery
from signoff.engine.standing import StandingPass
from signoff.errors import EngineError
from signoff.log.spark import RangeReader
from signoff.sinks.contract import BatchRef

logger = logging.getLogger(__name__)

_LOOK_S = 0.01
"""How often the log is looked at while there is nothing new: one small file is read."""
_SEE_SPARK_S = 1.0
_IDLE_STOP_S = 0.1
_STOP_S = 30.0


class RangeQuery(SourceQuery):
    """Batches as the engine cuts them, in a thread of its own."""

    def __init__(self, shared: Shared, source: str) -> None:
        super().__init__(shared, source)
        self._thread: threading.Thread | None = None
        self._halt = threading.Event()
        self._group = f"signoff {shared.graph.name}/{source}"
        self._see_spark_at = 0.0

    def start(self) -> None:
        self._error = ""
        self.log_directory.mkdir(parents=True, exist_ok=True)
        self._thread = threading.Thread(target=self._run, name=f"query-{self.source}", daemon=True)
        self._thread.start()

    def failure(self) -> str | None:
        if self._thread is None:
            return "not started"
        running = self._thread.is_alive()
        if not running or time.monotonic() >= self._see_spark_at:
            self._see_spark()
        return None if running else self._error or "stopped"

    def stop(self) -> None:
        self._halt.set()
        if self._thread is None:
            return
        self._thread.join(_IDLE_STOP_S)
        if self._thread.is_alive():
            self.spark.sparkContext.cancelJobGroup(self._group)
            self._thread.join(_STOP_S)

    def finished_upto(self) -> int:
        return self.shared.ledger.needed_from(self.source)

    def _see_spark(self) -> None:
        """Ask Spark something: while there is nothing to do nobody else would notice that it is gone."""
        if self.spark.sparkContext._jsc.sc().isStopped():
            raise EngineError("Spark has stopped")
        self._see_spark_at = time.monotonic() + _SEE_SPARK_S

    # -- its thread

    def _run(self) -> None:
        try:
            self.spark.sparkContext.setJobGroup(self._group, self._group, interruptOnCancel=True)
            self._finish_open()
            self._go_on()
        except (Interrupted, GaveUp) as ended:
            self.ended = ended
        except Exception as error:  # told to whoever looks after the query
            logger.debug("a batch of %s failed", self.source, exc_info=True)
            self._error = last_line(error)

    def _go_on(self) -> None:
        reader = RangeReader(self.spark, self.log_directory, self.config.encoding)
        self.runner.standing = StandingPass(
            reader, self._compile, self.runner.first_tasks, self.shared.graph.state
        )
        start = self.shared.ledger.books(self.source).next
        while not self._halt.is_set():
            end = min(self.log.end_after(start), start + self.config.max_events_per_batch)
            if end == start:
                self._halt.wait(_LOOK_S)
                continue
            end = self.log.within(start, end, self.config.max_bytes_per_batch)
            self.runner.run(BatchRef(self.source, start, end), None)
            start = end
