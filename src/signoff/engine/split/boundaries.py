"""Where a graph is cut: what stands in front of the cut, and what is behind it (see `division`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from signoff.ledger.outcome import BUFFER
from signoff.link.handover import HandoverConfig, LinkPlace
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import (
    BufferSettings,
    NodeConfig,
    Retry,
    SinkConfig,
    SourceConfig,
    TransformConfig,
)
from signoff.transforms.handed_rows import RowsConfig

_ROWS = ".rows"
RETRY = Retry(initial_ms=100, max_ms=1000)
NO_LIMIT = 2**62


class BufferSourceConfig(SourceConfig):
    """The log of a buffer, as the source of the part behind it."""

    type: Literal["buffer"] = "buffer"
    can_acknowledge: ClassVar[bool] = False
    keeps_ids: ClassVar[bool] = True
    """Its rows keep the ids they had when they were handed on."""
    collects_s: float = 0.0
    """How long after the first row of a batch more are waited for."""

    @classmethod
    def of(cls, config: NodeConfig) -> BufferSourceConfig:
        """The source in front of a sink, at the pace of that sink."""
        if not isinstance(config, SinkConfig):
            return cls()
        most = config.rows_at_a_time or cls.model_fields["max_events_per_batch"].default
        return cls(collects_s=config.collects_s, max_events_per_batch=most)


@dataclass(frozen=True)
class Boundary:
    """Where the graph is cut: a sink with a buffer, or a step with a log in front of it."""

    node: Node
    """As the user wrote it."""
    name: str
    """Name of the buffer."""
    settings: BufferSettings
    awaited_by: frozenset[str]
    """Sources whose events wait until their rows are settled behind it."""
    in_use: bool = True
    """False: its sink has no buffer any more; what is in it is still taken, and nothing is put into it."""
    fed_by: frozenset[str] = frozenset()
    """Of a log in front of a step: the sources whose rows come into it."""

    @property
    def source(self) -> str:
        """The source that its rows come from."""
        return self.name + BUFFER

    @property
    def sink(self) -> str:
        """The sink that hands rows on, as the ledger knows it."""
        return self.node.name

    @property
    def best_effort(self) -> bool:
        """Nobody waits for what is in it, not even a run that is to end."""
        return isinstance(self.node.config, SinkConfig) and self.node.config.best_effort

    @property
    def in_front(self) -> bool:
        """It is the log in front of a step that could not go on in the query that hands rows on to it."""
        return self.node.kind == "transform"

    def handover(self, graph: Graph) -> HandoverConfig:
        """What hands rows on here, in the place of the node."""
        return HandoverConfig.model_validate(self._handover_fields(graph))

    def _handover_fields(self, graph: Graph) -> dict[str, object]:
        config = self.node.config
        assert isinstance(config, SinkConfig | TransformConfig)
        return {
            "place": buffer_place(graph, self.source),
            "sink": self.sink,
            "max_bytes": self.settings.max_bytes,
            "when_full": self.settings.when_full,
            "awaited_by": self.awaited_by,
            "retry": RETRY,
            "on_failure": config.on_failure if isinstance(config, SinkConfig) else config.on_error,
        }

    def behind(self, graph: Graph, columns: str = "") -> Graph:
        """The part behind, for rows with these columns."""
        rows = self.name + _ROWS
        file, line = self.node.file, self.node.line
        source = Node(self.source, "source", BufferSourceConfig.of(self.node.config), line=line, file=file)
        step = RowsConfig(input=self.source, columns=columns)
        nodes = {
            source.name: source,
            rows: Node(rows, "transform", step, (Port(self.source),), line, file=file),
            self.node.name: replace(self.node, inputs=(Port(rows),)),
        }
        for name, node in graph.nodes.items():
            if inputs := tuple(port for port in node.inputs if port.node in nodes and name not in nodes):
                nodes[name] = replace(node, inputs=inputs)
        return replace(graph, nodes=nodes, warnings=())


def buffer_place(graph: Graph, source: str) -> LinkPlace:
    """Where a buffer is kept: its log stands with those of the sources."""
    return LinkPlace(graph.state / "log" / source, graph.state / "links" / source)
