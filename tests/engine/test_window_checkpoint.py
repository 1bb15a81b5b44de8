"""A window whose checkpoint is torn says what to do, and does not just fail: without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from signoff.engine.checkpoint import Checkpoint
from signoff.engine.windows import WindowQuery
from signoff.errors import EngineError
from signoff.pipeline.graph import Graph, Node
from signoff.pipeline.model import Settings, SourceConfig


def test_a_torn_checkpoint_of_a_window_says_what_to_do(tmp_path: Path) -> None:
    nodes = {"w.buffer": Node("w.buffer", "source", SourceConfig(type="toy"))}
    checkpoint = Checkpoint(Graph(Settings(name="tested"), "tested.yaml", tmp_path, nodes), "w.buffer")
    checkpoint.keeps_state("shape")
    for part in ("offsets/0", "commits/0"):
        (checkpoint.path / part).parent.mkdir(parents=True)
        (checkpoint.path / part).write_text("")
    (checkpoint.path / "metadata").write_text("{}")
    query: Any = SimpleNamespace(
        _marks=SimpleNamespace(begin=lambda shape: None),
        _shape="shape",
        checkpoint=checkpoint,
        source="w.buffer",
        shared=SimpleNamespace(ledger=SimpleNamespace(books=lambda source: SimpleNamespace(next=0))),
    )
    with pytest.raises(EngineError, match="Restore it, or remove it"):
        WindowQuery.start(query)
    with pytest.raises(EngineError, match="damaged at batch 0"):
        checkpoint.watermark_ms(0)


def test_what_a_kill_left_half_written_does_not_keep_a_query_from_its_first_batch(tmp_path: Path) -> None:
    graph: Any = SimpleNamespace(state=tmp_path, downstream=lambda _: set(), nodes={})
    checkpoint = Checkpoint(graph, "counts.buffer")
    (checkpoint.path / "offsets").mkdir(parents=True)
    (checkpoint.path / "metadata").write_text('{"id": "x"}')
    left = checkpoint.path / "offsets" / ".0.382eaccb.tmp"
    left.touch()
    checkpoint.mend(0)
    assert checkpoint.exists() and not left.exists()
