"""What a sink `job` must fit: the file of its job, and the parameters of that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from signoff.catalog import default
from signoff.errors import PipelineError, Problem
from signoff.pipeline.file_texts import changed_since
from signoff.pipeline.load import load

JOB: dict[str, Any] = {
    "name": "report",
    "parameters": {"station": "int", "upto": {"type": "timestamp", "default": None}},
    "sources": {"t": {"type": "table", "path": "./t.db", "table": "t"}},
    "sinks": {"out": {"type": "files", "input": "t", "path": "./out"}},
}
PIPELINE = """\
name: alerts
sources:
  incoming: {type: generate, count: 1}
sinks:
  start:
    type: job
    input: incoming
    job: ./job.yaml
    key: CAST(payload AS INT)
    parameters:
      station: 7
      upto: received_at
"""


def problems(directory: Path, text: str = PIPELINE, job: dict[str, Any] | None = None) -> list[Problem]:
    (directory / "job.yaml").write_text(yaml.safe_dump(JOB if job is None else job, sort_keys=False))
    file = directory / "pipeline.yaml"
    file.write_text(text)
    try:
        load(file, default())
    except PipelineError as error:
        return list(error.problems)
    return []


def test_values_have_the_types_of_the_jobs_parameters(tmp_path: Path) -> None:
    assert not problems(tmp_path)
    config: Any = load(tmp_path / "pipeline.yaml", default()).nodes["start"].config
    assert config.expressions() == {
        "__key_0": "CAST(payload AS INT)",
        "__parameter_station": "CAST((7\n) AS INT)",
        "__parameter_upto": "CAST((received_at\n) AS TIMESTAMP)",
    }


@pytest.mark.parametrize(
    ("change", "code", "line", "says"),
    [
        (("station: 7", "statoin: 7"), "unknown-parameter", 11, 'the parameter "statoin", which it does not'),
        (("      station: 7\n", ""), "unknown-parameter", 10, 'no value for the parameter "station" (int)'),
        (("./job.yaml", "./jobb.yaml"), "no-file", 8, 'job "./jobb.yaml": no such file'),
        (("./job.yaml", "./pipeline.yaml"), "not-a-job", 8, "which is a pipeline, and no job"),
        (("key: CAST(payload AS INT)", "key: []"), "bad-value", 9, "key"),
        (("key: CAST", "buffer: {}\n    key: CAST"), "no-buffer", 9, "needs no buffer"),
    ],
)
def test_what_does_not_fit_is_said_where_it_stands(
    tmp_path: Path, change: tuple[str, str], code: str, line: int, says: str
) -> None:
    found = problems(tmp_path, PIPELINE.replace(*change))
    assert [(each.code, each.line) for each in found if says in each.message] == [(code, line)], found


def test_what_is_wrong_with_the_job_is_said_with_the_jobs_file(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, job={**JOB, "key": ["statoin"]})
    assert found.code == "unknown-parameter" and found.file == str(tmp_path / "job.yaml")


def test_job_starts_no_job(tmp_path: Path) -> None:
    sinks = {**JOB["sinks"], "again": {"type": "job", "input": "t", "job": "./job.yaml"}}
    found = problems(tmp_path, job={**JOB, "sinks": sinks})
    assert [each.code for each in found] == ["job-node"]


def test_whoever_only_looks_does_not_need_the_job(tmp_path: Path) -> None:
    problems(tmp_path)
    (tmp_path / "job.yaml").unlink()
    graph = load(tmp_path / "pipeline.yaml", default(), require_secrets=False)
    assert graph.nodes["start"].config.type == "job"


def test_an_engine_that_starts_again_needs_no_more_than_what_the_run_has_read(tmp_path: Path) -> None:
    problems(tmp_path)
    graph = load(tmp_path / "pipeline.yaml", default())
    (tmp_path / "job.yaml").write_text("name: [")
    again = load(tmp_path / "pipeline.yaml", default(), texts=graph.texts)
    assert again.nodes["start"].config == graph.nodes["start"].config
    assert changed_since(again.texts) == [str(tmp_path / "job.yaml")]
