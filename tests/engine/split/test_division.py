"""Where a graph is cut, and whose rows an event waits for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from signoff.engine.split.division import Division, all_boundaries, divide
from signoff.engine.split.stateful import StatefulBoundary
from signoff.errors import PipelineError
from signoff.link.handover import HandoverConfig
from signoff.link.sink import PipelineSinkConfig
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import BufferSettings, SinkConfig, SourceConfig
from signoff.pipeline.settings import Settings
from signoff.transforms.dedupe import DedupeConfig
from signoff.transforms.filter import FilterConfig
from signoff.transforms.fold.step import FoldConfig
from signoff.transforms.functions.python import PythonConfig
from signoff.transforms.merge import MergeConfig
from signoff.transforms.window.step import WindowConfig, WindowInput


def test_events_wait_for_another_pipeline_also_beside_an_authoritative_sink(
    tmp_path: Path,
) -> None:
    table = SinkConfig(type="toy", authoritative=True, buffer=BufferSettings())
    nodes = {
        "incoming": Node("incoming", "source", SourceConfig(type="toy")),
        "table": Node("table", "sink", table, (Port("incoming"),)),
        "other": Node("other", "sink", PipelineSinkConfig(path="links/other"), (Port("incoming"),)),
    }
    front = divide(Graph(Settings(name="tested"), "tested.yaml", tmp_path, nodes)).front
    configs = {name: node.config for name, node in front.sinks.items()}
    awaited = {name: c.awaited_by for name, c in configs.items() if isinstance(c, HandoverConfig)}
    assert awaited == {"table": {"incoming"}, "other": {"incoming"}}, "what it refuses must have a hearer"


def windows(tmp_path: Path, sink: SinkConfig, *inputs: Port) -> Graph:
    config = WindowConfig(input="incoming", size=60, aggregates={"n": "count(*)"})
    nodes = {
        "incoming": Node("incoming", "source", SourceConfig(type="toy")),
        "counts": Node("counts", "transform", config, (Port("incoming"),)),
        "table": Node("table", "sink", sink, inputs),
    }
    return Graph(Settings(name="tested"), "tested.yaml", tmp_path, nodes)


def test_a_sink_behind_a_window_may_have_a_buffer(tmp_path: Path) -> None:
    graph = windows(tmp_path, SinkConfig(type="toy", ordered_by=("n",)), Port("counts"))
    waiting = {boundary.name: boundary.awaited_by for _, boundary in all_boundaries(graph)}
    assert waiting == {"counts": set(), "counts.results": set(), "table": {"counts.results.buffer"}}


def test_a_buffer_is_never_in_two_parts_of_a_pipeline(tmp_path: Path) -> None:
    table = SinkConfig(type="toy", buffer=BufferSettings(acknowledgements=True))
    with pytest.raises(PipelineError, match="same-buffer"):
        all_boundaries(windows(tmp_path, table, Port("counts"), Port("counts", "late")))


class Steps(NamedTuple):
    """A graph that is being made."""

    nodes: dict[str, Node]

    def add(self, kind: str, *inputs: str) -> None:
        name = f"{kind}{len(self.nodes)}"
        ports = tuple(Port(*port.split(".")) for port in inputs)
        self.nodes[name] = Node(name, "sink" if kind == "sink" else "transform", CONFIGS[kind], ports)


CONFIGS = {
    "plain": FilterConfig(input="x", where="true"),
    "dedupe": DedupeConfig(input="x", keys=("k",)),
    "frame": PythonConfig(input="x", function="tests.promises.functions:anything", mode="frame"),
    "merge": MergeConfig(input="x", keys=("k",)),
    "fold": FoldConfig(input="x", keys=("k",), count=2),
    "window": WindowConfig(input="x", size=60, aggregates={"n": "count(*)"}, acknowledge="delivered"),
    "sink": SinkConfig(type="toy"),
}


@st.composite
def pipelines(draw: st.DrawFn) -> Graph:
    """Steps of all kinds behind one another, and sinks behind those that nobody reads."""
    steps = Steps({"source0": Node("source0", "source", SourceConfig(type="toy"))})
    if draw(st.booleans()):
        steps.nodes["source1"] = Node("source1", "source", SourceConfig(type="toy"))
    ports = list(steps.nodes)
    for kind in draw(st.lists(st.sampled_from([kind for kind in CONFIGS if kind != "sink"]), max_size=6)):
        steps.add(kind, *draw(st.lists(st.sampled_from(ports), min_size=1, max_size=2, unique=True)))
        name = next(reversed(steps.nodes))
        ports += [name, *([f"{name}.late"] if kind == "window" else [])]
    read = {port for node in steps.nodes.values() for port in node.inputs}
    for port in ports:
        if Port(*port.split(".")) not in read:
            steps.add("sink", port)
    return Graph(Settings(name="tested"), "tested.yaml", Path("/nowhere"), steps.nodes)


def parts(division: Division) -> Iterator[Graph]:
    yield division.front
    for boundary in division.boundaries:
        behind = boundary.results if isinstance(boundary, StatefulBoundary) else boundary
        yield from parts(divide(behind.behind(division.whole), behind))


@given(pipelines())
@settings(max_examples=100, deadline=None)
def test_a_window_gets_the_rows_of_a_batch_and_a_dedupe_is_in_one_part(graph: Graph) -> None:
    try:
        boundaries = [boundary.name for _, boundary in all_boundaries(graph)]
    except PipelineError as error:
        codes = ("nested-merge", "same-buffer", "same-dedupe", "window-in-stream")
        assert error.problems[0].code in codes
        return
    assert len(boundaries) == len(set(boundaries))
    found: set[str] = set()
    deduped: set[str] = set()
    for part in parts(divide(graph)):
        found |= part.nodes.keys()
        for name, node in part.transforms.items():
            if isinstance(node.config, WindowInput):
                before = [part.nodes[up].config for up in part.upstream(name)]
                assert not any(isinstance(step, MergeConfig | DedupeConfig) for step in before)
            if isinstance(node.config, DedupeConfig):
                assert name not in deduped, "its keys are claimed in one part"
                deduped.add(name)
    assert found >= graph.nodes.keys(), "nothing is left out"


def stream(tmp_path: Path, **inputs: str) -> list[str]:
    """The logs of a pipeline of some steps and sinks behind all of them."""
    steps = Steps({"incoming": Node("incoming", "source", SourceConfig(type="toy"))})
    for name, port in inputs.items():
        steps.nodes[name] = Node(name, "transform", CONFIGS[name], (Port(*port.split(".")),))
    for name in inputs:
        steps.add("sink", name)
    graph = Graph(Settings(name="tested"), "tested.yaml", tmp_path, steps.nodes)
    return [boundary.name for _, boundary in all_boundaries(graph)]


def test_a_log_is_in_front_of_a_window_behind_a_dedupe_or_a_merge(tmp_path: Path) -> None:
    state = ["window", "window.results"]
    assert stream(tmp_path, dedupe="incoming", window="dedupe") == ["window.input", *state]
    assert stream(tmp_path, merge="incoming", window="merge") == ["window.input", *state]
    assert stream(tmp_path, dedupe="incoming", window="incoming") == state
    assert stream(tmp_path, dedupe="incoming", merge="dedupe") == []


def test_a_function_on_dataframes_is_a_step_like_any_other(tmp_path: Path) -> None:
    state = ["window", "window.results"]
    assert stream(tmp_path, frame="incoming", window="frame") == state
    assert stream(tmp_path, frame="incoming", window="incoming") == state
    assert stream(tmp_path, window="incoming", frame="window.late") == state
    assert stream(tmp_path, frame="incoming", merge="frame") == []
    assert stream(tmp_path, frame="incoming", dedupe="frame") == []
    assert stream(tmp_path, dedupe="incoming", frame="dedupe") == []
    assert stream(tmp_path, frame="incoming", fold="frame") == ["fold", "fold.results"]


def test_a_dedupe_is_on_one_side_of_a_log(tmp_path: Path) -> None:
    window: dict[str, tuple[str | SinkConfig, str]] = {"window": ("window", "a")}
    out: dict[str, tuple[str | SinkConfig, str]] = {"out": ("sink", "once")}
    with pytest.raises(PipelineError, match="same-dedupe"):
        all_boundaries(made(tmp_path, "a", **window, once=("dedupe", "a, window"), **out))
    assert all_boundaries(made(tmp_path, "a", **window, once=("dedupe", "window"), **out))
    assert all_boundaries(made(tmp_path, "a", "b", **window, once=("dedupe", "a, b"), **out))


def made(tmp_path: Path, *sources: str, **nodes: tuple[str | SinkConfig, str]) -> Graph:
    """`name=(kind or config of a sink, "input, input")`."""
    found = {name: Node(name, "source", SourceConfig(type="toy")) for name in sources}
    for name, (kind, inputs) in nodes.items():
        config = CONFIGS[kind] if isinstance(kind, str) else kind
        ports = tuple(Port(*port.split(".")) for port in inputs.split(", "))
        found[name] = Node(name, "sink" if isinstance(config, SinkConfig) else "transform", config, ports)
    return Graph(Settings(name="tested"), "tested.yaml", tmp_path, found)


def test_a_window_of_several_sources_is_not_behind_a_log_in_which_the_slowest_is_not_known(
    tmp_path: Path,
) -> None:
    steps: dict[str, tuple[str | SinkConfig, str]] = {"window": ("window", "once"), "out": ("sink", "window")}
    with pytest.raises(PipelineError, match="window-in-stream"):
        all_boundaries(made(tmp_path, "a", "b", once=("dedupe", "a, b"), **steps))
    assert all_boundaries(made(tmp_path, "a", once=("dedupe", "a"), **steps))


def test_another_pipeline_is_in_one_part_only(tmp_path: Path) -> None:
    link = PipelineSinkConfig(path="links/other")
    steps = {"first": ("dedupe", "a"), "window": ("window", "first"), "out": ("sink", "window")}
    with pytest.raises(PipelineError, match="same-buffer"):
        all_boundaries(made(tmp_path, "a", **steps, link=(link, "a, window")))
    assert all_boundaries(made(tmp_path, "a", **steps, link=(link, "window")))


def test_an_authoritative_sink_decides_also_beside_and_behind_a_log(tmp_path: Path) -> None:
    deciding = SinkConfig(type="toy", authoritative=True)
    steps = {"left": ("plain", "a"), "right": ("plain", "b"), "both": ("merge", "left, right")}
    beside = made(tmp_path, "a", "b", **steps, slow=("sink", "both"), auth=(deciding, "a, b"))
    waiting = {boundary.name: boundary.awaited_by for _, boundary in all_boundaries(beside)}
    assert waiting["both"] == set(), "nobody waits for what is behind it"
    behind = made(tmp_path, "a", "b", **steps, auth=(deciding, "both"), slow=("sink", "a, b"))
    waiting = {boundary.name: boundary.awaited_by for _, boundary in all_boundaries(behind)}
    assert waiting["both"] == {"a", "b"} and waiting["slow"] == set()
