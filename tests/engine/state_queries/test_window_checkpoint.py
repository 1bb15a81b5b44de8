"""A window whose checkpoint is torn or gone says what to do, and does not just fail: without Spark."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from signoff.engine.spark.checkpoints import Checkpoint
from signoff.engine.state_queries.window_query import WindowQuery
from signoff.errors import EngineError, PipelineError
from signoff.link.handover import LinkPlace
from signoff.pipeline.graph import Graph, Node
from signoff.pipeline.model import SourceConfig
from signoff.pipeline.settings import Settings
from signoff.stateful.lost_state import LostState


class Lost:
    """A window whose ledger has batches up to 5."""

    def __init__(self, tmp_path: Path, *, holds: bool = True) -> None:
        nodes = {"w.buffer": Node("w.buffer", "source", SourceConfig(type="toy"))}
        self.graph = Graph(Settings(name="tested"), "t.yaml", tmp_path, nodes)
        self.checkpoint = Checkpoint(self.graph.state, "w.buffer", "shape")
        self.place = LinkPlace(tmp_path / "log", tmp_path / "links")
        self.place.notes.mkdir()
        self.open: list[str] = []
        """Sinks that owe rows of a batch that is open in the ledger."""
        ledger = SimpleNamespace(
            books=lambda source: SimpleNamespace(next=5),
            open_batches=lambda source: [self.open],
        )
        self.query: Any = SimpleNamespace(
            checkpoint=self.checkpoint,
            source="w.buffer",
            shared=SimpleNamespace(ledger=ledger, graph=SimpleNamespace(nodes=nodes)),
            _place=self.place,
            _name="w",
            _holds_events=lambda: holds,
            _begin_anew=lambda: None,
            _check_open=lambda: WindowQuery._check_open(self.query),
            runner=SimpleNamespace(owing=lambda known: known),
        )

    def write(self, end: int = 5) -> None:
        offsets = f'v1\n{{"batchWatermarkMs": 1}}\n{{"sequence": {end}}}'
        for part, content in (("offsets/0", offsets), ("commits/0", "v1\n{}"), ("metadata", "{}")):
            (self.checkpoint.path / part).parent.mkdir(parents=True, exist_ok=True)
            (self.checkpoint.path / part).write_text(content)

    def find(self) -> None:
        WindowQuery._find_state(self.query)


@pytest.mark.parametrize("damage", ["lost", "torn", "old"])
def test_a_state_that_is_gone_is_not_begun_anew_before_somebody_has_said_so(
    tmp_path: Path, damage: str
) -> None:
    window = Lost(tmp_path)
    window.checkpoint.begin(0)
    if damage != "lost":
        window.write(5 if damage == "torn" else 3)
    if damage == "torn":
        (window.checkpoint.path / "commits/0").write_text("")
    for _ in range(2):
        with pytest.raises(PipelineError, match=r"restore it; or give up .* drop FILE w"):
            window.find()
    LostState(window.place).give_up()
    window.find()
    assert window.checkpoint.first == 5 and not window.checkpoint.exists()
    window.find()  # a kill before Spark has begun


def test_a_state_that_was_brought_back_is_gone_on_with(tmp_path: Path) -> None:
    window = Lost(tmp_path)
    with pytest.raises(PipelineError, match=r"state-lost.*is gone"):
        window.find()
    window.write()
    window.find()
    assert not LostState(window.place).noted and window.checkpoint.exists()


def test_a_state_that_held_nothing_is_begun_anew(tmp_path: Path) -> None:
    window = Lost(tmp_path, holds=False)
    window.find()
    assert not LostState(window.place).noted


def test_a_batch_that_was_begun_and_that_nobody_brings_again_is_not_passed_over(tmp_path: Path) -> None:
    window = Lost(tmp_path, holds=False)
    window.open.append("w.results")
    with pytest.raises(PipelineError, match=r"state-lost.*is gone"):
        window.find()
    window.write()
    window.find()


def test_a_damaged_batch_is_named(tmp_path: Path) -> None:
    window = Lost(tmp_path)
    window.write()
    (window.checkpoint.path / "offsets/0").write_text("")
    with pytest.raises(EngineError, match="damaged at batch 0"):
        window.checkpoint.watermark_ms(0)


def test_what_a_kill_left_half_written_does_not_keep_a_query_from_its_first_batch(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path, "counts.buffer", "shape")
    (checkpoint.path / "offsets").mkdir(parents=True)
    (checkpoint.path / "metadata").write_text('{"id": "x"}')
    left = checkpoint.path / "offsets" / ".0.382eaccb.tmp"
    left.touch()
    checkpoint.make_usable(0)
    assert checkpoint.exists() and not left.exists()
