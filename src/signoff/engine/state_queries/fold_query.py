"""The query that keeps the groups of a fold, with Spark's `transformWithState`.

It reads the events that the sources' queries have handed on, keeps them by key, and hands a group on when it
ends (`signoff.transforms.fold.groups` says when). The time of a batch is in Spark's offset log, so that one
that is done again is done at the same time.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, ClassVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import BinaryType, DataType, DoubleType, FloatType, StructType

from signoff.engine.query.base import Shared
from signoff.engine.split.boundaries import buffer_place
from signoff.engine.split.stateful import FoldBoundary, FoldSourceConfig, StatefulBoundary
from signoff.engine.state_queries.base import (
    PlannedState,
    StateQuery,
    Surroundings,
    as_json,
    shown,
    write_part,
)
from signoff.errors import PipelineError
from signoff.pipeline.graph import Graph
from signoff.sinks.contract import EVENT_ID, ORIGIN, BatchRef, Sink
from signoff.stateful.fold_clock import FoldClock
from signoff.stateful.fold_sinks import PAYLOAD, FoldIntake
from signoff.stateful.open_groups import OpenGroups, open_groups_path
from signoff.stateful.window_sinks import MARK_ID
from signoff.transforms.fold.groups import Arrival, GroupChange, Head, Rules, expire, fold
from signoff.transforms.fold.step import AT, UNTIL, group_schema

_KEY, _NUMBER, _ID, _ENDS, _AT = "key", "number", "event_id", "ends", "at"
_OPENED, _CLOSED = "opened", "closed"
_CHANGES = f"{EVENT_ID} STRING, {ORIGIN} ARRAY<BIGINT>, {PAYLOAD} STRING, {_OPENED} BIGINT, {_CLOSED} BIGINT"
_HEAD = "folded INT, first BIGINT, first_at BIGINT, last_at BIGINT, deadline BIGINT, digest STRING"
_SHIFT = "signoff.shift"
_EACH_BATCH = "signoff.timers"
_IN_VAIN_S = 10.0
"""How soon Spark is made to do a batch again that has not ended a group: its clock may have been set back."""
_EVENT = "number BIGINT, payload STRING"
ROCKSDB = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # RocksDB's files go through Hadoop's own local file system; the plain one of our session is none.
    "fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
"""Settings of a session whose queries use `transformWithState`."""


class FoldQuery(StateQuery):
    """The state of one fold."""

    settings: ClassVar[dict[str, str]] = {
        **ROCKSDB,
        # Spark would do one batch after the other while there is a timer; a tick comes when it is due.
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    }

    @classmethod
    def plan(
        cls,
        whole: Graph,
        front: Graph,
        boundary: StatefulBoundary,
        columns: Mapping[str, DataType],
        spark: SparkSession,  # noqa: ARG003 - nothing has to be asked
    ) -> PlannedState:
        assert isinstance(boundary, FoldBoundary)
        check_fold(whole, boundary, columns)
        results = {field.name: field.dataType for field in group_schema(columns)}
        return PlannedState(front, as_json(columns), results)

    def __init__(self, shared: Shared, source: str, around: Surroundings) -> None:
        config = shared.graph.nodes[source].config
        assert isinstance(config, FoldSourceConfig)
        super().__init__(shared, source, json.dumps(config.fold.keys), around)
        self._fold = config.fold
        self._schema = StructType.fromJson(json.loads(config.columns))
        self._groups = OpenGroups(open_groups_path(buffer_place(shared.graph, source)))
        self.clock = FoldClock(buffer_place(shared.graph, source).notes / "clock.db")
        self._ticked: tuple[int, float] = (0, 0.0)
        """The deadline for which Spark was last made to do a batch, and when to do that again if in vain."""
        self._shape = state_shape(self._fold.keys, {field.name: field.dataType for field in self._schema})

    def _resume(self) -> None:
        self._groups.begin(self._shape)

    def _holds_events(self) -> bool:
        return self._groups.number > 0

    def _begin_anew(self) -> None:
        self._groups.forget()

    @property
    def next_deadline(self) -> int | None:
        """When the first of the open groups ends by itself."""
        return self._groups.next_deadline

    @property
    def is_calm(self) -> bool:
        return self._due is None

    @property
    def _due(self) -> int | None:
        """The deadline of the first of the open groups, if it is over."""
        due = self._groups.next_deadline
        return None if due is None or self.clock.now_ms() <= due + 1 else due

    def tend(self, *, ending: bool) -> None:
        """Have the groups ended whose time is over, if no event brings a batch."""
        if (due := self._due) is None:
            return
        deadline, again_at = self._ticked
        if (deadline != due or time.monotonic() >= again_at) and (
            self.shared.ledger.books(self.source).next >= self.log.head()
        ):
            self._ticked = due, time.monotonic() + _IN_VAIN_S
            assert isinstance(self._intake, FoldIntake)
            self._intake.tick()

    def _begin(self, stream: DataFrame) -> DataFrame:
        wanted = [self._schema[name] for name in (*self._fold.keys, UNTIL, AT)]
        rows = stream.where(~F.col("message_id").startswith(MARK_ID)).select(
            F.col("_sequence").alias(_NUMBER),
            F.col("message_id").alias(_ID),
            F.col("payload").alias(PAYLOAD),
            F.from_json("payload", StructType(wanted)).alias("row"),
        )
        key = F.to_json(F.array(*(_text(self._schema, name) for name in self._fold.keys)))
        events = rows.select(
            _NUMBER,
            _ID,
            PAYLOAD,
            F.coalesce(F.col("row")[UNTIL], F.lit(False)).alias(_ENDS),
            F.col("row")[AT].alias(_AT),
            key.alias(_KEY),
        )
        processor = _Processor(self._fold.rules(self._name))
        return events.groupBy(_KEY).transformWithState(processor, _CHANGES, "append", "ProcessingTime")

    def _do_batch(self, df: DataFrame, batch_id: int) -> None:
        batch = self._batch_ref(batch_id)
        handed = self._as_handed(batch, batch_id)
        shift = self.clock.shift_ms(batch_id, self.checkpoint.time_ms(batch_id))
        context = df.sparkSession.sparkContext
        context.setLocalProperty(_SHIFT, str(shift))
        context.setLocalProperty(_EACH_BATCH, "each batch" if self.clock.is_given else "")
        with self._syncing(batch_id):
            written = df.mapInArrow(
                _WriteResults(self._results.sink, handed), "part BINARY, changes STRING"
            ).collect()
        self._commit(handed, [bytes(row["part"]) for row in written if row["part"] is not None])
        changes: Counter[int] = Counter()
        for row in written:
            for deadline, number in json.loads(row["changes"]).items():
                changes[int(deadline)] += number
        self._groups.note(batch_id, changes)
        self._record(batch)


def _text(schema: StructType, name: str) -> Column:
    """The value of a key as a text that no other value has."""
    column = F.col("row")[name]
    if isinstance(schema[name].dataType, BinaryType):
        return F.base64(column)
    if isinstance(schema[name].dataType, FloatType | DoubleType):
        return (column + F.lit(0.0)).cast("string")  # -0.0 is a key like 0.0, as anywhere in Spark
    return column.cast("string")


class _Processor(StatefulProcessor):  # type: ignore[misc]  # PySpark is not typed
    """Executor: `signoff.transforms.fold.groups` on Spark's state store."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._kept = _SparkKept(handle)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        arrivals = (Arrival(row[_NUMBER], row[_ID], row[PAYLOAD], row[_ENDS], row[_AT]) for row in rows)
        now = self._kept.at(timerValues)
        yield from map(_row, fold(self._rules, self._kept, arrivals, now))

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        yield from map(_row, expire(self._rules, self._kept, self._kept.at(timerValues)))

    def close(self) -> None:
        pass


