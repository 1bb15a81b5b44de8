"""One run of a job, from whatever a kill has left of it to its end.

    runs/key locked ─► recorded ─► compute ─► recorded ─► state locked ─► deliver, finish ─► recorded

Runs with different keys compute side by side; they deliver one after the other, in one state directory with
one account. What another run has left in the logs is delivered first, with the parameters of that run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.spark.cluster import Cluster
from signoff.errors import PipelineError, SignoffError
from signoff.jobs.compute import Incomplete, compute
from signoff.jobs.deliver import JobDelivery, Refused, StillOwed
from signoff.jobs.outputs import output_names, second_half
from signoff.jobs.owners import refuse_others
from signoff.jobs.parameters import Asked, from_json, to_json
from signoff.jobs.records import CANCELLED, IN_LOGS, PERSON, Record, Records
from signoff.jobs.state_dir import claim, delivery_lock, forget_directory, fresh_directory, run_lock
from signoff.pipeline.graph import Graph
from signoff.pipeline.job_settings import Value
from signoff.pipeline.overlays import Layers
from signoff.pipeline.secrets import redact

logger = logging.getLogger(__name__)

DONE, FAILED, STILL_OWED, INCOMPLETE = 0, 1, 3, 4
"""Exit codes; 2 is a wrong job or wrong usage."""
Tick = Callable[[str, int, int], None]
"""Called with what is done, how far it is, and what would be all."""


def load_job(file: Path, values: Mapping[str, Value] | None = None, layers: Layers | None = None) -> Graph:
    """The job as a run with these values sees it; without, as it is written. Raises PipelineError."""
    import os

    from signoff.catalog import default
    from signoff.errors import Problem
    from signoff.pipeline.job_check import given
    from signoff.pipeline.load import load

    graph = load(file, default(), {**os.environ, **given(values or {})}, layers=layers)
    if not graph.is_job:
        message = "this is a pipeline, and no job: it has neither parameters nor a table"
        raise PipelineError([Problem("not-a-job", message, f"signoff run {file}", graph.file)])
    return graph


@dataclass
class JobRun:
    """Does one run."""

    file: Path
    asked: Asked
    asked_by: str = PERSON
    """Who asks: a person, each time anew; or something that asks once, by a name of its own."""
    patience_s: float = 30.0
    waits: bool = False
    """Wait while another process does the same run."""
    spark: SparkSession | None = None
    on_tick: Tick = lambda *_: None
    layers: Layers | None = None
    control: Interrupts = field(init=False)
    record: Record | None = None
    """As it was last recorded."""

    def __post_init__(self) -> None:
        self.control = Interrupts(patience_s=self.patience_s)

    def execute(self) -> int:
        """Do the run; returns the exit code. `record` says what became of it.

        Raises PipelineError or StateError for what is wrong before it begins.
        """
        graph = load_job(self.file, self.asked.values, self.layers)
        claim(graph)
        stop = lambda: self.control.stopping  # noqa: E731
        alone = run_lock(graph.state, self.asked.key, waits=stop if self.waits else None)
        with alone, Records(graph.state) as records:
            return self._recorded(graph, records)

    def _recorded(self, graph: Graph, records: Records) -> int:
        if self.asked_by != PERSON and records.is_done(self.asked_by):
            self.record = records.last(self.asked.key)  # another process did it a moment ago
            return DONE
        known = None if self.asked_by == PERSON else records.asked_by(self.asked_by)
        if known is not None and known.state == CANCELLED:
            self.record = known
            return FAILED
        last, values = records.last(self.asked.key), to_json(self.asked.values)
        if last is not None and last.state in IN_LOGS and self._is_other(last, values):
            self.record = last  # that one to its end, then this
            if code := self._attempt(records, lambda: self._finish_first(graph, records)):
                return code
        period = tuple(None if each is None else each.timestamp() for each in self.asked.period)
        self.record = records.begin(self.asked.key, self.asked_by, values, (period[0], period[1]))
        return self._attempt(records, lambda: self._do(graph, records))

    def _attempt(self, records: Records, do: Callable[[], None]) -> int:
        """Do something for the run in `record`, and note how it ended; returns the exit code."""
        assert self.record is not None
        began = time.monotonic()
        try:
            do()
            return DONE
        except StillOwed as error:
            self._note(records, reason=redact(str(error)))
            return STILL_OWED
        except Refused as error:
            self._note(records, state="failed", reason=redact(str(error)), ended_at=time.time())
            return STILL_OWED
        except Incomplete as error:  # nothing is computed, so that whoever asks again begins anew
            self._note(records, state="failed", reason=redact(str(error)), ended_at=time.time())
            return INCOMPLETE
        except SignoffError as error:
            self._note(records, reason=redact(str(error)))
            if self.record.state == "computing":  # else what is in files and logs is still to be delivered
                self._note(records, state="failed", ended_at=time.time())
            if isinstance(error, PipelineError):
                raise
            return FAILED
        finally:
            self._note(records, busy_s=self.record.busy_s + time.monotonic() - began)

    def _is_other(self, last: Record, values: str) -> bool:
        """Whether what an earlier try has left is not what is asked for: it is of other values, or who asks
        now does so because of data that it may not have seen."""
        return last.parameters != values or self.asked_by not in (last.asked_by, PERSON)

    def _note(self, records: Records, **fields: object) -> None:
        assert self.record is not None
        self.record = records.change(self.record, **fields)

    def _do(self, graph: Graph, records: Records) -> None:
        assert self.record is not None
        made = self.record.outputs.keys()
        if self.record.state == "computed" and made != set(output_names(graph)):
            self._note(records, state="computing")  # the job has changed, and no row has a number yet
        if self.record.state == "computing":
            refuse_others(second_half(graph))
        cluster = Cluster.start(graph) if self.spark is None else Cluster(self.spark)
        try:
            computes = self.record.state == "computing"
            if computes:
                self._compute(graph, records, cluster.spark)
            self._deliver(graph, records, cluster.spark, checked=self.record.id if computes else "")
        finally:
            if self.spark is None:
                cluster.stop()

    def _finish_first(self, graph: Graph, records: Records) -> None:
        cluster = Cluster.start(graph) if self.spark is None else Cluster(self.spark)
        try:
            with delivery_lock(graph.state, lambda: self.control.stopping):
                for other in records.in_logs():
                    self._finish_other(
                        records, JobDelivery(cluster.spark, records, self.control), graph, other
                    )
        finally:
            if self.spark is None:
                cluster.stop()

    def _compute(self, graph: Graph, records: Records, spark: SparkSession) -> None:
        assert self.record is not None
        directory = fresh_directory(graph.state, self.record.id)
        done = compute(graph, spark, self.asked.values, directory, self.on_tick)
        self._note(
            records,
            state="computed",
            inputs=done.inputs,
            complete_to=done.complete_to,
            outputs=done.outputs,
        )

    def _deliver(self, graph: Graph, records: Records, spark: SparkSession, *, checked: str) -> None:
        assert self.record is not None
        delivery = JobDelivery(spark, records, self.control, self._settled, checked)
        with delivery_lock(graph.state, lambda: self.control.stopping):
            for other in records.in_logs():
                if other.id != self.record.id:
                    self._finish_other(records, delivery, graph, other)
            self.record = records.again(self.record)
            if self.record.state == "done":
                return  # whoever delivered before us found it in the logs, and finished it first
            self.record = delivery.deliver(graph, self.record)
            self._note(records, state="done", ended_at=time.time())
            forget_directory(graph.state, self.record.id)

    def _finish_other(self, records: Records, delivery: JobDelivery, graph: Graph, other: Record) -> None:
        """Rows of another run are in the logs: the engine must not take them for ours."""
        logger.info("first what %s has left is delivered", other.id)
        values = from_json(graph.settings.parameters, other.parameters)
        try:
            delivery.deliver(load_job(self.file, values, self.layers), other)
            records.change(other, state="done", ended_at=time.time(), reason="")
        except Refused as error:
            records.change(other, state="failed", ended_at=time.time(), reason=redact(str(error)))
        except StillOwed as error:
            raise StillOwed(f"{other.id} comes first: {error}") from error

    def _settled(self, record: Record, settled: Mapping[str, int]) -> None:
        ranges = record.ranges
        done = sum(
            min(max(settled.get(name, 0), first), end) - first for name, (first, end) in ranges.items()
        )
        self.on_tick("rows settled", done, sum(end - first for first, end in ranges.values()))
