"""The log as a Spark data source: `spark.readStream.format("signoff").option("path", …)`, or `read`.

Where the methods run:

    driver's planner processes   schema, initialOffset, latestOffset, partitions; nothing is written
    executors                    read; stateless, all it needs is in the partition

An offset is `{"sequence": n}`: everything below n has been read. The same range gives the same rows
whenever it is asked for, except for events that were excluded meanwhile (see `exclusions.py`).
Nothing follows from Spark's `commit`: settlement is decided elsewhere, and so is trimming.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructType, TimestampType

from signoff.errors import LogError
from signoff.log.columns import Encoding, to_rows, united, without
from signoff.log.disk_proof import log_identity, prove_shared, require_same_log
from signoff.log.exclusions import excluded
from signoff.log.reader import LogReader, Slice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ROWS_PER_PARTITION = 10_000
"""Below this a second task costs more than it brings."""

_OPTIONS = (
    "path",
    "startingSequence",
    "endingSequence",
    "maxEventsPerBatch",
    "maxBytesPerBatch",
    "parallelism",
    "encoding",
)


@dataclass(frozen=True)
class LogOptions:
    """The options of the source, checked."""

    path: Path
    """Directory of the log."""
    starting_sequence: int | None
    """First event to read; the first one kept if not given. A checkpoint takes precedence."""
    ending_sequence: int | None
    """Batch only: end of the range, itself left out; the durable end if not given."""
    max_events_per_batch: int | None
    """Stream only: most events of a micro-batch."""
    max_bytes_per_batch: int | None
    """Stream only: about how many bytes of the log a micro-batch takes at most."""
    parallelism: int
    """Tasks among which a large range is divided."""
    encoding: Encoding

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> LogOptions:
        _refuse_unknown(options)
        path = options.get("path")
        if not path:
            raise LogError('[log-option] "path" is missing; give the directory of a log, .option("path", …)')
        encoding = options.get("encoding", "utf-8").lower()
        if encoding not in ("utf-8", "binary"):
            raise LogError(f'[log-option] "encoding" is utf-8 or binary, not {encoding!r}')
        return cls(
            path=Path(path),
            starting_sequence=_number(options, "startingSequence", 0),
            ending_sequence=_number(options, "endingSequence", 0),
            max_events_per_batch=_number(options, "maxEventsPerBatch", 1),
            max_bytes_per_batch=_number(options, "maxBytesPerBatch", 1),
            parallelism=_number(options, "parallelism", 1) or os.cpu_count() or 1,
            encoding="binary" if encoding == "binary" else "utf-8",
        )


class LogDataSource(DataSource):  # type: ignore[misc]  # PySpark is not typed
    """One log."""

    @classmethod
    def name(cls) -> str:
        return "signoff"

    def schema(self) -> StructType:
        binary = LogOptions.parse(self.options).encoding == "binary"
        return (
            StructType()
            .add("_sequence", LongType())
            .add("payload", BinaryType() if binary else StringType())
            .add("headers", MapType(StringType(), StringType()))
            .add("message_id", StringType())
            .add("received_at", TimestampType())
            .add("unit", LongType())
            .add("position", LongType())
            .add("error", StringType())
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        return LogBatchReader(LogOptions.parse(self.options), self._arrow(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return LogStreamReader(LogOptions.parse(self.options), self._arrow(schema))

    def _arrow(self, schema: StructType) -> pa.Schema:
        expected = self.schema()
        if schema.simpleString() != expected.simpleString():
            raise LogError(
                f"[log-option] the rows of a log are {expected.simpleString()}, but the schema asked for is "
                f"{schema.simpleString()}; leave .schema() out"
            )
        return to_arrow_schema(schema, timezone="UTC")


class LogPartition(InputPartition):  # type: ignore[misc]  # PySpark is not typed
    """One task's share of a range."""

    def __init__(self, part: Slice, left_out: Sequence[int], log: str = "") -> None:
        self.part = part
        self.left_out = tuple(left_out)
        self.log = log
        """Whose log it is, as the driver sees it."""

    def holds(self, sequence: int) -> bool:
        return self.part.start <= sequence < self.part.end


