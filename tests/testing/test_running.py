"""Tests of pipelines are run by the engine of a run: windows, folds, services, policies; without servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from signoff.builder import Pipeline
from signoff.catalog import default
from signoff.cli import app
from signoff.errors import PipelineError
from signoff.pipeline.load import load
from signoff.pipeline.overlays import Layers
from signoff.testing import MemorySink, differences, run_case, run_pipeline
from signoff.testing.memory import MemorySinkConfig

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = EXAMPLES / "files_to_sqlite" / "pipeline.yaml"
HERE = Path(__file__).parent


def failures(file: Path, spark: Any) -> dict[str, str]:
    """What is not as expected, by test."""
    graph = load(file, default(), {}, require_secrets=False)
    assert graph.tests.cases
    found = {}
    for case in graph.tests.cases:
        text = "\n".join(map(str, differences(case, run_case(graph, case, spark=spark))))
        if text:
            found[case.name] = text
    return found


@pytest.mark.parametrize("file", ["files_to_sqlite/pipeline.yaml", "python_functions/tests.yaml"])
def test_the_tests_of_the_examples_pass(file: str, spark: Any) -> None:
    assert failures(EXAMPLES / file, spark) == {}


def test_what_needs_a_server_is_tested_without_and_so_is_a_new_project(spark: Any, tmp_path: Path) -> None:
    assert failures(EXAMPLES / "http_to_postgres/pipeline.yaml", spark) == {}
    assert CliRunner().invoke(app, ["new", str(tmp_path / "new")]).exit_code == 0
    assert failures(tmp_path / "new" / "pipeline.yaml", spark) == {}


def test_time_windows_folds_routes_and_services_are_those_of_a_run(spark: Any) -> None:
    assert failures(HERE / "everything.yaml", spark) == {}


def test_one_call_runs_a_pipeline_from_pytest(spark: Any) -> None:
    alarms = [b"{broken", {"stationId": 5, "alarmId": 303}, '{"stationId": 6, "alarmId": 304}']
    result = run_pipeline(FILES, {"incoming": alarms}, look_at=["parsed"], spark=spark)
    assert [row["stationId"] for row in result.rows["table"]] == [5]
    assert sorted(row["stationId"] for row in result.rows["parsed"]) == [5, 6]
    assert [(letter.stage, letter.payload) for letter in result.letters] == [("parsed", b"{broken")]
    assert result.drops == {"failed_equipment": 1}
    wanted = {"received": 3, "delivered": 2, "dead_lettered": 1, "in_flight": 0}
    assert {name: result.account[name] for name in wanted} == wanted
    with pytest.raises(KeyError, match="look_at"):
        result.rows["failed_equipment"]


def test_a_row_for_which_an_expression_of_its_sink_fails_is_a_dead_letter(spark: Any) -> None:
    key = "sinks.archive.partition_by={part: \"if(stationId = 6, raise_error('no part'), 'a')\"}"
    graph = load(FILES, default(), {}, require_secrets=False, layers=Layers(sets=(key,)))
    alarms = [{"stationId": 5, "alarmId": 303}, {"stationId": 6, "alarmId": 303}]
    result = run_pipeline(graph, {"incoming": alarms}, spark=spark)
    assert [(letter.stage, "no part" in letter.reason) for letter in result.letters] == [("archive", True)]
    assert [row["stationId"] for row in result.rows["archive"]] == [5]
    assert set(result.rows["archive"][0]) == set(result.rows["table"][0])
    assert len(result.rows["table"]) == 2


def test_a_sink_can_be_used_as_it_is(spark: Any, tmp_path: Path) -> None:
    pipeline = Pipeline("real", base=tmp_path)
    pipeline.source("incoming", "generate", template="sequence", count=0)
    pipeline.transform("parsed", "parse_json", input="incoming", schema="n INT")
    pipeline.sink("kept", MemorySinkConfig(name="kept"), input="parsed")
    pipeline.sink("collected", "console", input="parsed")
    result = run_pipeline(pipeline, {"incoming": [{"n": 1}, "broken"]}, real=["kept"], spark=spark)
    assert MemorySink("kept").rows == [{"event_id": "incoming/0", "n": 1}]
    assert result.rows["collected"] == [{"n": 1}] and "kept" not in result.rows
    assert result.account["delivered"] == 1 and result.account["dead_lettered"] == 1


def test_a_wrong_name_is_told_before_spark_is_asked() -> None:
    with pytest.raises(PipelineError, match='did you mean "incoming"'):
        run_pipeline(FILES, {"incomming": ["x"]})
    with pytest.raises(PipelineError, match='did you mean "table"'):
        run_pipeline(FILES, {"incoming": ["x"]}, real=["tabel"])


def test_the_command_says_what_failed_and_where(spark: Any, tmp_path: Path) -> None:
    file, xml = str(FILES), tmp_path / "junit.xml"
    done = CliRunner().invoke(
        app, ["test", file, "-k", "cut off", "--junit", str(xml), "--set", "transforms.parsed.on_error=drop"]
    )
    assert done.exit_code == 1, done.output
    assert f"{file}:" in done.stdout
    assert "dead letters:\n      - missing:    at parsed: not valid JSON" in done.stdout
    assert "dead_lettered: expected 1, got 0" in done.stdout and "0 passed, 1 failed" in done.stdout
    assert 'failures="1"' in xml.read_text()
    assert CliRunner().invoke(app, ["test", file, "-k", "no such"]).exit_code == 2
    done = CliRunner().invoke(app, ["test", file, "-k", "cut off", "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["tests"][0]["passed"] is True


def test_settings_of_what_ran_before_are_not_those_of_a_test(spark: SparkSession, tmp_path: Path) -> None:
    left = SparkSession(spark.sparkContext, spark._jsparkSession.cloneSession())
    left.conf.set("spark.sql.ansi.enabled", "false")  # as the query of a window has it
    left.createDataFrame([(1,)], "n INT")
    assert SparkSession.getActiveSession() is not spark, "it is the active one now"
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "name: t\nsources: {incoming: {type: stdin}}\n"
        "transforms:\n  parsed: {type: parse_json, input: incoming, schema: n INT}\n"
        "  tenth: {type: select, input: parsed, columns: {n: 10 / n}}\n"
        "sinks: {out: {type: console, input: tenth}}\n"
    )
    result = run_pipeline(file, {"incoming": ['{"n": 0}', '{"n": 5}']})
    assert result.rows["out"] == [{"n": 2.0}]
    assert [letter.stage for letter in result.letters] == ["tenth"]
