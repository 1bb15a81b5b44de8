"""`window`: aggregates of the events of a time, by keys, whatever order they come in.

What is computed where (see docs/decisions/0010):

    the source's query   time checked, late events split off, partial results of each task    `WindowInput`
    a streaming query    partial results put together in Spark's state store, windows closed   `merged`

An event is late when all windows it belongs to were closed as its batch began; it leaves through the output
`late`, as it came. One that missed only some of its (sliding) windows is in the others, and leaves there as
well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from signoff.pipeline.durations import Duration
from signoff.pipeline.model import Names
from signoff.pipeline.row_columns import EVENT_ID, ORIGIN
from signoff.transforms.contract import FieldError, Step
from signoff.transforms.frame import CHILD, MARK, RECEIVED_AT, SEQUENCE, View, begin_again
from signoff.transforms.merge import check_keys
from signoff.transforms.window.aggregates import aggregates_of, calls_of, handed_fields, kept, values_of
from signoff.transforms.window.bounds import Panes
from signoff.transforms.window.event_time import EventTimeConfig, WithLate
from signoff.transforms.window.partial import CLOSED, START, TIME, Measure

STATE_SETTINGS = {
    # One operator with state, two watermarks: Spark's rule against the latter is for several operators.
    "spark.sql.streaming.statefulOperator.allowMultiple": "false",
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    # Windows are closed, and given out, by the batch after the one that has brought the mark.
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    # A division by zero of aggregates is null: an error would end the query for good.
    "spark.sql.ansi.enabled": "false",
    # Else what several aggregates have in common is computed outside of what makes an error of it null.
    "spark.sql.subexpressionElimination.enabled": "false",
}
WINDOW_START, WINDOW_END = "window_start", "window_end"
RESULT_ID = "__id"
_MICROS = 1_000_000


class WindowConfig(EventTimeConfig):
    summary: ClassVar[str] = "Aggregate events by keys in windows of event time; late ones leave apart."
    example: ClassVar[str] = (
        "size: 10m\ntime: eventTime\nkeys: [stationId]\naggregates: {count: count(*)}\n"
        "allowed_lateness: 15m\n"
    )
    type: Literal["window"] = "window"
    size: Annotated[Duration, Field(ge=0.001)]
    """Length of a window (`10m`). Windows are aligned to the epoch, so hours begin at full hours UTC."""
    every: Annotated[Duration, Field(ge=0.001)] | None = None
    """How often a window begins; by default one after the other. Less than `size`: windows overlap, and an
    event is in several."""
    aggregates: dict[str, str] = Field(min_length=1)
    """`name: expression` pairs of Spark SQL aggregates: `count(*)`, `sum(a) / sum(b)`, `max_by(value, time)`.
    Where all calls are a `count`, `sum`, `avg`, `min` or `max`, what is handed on is small; any other makes
    each event be handed on for itself. An event whose arguments cannot be computed is a dead letter;
    a sum that overflows, or an expression of aggregates that cannot be computed, is null.
    `DISTINCT` is refused: use `size(collect_set(…))` or `approx_count_distinct(…)`."""
    emit: Literal["closed", "updates"] = "closed"
    """`closed`: each result once, when its window is closed. `updates`: whenever it has changed, each time
    under the same id; give sinks behind it `ordered_by` if they must not fall back to an earlier one."""
    acknowledge: Literal["save_point", "delivered"] = "save_point"
    """When an event is settled: `save_point`, when it is in the window's durable state; `delivered`, when the
    results it went into are delivered."""

    @model_validator(mode="after")
    def _fits(self) -> WindowConfig:
        if self.every is not None and self.every > self.size:
            raise ValueError('"every" is longer than "size": events between the windows would be in none')
        taken = {WINDOW_START, WINDOW_END}
        for name in (*self.keys, *self.aggregates):
            if name.lower() in taken:  # Spark does not tell them apart
                raise ValueError(f'two columns of the result are called "{name}"')
            if name.startswith("__") or name in (EVENT_ID, ORIGIN):
                raise ValueError(f'no column of the result may be called "{name}": give it another name')
            taken.add(name.lower())
        return self

    @property
    def settles(self) -> bool:
        return self.acknowledge == "save_point"

    @property
    def holds(self) -> Mapping[str, float]:
        if self.acknowledge != "delivered":
            return {}
        return {
            "size": self.size,
            "allowed_lateness": self.allowed_lateness,
            "idle_after": self.idle_after or 0.0,
        }

    @property
    def needs_later_events(self) -> bool:
        return bool(self.holds)

    @property
    def values(self) -> Mapping[str, str]:
        return self.aggregates

    @property
    def panes(self) -> Panes:
        size = round(self.size * 1000) * 1000
        return Panes(size, size if self.every is None else round(self.every * 1000) * 1000)

    @property
    def shape(self) -> dict[str, object]:
        """What the state depends on: with another one it cannot be gone on with."""
        return {
            "size": self.panes.size,
            "every": self.panes.every,
            "keys": list(self.keys),
            "aggregates": self.aggregates,
        }

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        """The step as a whole, over a batch: what its columns are, and whether Spark accepts it."""
        found = WindowInput(window=self, late_is_read=True).compile(step, view)
        handed = found[None].frame.schema_of(found[None])
        spark = state_session(view.frame.df.sparkSession)
        nothing = spark.createDataFrame([], link_schema(self, handed, spark))
        schema = merged(self, step.name, nothing).schema
        made = view.frame.cut(view).select(
            SEQUENCE,
            CHILD,
            RECEIVED_AT,
            *(
                F.lit(None).cast(field.dataType).alias(field.name)
                for field in schema
                if field.name != RESULT_ID
            ),
        )
        columns = [field.name for field in schema if field.name != RESULT_ID]
        return {None: begin_again(made, columns, view.frame), "late": found["late"]}


class WindowInput(WithLate):
    """The part of a window in front of its state. Made by the engine, never written by users."""

    type: Literal["window_input"] = "window_input"
    drops: ClassVar[str] = "late"
    window: EventTimeConfig
    late_is_read: bool
    """Somebody reads the late events; else they are dropped, and counted."""

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        window, frame = self.window, view.frame
        check_window(window, view)
        mark = MARK + step.name
        time = F.col(RECEIVED_AT) if window.time is None else F.col(window.time).cast("timestamp")
        micros = frame.compute(view, {"time": F.unix_micros(time)})["time"]
        if mark not in frame.df.columns:
            # In a check the mark is of no interest.
            mark = frame.compute(view, {"mark": F.lit(None).cast("bigint")})["mark"]
        known = View(frame, view.alive, {**view.columns, TIME: micros, CLOSED: mark})
        error = frame.compute(known, {"error": self._wrong(F.col(TIME))})["error"]
        frame.add_error(step.name, error, self.on_error)
        panes, valid = window.panes, F.col(error).isNull()
        in_some, in_all = (
            F.coalesce(F.expr(f"{end} > {CLOSED}"), F.lit(True))
            for end in (panes.last_end(TIME), panes.first_end(TIME))
        )
        flags = frame.compute(known, {"alive": valid & in_some, "late": valid & ~in_all})
        if not self.late_is_read:
            frame.note_ends(step.name, View(frame, flags["late"], {}), [flags["alive"]])
        rows = self._rows(step, known, View(frame, flags["alive"], view.columns))
        return {None: rows, "late": View(frame, flags["late"], view.columns)}

    def _wrong(self, time: Column) -> Column:
        """Why the time of an event is not believed."""
        window = self.window
        name = window.time or "the time of receipt"
        earliest = round(window.earliest.timestamp() * _MICROS)
        ahead = F.unix_micros(F.col(RECEIVED_AT)) + F.lit(round(window.ahead * _MICROS))
        said = F.date_format(F.timestamp_micros(time), "yyyy-MM-dd HH:mm:ss 'UTC'")
        return (
            F.when(time.isNull(), F.lit(f"{name} is null: the event has no time"))
            .when(
                time < F.lit(earliest),
                F.concat(
                    F.lit(f"{name} is "), said, F.lit(f", before {window.earliest:%Y-%m-%d %H:%M:%S} UTC")
                ),
            )
            .when(
                time > ahead,
                F.concat(F.lit(f"{name} is "), said, F.lit(", too far after the receipt of the event")),
            )
        )

    def _rows(self, step: Step, known: View, own: View) -> View:
        """What is handed on of each event: time, keys, and the values that are aggregated."""
        window, frame = self.window, known.frame
        fixed = {TIME: known.columns[TIME]}
        if window.panes.sliding:
            fixed[CLOSED] = known.columns[CLOSED]
        keys = {name: own.columns[name] for name in window.keys}
        aggregates = aggregates_of(frame.df.sparkSession, window.values)
        whole, values = frame.attempt(step.name, own, values_of(aggregates, own), self.on_error)
        return View(frame, whole.alive, {**fixed, **keys, **values})


def check_simple_keys(keys: Names, view: View) -> None:
    """Raises FieldError for a key that is not a column, or whose values cannot be compared by all parts."""
    check_keys(keys, view)
    schema = view.frame.schema_of(view)
    for key in keys:
        if isinstance(schema[key], ArrayType | MapType | StructType | VariantType):
            message = f'key "{key}" is {schema[key].simpleString()}'
            raise FieldError("keys", "type-error", message, "use a column of a simple type")
        if isinstance(schema[key], StringType) and schema[key] != StringType():
            message = f'key "{key}" is {schema[key].simpleString()}, by which a state cannot be kept'
            raise FieldError("keys", "type-error", message, f"use lower({key}), or COLLATE UTF8_BINARY")


def check_window(window: EventTimeConfig, view: View) -> None:
    """Raises FieldError for what only the columns show."""
    check_simple_keys(window.keys, view)
    schema = view.frame.schema_of(view)
    if window.time is None:
        return
    if window.time not in view.columns:
        known = ", ".join(view.columns)
        raise FieldError(
            "time", "unresolved-column", f'there is no column "{window.time}"', f"there is: {known}"
        )
    kind = schema[window.time]
    if not isinstance(kind, TimestampType | TimestampNTZType):
        message = f'column "{window.time}" is {kind.simpleString()}, not a timestamp'
        raise FieldError("time", "type-error", message, "convert it with a select: timestamp_millis(…)")


def state_session(spark: SparkSession) -> SparkSession:
    """A session with the settings of the query that keeps a window's state: types may depend on them."""
    session = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    for name, value in STATE_SETTINGS.items():
        session.conf.set(name, value)
    return session


