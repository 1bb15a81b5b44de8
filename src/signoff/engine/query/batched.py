"""The query of a source: the engine cuts its log into batches and runs each as one Spark job.

The ledger knows where the last batch ended and which are not settled: all that Spark's streaming engine
would keep in a checkpoint of a query without state. Without it a batch has no offset and commit files to
wait for, its rows are not copied once more, and the plan is made once for all batches; see
docs/decisions/0006.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

from signoff.engine.batch.backlog import Backlog
from signoff.engine.batch.interrupts import GaveUp, Interrupted
from signoff.engine.delivery.prepared_pass import PreparedPass
from signoff.engine.plan.preparse import early_of
from signoff.engine.query.base import Shared, SourceQuery
from signoff.engine.spark.checkpoints import remove_former
from signoff.engine.spark.stack_traces import last_line
from signoff.errors import EngineError
from signoff.log.spark import RangeReader
from signoff.private import make_private
from signoff.sinks.contract import BatchRef
from signoff.transforms.contract import Transform
from signoff.transforms.frame import MARK

logger = logging.getLogger(__name__)

_LOOK_S = 0.01
"""How often the log is looked at while there is nothing new: one small file is read."""
_MANY = 5_000
_LINGER_S = 1.5
"""Where so many events have come since the last batch began, more are waited for until this time after it: a
batch costs as much as ten thousand events, and others (a broker, the intake) need the processor, too."""
_SILENT_S = 0.1
"""But not if none came for so long: the source may be at its limit of unacknowledged events."""
_SEE_SPARK_S = 1.0
_LET_END_S = 2.0
"""A pass that ends by itself within this time is not interrupted: its rows would be written again."""
_STOP_S = 30.0


class BatchedQuery(SourceQuery):
    """Batches as the engine cuts them. One thread takes new ones, one asks again what is still owed."""

    def __init__(self, shared: Shared, source: str) -> None:
        super().__init__(shared, source)
        self._threads: list[threading.Thread] = []
        self._halt = threading.Event()
        self._group = f"signoff {shared.graph.name}/{source}"
        self._see_spark_at = 0.0
        self._backlog = Backlog(self.runner)
        self._taken_upto = 0
        self._collect_s = float(getattr(self.config, "collects_s", 0.0))
        self._collected = (-1, 0.0)
        """The first event of the batch that is being collected, and when that ends."""

    def start(self) -> None:
        self.stop()  # one of its threads may go on where the other has failed
        self._error, self._threads = "", []
        self._halt = self.runner.passes.halt = threading.Event()
        self._backlog = Backlog(self.runner)
        make_private(self.log_directory, durable=False)
        stamps = [MARK + name for name in self.runner.windows]
        reader = RangeReader(
            self.spark,
            self.log_directory,
            self.config.encoding,
            self.most_tasks,
            stamps=stamps,
            derive=early_of(self.shared.graph, self.source, self.spark),
        )
        self.runner.passes.prepared = PreparedPass(
            self.source,
            self.runner.sinks,
            reader,
            self._compile,
            self.runner.passes.sink_tasks,
            self.shared.graph.state,
            self._version,
        )
        self.runner.passes.prepared.prepare()
        remove_former(self.shared.graph.state, self.source)
        self._backlog.resume()
        work = {"new": self._take_new, "owed": self._ask_again}
        self._threads = [
            threading.Thread(
                target=self._run, args=(do, self._halt), name=f"{name}-{self.source}", daemon=True
            )
            for name, do in work.items()
        ]
        for thread in self._threads:
            thread.start()

    def failure(self) -> str | None:
        if not self._threads:
            return "not started"
        running = not self._halt.is_set()
        if not running or time.monotonic() >= self._see_spark_at:
            self._see_spark()
        return None if running else self._error or "stopped"

    def stop(self) -> None:
        self._halt.set()
        self._backlog.wake()
        if self._joined(_LET_END_S):
            return
        self.spark.sparkContext.cancelJobGroup(self._group)
        self._joined(_STOP_S)

    def _joined(self, within_s: float) -> bool:
        until = time.monotonic() + within_s
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    def finished_upto(self) -> int:
        return self.shared.ledger.needed_from(self.source)

    def look_again(self, start: int) -> None:
        self._backlog.look_again(start)

    def why_held(self) -> str:
        waits = self.log.head() - self._taken_upto
        reason = self._backlog.why_held() if waits > 0 and not self._halt.is_set() else ""
        return f"{reason}; {waits} events wait in the log" if reason else ""

    def _version(self) -> object:
        """Of the steps behind the source."""
        graph = self.shared.graph
        steps = [(name, graph.nodes[name].config) for name in sorted(graph.downstream(self.source))]
        return tuple(step.version(name, graph.base) for name, step in steps if isinstance(step, Transform))

    def _see_spark(self) -> None:
        """Ask Spark something: while there is nothing to do nobody else would notice that it is gone."""
        if self.spark.sparkContext._jsc.sc().isStopped():
            raise EngineError("Spark has stopped")
        self._see_spark_at = time.monotonic() + _SEE_SPARK_S

    # -- its threads

    def _run(self, work: Callable[[threading.Event], None], halt: threading.Event) -> None:
        try:
            self.spark.sparkContext.setJobGroup(self._group, self._group, interruptOnCancel=True)
            work(halt)
        except Interrupted as ended:
            if self.shared.control.overdue:  # and not because the other thread has failed
                self.ended = self.ended or ended
        except GaveUp as ended:
            self.ended = self.ended or ended
        except Exception as error:  # told to whoever looks after the query
            if not halt.is_set():
                logger.debug("a batch of %s failed", self.source, exc_info=True)
                self._error = last_line(error)
        finally:
            halt.set()

    def _take_new(self, halt: threading.Event) -> None:
        start, most = self.shared.ledger.books(self.source).next, self.config.max_events_per_batch
        began = grew = 0.0
        seen = self._taken_upto = start
        while not halt.is_set():
            end, now = min(self.log.end_after(start), start + most), time.monotonic()
            seen, grew = (end, now) if end > seen else (seen, grew)
            more_comes = _MANY <= end - start < most and now < min(began + _LINGER_S, grew + _SILENT_S)
            if (
                end == start
                or more_comes
                or self._collects(start, end - start, now)
                or not self._backlog.may_take(end - start, most)
            ):
                halt.wait(_LOOK_S)
                continue
            began = now
            end = self.log.within(start, end, self.config.max_bytes_per_batch)
            self._taken_upto = end
            self._backlog.take(BatchRef(self.source, start, end))
            start = end

    def _collects(self, start: int, count: int, now: float) -> bool:
        """Whether rows of a digest are still waited for. A run that is to end waits for none."""
        seconds, control = self._collect_s, self.shared.control
        ending = control.stopping or control.patience_s is not None
        if not seconds or not count or count >= self.config.max_events_per_batch or ending:
            return False
        if self._collected[0] != start:
            first = self.log.lookup([start]).get(start)
            waited = (datetime.now(UTC) - first["received_at"]).total_seconds() if first else seconds
            # The clock may have been set: never longer than asked for, from now on by one that is not.
            self._collected = start, now + min(max(seconds - waited, 0.0), seconds)
        return now < self._collected[1]

    def _ask_again(self, halt: threading.Event) -> None:
        while not halt.is_set():
            self._backlog.retry()
            if self.shared.control.overdue:
                raise Interrupted
