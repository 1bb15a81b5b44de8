"""The parts of a pipeline, ready to run: what is in front of its links, and what is behind each."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from signoff.engine.compile import Plan, compile_source
from signoff.engine.control import Control
from signoff.engine.division import Division, Joint, divide
from signoff.engine.query import Shared
from signoff.engine.serving import build_sinks
from signoff.errors import PipelineError
from signoff.ledger.dead_letters import DeadLetters
from signoff.ledger.ledger import Ledger
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import SourceConfig
from signoff.transforms.contract import FieldError
from signoff.transforms.frame import MergeConflict, unified
from signoff.transforms.rows import check_kept

_COLUMNS = (
    "_sequence BIGINT, payload {payload}, headers MAP<STRING, STRING>, message_id STRING, "
    "received_at TIMESTAMP, unit BIGINT, position BIGINT, error STRING"
)


def build_parts(
    graph: Graph, spark: SparkSession, ledger: Ledger, letters: DeadLetters, control: Control
) -> list[Shared]:
    """The part in front first, then those behind the buffers. Raises PipelineError, as Spark finds out."""
    return [
        Shared(part, spark, ledger, letters, build_sinks(part), control)
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
        behind = joint.behind(division.whole, _columns(joint, plans))
        parts += graphs(divide(behind, joint), spark)
    return parts


def no_events(graph: Graph, source: str, spark: SparkSession) -> DataFrame:
    """What a source gives, without any events."""
    config = graph.nodes[source].config
    assert isinstance(config, SourceConfig)
    payload = "BINARY" if config.encoding == "binary" else "STRING"
    return spark.createDataFrame([], _COLUMNS.format(payload=payload))


def _plan(graph: Graph, source: str, spark: SparkSession) -> Plan:
    """The plan of a source over no events: it shows what its rows look like at each sink."""
    plan = compile_source(graph, source, no_events(graph, source, spark), streaming=False)
    assert plan is not None
    return plan


def _columns(joint: Joint, plans: Mapping[str, Plan]) -> str:
    """What the rows of all sources look like together."""
    node = joint.node
    try:
        schema: Mapping[str, DataType] = unified(
            {
                source: plan.sinks[node.name].schema
                for source, plan in plans.items()
                if node.name in plan.sinks
            }
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
    return json.dumps(StructType([StructField(name, kind) for name, kind in schema.items()]).jsonValue())


def _check_order(joint: Joint, schema: Mapping[str, DataType]) -> None:
    missing = [name for name in getattr(joint.node.config, "ordered_by", ()) if name not in schema]
    if missing:
        there = f"there is: {', '.join(schema)}"
        raise FieldError("ordered_by", "unresolved-column", f'has no column "{missing[0]}"', there)
