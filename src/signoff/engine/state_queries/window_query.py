"""The query that keeps a window's state: a Structured Streaming query from one link into another.

It reads the partial rows that the sources' queries have handed on, puts them together in Spark's state
store, and hands the results on when Spark closes their windows. In which order, and why, says `base`.
"""

from __future__ import annotations

import json
import logging
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import DataStreamReader
from pyspark.sql.types import DataType, StructType

from signoff.engine.batch.runner import owes
from signoff.engine.query.base import Shared, SourceQuery
from signoff.engine.split.boundaries import Boundary, buffer_place
from signoff.engine.split.stateful import (
    BurstBoundary,
    BurstSourceConfig,
    EventTimeBoundary,
    StatefulBoundary,
    WindowBoundary,
    WindowSourceConfig,
)
from signoff.engine.state_queries.base import PlannedState, StateQuery, Surroundings, shown, write_part
from signoff.engine.state_queries.rows_source import parsed_rows, rows_stream
from signoff.errors import PipelineError
from signoff.ledger.ledger import Ledger
from signoff.pipeline.graph import Graph
from signoff.pipeline.secrets import excerpt, redact
from signoff.sinks.contract import EVENT_ID, ORIGIN, BatchRef, Sink
from signoff.sinks.refusal import fitted
from signoff.stateful.watermarks import Watermarks
from signoff.stateful.window_sinks import WindowIntake, WindowIntakeConfig, marks_path
from signoff.transforms.burst.step import BurstConfig
from signoff.transforms.handed_rows import unfit
from signoff.transforms.window.aggregates import ARGUMENT as _ARGUMENT
from signoff.transforms.window.partial import CLOSED, START
from signoff.transforms.window.step import (
    RESULT_ID,
    STATE_SETTINGS,
    WindowConfig,
    link_schema,
    measures_of,
    merged,
    state_session,
)
from signoff.transforms.window.watermark_rule import WatermarkRule

logger = logging.getLogger(__name__)


class WindowQuery(StateQuery):
    """The state of one window."""

    settings: ClassVar[dict[str, str]] = STATE_SETTINGS

    @classmethod
    def plan(
        cls,
        whole: Graph,
        front: Graph,
        boundary: StatefulBoundary,
        columns: Mapping[str, DataType],
        spark: SparkSession,
    ) -> PlannedState:
        assert isinstance(boundary, WindowBoundary)
        rows = link_schema(boundary.window, columns, spark)
        check_shape(whole, boundary, rows.json())
        front = _with_measures(front, boundary, columns, spark)
        return PlannedState(front, rows.json(), results_of(whole, boundary, rows, spark))

    def __init__(self, shared: Shared, source: str, around: Surroundings) -> None:
        config = shared.graph.nodes[source].config
        assert isinstance(config, WindowSourceConfig | BurstSourceConfig)
        super().__init__(shared, source, state_shape(config.window, config.columns), around)
        self._window = config.window
        self._schema = StructType.fromJson(json.loads(config.columns))
        self._marks = Watermarks(graph_marks(shared.graph, source), WatermarkRule(0), ())
        self._shape = noted_shape(self._window, config.columns)

    def _resume(self) -> None:
        self._marks.begin(self._shape)
        if (last := self.checkpoint.last_batch("commits")) is not None:
            self._marks.gave(self.checkpoint.watermark_ms(last) * 1000)
        if not self._marks.all_given:
            # A query that was stopped before it could give out what a mark has closed waits for new rows.
            self.intake.remind()

    def _holds_events(self) -> bool:
        return self._marks.holds_events

    @property
    def intake(self) -> WindowIntake:
        """Hands rows on into the log in front of the state, and says up to where windows are closed."""
        assert isinstance(self._intake, WindowIntake)
        return self._intake

    @property
    def is_calm(self) -> bool:
        return self._marks.all_given

    @property
    def idle(self) -> bool:
        """Everything in the log is in the state, and what it has closed is handed on."""
        return super().idle and self.is_calm

    def tend(self, *, ending: bool) -> None:
        """Close windows that wait for events in vain; not at the end of a run, for they may come later."""
        silence, marks = self._silence, self.intake.marks
        for query in silence.queries:
            marks.fold_late(query.source, self.shared.ledger.needed_from(query.source))
        if ending:
            self.intake.tell()
        else:
            self.intake.advance(silence.taken())

    @cached_property
    def _silence(self) -> Silence:
        queries = self._around.queries
        return Silence(
            self.intake,
            [query for query in queries.values() if self.intake in query.runner.windows.values()],
            self.shared.ledger,
            {name: way_to(name, self._around.boundaries, queries) for name in queries},
            self._around.why_held,
        )

    def _reader(self) -> DataStreamReader:
        return rows_stream(self.spark, self._schema)

    def _begin(self, stream: DataFrame) -> DataFrame:
        assert isinstance(self._window, WindowConfig)
        return merged(self._window, self._name, parsed_rows(stream, self._schema))

    @property
    def _output_mode(self) -> str:
        return "append" if self._window.emit == "closed" else "update"

    def _do_batch(self, df: DataFrame, batch_id: int) -> None:
        batch = self._batch_ref(batch_id)
        handed = self._as_handed(batch, batch_id)
        results = df.withColumnRenamed(RESULT_ID, EVENT_ID).withColumn(ORIGIN, F.lit(batch.start))
        with self._syncing(batch_id):
            written = results.mapInArrow(_WriteParts(self._results.sink, handed), "part BINARY").collect()
        self._commit(handed, [bytes(row["part"]) for row in written if row["part"] is not None])
        self._record(batch)
        self._marks.gave(self.checkpoint.watermark_ms(batch_id) * 1000)


