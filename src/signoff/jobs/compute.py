"""The first half of a job: tables and queries, as plain DataFrames; their rows in files of the run's own.

Each task writes its rows into one file, fsynced; the driver hears the names. A part is never read while it is
not named by the record of the run, so that a kill leaves nothing that could be taken for a result.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from signoff.durable import sync_directory
from signoff.engine.spark_check import check as check_pipeline
from signoff.errors import PipelineError, SignoffError
from signoff.jobs.completeness import least
from signoff.jobs.outputs import is_bounded, output_names, second_half
from signoff.jobs.parameter_values import arguments
from signoff.jobs.records import Output
from signoff.jobs.spark_failures import SPARK_FAILURES, reason_of
from signoff.jobs.tables import open_tables, rows_read, tables_of
from signoff.json_text import json_objects
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.graph import Graph, Node
from signoff.pipeline.job_settings import Value
from signoff.private import make_private
from signoff.sinks.refusal import fit
from signoff.transforms.handed_rows import unfit
from signoff.transforms.sql import SqlConfig

logger = logging.getLogger(__name__)

_BATCH_SHUFFLE = {"spark.sql.adaptive.enabled": "true", "spark.sql.shuffle.partitions": "32"}
"""Spark puts small partitions together by itself; batches of a stream are too short for that to pay."""
_SAID = "part STRING, rows BIGINT, number INT"


class QueryFailed(SignoffError):
    """A query of a job cannot be run, or fails on its rows."""


class Incomplete(SignoffError):
    """A table lacks what the run is about; it may be there later."""


@dataclass
class Computed:
    """What the first half has come to."""

    outputs: dict[str, Output] = field(default_factory=dict)
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    complete_to: str | None = None
    """The least of what the tables say."""


def compute(
    graph: Graph,
    spark: SparkSession,
    values: Mapping[str, Value],
    directory: Path,
    progress: Callable[[str, int, int], None] = lambda *_: None,
) -> Computed:
    """Read the tables, run the queries, leave their rows in `directory`. Raises SignoffError."""
    session = batch_session(graph, spark)
    done, names = Computed(), output_names(graph)
    with open_tables(session, graph, values, directory) as opened:
        for name, table in opened.items():
            done.inputs[name] = {"rows": table.rows or 0, "complete_to": table.complete_to}
            _must_reach(graph.nodes[name], table.complete_to, values)
        said = [opened[name].complete_to for name, each in tables_of(graph).items() if each.complete_to]
        done.complete_to = least(said)
        frames = queries(graph, session, {name: table.df for name, table in opened.items()}, values)
        columns = {name: frames[name].schema.json() for name in names}
        require_right(second_half(graph, columns), spark)
        for number, name in enumerate(names):
            progress(name, number, len(names))
            try:
                done.outputs[name], counted = _written(name, frames[name], directory)
            except SPARK_FAILURES as error:
                raise QueryFailed(f'"{name}": {reason_of(error)}') from error
            for table_name, rows in counted.items():
                done.inputs[table_name]["rows"] = max(done.inputs[table_name]["rows"], rows)
    return done


def require_right(half: Graph, spark: SparkSession) -> None:
    """What is behind the queries is checked before anything is computed for it, or taken up by its sinks.
    Raises PipelineError."""
    if problems := check_pipeline(half, spark):
        raise PipelineError(problems)


def _must_reach(node: Node, complete_to: str | None, values: Mapping[str, Value]) -> None:
    """Raises Incomplete where a table lacks what the run is about."""
    wanted = getattr(node.config, "needed_to", None)
    needed = values.get(wanted) if wanted is not None else None
    if not isinstance(needed, datetime):
        return
    try:
        found = None if complete_to is None else _in_utc(datetime.fromisoformat(complete_to))
    except ValueError:
        raise QueryFailed(f'"{node.name}": complete_to is no time: {complete_to}') from None
    if found is None or found < _in_utc(needed):
        upto = "empty" if found is None else f"complete to {found.isoformat()}"
        raise Incomplete(f'"{node.name}" is {upto}, and is needed to {_in_utc(needed).isoformat()}')


def _in_utc(moment: datetime) -> datetime:
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def batch_session(graph: Graph, spark: SparkSession) -> SparkSession:
    """A session for one run: its views are nobody else's."""
    session = spark.newSession()
    for name, value in {"spark.sql.session.timeZone": "UTC", **_BATCH_SHUFFLE}.items():
        if name not in graph.settings.spark.config:
            session.conf.set(name, value)
    return session


