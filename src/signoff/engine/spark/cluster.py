"""The session of a run: here, or on a cluster whose executors are there and see the driver's disk.

Invariants: on a cluster no event is touched before at least one executor has run a task, and all that were
there at the start have proved that they share the disk; those that come later prove it with their first
task. What cannot work is said within half a minute, not waited for in silence.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from signoff.engine.spark.disk_marks import SharedDisk, shared_disk
from signoff.engine.spark.session import start_session
from signoff.engine.spark.stack_traces import last_line
from signoff.errors import EngineError, PipelineError, Problem
from signoff.log.disk_proof import NOT_SHARED, not_shared, prove_shared
from signoff.pipeline.graph import Graph

logger = logging.getLogger(__name__)

_EXECUTOR_WITHIN_S = 30.0
_PROBE_S = 180.0
"""A worker waits for its answer for a minute, and Spark tries a task four times."""
_ROUNDS = 10
_TASKS_EACH = 4
"""Tasks for each executor in a round: Spark decides who gets them."""


class NoExecutors(EngineError):
    """The cluster gives this run nobody to work for it."""


@dataclass
class Cluster:
    """A started session, and what it needs for as long as it is there."""

    spark: SparkSession
    disk: SharedDisk | None = None

    @classmethod
    def start(cls, graph: Graph) -> Cluster:
        """Start Spark. Raises NoExecutors, or PipelineError where executors do not share the disk."""
        disk = shared_disk(graph)
        log_file = graph.state / "spark.log"
        if disk is not None:
            disk.begin()
        try:
            spark = start_session(
                graph.name,
                graph.settings.spark,
                log_file=log_file,
                python_path=graph.base,
                executor_environment=disk.environment if disk else {},
            )
            try:
                check_master(graph, spark)
                if disk is not None:
                    _Probe(graph, spark.sparkContext, log_file).run()
            except BaseException:
                spark.stop()
                raise
        except BaseException:
            if disk is not None:
                disk.close()
            raise
        return cls(spark, disk)

    def stop(self) -> None:
        self.spark.stop()
        if self.disk is not None:
            self.disk.close()


def check_master(graph: Graph, spark: SparkSession) -> None:
    """Raise PipelineError where Spark runs on a cluster though the pipeline was checked for one machine: the
    session may have been there before, or its master come from elsewhere."""
    master = spark.sparkContext.master
    if graph.settings.spark.is_local and not master.startswith("local"):
        text = (
            f"Spark runs on {master}, but the pipeline was checked for "
            f"{graph.settings.spark.effective_master}: executors there would use their own disks"
        )
        hint = "set spark.master to the master of the session, and what check says then"
        raise PipelineError([Problem("not-shared", text, hint, graph.file)])


class _Probe:
    """Has every executor that is there prove that it shares the driver's disk."""

    def __init__(self, graph: Graph, context: SparkContext, log_file: Path) -> None:
        self._graph, self._context, self._log_file = graph, context, log_file
        self._error: Exception | None = None
        self._answered: set[tuple[str, int]] = set()

    def run(self) -> None:
        thread = threading.Thread(target=self._work, name="probe", daemon=True)
        began = time.monotonic()
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
            waited = time.monotonic() - began
            if thread.is_alive() and waited > _EXECUTOR_WITHIN_S and not self._executors():
                raise NoExecutors(self._nobody())
            if thread.is_alive() and waited > _PROBE_S:
                raise NoExecutors(
                    f"a first task on {self._master} is not finished after {_PROBE_S:.0f} s; "
                    f"{self._log_file} has what Spark says. Nothing is lost: no event was touched"
                )
        if self._error is not None:
            raise self._meaning(self._error) from self._error

    def _work(self) -> None:
        """Rounds of tasks, until each executor has had one: Spark does not let us choose."""
        try:
            for _ in range(_ROUNDS):
                tasks = max(self._executors(), 1) * _TASKS_EACH
                found = self._context.parallelize(range(tasks), tasks).mapPartitions(_prove).collect()
                self._answered.update(found)
                if len(self._answered) >= self._executors():
                    return
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits
            self._error = error

    def _executors(self) -> int:
        """How many are registered; the driver is in Spark's list as well."""
        return int(self._context._jsc.sc().getExecutorMemoryStatus().size()) - 1

    @property
    def _master(self) -> str:
        return self._graph.settings.spark.effective_master

    def _nobody(self) -> str:
        conf = self._context.getConf()
        host, port = conf.get("spark.driver.host"), conf.get("spark.driver.port")
        return (
            f"[no-executors] no executor of {self._master} has come within {_EXECUTOR_WITHIN_S:.0f} s. They "
            f"must be able to connect to this run at {host}:{port}: if workers cannot reach that address, "
            "set SPARK_LOCAL_IP in the run's environment (or spark.driver.host in spark.config) to one they "
            "can. Or no worker has the cores and the memory (spark.cores.max, spark.executor.memory). "
            f"{self._log_file} has what Spark says. Nothing is lost: no event was touched"
        )

    def _meaning(self, error: Exception) -> Exception:
        if (said := not_shared(error)) is not None:
            text = said.removeprefix(NOT_SHARED).strip()
            return PipelineError([Problem("not-shared", text, file=self._graph.file)])
        return NoExecutors(
            f"a first task on {self._master} failed: {last_line(error)}. Python, Signoff and its packages "
            f"must be at the same path on every worker; {self._log_file} has more. Nothing is lost: no event "
            "was touched"
        )


def _prove(_: Iterable[int]) -> Iterator[tuple[str, int]]:
    """Executor: prove it, and say who this is: the daemon from which all Python workers here come."""
    prove_shared()
    time.sleep(0.05)  # so that one executor does not take all tasks of a round
    yield socket.gethostname(), os.getppid()