@dataclass(frozen=True)
class Stage:
    """A source in front of a log that is in front of a window."""

    query: SourceQuery
    sink: str
    """Hands its rows on into that log."""

    def through(self, upto: int, ledger: Ledger) -> bool:
        """Whether all its events below have been handed on, as far as they are to be."""
        source, runner = self.query.source, self.query.runner
        # A duplicate may wait for an event that is in the window, and is not to hold it open.
        duplicates = [step for step in runner.steps if runner.follows(step)]
        return ledger.books(source).next >= upto and not any(
            owes(known, self.sink, duplicates)
            for known in ledger.open_batches(source)
            if known.ref.start < upto
        )


class Silence:
    """Finds out when a window need not wait for a source any more.

    Events may keep coming that a filter in front of the window takes out. So it is not asked whether all that
    is in the log is taken, which is hardly ever so, but all that was there when the window had heard nothing
    for long enough. Where that log gets its rows from others (see `division`), all that was in these must
    have come through first.

    A source that is held back (no room in its log, too many events that are not settled, too many open
    batches) is not silent: nobody knows what it would say. It begins to be when it is let go.
    """

    def __init__(
        self,
        window: WindowIntake,
        queries: Sequence[SourceQuery],
        ledger: Ledger,
        ways: Mapping[str, Sequence[Stage]] | None = None,
        held: Callable[[str], str] = lambda _: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.window, self.queries = window, queries
        self._ledger, self._ways = ledger, ways or {}
        """What is in front of a source, the first one first."""
        self._held, self._clock = held, clock
        """Why a source is held back, or ''."""
        self._held_at: dict[str, float] = {}
        """When a source was last seen to be held back."""
        self._named: set[str] = set()
        """Those that were said to be waited for although they are held back."""
        self._reached: dict[tuple[str, float], tuple[int, int]] = {}
        """Of a source, and since when it is silent: so many stages in front of it are through, and up to
        where the events of the next one had come then."""

    def taken(self) -> dict[str, int]:
        """For each source that is silent, up to where its events had come then, if all of these are taken."""
        silent = self.window.marks.silent()
        for query in self.queries:
            self._look(query.source, waits=query.source in silent)
        silent = {source: since for source, since in silent.items() if not self._held_lately(source)}
        mine = {query.source: query for query in self.queries}
        found: dict[str, int] = {}
        reached: dict[tuple[str, float], tuple[int, int]] = {}
        for source, since in silent.items():
            if source not in mine:
                continue
            way = self._ways.get(source, ())
            logs = [*(stage.query.log for stage in way), mine[source].log]
            place, head = self._reached.get((source, since)) or (0, logs[0].head())
            while place < len(way) and way[place].through(head, self._ledger):
                place += 1
                head = logs[place].head()
            reached[source, since] = place, head
            if place == len(way) and self._ledger.books(source).next >= head:
                found[source] = head
        self._reached = reached
        return found

    def _look(self, source: str, *, waits: bool) -> None:
        names = [source, *(stage.query.source for stage in self._ways.get(source, ()))]
        reason = next(filter(None, map(self._held, names)), "")
        if not reason:
            self._named.discard(source)
            return
        self._held_at[source] = self._clock()
        if waits and source not in self._named:
            self._named.add(source)
            logger.warning(
                'a window waits for "%s", which is held back: %s. If that lasts because its events wait for '
                "this window, give it more room (log.max_bytes, prefetch) or use acknowledge: save_point",
                source, reason,
            )  # fmt: skip

    def _held_lately(self, source: str) -> bool:
        idle = self.window.marks.idle_after
        return source in self._held_at and self._clock() - self._held_at[source] <= (idle or 0.0)


def way_to(source: str, boundaries: Sequence[Boundary], queries: Mapping[str, SourceQuery]) -> list[Stage]:
    """What is in front of a source that is the log in front of a step; nothing for any other."""
    boundary = next(
        (boundary for boundary in boundaries if boundary.source == source and boundary.in_front), None
    )
    if boundary is None:
        return []
    fronts = sorted(boundary.fed_by)
    return [
        *way_to(fronts[0], boundaries, queries),  # if that is such a log itself, it is the only one
        *(Stage(queries[front], boundary.sink) for front in fronts),
    ]


def graph_marks(graph: Graph, source: str) -> Path:
    return marks_path(buffer_place(graph, source))


def state_shape(window: WindowConfig | BurstConfig, columns: str) -> str:
    """What the state of a window depends on."""
    return json.dumps({**window.shape, "columns": columns}, sort_keys=True)


def noted_shape(window: WindowConfig | BurstConfig, columns: str) -> str:
    """The same, and what decides which of the open windows are given out."""
    return json.dumps({**window.shape, "columns": columns, "emit": window.emit}, sort_keys=True)


def check_shape(graph: Graph, boundary: WindowBoundary | BurstBoundary, columns: str) -> None:
    """Raises PipelineError where the state was begun for another form of the window and holds events."""
    known, held = _noted(graph, boundary)
    if not known or not held:
        return
    before, now = json.loads(known), json.loads(noted_shape(boundary.window, columns))
    changed = next((name for name in now if _differs(name, before, now)), None)
    if changed is None:
        return
    raise PipelineError(
        [
            boundary.node.problem(
                "state-changed",
                f'has open windows that were begun with another "{changed}" ({shown(before.get(changed))})',
                at=changed,
                hint="let them be closed first: run the pipeline as it was once more, with idle_after: 1s; "
                "or give up what they hold: remove the step, run signoff buffers drop FILE "
                f"{boundary.name}, and add it again",
            )
        ]
    )


def _differs(name: str, before: Mapping[str, object], now: Mapping[str, object]) -> bool:
    """Whether what has changed loses open windows. With `updates`, Spark gives out only those that change:
    one that is open already, and gets no more events, would never be. The other way round nothing is lost."""
    if name == "emit":
        return (before.get(name), now[name]) == ("closed", "updates")
    return before.get(name) != now[name]


def _noted(graph: Graph, boundary: EventTimeBoundary) -> tuple[str, bool]:
    """The form that the state was begun for, and whether it holds events."""
    marks = Watermarks(graph_marks(graph, boundary.source), WatermarkRule(0), (), readonly=True)
    try:
        return marks.shape, marks.holds_events
    finally:
        marks.close_store()


def results_of(
    graph: Graph, boundary: WindowBoundary, rows: StructType, spark: SparkSession
) -> dict[str, DataType]:
    """The columns of the results, of rows with such columns. Raises PipelineError for aggregates that no
    stream can have: Spark is asked, by a stream with one row, unless it has had that state before."""
    session = state_session(spark)
    results = merged(boundary.window, boundary.name, session.createDataFrame([], rows)).schema
    columns = {field.name: field.dataType for field in results if field.name != RESULT_ID}
    for name, kind in columns.items():
        if (wrong := unfit(kind)) is not None:
            text = f'makes a column "{name}" of type {wrong.simpleString()}, which a log cannot keep'
            hint = "convert it: unix_micros(…) of a time, CAST(… AS STRING)"
            raise PipelineError(
                [boundary.node.problem("type-error", text, at=f"aggregates.{name}", hint=hint)]
            )
    if any(name.startswith(_ARGUMENT) for name in rows.names):
        known, _ = _noted(graph, boundary)
        if known != noted_shape(boundary.window, rows.json()):
            _try_out(boundary, rows, session)
    return columns


def _with_measures(
    graph: Graph, boundary: WindowBoundary, columns: Mapping[str, DataType], spark: SparkSession
) -> Graph:
    """The part in front, in which it is known which aggregates can be put together."""
    measures, all_of_them = measures_of(boundary.window, columns, spark)
    node = graph.nodes[boundary.sink]
    assert isinstance(node.config, WindowIntakeConfig)
    update = {"measures": measures, "combines": node.config.combines and all_of_them}
    nodes = {**graph.nodes, boundary.sink: replace(node, config=node.config.model_copy(update=update))}
    return replace(graph, nodes=nodes)


def _try_out(boundary: WindowBoundary, rows: StructType, session: SparkSession) -> None:
    stream = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    payload = F.lit(json.dumps({START: 0, CLOSED: 0}))
    results = merged(
        boundary.window, boundary.name, parsed_rows(stream.select(payload.alias("payload")), rows)
    )
    with tempfile.TemporaryDirectory(prefix="signoff-window-") as directory:
        try:
            query = (
                results.writeStream.format("noop")
                .outputMode("update")
                .option("checkpointLocation", directory)
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
        except (AnalysisException, StreamingQueryException) as error:
            text = f"Spark cannot keep such aggregates in the state of a stream: {_reason(error)}"
            hint = "use others, such as collect_list(…), and compute the rest of them behind the window"
            raise PipelineError(
                [boundary.node.problem("cannot-stream", text, at="aggregates", hint=hint)]
            ) from None


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in redact(str(error)).splitlines() if line.strip()]
    return excerpt(lines[0] if lines else type(error).__name__, 500)


@dataclass(frozen=True)
class _WriteParts:
    """Executor: a task's results, into a part of the link."""

    sink: Sink
    batch: BatchRef

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # What cannot be computed of aggregates is null; so is what no log could keep: nobody else would hear.
        part = write_part(self.sink, self.batch, map(fitted, batches))
        yield pa.RecordBatch.from_pydict({"part": pa.array([part], pa.binary())})