def queries(
    graph: Graph, spark: SparkSession, tables: Mapping[str, DataFrame], values: Mapping[str, Value]
) -> dict[str, DataFrame]:
    """The DataFrames of all tables and queries, by name. Raises QueryFailed for what Spark refuses."""
    frames, declared = dict(tables), graph.settings.parameters
    for name, node in graph.nodes.items():
        if isinstance(node.config, SqlConfig):
            for port in node.inputs:
                frames[port.node].createOrReplaceTempView(f"`{port.node}`")
            try:
                frames[name] = spark.sql(node.config.query, arguments(spark, values, declared))
            except SPARK_FAILURES as error:
                raise QueryFailed(f'"{name}": {reason_of(error)}') from error
            check_columns(node, frames[name])
        if is_bounded(node):
            frames[name].createOrReplaceTempView(f"`{name}`")
    return frames


def check_columns(node: Node, df: DataFrame) -> None:
    """Raises QueryFailed for columns that rows in a log cannot have."""
    names = [each.name.lower() for each in df.schema]
    if twice := [name for name in names if names.count(name) > 1]:
        raise QueryFailed(f'"{node.name}" gives several columns "{twice[0]}"; name them apart with AS')
    for each in df.schema:
        if (wrong := unfit(each.dataType)) is not None:
            raise QueryFailed(f'"{node.name}": column "{each.name}" ({wrong.simpleString()}) must be cast')


def _written(name: str, df: DataFrame, directory: Path) -> tuple[Output, dict[str, int]]:
    parts = directory / "parts"
    make_private(parts)  # its name is to survive with what is in it
    writing = df.mapInArrow(_PartWriter(str(parts), name), _SAID)
    said = sorted(writing.collect(), key=lambda row: row["number"])
    sync_directory(parts)
    rows = sum(row["rows"] for row in said)
    columns = df.schema.json()
    return Output(rows, columns, tuple(row["part"] for row in said)), rows_read(writing)


@dataclass(frozen=True)
class _PartWriter:
    """Executor: writes the rows of one task, and says where."""

    directory: str
    name: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        number, rows = context.partitionId(), 0
        part = f"{self.name}.{number:05d}.{token_hex(8)}"
        with open(
            Path(self.directory) / part, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)
        ) as file:
            with pa.ipc.new_stream(file, EVENT_SCHEMA) as stream:
                for batch in batches:
                    if batch.num_rows:
                        stream.write_batch(as_events(batch))
                        rows += batch.num_rows
            file.flush()
            os.fsync(file.fileno())
        yield pa.RecordBatch.from_pydict(
            {"part": [part], "rows": pa.array([rows], pa.int64()), "number": pa.array([number], pa.int32())}
        )


def as_events(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows as a log keeps them; one that no sink could write is a dead letter from the beginning."""
    sorted_out = fit(rows)
    errors: list[str | None] = [None] * rows.num_rows
    payloads: Any = json_objects(sorted_out.rows).cast(pa.large_binary()).cast(pa.binary())
    if sorted_out.refusals:
        for refusal in sorted_out.refusals:
            errors[refusal.index] = refusal.reason
        whole: list[bytes] = [b""] * rows.num_rows
        for place, payload in zip(sorted_out.places.tolist(), payloads.to_pylist(), strict=True):
            whole[place] = payload
        payloads = pa.array(whole, pa.binary())
    count = rows.num_rows
    kinds = {each.name: each.type for each in EVENT_SCHEMA}
    now = pa.scalar(0, pa.int64()).cast(kinds["received_at"])
    return pa.RecordBatch.from_arrays(
        [
            payloads, pa.nulls(count, kinds["headers"]), pa.nulls(count, pa.string()), pa.repeat(now, count),
            pa.nulls(count, pa.int64()), pa.nulls(count, pa.int64()), pa.array(errors, pa.string()),
        ],
        schema=EVENT_SCHEMA,
    )  # fmt: skip
