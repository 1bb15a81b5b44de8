"""Cutting a graph where rows go through a link: each part is a graph of its own, run by its own queries.

    incoming ─► parse ─► warehouse                the pipeline as it is written; warehouse has a buffer

    incoming ─► parse ─► [warehouse: handover]    the part in front
    warehouse.buffer ─► warehouse.rows ─► warehouse       the part behind, with a source of its own

What the rows look like is known when the part in front is compiled; see `signoff.engine.parts`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from signoff.ledger.outcome import BUFFER
from signoff.link.handover import HandoverConfig, LinkPlace
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import BufferSettings, Retry, SinkConfig, SourceConfig
from signoff.sinks.pipeline import PipelineSinkConfig
from signoff.transforms.rows import RowsConfig

_ROWS = ".rows"
_RETRY = Retry(initial_ms=100, max_ms=1000)


class BufferSourceConfig(SourceConfig):
    """The log of a buffer, as the source of the part behind it."""

    type: Literal["buffer"] = "buffer"
    can_acknowledge: ClassVar[bool] = False
    keeps_ids: ClassVar[bool] = True
    """Its rows keep the ids they had when they were handed on."""


@dataclass(frozen=True)
class Joint:
    """A sink with a buffer: where the graph is cut."""

    sink: Node
    """As the user wrote it."""
    name: str
    """Name of the buffer."""
    settings: BufferSettings
    awaited_by: frozenset[str]
    """Sources whose events wait until the sink has taken their rows."""
    in_use: bool = True
    """False: its sink has no buffer any more; what is in it is still taken, and nothing is put into it."""

    @property
    def source(self) -> str:
        """The source that its rows come from."""
        return self.name + BUFFER

    def behind(self, graph: Graph, columns: str) -> Graph:
        """The part behind, for rows with these columns."""
        rows = self.name + _ROWS
        source = Node(self.source, "source", BufferSourceConfig(), file=self.sink.file, line=self.sink.line)
        step = Node(
            rows, "transform", RowsConfig(input=self.source, columns=columns), (Port(self.source),),
            self.sink.line, file=self.sink.file,
        )  # fmt: skip
        sink = replace(self.sink, inputs=(Port(rows),))
        return replace(graph, nodes={node.name: node for node in (source, step, sink)}, warnings=())


@dataclass(frozen=True)
class Division:
    front: Graph
    """All of the pipeline, with a handover in the place of each sink that has a buffer."""
    joints: tuple[Joint, ...]


def divide(graph: Graph) -> Division:
    """Cut a pipeline where its rows go through a log."""
    joints = [joint for name in graph.sinks if (joint := joint_of(graph, name)) is not None]
    known = {joint.name for joint in joints}
    joints += [
        Joint(graph.sinks[name], name, BufferSettings(), frozenset(), in_use=False)
        for name in buffers_on_disk(graph)
        if name not in known and name in graph.sinks
    ]
    nodes = dict(graph.nodes)
    for joint in joints:
        if joint.in_use:
            nodes[joint.sink.name] = replace(joint.sink, config=handover(graph, joint))
    for name, node in graph.sinks.items():
        if isinstance(node.config, PipelineSinkConfig):
            nodes[name] = replace(node, config=_way_out(graph, node, node.config))
    return Division(replace(graph, nodes=nodes), tuple(joints))


def joint_of(graph: Graph, name: str) -> Joint | None:
    """The buffer of a sink; None if its rows go to it directly."""
    sink = graph.nodes[name]
    config = sink.config
    assert isinstance(config, SinkConfig)
    if isinstance(config, PipelineSinkConfig):
        return None
    settings, free = config.buffer, _settled_by_others(graph, name)
    if settings is None and config.best_effort:
        settings = BufferSettings(when_full="drop_newest")
    elif settings is None and (free or config.ordered_by):
        settings = BufferSettings()
    if settings is None:
        return None
    signs = settings.acknowledgements or config.best_effort
    awaited = frozenset() if signs else frozenset(graph.upstream_sources(name) - free)
    return Joint(sink, settings.name or name, settings, awaited)


def _settled_by_others(graph: Graph, name: str) -> set[str]:
    """Sources of a sink whose events are settled by an authoritative sink that this one is not."""
    authoritative = {
        other
        for other, node in graph.sinks.items()
        if isinstance(node.config, SinkConfig) and node.config.authoritative
    }
    if name in authoritative:
        return set()
    return {source for source in graph.upstream_sources(name) if graph.downstream(source) & authoritative}


def handover(graph: Graph, joint: Joint) -> HandoverConfig:
    config = joint.sink.config
    assert isinstance(config, SinkConfig)
    return HandoverConfig(
        place=buffer_place(graph, joint.source),
        sink=joint.sink.name,
        max_bytes=joint.settings.max_bytes,
        when_full=joint.settings.when_full,
        awaited_by=joint.awaited_by,
        retry=_RETRY,
        on_failure=config.on_failure,
    )


def _way_out(graph: Graph, node: Node, config: PipelineSinkConfig) -> HandoverConfig:
    return HandoverConfig(
        place=config.place(graph.base),
        sink=node.name,
        max_bytes=config.max_bytes,
        when_full="block",
        awaited_by=frozenset(graph.upstream_sources(node.name) - _settled_by_others(graph, node.name)),
        retry=_RETRY,
        on_failure=config.on_failure,
    )


def buffer_place(graph: Graph, source: str) -> LinkPlace:
    """Where a buffer is kept: its log stands with those of the sources."""
    return LinkPlace(graph.state / "log" / source, graph.state / "links" / source)


def buffers_on_disk(graph: Graph) -> list[str]:
    """The names of the buffers that a state directory holds, in use or not."""
    found = (graph.state / "links").glob(f"*{BUFFER}")
    return sorted(path.name.removesuffix(BUFFER) for path in found)
