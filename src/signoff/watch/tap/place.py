"""Where in a pipeline a tap is: in which of its parts, and what may be computed of the rows there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pyspark.sql import SparkSession

from signoff.engine.parts import graphs
from signoff.engine.split.division import divide
from signoff.errors import PipelineError, Problem
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import SinkConfig, TransformConfig
from signoff.pipeline.suggestions import suggestion
from signoff.sinks.contract import Sink
from signoff.transforms.contract import Transform
from signoff.transforms.window.step import WindowInput

_TAP = "__tap"


class LooksOn(SinkConfig):
    """Stands where the tap is, so that the plan has its columns. Never written by users, and never opened."""

    type: Literal["looks_on"] = "looks_on"

    def build(self, base: Path) -> Sink:
        raise NotImplementedError("nothing is delivered to a tap")


@dataclass(frozen=True)
class Place:
    """One input of the node that is tapped, or the node itself where it is no sink."""

    part: Graph
    tap: str
    """The sink of the part that stands for the tap."""
    node: str
    input: str
    """Of a sink with several inputs: which one; else ''."""

    @property
    def sources(self) -> list[str]:
        return sorted(self.part.upstream_sources(self.tap))

    @property
    def unites(self) -> bool:
        return any(step.unites for step in _steps(self.part, self.tap).values())


def ports_of(graph: Graph, name: str) -> list[Port]:
    """What is tapped: what comes to a sink, or out of another node. Raises PipelineError for a name that is
    none."""
    node, _, output = name.partition(".")
    if node not in graph.nodes:
        hint = suggestion(node, sorted(graph.nodes), "there is")
        raise PipelineError([Problem("unknown-node", f'there is no node "{node}"', hint, graph.file)])
    if graph.nodes[node].kind == "sink":
        return list(graph.nodes[node].inputs)
    config = graph.nodes[node].config
    outputs = config.outputs if isinstance(config, TransformConfig) else ()
    plain = not isinstance(config, TransformConfig) or config.has_main_output
    if not ((output in outputs) if output else plain):
        known = ", ".join([node] * plain + [f"{node}.{each}" for each in outputs])
        message = f'has no output "{output}"' if output else "has only named outputs"
        raise PipelineError([graph.nodes[node].problem("unknown-output", message, hint=f"there is: {known}")])
    return [Port(node, output or None)]


def places_of(graph: Graph, name: str, spark: SparkSession, *, calls: bool) -> Iterator[Place]:
    """The places of a tap. `calls`: steps are computed that run code or ask services. Raises PipelineError
    where rows cannot be told."""
    ports = ports_of(graph, name)
    taps = {f"{number}{_TAP}": port for number, port in enumerate(ports)}
    nodes = {own: Node(own, "sink", LooksOn(), (port,)) for own, port in taps.items()}
    parts = graphs(divide(replace(graph, nodes={**graph.nodes, **nodes})), spark)
    for own, port in taps.items():
        part = next(each for each in parts if own in each.nodes)
        steps = _steps(part, own)
        for step, config in () if calls else steps.items():
            if config.calls_out:
                _refuse(graph, name, step, config)
        if any(isinstance(config, WindowInput) for config in steps.values()):
            message = f'"{name}" gets late events, and which were late is known to their batch only'
            hint = "tap in front of the window, or its results"
            raise PipelineError([Problem("cannot-tap", message, hint, graph.file)])
        yield Place(part, own, name.partition(".")[0], str(port) if len(ports) > 1 else "")


def _refuse(graph: Graph, name: str, step: str, config: Transform) -> None:
    """Raises PipelineError where a step would have to be called that has effects of its own."""
    message = f'rows come to "{name}" through {config.type} "{step}", which runs your code or asks a service'
    hint = "tap in front of it, or use --calls, which calls it again for the rows shown"
    raise PipelineError([Problem("cannot-tap", message, hint, graph.file)])


def _steps(part: Graph, tap: str) -> dict[str, Transform]:
    """The steps that rows come through, in the part that the tap is in."""
    configs = {name: part.nodes[name].config for name in sorted(part.upstream(tap))}
    return {name: config for name, config in configs.items() if isinstance(config, Transform)}
