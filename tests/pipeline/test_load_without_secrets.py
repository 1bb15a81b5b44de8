"""Commands that only look at a pipeline need its names, not its secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from signoff.catalog import default
from signoff.cli import app
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


OF_UNKNOWN = """
name: looked_at
sources:
  q: {type: rabbitmq, url: "${AMQP}", queues: [alarms]}
transforms:
  m: {type: mask, input: q, columns: {payload: hash}, key: "${MASK_KEY}"}
sinks:
  o: {type: http, input: m, url: "http://h", token: "${file:/nope/token}", timeout_ms: "${MS}",
      headers: {A: "b${X}"}, retry: {attempts: "${N}"}, transient_statuses: ["${S}", 500],
      on_failure: "${HOW}"}
  p: {type: rabbitmq, input: m, url: "${file:/nope/url}", exchange: e, routing_key: "'k'"}
"""


@pytest.mark.parametrize("command", ["status", "graph", "dead-letters list", "config", "sources list"])
def test_a_command_that_needs_no_secrets_takes_any_field_that_is_not_known(
    tmp_path: Path, command: str
) -> None:
    file = written(tmp_path, OF_UNKNOWN)
    done = CliRunner().invoke(app, [*command.split(), str(file)])
    assert done.exit_code == 0, (done.output, done.exception)
    if command == "config":
        assert "key: ${MASK_KEY}" in done.stdout and "token: ${file:/nope/token}" in done.stdout
        known = {"MASK_KEY": "0123456789abcdef0123", "N": "3"}
        assert CliRunner().invoke(app, ["config", str(file)], env=known).exit_code == 0


def test_what_is_known_is_checked_also_where_something_else_is_not(tmp_path: Path) -> None:
    file = written(tmp_path, OF_UNKNOWN.replace('timeout_ms: "${MS}"', "timeout_ms: 0"))
    with pytest.raises(PipelineError) as raised:
        load(file, default(), {}, require_secrets=False)
    assert 'sink "o" field "timeout_ms"' in str(raised.value)
    with pytest.raises(PipelineError, match="a key has at least 16 bytes"):
        load(written(tmp_path, OF_UNKNOWN), default(), {"MASK_KEY": "short"}, require_secrets=False)
    with pytest.raises(PipelineError, match="secret-not-set"):
        load(written(tmp_path, OF_UNKNOWN), default(), {})
