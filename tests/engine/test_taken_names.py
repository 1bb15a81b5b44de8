"""Columns of a user's rows and those that the engine adds for a sink do not take each other's place."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from signoff.builder import Pipeline
from signoff.engine.plan.compile import _Compiler
from signoff.transforms.contract import FieldError
from signoff.transforms.frame import Frame, View

RABBITMQ = {"type": "rabbitmq", "url": "amqp://localhost", "routing_key": "a"}
FILES = {"type": "files", "path": "out", "partition_by": {"day": "a"}}


@pytest.mark.parametrize(("sink", "name"), [(RABBITMQ, "_routing_key"), (FILES, "_partition_0")])
def test_a_column_with_a_name_that_the_sink_needs_is_refused(
    tmp_path: Path, sink: dict[str, Any], name: str
) -> None:
    pipeline = Pipeline("p", base=tmp_path)
    pipeline.source("incoming", "generate", count=1)
    pipeline.sink("out", sink["type"], input="incoming", **{k: v for k, v in sink.items() if k != "type"})
    node = pipeline.graph().nodes["out"]
    view = View(cast(Frame, None), "alive", {"a": "c0", name: "c1"})
    with pytest.raises(FieldError, match=f'the rows have a column "{name}"') as caught:
        _Compiler._with_expressions(node, view)
    assert caught.value.code == "taken-name"
