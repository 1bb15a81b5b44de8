"""Where a graph is cut around a step that keeps state: in front of the state, and behind its results.

All that differs between the kinds of such steps when a graph is divided is here, one class for each kind;
what differs in the queries that keep the states is in `signoff.engine.state_queries`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from signoff.engine.plan.retried_steps import retried_steps
from signoff.engine.split.boundaries import (
    NO_LIMIT,
    RETRY,
    Boundary,
    BufferSourceConfig,
    buffer_place,
)
from signoff.link.handover import HandoverConfig, LinkPlace
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import BufferSettings, TransformConfig
from signoff.stateful.fold_sinks import FoldIntakeConfig, FoldResultsConfig
from signoff.stateful.open_groups import OpenGroups, open_groups_path
from signoff.stateful.watermarks import Watermarks
from signoff.stateful.window_sinks import (
    LATENESS,
    RESULTS,
    STATE,
    LateCountConfig,
    WindowIntakeConfig,
    marks_path,
)
from signoff.transforms.burst.step import BurstConfig
from signoff.transforms.fold.step import FoldConfig, FoldInput, FoldOutput
from signoff.transforms.handed_rows import RowsConfig
from signoff.transforms.window.event_time import EventTimeConfig
from signoff.transforms.window.step import WindowConfig, WindowInput
from signoff.transforms.window.watermark_rule import WatermarkRule


class StateQuerySourceConfig(BufferSourceConfig):
    """The log in front of a state."""

    name: str
    """Of the step that keeps it."""
    waits_for_results: bool
    """Its rows are settled when the results they went into are."""
    columns: str
    """Schema of the rows in its log, as Spark writes it in JSON."""


class WindowSourceConfig(StateQuerySourceConfig):
    """The log in front of a window's state."""

    window: WindowConfig


class BurstSourceConfig(StateQuerySourceConfig):
    """The log in front of a burst's state."""

    window: BurstConfig


class FoldSourceConfig(StateQuerySourceConfig):
    """The log in front of a fold's state."""

    fold: FoldConfig


@dataclass(frozen=True)
class StatefulBoundary(Boundary, ABC):
    """In front of a state; behind it is the query that keeps the state, and nothing else."""

    in_front: ClassVar[bool] = False
    results_config: ClassVar[type[HandoverConfig]] = HandoverConfig
    """Hands the results on."""

    @property
    def sink(self) -> str:
        return self.node.name + STATE

    @property
    def waits_for_results(self) -> bool:
        """Rows are settled when the results they went into are."""
        return _waits_for_results(self.node)

    @property
    def results(self) -> ResultsBoundary:
        """Where the results go on."""
        waiting = frozenset({self.source}) if self.waits_for_results else frozenset[str]()
        return ResultsBoundary(self.node, self.name + RESULTS, BufferSettings(), waiting, state=self)

    def behind(self, graph: Graph, columns: str = "") -> Graph:
        file, line, results = self.node.file, self.node.line, self.results
        nodes = {
            self.source: Node(self.source, "source", self._source(columns), line=line, file=file),
            results.sink: Node(
                results.sink, "sink", results.handover(graph), (Port(self.source),), line, file=file
            ),
        }
        return replace(graph, nodes=nodes, warnings=())

    @abstractmethod
    def put_in_front(self, graph: Graph, nodes: dict[str, Node]) -> None:
        """Put what is in front of the state into its place, and the sinks behind that."""

    @abstractmethod
    def results_step(self, source: str, columns: str) -> TransformConfig:
        """What makes rows of the results that come out of their log."""

    @abstractmethod
    def gives_more(self, graph: Graph) -> bool:
        """Whether results will still come, although no more events do. Any process may ask."""

    @classmethod
    @abstractmethod
    def held(cls, place: LinkPlace) -> str:
        """What a state of this kind holds, for people; '' if nothing. Any process may ask."""

    @classmethod
    @abstractmethod
    def give_up(cls, place: LinkPlace) -> None:
        """Forget what a state of this kind holds."""

    @abstractmethod
    def _source(self, columns: str) -> StateQuerySourceConfig: ...


