"""The parts of a pipeline, ready to run: what is in front of its links, and what is behind each."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType

from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.delivery.open_sinks import build_sinks, run_of
from signoff.engine.full_disk import Room
from signoff.engine.plan.compile import compile_source
from signoff.engine.plan.duplicates import Duplicates, repeats_in
from signoff.engine.plan.kept_rows import remove_kept_rows
from signoff.engine.plan.plan import Plan
from signoff.engine.query.base import Shared
from signoff.engine.split.boundaries import Boundary
from signoff.engine.split.division import Division, divide
from signoff.engine.split.stateful import StatefulBoundary
from signoff.engine.state_queries.base import as_json
from signoff.engine.state_queries.kinds import query_class
from signoff.engine.state_queries.removed_steps import check_left
from signoff.errors import PipelineError
from signoff.ledger.dead_letters import DeadLetters
from signoff.ledger.ledger import Ledger
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SourceConfig
from signoff.transforms.contract import FieldError
from signoff.transforms.frame import MARK, MergeConflict, unified
from signoff.transforms.handed_rows import check_kept
from signoff.transforms.window.step import WindowInput

_COLUMNS = (
    "_sequence BIGINT, payload {payload}, headers MAP<STRING, STRING>, message_id STRING, "
    "received_at TIMESTAMP, unit BIGINT, position BIGINT, error STRING"
)


def build_parts(
    graph: Graph,
    spark: SparkSession,
    ledger: Ledger,
    letters: DeadLetters,
    control: Interrupts,
    room: Room | None = None,
) -> list[Shared]:
    """The part in front first, then those behind the buffers. Raises PipelineError, as Spark finds out, and
    where a state holds events that nobody would ever get. `room`: waited for if the disk is full."""
    check_left(graph)
    remove_kept_rows(graph.state)

    def repeats_of(part: Graph) -> Duplicates | None:
        if room is None:
            return repeats_in(part, graph, ledger)
        return room.wait_for(lambda: repeats_in(part, graph, ledger), control)

    parts = [
        Shared(part, spark, ledger, letters, build_sinks(part), control, repeats_of(part))
        for part in graphs(divide(graph), spark)
    ]
    run = run_of(ledger, bounded=control.patience_s is not None)
    for part in parts:
        for entry in part.sinks.values():
            entry.sink.begin(run)
    return parts


def graphs(division: Division, spark: SparkSession) -> list[Graph]:
    """The graph in front of all links, and one behind each buffer."""
    graph = division.front
    if not division.boundaries:
        return [graph]
    plans = {name: _plan(division.front, name, spark) for name in division.front.sources}
    parts = [graph]
    for boundary in division.boundaries:
        columns = _columns(boundary, plans)
        if isinstance(boundary, StatefulBoundary):
            planned = query_class(boundary).plan(division.whole, parts[0], boundary, columns, spark)
            parts[0] = planned.front
            parts.append(boundary.behind(division.whole, planned.rows))
            boundary, columns = boundary.results, planned.results
        behind = boundary.behind(division.whole, as_json(columns))
        parts += graphs(divide(behind, boundary), spark)
    return parts


def no_events(graph: Graph, source: str, spark: SparkSession) -> DataFrame:
    """What a source gives, without any events."""
    config = graph.nodes[source].config
    assert isinstance(config, SourceConfig)
    payload = "BINARY" if config.encoding == "binary" else "STRING"
    columns = _COLUMNS.format(payload=payload)
    return spark.createDataFrame(
        [], columns + "".join(f", {MARK}{name} BIGINT" for name in windows_of(graph, source))
    )


def windows_of(graph: Graph, source: str) -> list[str]:
    """The windows that rows of a source come to, in the part of the graph it is in."""
    return [
        name
        for name, node in graph.transforms.items()
        if isinstance(node.config, WindowInput) and source in graph.upstream_sources(name)
    ]


def _plan(graph: Graph, source: str, spark: SparkSession) -> Plan:
    """The plan of a source over no events: it shows what its rows look like at each sink."""
    plan = compile_source(graph, source, no_events(graph, source, spark))
    assert plan is not None
    return plan


def _columns(boundary: Boundary, plans: Mapping[str, Plan]) -> Mapping[str, DataType]:
    """What the rows of all sources look like together."""
    node, name = boundary.node, boundary.sink
    try:
        schema: Mapping[str, DataType] = unified(
            {source: plan.sinks[name].schema for source, plan in plans.items() if name in plan.sinks}
        )
        check_kept(schema)
        _check_order(boundary, schema)
    except MergeConflict as error:
        problem = node.problem("merge-conflict", str(error), at="inputs", hint="cast one with a select")
        raise PipelineError([problem]) from None
    except FieldError as error:
        raise PipelineError(
            [node.problem(error.code, error.message, at=error.field, hint=error.hint)]
        ) from None
    return schema


def _check_order(boundary: Boundary, schema: Mapping[str, DataType]) -> None:
    missing = [name for name in getattr(boundary.node.config, "ordered_by", ()) if name not in schema]
    if missing:
        there = f"there is: {', '.join(schema)}"
        raise FieldError("ordered_by", "unresolved-column", f'has no column "{missing[0]}"', there)