def link_schema(window: EventTimeConfig, handed: Mapping[str, DataType], spark: SparkSession) -> StructType:
    """The rows in the log between the two parts, as JSON; `handed`: the columns `WindowInput` gives."""
    fields = [StructField(START, LongType()), StructField(CLOSED, LongType())]
    fields += [StructField(name, handed[name]) for name in window.keys]
    return StructType(fields + handed_fields(aggregates_of(spark, window.values), handed))


def measures_of(
    window: WindowConfig, handed: Mapping[str, DataType], spark: SparkSession
) -> tuple[tuple[Measure, ...], bool]:
    """The aggregates that can be put together from partial ones, and whether these are all."""
    found = [call.measure(handed) for call in calls_of(aggregates_of(spark, window.aggregates))]
    measures = tuple(measure for measure in found if measure is not None)
    return measures, len(measures) == len(found)


def merged(window: WindowConfig, name: str, rows: DataFrame) -> DataFrame:
    """The results, from rows with the columns of `link_schema`: `__id`, window, keys and aggregates.

    Of a stream they come when Spark's watermark has passed the end of a window.
    """
    spark = rows.sparkSession
    aggregates = aggregates_of(spark, window.aggregates)
    marked = marked_rows(rows, window.panes.size)
    schema = {field.name: field.dataType for field in rows.schema}
    kept_values = [value for aggregate in aggregates for value in kept(aggregate, schema)]
    # Spark wants an aggregate in every aggregation.
    results = marked.groupBy(START, WINDOW_END, *window.keys).agg(
        *(kept_values or [F.count(F.lit(1)).alias("__rows")])
    )
    return results.select(
        _identity(window, name, schema).alias(RESULT_ID),
        F.timestamp_micros(START).alias(WINDOW_START),
        WINDOW_END,
        *window.keys,
        *(aggregate.finish(spark).alias(aggregate.name) for aggregate in aggregates),
    )