@dataclass(frozen=True)
class EventTimeBoundary(StatefulBoundary, ABC):
    """In front of a state that goes by the time of events."""

    @property
    @abstractmethod
    def window(self) -> EventTimeConfig:
        """The step, as the user wrote it."""

    def _combines(self, graph: Graph) -> bool:
        """Whether the events of a task can be put together before they are handed on."""
        return False

    def handover(self, graph: Graph) -> HandoverConfig:
        window, name = self.window, self.node.name
        return WindowIntakeConfig.model_validate(
            {
                **self._handover_fields(graph),
                "panes": window.panes,
                "keys": window.keys,
                "combines": self._combines(graph),
                "with_origins": bool(self.awaited_by),
                "progress": window.progress,
                "sources": frozenset(graph.upstream_sources(name)),
            }
        )

    def put_in_front(self, graph: Graph, nodes: dict[str, Node]) -> None:
        name, node, window = self.node.name, self.node, self.window
        late = Port(name, "late")
        read = any(late in other.inputs for other in nodes.values())
        nodes[name] = replace(
            node, config=WindowInput(window=window, late_is_read=read, on_error=window.on_error)
        )
        count = LateCountConfig(place=buffer_place(graph, self.source), keys=window.keys, retry=RETRY)
        for sink, config, port in (
            (self.sink, self.handover(replace(graph, nodes=nodes)), Port(name)),
            (name + LATENESS, count, late),
        ):
            nodes[sink] = Node(sink, "sink", config, (port,), node.line, file=node.file)

    def results_step(self, source: str, columns: str) -> TransformConfig:
        return RowsConfig(input=source, columns=columns)

    def gives_more(self, graph: Graph) -> bool:
        path = marks_path(buffer_place(graph, self.source))
        marks = Watermarks(path, self.window.progress, (), readonly=True)
        try:
            idle = self.window.idle_after is not None
            return bool(not marks.all_given or (idle and marks.open_windows))
        finally:
            marks.close_store()

    @classmethod
    def held(cls, place: LinkPlace) -> str:
        if not marks_path(place).exists():
            return ""
        marks = Watermarks(marks_path(place), WatermarkRule(0), (), readonly=True)
        try:
            return "open windows" if marks.holds_events else ""
        finally:
            marks.close_store()

    @classmethod
    def give_up(cls, place: LinkPlace) -> None:
        marks = Watermarks(marks_path(place), WatermarkRule(0), ())
        marks.give_up()
        marks.close_store()


@dataclass(frozen=True)
class WindowBoundary(EventTimeBoundary):
    """In front of a window's state."""

    @property
    def window(self) -> WindowConfig:
        assert isinstance(self.node.config, WindowConfig)
        return self.node.config

    def _combines(self, graph: Graph) -> bool:
        # A batch must give the same rows whenever it is done: no step in front may fail for now.
        return not (retried_steps(graph).keys() & graph.upstream(self.node.name))

    def _source(self, columns: str) -> StateQuerySourceConfig:
        waits, name = self.waits_for_results, self.node.name
        return WindowSourceConfig(window=self.window, name=name, waits_for_results=waits, columns=columns)


@dataclass(frozen=True)
class BurstBoundary(EventTimeBoundary):
    """In front of a burst's state."""

    @property
    def burst(self) -> BurstConfig:
        assert isinstance(self.node.config, BurstConfig)
        return self.node.config

    @property
    def window(self) -> BurstConfig:
        return self.burst

    def _source(self, columns: str) -> StateQuerySourceConfig:
        name = self.node.name
        return BurstSourceConfig(window=self.burst, name=name, waits_for_results=False, columns=columns)


