"""What docs/plugins.md shows is a sink that keeps the contract, and transforms that can be made."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from signoff.testing import SinkConformance, SinkTarget
from signoff.testing.conformance.rows import from_json, parse

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
IMPORTS = """\
from typing import ClassVar, Literal
from urllib.parse import quote
from pyspark.sql import functions as F
from signoff.plugin import *
"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    folder = tmp_path_factory.mktemp("page")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (folder / "shown_in_plugins.py").write_text(IMPORTS + "\n".join(blocks))
    sys.path.insert(0, str(folder))
    yield importlib.import_module("shown_in_plugins")
    sys.path.remove(str(folder))
    del sys.modules["shown_in_plugins"]


class Shown(SinkTarget):
    row_by_row: ClassVar[bool] = True
    outlives_processes: ClassVar[bool] = False
    """It does; but the same sink is killed in tests/examples/test_new_plugin.py."""

    def __init__(self, config: Any, directory: Path) -> None:
        self.directory = directory / "events"
        self.sink = config(path="events", input="parsed").build(directory)
        self.sink.prepare()

    def read(self, schema: pa.Schema) -> list[dict[str, Any]]:
        values = [parse(file.read_bytes()) for file in self.directory.glob("*.json")]
        values.sort(key=lambda value: int(value["event_id"].split("/")[1]))
        return [{one.name: from_json(value[one.name], one.type) for one in schema} for value in values]

    def down(self) -> None:
        self.directory.rename(self.directory.with_name("aside"))
        self.directory.touch()

    def up(self) -> None:
        self.directory.unlink()
        self.directory.with_name("aside").rename(self.directory)


class TestShownSink(SinkConformance):
    @pytest.fixture
    def target(self, shown: ModuleType, tmp_path: Path) -> SinkTarget:
        return Shown(shown.AcmeSinkConfig, tmp_path)


def test_the_transforms_that_are_shown_can_be_made(shown: ModuleType) -> None:
    assert shown.WordsConfig().row({"text": "on and"}) == [
        {"word": "on", "length": 2},
        {"word": "and", "length": 3},
    ]
    assert issubclass(shown.MetricConfig, shown.ColumnTransform)