def _row(one: GroupChange) -> Row:
    values = (one.event_id, one.numbers, one.payload, one.opened, one.closed)
    return Row(**dict(zip((EVENT_ID, ORIGIN, PAYLOAD, _OPENED, _CLOSED), values, strict=True)))


class _SparkKept:
    """What Spark keeps for the key it is at."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._shift = 0
        self._soon: int | None = None
        self._head = handle.getValueState("head", _HEAD)
        self._events = handle.getListState("events", _EVENT)

    def at(self, spark: TimerValues) -> int:
        """The time of the batch: Spark's, less what the clock was set by. Timers are Spark's."""
        context = TaskContext.get()
        self._shift = int((context and context.getLocalProperty(_SHIFT)) or 0)
        spark_ms = int(spark.getCurrentProcessingTimeInMs())
        # Where the time is given (in tests), Spark's own says nothing: every batch looks at every group.
        self._soon = spark_ms + 1 if context and context.getLocalProperty(_EACH_BATCH) else None
        return spark_ms - self._shift

    def head(self) -> Head | None:
        found = self._head.get()
        return None if found is None else Head(*found)

    def events(self) -> Iterable[tuple[int, str]]:
        return [(int(number), str(payload)) for number, payload in self._events.get()]

    def keep(self, head: Head, events: Sequence[tuple[int, str]]) -> None:
        self._head.update(astuple(head))
        self._events.appendList(list(events))

    def clear(self) -> None:
        self._head.clear()
        self._events.clear()

    def wake_at(self, deadline: int) -> None:
        self._handle.registerTimer(deadline + self._shift if self._soon is None else self._soon)

    def let_sleep(self, deadline: int) -> None:
        self._handle.deleteTimer(deadline + self._shift)


@dataclass(frozen=True)
class _WriteResults:
    """Executor: a task's results, into a part of the link; and by how many the open groups became more."""

    sink: Sink
    batch: BatchRef

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        changes: Counter[int] = Counter()
        part = write_part(self.sink, self.batch, self._results(batches, changes))
        found = {"part": pa.array([part], pa.binary()), "changes": pa.array([json.dumps(changes)])}
        yield pa.RecordBatch.from_pydict(found)

    @staticmethod
    def _results(batches: Iterable[pa.RecordBatch], changes: Counter[int]) -> Iterator[pa.RecordBatch]:
        for rows in batches:
            changes.update(rows.column(_OPENED).drop_null().to_pylist())
            changes.subtract(rows.column(_CLOSED).drop_null().to_pylist())
            yield rows.filter(rows.column(EVENT_ID).is_valid()).select([EVENT_ID, ORIGIN, PAYLOAD])