class _Reading:
    """What the batch and the stream reader share. Pickled to the executors."""

    def __init__(self, options: LogOptions, schema: pa.Schema) -> None:
        self.options = options
        self._schema = schema
        self._log = LogReader(options.path)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Executor, once per task and try: the rows of a partition, in order."""
        if not isinstance(partition, LogPartition):  # Spark's own, for a plan without partitions
            return iter(())
        prove_shared()
        require_same_log(self.options.path, partition.log)
        return united(self._rows(partition))

    def _rows(self, partition: LogPartition) -> Iterator[pa.RecordBatch]:
        for first, events in self._log.read_slice(partition.part):
            rows = without(to_rows(first, events, self.options.encoding), partition.left_out)
            if rows.num_rows:
                yield pa.RecordBatch.from_arrays(rows.columns, schema=self._schema)

    def divide(self, start: int, end: int, count: int | None = None) -> list[LogPartition]:
        """Cut a range into parts: so many, or as many as are worth a task."""
        if start >= end:
            return []
        worth = min(self.options.parallelism, -(-(end - start) // _ROWS_PER_PARTITION))
        parts = self._log.slices(start, end, worth if count is None else count)
        hidden = excluded(self.options.path)
        log = log_identity(self.options.path)
        return [LogPartition(part, _between(hidden, part.start, part.end), log) for part in parts]

    def _start(self) -> int:
        """The option, or the first event kept. Refuses a directory that is not there: a mistyped path
        would look like a source that is silent for ever."""
        if not self.options.path.is_dir():
            raise LogError(f"[log-missing] {self.options.path}: no such directory; is it the path of a log?")
        given = self.options.starting_sequence
        return self._log.first() if given is None else given


class LogBatchReader(_Reading, DataSourceReader):  # type: ignore[misc]  # PySpark is not typed
    """A range of the log, once."""

    def partitions(self) -> Sequence[InputPartition]:
        start, end = self._start(), self.options.ending_sequence
        return self.divide(start, self._log.head() if end is None else end)


class LogStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # PySpark is not typed
    """The log as it grows."""

    _target: int | None = None
    """End of the run with Trigger.AvailableNow."""

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Driver; may be called more than once for a new query, never for one with a checkpoint."""
        return {"sequence": self._start()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self.options.max_events_per_batch
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Driver, every 10 ms while idle: one small file is read."""
        begin = start["sequence"]
        end = self._end_after(begin)
        if isinstance(limit, ReadMaxRows):
            end = min(end, begin + limit.max_rows)
        end = self._log.within(begin, end, self.options.max_bytes_per_batch)
        if isinstance(limit, ReadMinRows) and self._target is None and end - begin < limit.min_rows:
            end = begin
        return {"sequence": end}

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        return {"sequence": self._log.head()}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = self._log.head()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Driver, once per micro-batch; after a crash again with the same range."""
        return self.divide(start["sequence"], end["sequence"])

    def stop(self) -> None:
        """In the process that plans the query, as the last thing of Spark's runner. When Spark has closed the
        connection nobody is left to tell; the runner would try to, and print tracebacks to the terminal."""
        if isinstance(sys.exc_info()[1], EOFError | ConnectionError):
            os._exit(0)

    def _end_after(self, begin: int) -> int:
        head = self._log.end_after(begin)
        # A checkpoint may be past the target already; going back is not allowed.
        return head if self._target is None else max(begin, min(head, self._target))


def read_range(
    spark: SparkSession,
    directory: Path,
    start: int,
    end: int,
    *,
    encoding: Encoding = "utf-8",
    without: Iterable[int] = (),
    parts: int | None = None,
    stamps: Mapping[str, int | None] | None = None,
) -> DataFrame:
    """The rows of a range, as `spark.read.format("signoff")` gives them, but planned in this process.

    For a driver that reads many ranges: Spark starts Python processes to plan a data source, which
    costs more than a second each time. The range is cut up now, so it must be in the log already; with
    `parts` given into so many tasks, each with the share that `evenly` gives it. `stamps`: further columns,
    each with one value for all rows.
    """
    options = LogOptions(directory, start, end, None, None, spark.sparkContext.defaultParallelism, encoding)
    schema = LogDataSource({"path": str(directory), "encoding": encoding}).schema()
    reading = _Reading(options, to_arrow_schema(schema, timezone="UTC"))
    left_out = set(without)
    shares = [
        LogPartition(part.part, sorted({*part.left_out, *(n for n in left_out if part.holds(n))}))
        for part in reading.divide(start, end, parts)
    ]
    numbers = spark.range(0, len(shares), 1, max(len(shares), 1))
    stamps = stamps or {}
    return numbers.mapInArrow(_ReadParts(reading, shares, stamps), _with_stamps(schema, stamps))


@dataclass(frozen=True)
class ToldRange:
    """The range a job is about."""

    start: int
    end: int
    parts: tuple[LogPartition, ...]
    note: Any
    """What else the job was told."""
    stamps: Mapping[str, int | None]
    """The value that all rows have in each further column."""


_TOLD = "signoff.range"


class Derive(Protocol):
    """Makes further columns of rows as they are read, and leaves out what nobody reads."""

    def schema(self, log: StructType) -> StructType:
        """What comes out where rows with these columns go in; some of them may be left out."""

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Executor: from rows to rows."""


class RangeReader:
    """One DataFrame for any range of a log: planned once, and told with each job what to read.

    Planning is a good part of the cost of a small batch. The range goes to the tasks as a property of
    the job, which Spark keeps by thread: `tell` and the job belong into one thread.
    """

    def __init__(
        self,
        spark: SparkSession,
        directory: Path,
        encoding: Encoding = "utf-8",
        most_tasks: int | None = None,
        stamps: Sequence[str] = (),
        derive: Derive | None = None,
    ) -> None:
        self.spark, self._derive = spark, derive
        self._most_tasks = most_tasks or spark.sparkContext.defaultParallelism
        options = LogOptions(directory, None, None, None, None, self._most_tasks, encoding)
        schema = LogDataSource({"path": str(directory), "encoding": encoding}).schema()
        self._reading = _Reading(options, to_arrow_schema(schema, timezone="UTC"))
        self._schema = _with_stamps(schema, stamps)
        self._stamps = tuple(stamps)

    def rows(self, tasks: int) -> DataFrame:
        """The rows of whatever range the job is told, read by so many tasks (see `tell`)."""
        from pyspark.sql import functions as F  # noqa: N812 - the processes that plan a source do not need it

        made = self._schema if self._derive is None else self._derive.schema(self._schema)
        rows = self.spark.range(0, tasks, 1, tasks).mapInArrow(_ReadTold(self._reading, self._derive), made)
        missing = [field for field in self._schema if field.name not in made.names]
        return rows.select("*", *(F.lit(None).cast(field.dataType).alias(field.name) for field in missing))

    def tell(
        self, start: int, end: int, note: Any = None, stamps: Mapping[str, int | None] | None = None
    ) -> int:
        """Tell the next jobs of this thread their range; returns by how many tasks it is to be read.

        `stamps`: the value that all rows have in each of the columns the reader was made with.

        `note` is for whoever uses the rows, and is not secret: Spark may log it.
        """
        parts = self._reading.divide(start, end)
        values = {name: (stamps or {}).get(name) for name in self._stamps}
        told = [start, end, [[*astuple(part.part), part.left_out] for part in parts], note, values]
        self.spark.sparkContext.setLocalProperty(_TOLD, json.dumps(told))
        return 1 if len(parts) < 2 else self._most_tasks


def told_range() -> ToldRange:
    """Executor: the range this task's job was told."""
    context = TaskContext.get()
    assert context is not None
    start, end, parts, note, stamps = json.loads(context.getLocalProperty(_TOLD))
    shares = tuple(LogPartition(Slice(*part[:4]), part[4]) for part in parts)
    return ToldRange(start, end, shares, note, stamps)


class _ReadTold:
    """Executor: each number that comes in stands for the part of that number, if there is one."""

    def __init__(self, reading: _Reading, derive: Derive | None) -> None:
        self._reading, self._derive = reading, derive

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        told = told_range()
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                if number < len(told.parts):
                    rows = _stamped(self._reading.read(told.parts[number]), told.stamps)
                    yield from rows if self._derive is None else map(self._derive, rows)


class _ReadParts:
    """Executor: each number that comes in stands for the part of that number."""

    def __init__(
        self, reading: _Reading, parts: Sequence[LogPartition], stamps: Mapping[str, int | None]
    ) -> None:
        self._reading, self._parts, self._stamps = reading, parts, stamps

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from _stamped(self._reading.read(self._parts[number]), self._stamps)


def _with_stamps(schema: StructType, names: Iterable[str]) -> StructType:
    whole = StructType(list(schema.fields))
    for name in names:
        whole = whole.add(name, LongType())
    return whole


def _stamped(rows: Iterator[pa.RecordBatch], stamps: Mapping[str, int | None]) -> Iterator[pa.RecordBatch]:
    """The rows, with columns behind the others that have one value each."""
    for batch in rows:
        further = [pa.repeat(pa.scalar(stamp, pa.int64()), batch.num_rows) for stamp in stamps.values()]
        schema = pa.schema([*batch.schema, *(pa.field(name, pa.int64()) for name in stamps)])
        yield pa.RecordBatch.from_arrays([*batch.columns, *further], schema=schema) if stamps else batch


def _between(sequences: Any, start: int, end: int) -> list[int]:
    found: list[int] = []
    for sequence in sequences.iter_equal_or_larger(start):
        if sequence >= end:
            break
        found.append(sequence)
    return found


def _refuse_unknown(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _OPTIONS}
    for given in options:
        if given.lower() not in known:
            close = difflib.get_close_matches(given.lower(), known, 1)
            hint = f'did you mean "{known[close[0]]}"?' if close else f"it has {', '.join(_OPTIONS)}"
            raise LogError(f'[log-option] the source "signoff" has no option "{given}"; {hint}')


def _number(options: Mapping[str, str], name: str, least: int) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise LogError(f'[log-option] "{name}" must be a whole number from {least} on, not {text!r}')
    return value
