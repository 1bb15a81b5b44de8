"""Where a graph is cut: what stands in front of the cut, and what is behind it (see `division`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from signoff.engine.waiting import patient_steps
from signoff.ledger.outcome import BUFFER
from signoff.link.handover import HandoverConfig, LinkPlace
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import BufferSettings, Retry, SinkConfig, SourceConfig, TransformConfig
from signoff.state.folds import FoldIntakeConfig, FoldResultsConfig
from signoff.state.windowing import RESULTS, STATE, WindowIntakeConfig
from signoff.transforms.fold import FoldConfig, FoldOutput
from signoff.transforms.rows import RowsConfig
from signoff.transforms.window import WindowConfig

_ROWS = ".rows"
RETRY = Retry(initial_ms=100, max_ms=1000)
NO_LIMIT = 2**62


class BufferSourceConfig(SourceConfig):
    """The log of a buffer, as the source of the part behind it."""

    type: Literal["buffer"] = "buffer"
    can_acknowledge: ClassVar[bool] = False
    keeps_ids: ClassVar[bool] = True
    """Its rows keep the ids they had when they were handed on."""


class KeepingSourceConfig(BufferSourceConfig):
    """The log in front of a state."""

    name: str
    """Of the step that keeps it."""
    waits_for_results: bool
    """Its rows are settled when the results they went into are."""
    columns: str
    """Schema of the rows in its log, as Spark writes it in JSON."""


class StateSourceConfig(KeepingSourceConfig):
    """The log in front of a window's state."""

    window: WindowConfig


class FoldSourceConfig(KeepingSourceConfig):
    """The log in front of a fold's state."""

    fold: FoldConfig


@dataclass(frozen=True)
class Joint:
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

    def behind(self, graph: Graph, columns: str = "") -> Graph:
        """The part behind, for rows with these columns."""
        rows = self.name + _ROWS
        file, line = self.node.file, self.node.line
        source = Node(self.source, "source", BufferSourceConfig(), line=line, file=file)
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


@dataclass(frozen=True)
class KeepingJoint(Joint):
    """In front of a state; behind it is the query that keeps the state, and nothing else."""

    in_front: ClassVar[bool] = False

    @property
    def sink(self) -> str:
        return self.node.name + STATE

    @property
    def waits_for_results(self) -> bool:
        """Rows are settled when the results they went into are."""
        return waits_for_results(self.node)

    @property
    def results(self) -> ResultsJoint:
        """Where the results go on."""
        waiting = frozenset({self.source}) if self.waits_for_results else frozenset[str]()
        return ResultsJoint(self.node, self.name + RESULTS, BufferSettings(), waiting)

    def behind(self, graph: Graph, columns: str = "") -> Graph:
        file, line, results = self.node.file, self.node.line, self.results
        nodes = {
            self.source: Node(self.source, "source", self._source(columns), line=line, file=file),
            results.sink: Node(
                results.sink, "sink", handover(graph, results), (Port(self.source),), line, file=file
            ),
        }
        return replace(graph, nodes=nodes, warnings=())

    def _source(self, columns: str) -> KeepingSourceConfig:
        raise NotImplementedError


@dataclass(frozen=True)
class WindowJoint(KeepingJoint):
    """In front of a window's state."""

    @property
    def window(self) -> WindowConfig:
        assert isinstance(self.node.config, WindowConfig)
        return self.node.config

    def _source(self, columns: str) -> KeepingSourceConfig:
        waits, name = self.waits_for_results, self.node.name
        return StateSourceConfig(window=self.window, name=name, waits_for_results=waits, columns=columns)


@dataclass(frozen=True)
class FoldJoint(KeepingJoint):
    """In front of a fold's state."""

    @property
    def fold(self) -> FoldConfig:
        assert isinstance(self.node.config, FoldConfig)
        return self.node.config

    def _source(self, columns: str) -> KeepingSourceConfig:
        waits, name = self.waits_for_results, self.node.name
        return FoldSourceConfig(fold=self.fold, name=name, waits_for_results=waits, columns=columns)


@dataclass(frozen=True)
class ResultsJoint(Joint):
    """Behind a state: the results, and all that is made of them."""

    in_front: ClassVar[bool] = False

    @property
    def sink(self) -> str:
        return self.name

    def behind(self, graph: Graph, columns: str = "") -> Graph:
        name, file, line, config = self.node.name, self.node.file, self.node.line, self.node.config
        step: TransformConfig = RowsConfig(input=self.source, columns=columns)
        if isinstance(config, FoldConfig):
            step = FoldOutput(input=self.source, fold=config, columns=columns, on_error=config.on_error)
        nodes = {
            self.source: Node(self.source, "source", BufferSourceConfig(), line=line, file=file),
            name: Node(name, "transform", step, (Port(self.source),), line, file=file),
        }
        for other, node in graph.nodes.items():
            inputs = tuple(
                port
                for port in node.inputs
                if port == Port(name) or (port.node in nodes and port.node != name and other not in nodes)
            )
            if inputs:
                nodes[other] = replace(node, inputs=inputs)
        return replace(graph, nodes=nodes, warnings=())


def handover(graph: Graph, joint: Joint) -> HandoverConfig:
    config = joint.node.config
    assert isinstance(config, SinkConfig | TransformConfig)
    fields = {
        "place": buffer_place(graph, joint.source),
        "sink": joint.sink,
        "max_bytes": joint.settings.max_bytes,
        "when_full": joint.settings.when_full,
        "awaited_by": joint.awaited_by,
        "retry": RETRY,
        "on_failure": config.on_failure if isinstance(config, SinkConfig) else config.on_error,
    }
    if isinstance(joint, FoldJoint):
        return FoldIntakeConfig.model_validate(fields)
    if isinstance(joint, ResultsJoint) and isinstance(config, FoldConfig):
        return FoldResultsConfig.model_validate(fields)
    if not isinstance(joint, WindowJoint):
        return HandoverConfig.model_validate(fields)
    window = joint.window
    return WindowIntakeConfig.model_validate(
        {
            **fields,
            "panes": window.panes,
            "keys": window.keys,
            "combines": _same_rows_again(graph, joint.node.name),
            "with_origins": bool(joint.awaited_by),
            "progress": window.progress,
            "sources": frozenset(graph.upstream_sources(joint.node.name)),
        }
    )


def _same_rows_again(graph: Graph, name: str) -> bool:
    """Whether a batch gives a step the same rows whenever it is done: no step in front may fail for now."""
    return not (patient_steps(graph).keys() & graph.upstream(name))


def buffer_place(graph: Graph, source: str) -> LinkPlace:
    """Where a buffer is kept: its log stands with those of the sources."""
    return LinkPlace(graph.state / "log" / source, graph.state / "links" / source)


def waits_for_results(node: Node) -> bool:
    """Whether the events that come to a step with state wait for what it makes of them."""
    assert isinstance(node.config, WindowConfig | FoldConfig)
    return node.config.acknowledge == "delivered"
