"""The graph of a pipeline as it may be shown: nodes, edges and configuration, without secrets."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from signoff.pipeline.draw import detail
from signoff.pipeline.graph import Graph, Node
from signoff.pipeline.masked_config import fields_shown
from signoff.pipeline.model import Kind


@dataclass(frozen=True)
class NodeView:
    """One source, transform or sink."""

    name: str
    kind: Kind
    type: str
    detail: str
    """What says most about it, in a few words."""
    acknowledged: bool
    """Of a source: whether it is told only after settlement."""
    config: dict[str, Any]
    """All its fields, also those that nobody wrote; secrets masked."""
    written: tuple[str, ...]
    """The fields that somebody wrote."""
    file: str
    line: int


@dataclass(frozen=True)
class EdgeView:
    """Rows of one node go to another."""

    source: str
    """The node that they come from."""
    output: str | None
    """The output of a `route` that they come from."""
    target: str


@dataclass(frozen=True)
class GraphView:
    """All of it; each node after those it reads."""

    pipeline: str
    nodes: tuple[NodeView, ...]
    edges: tuple[EdgeView, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def view_graph(graph: Graph) -> GraphView:
    """The graph as it may be shown."""
    nodes = tuple(_node(graph, node) for node in graph.nodes.values())
    edges = tuple(
        EdgeView(port.node, port.output, node.name) for node in graph.nodes.values() for port in node.inputs
    )
    return GraphView(graph.name, nodes, edges)


def _node(graph: Graph, node: Node) -> NodeView:
    return NodeView(
        name=node.name,
        kind=node.kind,
        type=node.config.type,
        detail=detail(node.config),
        acknowledged=node.kind == "source" and graph.acknowledges(node.name),
        config=fields_shown(node.config.model_dump(), type(node.config)),
        written=tuple(sorted(node.config.model_fields_set)),
        file=node.file,
        line=node.line,
    )
