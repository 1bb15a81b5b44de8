"""Commands that only look at a pipeline need its names, not its secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from signoff.catalog import default
from signoff.errors import PipelineError
from signoff.pipeline.load import load

PIPELINE = """
name: alarms
sources: {incoming: {type: http, port: 0, token: "${ALARMS_TOKEN}"}}
sinks:
  table: {type: postgres, input: incoming, url: "${ALARMS_DB}", table: alarms}
"""


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "alarms.yaml"
    file.write_text(text)
    return file


def test_a_pipeline_can_be_looked_at_in_a_shell_that_does_not_have_its_secrets(tmp_path: Path) -> None:
    file = written(tmp_path, PIPELINE)
    with pytest.raises(PipelineError, match="secret-not-set"):
        load(file, default(), {})
    assert set(load(file, default(), {}, require_secrets=False).nodes) == {"incoming", "table"}


def test_a_default_counts_where_its_variable_is_not_set(tmp_path: Path) -> None:
    file = written(tmp_path, PIPELINE.replace("port: 0", 'port: "${ALARMS_PORT:-8080}"'))
    graph = load(file, default(), {}, require_secrets=False)
    assert graph.nodes["incoming"].config.port == 8080  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("type: files, path: ./out", "type: files, path: out/../out"),
        ("type: sqlite, path: a.db, table: t", "type: sqlite, path: ./a.db, table: T"),
        (
            "type: postgres, url: 'postgresql://h/d', table: t",
            "type: postgres, url: 'postgresql://h/d', table: t",
        ),
    ],
)
def test_two_sinks_that_would_overwrite_each_other_are_refused(
    tmp_path: Path, first: str, second: str
) -> None:
    text = "name: x\nsources: {a: {type: generate, count: 1}}\nsinks:\n"
    file = written(tmp_path, text + f"  b: {{{first}, input: a}}\n  c: {{{second}, input: a}}\n")
    with pytest.raises(PipelineError, match="same-target"):
        load(file, default(), {})
