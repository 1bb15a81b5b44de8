"""Where a graph is cut, and whose rows an event waits for."""

from __future__ import annotations

from pathlib import Path

import pytest

from signoff.engine.division import all_joints, divide
from signoff.errors import PipelineError
from signoff.link.handover import HandoverConfig
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import BufferSettings, Settings, SinkConfig, SourceConfig
from signoff.sinks.pipeline import PipelineSinkConfig
from signoff.transforms.window import WindowConfig


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
    waiting = {joint.name: joint.awaited_by for _, joint in all_joints(graph)}
    assert waiting == {"counts": set(), "counts.results": set(), "table": {"counts.results.buffer"}}


def test_a_buffer_is_never_in_two_parts_of_a_pipeline(tmp_path: Path) -> None:
    table = SinkConfig(type="toy", buffer=BufferSettings(acknowledgements=True))
    with pytest.raises(PipelineError, match="same-buffer"):
        all_joints(windows(tmp_path, table, Port("counts"), Port("counts", "late")))
