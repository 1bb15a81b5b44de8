"""A run has one pipeline: started again after a crash, its engine does not take what was edited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from signoff.builder import Pipeline
from signoff.catalog import default
from signoff.engine.__main__ import graph_of
from signoff.pipeline.load import load
from signoff.pipeline.overlays import Layers
from signoff.run.options import RunOptions
from signoff.run.supervisor import Run

MAIN = """
name: one
include: [sinks.yaml]
sources:
  incoming: {type: files, path: "./in/*.jsonl"}
transforms:
  kept: {type: filter, input: incoming, where: "length(payload) > 1"}
"""
SINKS = "sinks: {out: {type: files, input: kept, path: ./out}}"
OVERLAY = 'transforms: {kept: {where: "length(payload) > 2"}}'
PYTHON = """
from signoff import Pipeline
pipeline = Pipeline("one")
pipeline.source("incoming", "files", path="./in/*.jsonl")
pipeline.transform("kept", "filter", input="incoming", where="length(payload) > 1")
pipeline.sink("out", "files", input="kept", path="./out")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in {
        "one.yaml": MAIN,
        "sinks.yaml": SINKS,
        "over.yaml": OVERLAY,
        "one.py": PYTHON,
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def job_of(file: Path, layers: Layers | None = None) -> dict[str, Any]:
    graph = load(file, default(), layers=layers or Layers())
    job: dict[str, Any] = json.loads(Run(graph, RunOptions(), file.absolute())._engine_job())
    return job


def test_an_edited_file_include_or_overlay_changes_nothing_before_the_next_run(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layers = Layers(overlays=(str(project / "over.yaml"),))
    job = job_of(project / "one.yaml", layers)
    before = graph_of(job)
    assert not caplog.records
    (project / "one.yaml").write_text(MAIN.replace("in/", "elsewhere/"))
    (project / "sinks.yaml").write_text("sinks: {out: {type: console, input: kept}}")
    (project / "over.yaml").unlink()
    after = graph_of(job)
    assert after == before
    assert after.nodes["kept"].config.where == "length(payload) > 2"  # type: ignore[attr-defined]
    assert after.nodes["out"].config.type == "files"
    said = [record.getMessage() for record in caplog.records]
    assert [line.split()[0] for line in said] == [
        str(project / name) for name in ("one.yaml", "sinks.yaml", "over.yaml")
    ]
    assert all("the next one takes the change" in line for line in said)


def test_an_edited_or_removed_python_file_changes_nothing_before_the_next_run(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = project / "one.py"
    job = job_of(file)
    file.write_text(PYTHON.replace("> 1", "> 5"))
    assert graph_of(job).nodes["kept"].config.where == "length(payload) > 1"  # type: ignore[attr-defined]
    file.unlink()
    monkeypatch.chdir("/")
    assert graph_of(job).base == project


def test_a_program_that_runs_its_own_pipeline_has_one_as_well(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, Any]] = []

    def run_live(load: Any, file: Path, options: RunOptions, quiet: bool) -> int:
        seen.append(json.loads(Run(load(), options, file)._engine_job()))
        return 0

    monkeypatch.setattr("signoff.watch.live.run_live", run_live)
    file = project / "one.py"
    namespace: dict[str, Any] = {}
    exec(compile(PYTHON, str(file), "exec"), namespace)
    pipeline: Pipeline = namespace["pipeline"]
    pipeline.run()
    file.unlink()
    (job,) = seen
    assert graph_of(job).base == project and set(graph_of(job).nodes) == {"incoming", "kept", "out"}


def test_a_link_to_a_pipeline_file_gives_run_and_engine_the_same_state(
    project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with files that are mounted as links into a directory that is replaced as a whole."""
    from typer.testing import CliRunner

    from signoff.cli import app

    seen: list[tuple[Path, Path]] = []

    def run_live(load: Any, file: Path, options: RunOptions, quiet: bool) -> int:
        graph = load()
        job = json.loads(Run(graph, options, file)._engine_job())
        seen.append((graph.state, graph_of(job).state))
        return 0

    monkeypatch.setattr("signoff.watch.live.run_live", run_live)
    place = tmp_path_factory.mktemp("linked")
    for name in ("one.yaml", "sinks.yaml"):
        (place / name).symlink_to(project / name)
    result = CliRunner().invoke(app, ["run", str(place / "one.yaml")])
    assert result.exit_code == 0, result.output
    ((of_run, of_engine),) = seen
    assert of_run == of_engine == place / "state"
