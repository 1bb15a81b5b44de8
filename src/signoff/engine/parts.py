"""The parts of a pipeline, ready to run: what is in front of its links, and what is behind each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from signoff.engine.compile import Plan, compile_source
from signoff.engine.control import Control
from signoff.engine.division import Division, divide
from signoff.engine.folds import check_fold
from signoff.engine.joints import FoldJoint, Joint, WindowJoint
from signoff.engine.left_states import check_left
from signoff.engine.query import Shared
from signoff.engine.repeats import Repeats, repeats_in
from signoff.engine.room import Room
from signoff.engine.serving import build_sinks
from signoff.engine.windows import check_shape, results_of
from signoff.errors import PipelineError
from signoff.ledger.dead_letters import DeadLetters
from signoff.ledger.ledger import Ledger
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SourceConfig
from signoff.state.windowing import WindowIntakeConfig
from signoff.transforms.contract import FieldError
from signoff.transforms.fold import group_schema
from signoff.transforms.frame import MARK, MergeConflict, unified
from signoff.transforms.rows import check_kept
from signoff.transforms.window import WindowInput, link_schema, measures_of

_COLUMNS = (
    "_sequence BIGINT, payload {payload}, headers MAP<STRING, STRING>, message_id STRING, "
    "received_at TIMESTAMP, unit BIGINT, position BIGINT, error STRING"
)


def build_parts(
    graph: Graph,
    spark: SparkSession,
    ledger: Ledger,
    letters: DeadLetters,
    control: Control,
    room: Room | None = None,
) -> list[Shared]:
    """The part in front first, then those behind the buffers. Raises PipelineError, as Spark finds out, and
    where a state holds events that nobody would ever get. `room`: waited for if the disk is full."""
    check_left(graph)

    def repeats_of(part: Graph) -> Repeats | None:
        if room is None:
            return repeats_in(part, graph, ledger)
        return room.wait_for(lambda: repeats_in(part, graph, ledger), control)

    return [
        Shared(part, spark, ledger, letters, build_sinks(part), control, repeats_of(part))
        for part in graphs(divide(graph), spark)
    ]


def graphs(division: Division, spark: SparkSession) -> list[Graph]:
    """The graph in front of all links, and one behind each buffer."""
    graph = division.front
    if not division.joints:
        return [graph]
    plans = {name: _plan(division.front, name, spark) for name in division.front.sources}
    parts = [graph]
    for joint in division.joints:
        columns = _columns(joint, plans)
        if isinstance(joint, WindowJoint):
            rows = link_schema(joint.window, columns, spark)
            check_shape(division.whole, joint, rows.json())
            parts[0] = _with_measures(parts[0], joint, columns, spark)
            parts.append(joint.behind(division.whole, rows.json()))
            columns = results_of(division.whole, joint, rows, spark)
            joint = joint.results
        elif isinstance(joint, FoldJoint):
            check_fold(division.whole, joint, columns)
            parts.append(joint.behind(division.whole, _as_json(columns)))
            columns = {field.name: field.dataType for field in group_schema(columns)}
            joint = joint.results
        behind = joint.behind(division.whole, _as_json(columns))
        parts += graphs(divide(behind, joint), spark)
    return parts


def _with_measures(
    graph: Graph, joint: WindowJoint, columns: Mapping[str, DataType], spark: SparkSession
) -> Graph:
    """The part in front, in which it is known which aggregates can be put together."""
    measures, all_of_them = measures_of(joint.window, columns, spark)
    node = graph.nodes[joint.sink]
    assert isinstance(node.config, WindowIntakeConfig)
    update = {"measures": measures, "combines": node.config.combines and all_of_them}
    nodes = {**graph.nodes, joint.sink: replace(node, config=node.config.model_copy(update=update))}
    return replace(graph, nodes=nodes)


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
    plan = compile_source(graph, source, no_events(graph, source, spark), streaming=False)
    assert plan is not None
    return plan


def _columns(joint: Joint, plans: Mapping[str, Plan]) -> Mapping[str, DataType]:
    """What the rows of all sources look like together."""
    node, name = joint.node, joint.sink
    try:
        schema: Mapping[str, DataType] = unified(
            {source: plan.sinks[name].schema for source, plan in plans.items() if name in plan.sinks}
        )
        check_kept(schema)
        _check_order(joint, schema)
    except MergeConflict as error:
        problem = node.problem("merge-conflict", str(error), at="inputs", hint="cast one with a select")
        raise PipelineError([problem]) from None
    except FieldError as error:
        raise PipelineError(
            [node.problem(error.code, error.message, at=error.field, hint=error.hint)]
        ) from None
    return schema


def _as_json(columns: Mapping[str, DataType]) -> str:
    return str(StructType([StructField(name, kind) for name, kind in columns.items()]).json())


def _check_order(joint: Joint, schema: Mapping[str, DataType]) -> None:
    missing = [name for name in getattr(joint.node.config, "ordered_by", ()) if name not in schema]
    if missing:
        there = f"there is: {', '.join(schema)}"
        raise FieldError("ordered_by", "unresolved-column", f'has no column "{missing[0]}"', there)
