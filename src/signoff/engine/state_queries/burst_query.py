"""The query that finds bursts, with Spark's `transformWithState`, by event time.

It is a window's query but for what is kept of a key, which is said in `signoff.transforms.burst.bursts`. The
watermark comes from the marks that the part in front puts into the log, in the order of the rows; Spark notes
the one of each batch in its offset log, so that a batch that is done again is done at the same watermark.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)
from pyspark.sql.types import DataType, DoubleType, FloatType, StringType, StructField, StructType

from signoff.engine.query.base import Shared
from signoff.engine.split.stateful import BurstBoundary, BurstSourceConfig, StatefulBoundary
from signoff.engine.state_queries.base import PlannedState, Surroundings
from signoff.engine.state_queries.fold_query import ROCKSDB
from signoff.engine.state_queries.rows_source import parsed_rows
from signoff.engine.state_queries.window_query import WindowQuery, check_shape
from signoff.pipeline.graph import Graph
from signoff.transforms.burst.bursts import BurstChange, Kept, Rules
from signoff.transforms.burst.step import BurstConfig, result_schema
from signoff.transforms.window.partial import START
from signoff.transforms.window.step import RESULT_ID, STATE_SETTINGS, link_schema, marked_rows

_KEPT = "bursts STRING, wakes_at BIGINT"
_MS = 1000


class BurstQuery(WindowQuery):
    """The state of one burst step."""

    settings: ClassVar[dict[str, str]] = {**STATE_SETTINGS, **ROCKSDB}

    @classmethod
    def plan(
        cls,
        whole: Graph,
        front: Graph,
        boundary: StatefulBoundary,
        columns: Mapping[str, DataType],
        spark: SparkSession,
    ) -> PlannedState:
        assert isinstance(boundary, BurstBoundary)
        rows = link_schema(boundary.burst, columns, spark)
        check_shape(whole, boundary, rows.json())
        results = {field.name: field.dataType for field in result_schema(boundary.burst, columns)}
        return PlannedState(front, rows.json(), results)

    def __init__(self, shared: Shared, source: str, around: Surroundings) -> None:
        super().__init__(shared, source, around)
        config = shared.graph.nodes[source].config
        assert isinstance(config, BurstSourceConfig)
        self._burst: BurstConfig = config.window

    def _begin(self, stream: DataFrame) -> DataFrame:
        burst = self._burst
        rows = marked_rows(parsed_rows(stream, self._schema), burst.rules.within)
        keys = [_comparable(name, self._schema[name].dataType).alias(name) for name in burst.keys]
        results = result_schema(burst, {field.name: field.dataType for field in self._schema})
        told = StructType([StructField(RESULT_ID, StringType()), *results])
        processor = _Processor(self._name, burst.rules, burst.keys)
        return (
            rows.select(START, "window_end", *keys)
            .groupBy(*burst.keys)
            .transformWithState(processor, told, "append", "EventTime")
        )


def _comparable(name: str, kind: DataType) -> Column:
    """-0.0 is a key like 0.0, as anywhere in Spark."""
    return F.col(name) + F.lit(0.0).cast(kind) if isinstance(kind, FloatType | DoubleType) else F.col(name)


class _Processor(StatefulProcessor):  # type: ignore[misc]  # PySpark is not typed
    """Executor: `signoff.transforms.burst.bursts` on Spark's state store."""

    def __init__(self, name: str, rules: Rules, keys: tuple[str, ...]) -> None:
        self._name, self._rules, self._keys = name, rules, keys

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("bursts", _KEPT)

    def handleInputRows(  # noqa: N802
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[Row]:
        kept, wakes_at = self._read()
        raised = kept.take(self._rules, (row[START] for row in rows))
        ended = kept.end(self._rules, timerValues.getCurrentWatermarkInMs() * _MS)
        self._write(kept, wakes_at)
        yield from self._told(key, [*raised, *ended])

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        kept, _ = self._read()
        ended = kept.end(self._rules, timerValues.getCurrentWatermarkInMs() * _MS)
        self._write(kept, None)
        yield from self._told(key, ended)

    def close(self) -> None:
        pass

    def _read(self) -> tuple[Kept, int | None]:
        found = self._state.get()
        return (Kept(), None) if found is None else (Kept.from_json(json.loads(found[0])), found[1])

    def _write(self, kept: Kept, wakes_at: int | None) -> None:
        """Keep it, and be woken when the watermark has passed what ends next. Spark wakes whoever has a
        timer before its watermark."""
        end = kept.next_end(self._rules)
        due = None if end is None else -(-end // _MS) - 1
        if wakes_at is not None and wakes_at != due:
            self._handle.deleteTimer(wakes_at)
        if due is not None and wakes_at != due:
            self._handle.registerTimer(due)
        if kept.is_empty:
            self._state.clear()
        else:
            self._state.update((json.dumps(kept.as_json()), due))

    def _told(self, key: Any, changes: Iterable[BurstChange]) -> Iterator[Row]:
        values = dict(zip(self._keys, key, strict=True))
        for change in changes:
            burst = self._id(key, change)
            ending = "" if change.state == "raised" else f"/{change.state}"
            yield Row(
                **{
                    RESULT_ID: burst + ending,
                    **values,
                    "burst": burst,
                    "state": change.state,
                    "burst_start": _moment(change.first),
                    "burst_end": _moment(change.last),
                    "events": change.events,
                }
            )

    def _id(self, key: Any, change: BurstChange) -> str:
        """No two bursts of a step have the same."""
        text = json.dumps([change.begin, *map(repr, key)])
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return f"{self._name}/{change.begin // 1_000_000}/{digest}"


def _moment(micros: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
