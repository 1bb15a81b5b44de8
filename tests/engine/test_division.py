"""Where a graph is cut, and whose rows an event waits for."""

from __future__ import annotations

from pathlib import Path

from signoff.engine.division import divide
from signoff.link.handover import HandoverConfig
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import BufferSettings, Settings, SinkConfig, SourceConfig
from signoff.sinks.pipeline import PipelineSinkConfig


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