@dataclass(frozen=True)
class FoldBoundary(StatefulBoundary):
    """In front of a fold's state."""

    results_config: ClassVar[type[HandoverConfig]] = FoldResultsConfig

    @property
    def fold(self) -> FoldConfig:
        assert isinstance(self.node.config, FoldConfig)
        return self.node.config

    def handover(self, graph: Graph) -> HandoverConfig:
        return FoldIntakeConfig.model_validate(self._handover_fields(graph))

    def put_in_front(self, graph: Graph, nodes: dict[str, Node]) -> None:
        name, node = self.node.name, self.node
        nodes[name] = replace(node, config=FoldInput(fold=self.fold, on_error=self.fold.on_error))
        config = self.handover(replace(graph, nodes=nodes))
        nodes[self.sink] = Node(self.sink, "sink", config, (Port(name),), node.line, file=node.file)

    def results_step(self, source: str, columns: str) -> TransformConfig:
        return FoldOutput(input=source, fold=self.fold, columns=columns, on_error=self.fold.on_error)

    def gives_more(self, graph: Graph) -> bool:
        groups = OpenGroups(open_groups_path(buffer_place(graph, self.source)), readonly=True)
        try:
            return groups.next_deadline is not None
        finally:
            groups.close_store()

    @classmethod
    def held(cls, place: LinkPlace) -> str:
        if not open_groups_path(place).exists():
            return ""
        groups = OpenGroups(open_groups_path(place), readonly=True)
        try:
            number = groups.number
        finally:
            groups.close_store()
        return f"{number} open group{'' if number == 1 else 's'}" if number else ""

    @classmethod
    def give_up(cls, place: LinkPlace) -> None:
        groups = OpenGroups(open_groups_path(place))
        groups.forget()
        groups.close_store()

    def _source(self, columns: str) -> StateQuerySourceConfig:
        waits, name = self.waits_for_results, self.node.name
        return FoldSourceConfig(fold=self.fold, name=name, waits_for_results=waits, columns=columns)


STATEFUL: Mapping[type[TransformConfig], type[StatefulBoundary]] = {
    WindowConfig: WindowBoundary,
    BurstConfig: BurstBoundary,
    FoldConfig: FoldBoundary,
}
"""The kinds of steps that keep state, by their configs."""
KINDS_OF_NOTES: tuple[type[StatefulBoundary], ...] = (EventTimeBoundary, FoldBoundary)
"""One for each kind of notes about a state: they do not tell the kinds of one family apart."""


def keeps_state(node: Node) -> bool:
    """Whether a step, as the user wrote it, is one that keeps state."""
    return isinstance(node.config, tuple(STATEFUL))


def stateful_boundary(graph: Graph, nodes: dict[str, Node], name: str) -> StatefulBoundary:
    """Where a step is cut out that keeps state. `nodes`: the part of the graph that is in front of it."""
    node = nodes[name]
    kind = next(kind for config, kind in STATEFUL.items() if isinstance(node.config, config))
    if not _waits_for_results(node):
        return kind(node, name, BufferSettings(), frozenset())
    # Rows wait in the log until later ones let them go: if it could be full, those would never come.
    # The logs of the sources are the limit, which keep their events as long.
    settings = BufferSettings(max_bytes=NO_LIMIT)
    return kind(node, name, settings, frozenset(replace(graph, nodes=nodes).upstream_sources(name)))


@dataclass(frozen=True)
class ResultsBoundary(Boundary):
    """Behind a state: the results, and all that is made of them."""

    in_front: ClassVar[bool] = False
    state: StatefulBoundary = field(kw_only=True)
    """What they are results of."""

    @property
    def sink(self) -> str:
        return self.name

    def handover(self, graph: Graph) -> HandoverConfig:
        return self.state.results_config.model_validate(self._handover_fields(graph))

    def behind(self, graph: Graph, columns: str = "") -> Graph:
        name, file, line = self.node.name, self.node.file, self.node.line
        step = self.state.results_step(self.source, columns)
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


def _waits_for_results(node: Node) -> bool:
    """Whether the events that come to a step with state wait for what it makes of them."""
    assert isinstance(node.config, WindowConfig | BurstConfig | FoldConfig)
    return node.config.acknowledge == "delivered"