def state_shape(keys: Sequence[str], columns: Mapping[str, DataType]) -> str:
    """What the state of a fold depends on: its keys, and the types of what its events have."""
    kinds = {name: kind.simpleString() for name, kind in columns.items() if name not in (UNTIL, AT)}
    return json.dumps({"keys": list(keys), "columns": kinds})


def check_fold(graph: Graph, boundary: FoldBoundary, columns: Mapping[str, DataType]) -> None:
    """Raises PipelineError where open groups hold events that the fold, as it is now, could not read.

    Columns may come and go: an event that was kept without one has null there.
    """
    groups = OpenGroups(open_groups_path(buffer_place(graph, boundary.source)), readonly=True)
    try:
        known, number = groups.shape, groups.number
    finally:
        groups.close_store()
    if not known or not number:
        return
    before, now = json.loads(known), json.loads(state_shape(boundary.fold.keys, columns))
    kept = before["columns"].keys() & now["columns"].keys()
    changed = next((name for name in sorted(kept) if before["columns"][name] != now["columns"][name]), None)
    if before["keys"] != now["keys"]:
        what, at = f'other "keys" ({shown(before["keys"])})', "keys"
    elif changed is not None:
        what, at = f'column "{changed}" as {before["columns"][changed]}', "input"
    else:
        return
    raise PipelineError(
        [
            boundary.node.problem(
                "state-changed",
                f"has {number} open group{'' if number == 1 else 's'} that began with {what}",
                at=at,
                hint="run the pipeline as it was until they have ended; or give them up: take the step out "
                f"of the file, signoff buffers drop FILE {boundary.name}, and put it back",
            )
        ]
    )
