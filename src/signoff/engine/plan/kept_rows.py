"""Rows that are computed once in a pass and kept on disk until it ends, for all parts of its plan.

A step that brings rows together, or is a function on DataFrames, begins a part of its own: Spark computes
what is upstream of it for that part, and again for the part in which errors are reported and other sinks are
served. A step that calls out (`enrich`, a function of the user's, a `dedupe`) may answer otherwise the second
time: a row would fail in one part and go on in the other, and be delivered twice or not at all. So what such
steps have made is written to disk, by a job of its own, before anything downstream of them is computed:

    steps that call out ─► files in state/kept/… ─┬─► errors, and sinks that read these rows
                                                  └─► merge, function, … ─► their sinks

Invariants:

* All parts of a pass read the same files: those named by the tasks' results that Spark took. What a task
  has written that failed, or was overtaken by a copy of itself, is named nowhere.
* Nothing is computed again in their place: a file that cannot be read fails the pass, which is then
  repeated as a whole, beginning with the steps.
* They are gone when the pass ends. After a kill the pass is repeated, so they need not survive one, and
  are not synced; what is left of them is removed when the engine starts.

Rejected: `persist` and shuffles, of which Spark computes lost pieces again without a word; `localCheckpoint`,
which does not, but may hold two different copies of a piece; a log in between, behind which a `merge`
without keys does not know what an event was split into (docs/decisions/0031).
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from signoff.log.disk_proof import prove_shared
from signoff.private import make_private, opener

_DIRECTORY = "kept"
_TOLD = "signoff.kept"
_WRITTEN = "task INT, file STRING"


def remove_kept_rows(state: Path) -> None:
    """Driver, when the engine starts: what a run has left that was killed."""
    shutil.rmtree(state / _DIRECTORY, ignore_errors=True)


class KeptRows:
    """What is kept for one plan, which any number of passes may use, one after the other."""

    def __init__(self, state: Path, tasks: int | None = None) -> None:
        """`tasks`: how many read what was kept, where the order of rows matters."""
        self._directory = state / _DIRECTORY / uuid.uuid4().hex
        self._tasks = tasks
        self.steps: list[DataFrame] = []
        """What is to be kept, in the order in which it is computed: the later may read the earlier."""

    def __bool__(self) -> bool:
        return bool(self.steps)

    def keep(self, df: DataFrame) -> DataFrame:
        """The same rows, read from where they are kept. Called while a plan is made: nothing is computed."""
        number = len(self.steps)
        self.steps.append(df)
        session = df.sparkSession
        tasks = self._tasks or session.sparkContext.defaultParallelism
        return session.range(0, tasks, 1, tasks).mapInArrow(_Read(self._place(number), tasks), df.schema)

    @contextmanager
    def computed(self) -> Iterator[None]:
        """Compute and keep rows, which jobs of this thread can read meanwhile. Raises what Spark raises."""
        if not self.steps:
            yield
            return
        context = self.steps[0].sparkSession.sparkContext
        files: dict[str, list[str]] = {}
        try:
            for number, df in enumerate(self.steps):
                place = self._place(number)
                make_private(place, durable=False)
                # A selection is a new plan: one that is run again takes what it has shuffled the first time.
                written = df.select("*").mapInArrow(_Write(place), _WRITTEN).toArrow().to_pylist()
                names = [row["file"] for row in sorted(written, key=lambda row: int(row["task"]))]
                context.setLocalProperty(_TOLD, json.dumps(files | {str(place): names}))
                files[str(place)] = names
            yield
        finally:
            context.setLocalProperty(_TOLD, "")
            shutil.rmtree(self._directory, ignore_errors=True)

    def _place(self, number: int) -> Path:
        return self._directory / str(number)


@dataclass(frozen=True)
class _Write:
    """Executor: one file for each try of a task; says which it is."""

    place: Path

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        prove_shared()
        task, name = context.partitionId(), f"{context.partitionId()}-{context.taskAttemptId()}.arrow"
        rows = (batch for batch in batches if batch.num_rows)
        if (first := next(rows, None)) is None:
            return
        with (
            open(self.place / name, "wb", opener=opener) as file,
            pa.ipc.new_stream(file, first.schema) as writer,
        ):
            writer.write_batch(first)
            for batch in rows:
                writer.write_batch(batch)
        yield pa.RecordBatch.from_pydict(
            {"task": pa.array([task], pa.int32()), "file": pa.array([name], pa.string())}
        )


@dataclass(frozen=True)
class _Read:
    """Executor: each number that comes in stands for its share of the files, in the order of their tasks."""

    place: Path
    tasks: int

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        prove_shared()
        files: list[str] = json.loads(context.getLocalProperty(_TOLD))[str(self.place)]
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                for name in files[number :: self.tasks]:
                    with pa.OSFile(str(self.place / name)) as file, pa.ipc.open_stream(file) as reader:
                        yield from reader
