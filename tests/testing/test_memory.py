"""The source and the sink without anything behind them keep the contracts as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from signoff.sources.contract import Source
from signoff.testing import MemorySink, MemorySource, SinkConformance, SinkTarget, received
from signoff.testing.conformance.rows import numbered, write_batch
from signoff.testing.conformance.sources import SourceConformance, SourceOffer, receive
from signoff.testing.memory import MemorySourceConfig


class MemoryTarget(SinkTarget):
    can_be_down: ClassVar[bool] = False
    outlives_processes: ClassVar[bool] = False

    def __init__(self) -> None:
        self.sink: MemorySink = MemorySink("conformance")

    def read(self, schema: pa.Schema) -> list[dict[str, Any]]:
        return self.sink.rows


class TestMemorySink(SinkConformance):
    @pytest.fixture
    def target(self) -> Iterator[SinkTarget]:
        made = MemoryTarget()
        yield made
        made.sink.clear()


class MemoryOffer(SourceOffer):
    in_a_process: ClassVar[bool] = False

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.source = MemorySource()

    def config(self) -> MemorySourceConfig:
        return MemorySourceConfig()

    def build(self) -> Source:
        return self.source

    def offer(self, payloads: list[bytes]) -> None:
        self.source.payloads += payloads

    def got_back(self) -> int:
        return len(self.source.refused)


class TestMemorySource(SourceConformance):
    @pytest.fixture
    def offer(self, tmp_path: Path) -> SourceOffer:
        return MemoryOffer(tmp_path)

    @pytest.mark.skip(reason="it is no type of the catalog: an intake cannot open it by its name")
    def test_config_survives_the_way_to_the_intake_process(self, offer: SourceOffer) -> None: ...


def test_all_that_a_source_gives_is_settled_there(tmp_path: Path) -> None:
    config = MemorySourceConfig(payloads=("one", "two"))
    assert [event.payload for event in received(config, tmp_path)] == [b"one", b"two"]


def test_what_is_in_memory_is_forgotten_when_it_is_cleared(tmp_path: Path) -> None:
    sink = MemorySink("forgotten")
    write_batch(sink, numbered(2))
    assert [row["number"] for row in MemorySink("forgotten").rows] == [0, 1]
    sink.clear()
    assert sink.rows == []
    assert len(receive(MemorySource([b"x"]), 1)) == 1
