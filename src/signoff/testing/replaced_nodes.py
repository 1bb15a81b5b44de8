"""A pipeline as a test runs it: its own nodes, but with sinks that keep their rows, and nothing outside.

What is exchanged: sinks (for ones that keep their rows here, with the policies of the real ones), `enrich`
steps (for the same with given answers), a transform that is given rows (for a source that brings them), the
state directory. Sources stay: a test writes into their logs what an intake would. All else is the pipeline's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from signoff.engine.parts import graphs, no_events
from signoff.engine.plan.compile import compile_source
from signoff.engine.split.division import divide
from signoff.errors import PipelineError, Problem
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import NodeConfig, SinkConfig, SourceConfig, TransformConfig
from signoff.pipeline.tests_block import Case
from signoff.testing.canned_answers import with_answers
from signoff.testing.collecting_sinks import CollectConfig, TapConfig
from signoff.testing.fixed_now import at, with_now
from signoff.transforms.contract import Step, Transform
from signoff.transforms.enrich.step import EnrichConfig
from signoff.transforms.frame import View, unified
from signoff.transforms.lookup.step import LookupConfig
from signoff.transforms.parsing.parse_json import parse
from signoff.transforms.window.event_time import EventTimeConfig

ROWS = "__rows"
"""Ends the name of the source that brings the rows a test gives to a transform."""
_TAP = "__tap"


class GivenRows(Transform):
    """Stands for a transform that is given rows: they come as JSON. Never written by users."""

    type: Literal["given_rows"] = "given_rows"
    columns: str
    """The schema of what the transform gives, as Spark writes it in JSON."""

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        schema = StructType.fromJson(json.loads(self.columns))
        return {None: parse(step, view, schema, "dead_letter")}


def rigged(
    graph: Graph,
    case: Case,
    state: Path,
    run: str,
    spark: SparkSession,
    look_at: Iterable[str] = (),
    real: Collection[str] = (),
) -> Graph:
    """The pipeline that the test runs. Raises PipelineError where a test cannot be run as it is written."""
    _refuse_servers(graph)
    given = {name for step in case.steps() for name in step.events}
    nodes = {
        name: node if name in real else _exchanged(node, case, run) for name, node in graph.nodes.items()
    }
    wanted = {name for name in (*case.expect, *look_at) if name not in graph.sinks}
    for name in sorted(wanted):
        nodes |= _tap(name, run)
    whole = _with_state(replace(graph, nodes=nodes), state)
    schemas = {name: _columns(whole, name, spark) for name in sorted(given) if name in graph.transforms}
    if schemas:
        whole = _given_rows(whole, schemas)
    lost = sorted(name for name in given if name not in whole.nodes)
    if lost:
        message = f'test "{case.name}" gives events to "{lost[0]}", from where they reach nothing'
        hint = "what it feeds is given rows itself, or nothing is expected downstream of it"
        line = graph.tests.lines.get(case.name, 0)
        raise PipelineError([Problem("unreachable", message, hint, graph.file, line)])
    return whole


def _refuse_servers(graph: Graph) -> None:
    """No test asks a server: which rows it has today is nothing that can be expected."""
    for node in graph.transforms.values():
        if isinstance(node.config, LookupConfig) and node.config.table.url is not None:
            message = f'lookup "{node.name}" reads its table from PostgreSQL, which a test does not ask'
            hint = (
                f"give the test a file: --set 'transforms.{node.name}.from={{path: table.csv}}', or a profile"
            )
            raise PipelineError([Problem("bad-table", message, hint, node.file or graph.file, node.line)])


def tap_of(name: str) -> str:
    """The sink that looks at a transform."""
    return name.replace(".", "__") + _TAP


def _tap(name: str, run: str) -> dict[str, Node]:
    node, _, output = name.partition(".")
    own = tap_of(name)
    return {own: Node(own, "sink", TapConfig(run=run, name=name), (Port(node, output or None),))}


def _exchanged(node: Node, case: Case, run: str) -> Node:
    config: NodeConfig = node.config
    if isinstance(config, SinkConfig):
        fields = {name: getattr(config, name) for name in SinkConfig.model_fields if name != "type"}
        failing = case.failing.get(node.name)
        computed = {name: at(case.now, sql) for name, sql in config.expressions().items() if "${" not in sql}
        config = CollectConfig(**fields, run=run, name=node.name, fails_with=failing, computed=computed)
    elif isinstance(config, EnrichConfig):
        config = with_answers(config, case.answers.get(node.name, ()))
    elif isinstance(config, EventTimeConfig) and config.idle_after is not None:
        # Nobody waits in a test: what is open is closed when the test ends.
        config = config.model_copy(update={"idle_after": None})
    if isinstance(config, TransformConfig):
        config = with_now(config, case.now)
    return replace(node, config=config)


def _with_state(graph: Graph, state: Path) -> Graph:
    return replace(graph, settings=graph.settings.model_copy(update={"state": str(state), "traces": None}))


def _given_rows(graph: Graph, schemas: Mapping[str, StructType]) -> Graph:
    """Transforms that are given rows are fed by sources of their own, and not by what is in front of them."""
    nodes: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        if name not in schemas:
            # Other outputs of such a transform (what is late) give nothing, and so does what reads only them.
            inputs = tuple(p for p in node.inputs if p.node in nodes and not (p.node in schemas and p.output))
            if inputs or node.kind == "source":
                nodes[name] = replace(node, inputs=inputs)
            continue
        source = name + ROWS
        nodes[source] = Node(source, "source", SourceConfig(type="given_rows"), file=node.file)
        config = GivenRows(columns=schemas[name].json())
        nodes[name] = replace(node, config=config, inputs=(Port(source),))
    return replace(graph, nodes=_read_by_somebody(nodes))


def _read_by_somebody(nodes: Mapping[str, Node]) -> dict[str, Node]:
    """Without what feeds nothing any more."""
    read: set[str] = set()
    kept = []
    for name, node in reversed(list(nodes.items())):
        if node.kind == "sink" or name in read:
            kept.append(name)
            read |= {port.node for port in node.inputs}
    return {name: nodes[name] for name in reversed(kept)}


def _columns(graph: Graph, name: str, spark: SparkSession) -> StructType:
    """The columns of the rows that a transform gives: Spark is asked, with no events."""
    probe = graph if tap_of(name) in graph.nodes else replace(graph, nodes={**graph.nodes, **_tap(name, "")})
    tap = tap_of(name)
    part = next(each for each in graphs(divide(probe), spark) if tap in each.nodes)
    found: dict[str, Mapping[str, DataType]] = {}
    for source in part.upstream_sources(tap):
        plan = compile_source(part, source, no_events(part, source, spark))
        assert plan is not None
        found[source] = plan.sinks[tap].schema
    return StructType([StructField(each, kind) for each, kind in unified(found).items()])
