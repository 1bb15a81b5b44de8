"""Which task of a Spark job failed. Runs on the driver.

Spark's exception often says only what happened: an error of an expression is raised as it is, without the
task. Its own books say it, as soon as they have caught up with what its scheduler has told them.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from types import TracebackType

from py4j.protocol import Py4JError
from pyspark import SparkContext

logger = logging.getLogger(__name__)

_CATCH_UP_MS = 10_000
_MOST_TASKS = 1000


class TaskWatch:
    """Watches the jobs that this thread starts inside its `with`."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self._tag = f"signoff-{uuid.uuid4().hex}"

    def __enter__(self) -> TaskWatch:
        self._context.addJobTag(self._tag)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._context.removeJobTag(self._tag)

    def failed_share(self, shares: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
        """The share of the task that failed, of those that were given to as many tasks.

        A hint, and None where there is none: behind a shuffle tasks have nothing to do with shares.
        """
        try:
            failed = self._failed_task()
        except Py4JError as error:  # Spark's inside may be another in another version
            logger.debug("no task is named: %s", error)
            return None
        if failed is None or not shares:
            return None
        number, of_stage = failed
        # Where branches of a plan meet again, each has as many tasks as there are shares.
        return None if of_stage % len(shares) else shares[number % len(shares)]

    def _failed_task(self) -> tuple[int, int] | None:
        """The number of the task, and how many its stage has."""
        spark = self._context._jsc.sc()
        spark.listenerBus().waitUntilEmpty(_CATCH_UP_MS)
        books = spark.statusStore()
        for job in spark.statusTracker().getJobIdsForTag(self._tag):
            for stage_id in self._context.statusTracker().getJobInfo(job).stageIds:
                stage = books.lastStageAttempt(stage_id)
                if stage.status().toString() != "FAILED":
                    continue
                tasks = books.taskList(stage_id, stage.attemptId(), _MOST_TASKS)
                tries = [tasks.apply(number) for number in range(tasks.size())]
                failed = [(task.attempt(), task.index()) for task in tries if task.status() == "FAILED"]
                if failed:  # the one that was tried most often: Spark has given it up
                    return int(max(failed)[1]), int(stage.numTasks())
        return None