def marked_rows(rows: DataFrame, size: int) -> DataFrame:
    """Rows with their end, `size` after their start, and with the watermark that the marks among them say.

    Spark takes the lower of two: of the latest mark, and of the latest end of a row, which is never before
    the mark. So it is the mark.
    """
    end = F.timestamp_micros(F.coalesce(F.col(START) + F.lit(size), F.col(CLOSED)))
    # One condition with the watermark's column in it: Spark moves others to where marks would not be seen.
    is_row = F.when(F.col(START).isNotNull(), F.col(WINDOW_END)).isNotNull()
    return (
        rows.withColumn(WINDOW_END, end)
        .withColumn(CLOSED, F.timestamp_micros(CLOSED))
        .withWatermark(CLOSED, "0 seconds")
        .withWatermark(WINDOW_END, "0 seconds")
        .where(is_row)
    )


def _identity(window: WindowConfig, name: str, schema: Mapping[str, DataType]) -> Column:
    """The id of a result: no two of a window have the same."""
    keys = [_exact(key, schema[key]).alias(key) for key in window.keys]
    key = F.to_json(F.struct(START, *keys), {"ignoreNullFields": "false"})
    second = F.floor(F.col(START) / F.lit(_MICROS)).cast("string")
    return F.concat_ws("/", F.lit(name), second, F.substring(F.sha2(key, 256), 1, 16))


def _exact(key: str, kind: DataType) -> Column:
    """A key as JSON tells it from all others: of a time it has only the milliseconds."""
    if isinstance(kind, TimestampType):
        return F.unix_micros(key)
    return F.col(key).cast("string") if isinstance(kind, TimestampNTZType) else F.col(key)
