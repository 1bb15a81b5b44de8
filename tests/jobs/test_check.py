"""What is wrong with a job is said before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from signoff.catalog import default
from signoff.errors import PipelineError
from signoff.jobs.check import check
from signoff.jobs.outputs import second_half
from signoff.jobs.run import load_job
from signoff.pipeline.load import load
from tests.jobs.scenes import JOB, write_job, write_results

STREAM = {"type": "files", "path": "./in/*.jsonl"}


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"key": ["station"]}, "unknown-parameter", 'key names "station"'),
        ({"period": ["day", "to"]}, "unknown-parameter", 'period names "to"'),
        ({"period": ["day", "least"]}, "bad-value", "is no time"),
        ({"sources": {**JOB["sources"], "more": STREAM},
          "sinks": {**JOB["sinks"], "s": {"type": "console", "input": "more"}}}, "job-node", "has no end"),
        ({"transforms": {**JOB["transforms"], "kept": {"type": "filter", "input": "results", "where": "true"},
                         "by_station": {"type": "sql", "input": "kept", "query": "SELECT 1"}}},
         "job-node", "neither a table nor a query"),
        ({"transforms": {**JOB["transforms"],
                         "big": {"type": "dedupe", "input": "by_station", "keys": ["place"]}}},
         "job-node", "for events that keep coming"),
        ({"sinks": {"s": {"type": "console", "input": "big", "best_effort": True}}}, "job-node",
         "best_effort"),
        ({"parameters": {**JOB["parameters"], "who": "string"},
          "transforms": {**JOB["transforms"],
                         "big": {"type": "filter", "input": "by_station", "where": "name = '${who}'"}}},
         "parameter-in-sql", 'the parameter "who", a text'),
        ({"parameters": {**JOB["parameters"], "who": "string"},
          "sources": {"results": {**JOB["sources"]["results"], "where": "name = '${who}'"}}},
         "parameter-in-sql", 'the parameter "who", a text'),
        ({"schedule": {"cron": "0 6 * * *", "parameters": {"day": "{start}"}}}, "bad-parameter",
         'gives the parameter "day" what does not fit it'),
        ({"schedule": {"cron": "0 6 * * *", "parameters": {"day": "{end:%Y-%m-%d}", "least": "{start:%p}"}}},
         "bad-parameter", 'gives the parameter "least"'),
        ({"sources": {"results": {**JOB["sources"]["results"], "needed_to": "day"}}}, "unknown-parameter",
         "is no parameter of type timestamp"),
        ({"sources": {"results": {**JOB["sources"]["results"], "needed_to": "upto", "complete_to": None}}},
         "bad-value", "give that as well"),
        ({"parameters": {"day": "day"}}, "bad-value", "parameters.day"),
        ({"parameters": {"day": {"type": "date", "default": "soon"}}}, "bad-value", "soon"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_job_has_a_place_and_a_name(
    tmp_path: Path, changes: dict[str, Any], code: str, said: str
) -> None:
    with pytest.raises(PipelineError) as caught:
        load_job(write_job(tmp_path, **changes))
    found = [problem for problem in caught.value.problems if problem.code == code]
    assert found and any(said in problem.message for problem in found), caught.value.problems
    assert all(problem.line for problem in found)


def test_a_value_that_has_no_sign_of_sql_may_stand_in_it_and_a_text_elsewhere(tmp_path: Path) -> None:
    big = {"type": "filter", "input": "by_station", "where": "stationId > ${least}"}
    load_job(
        write_job(
            tmp_path,
            parameters={**JOB["parameters"], "who": "string"},
            transforms={**JOB["transforms"], "big": big},
            sinks={"out": {"type": "files", "input": "big", "path": "./out-${who}"}},
        )
    )


MAIL = {"host": "mail", "security": "none", "from": "a@example.org", "to": "b@example.org", "subject": "s"}
REPORT = {"type": "report", "path": "./reports", "title": "Failures"}


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        ({"type": "email", **MAIL, "subject": "Station ${who}"}, "in a template"),
        ({"type": "email", **MAIL, "html": "<p>${who}</p>"}, "in a template"),
        ({"type": "email", **MAIL, "to": ["${who}@example.org"]}, "in a template"),
        ({"type": "email", **MAIL, "attachments": [{"path": "${who}.pdf"}],
          "attachments_from": "./x"}, "in a template"),
        ({"type": "email", **MAIL, "host": "${who}.example.org"}, "in its host"),
        ({"type": "email", **MAIL, "from": "${who}@example.org"}, "in its from"),
        ({"type": "email", **MAIL, "attachments_from": "./x/${who}"}, "in its attachments_from"),
        ({"type": "slack", "url": "https://slack.example", "text": "${who}"}, "in a template"),
        ({"type": "slack", "url": "https://slack.example", "text": "t",
          "blocks": [{"type": "section", "text": {"type": "mrkdwn", "text": "${who}"}}]}, "in a template"),
        ({"type": "http", "url": "https://${who}/in", "token": "secret"}, "in its url"),
        ({"type": "http", "url": "https://a.example", "mode": "each", "body": {"to": {"who": "${who}"}}},
         "in a template"),
        ({"type": "http", "url": "https://a.example", "headers": {"X-Who": "${who:-me}"}}, "in its headers"),
        ({**REPORT, "title": "Failures at ${who}"}, "in its title"),
        ({**REPORT, "about": {"Station": "${who}"}}, "in its about"),
        ({**REPORT, "content": [{"text": "${who}"}]}, "in its content"),
        ({**REPORT, "content": [{"table": "big", "title": "${who}"}]}, "in its content"),
        ({**REPORT, "font": "./fonts/${who}"}, "in its font"),
        ({"type": "email", **MAIL, "text": "t", "ca_file": "./${who}"}, "in its ca_file"),
        ({"type": "rabbitmq", "url": "amqp://h/", "exchange": "${who}", "routing_key": "'x'"},
         "in its exchange"),
        ({"type": "sqlite", "path": "./o.db", "table": "${who}"}, "in its table"),
        ({"type": "postgres", "url": "postgresql://h/x", "table": "${who}"}, "in its table"),
        ({"type": "files", "path": "./o", "null_value": "${who}"}, "in its null_value"),
    ],
)  # fmt: skip
def test_a_text_from_an_event_writes_no_part_of_what_is_sent(
    tmp_path: Path, sink: dict[str, Any], said: str
) -> None:
    """Also where the sample value of `check` would be right."""
    who = {"parameters": {**JOB["parameters"], "who": "string"}}
    with pytest.raises(PipelineError) as caught:
        load_job(write_job(tmp_path, **who, sinks={"out": {**sink, "input": "big"}}))
    (problem,) = caught.value.problems
    assert problem.code == "parameter-in-text" and f'"who", a text, {said}' in problem.message
    assert problem.line
    typed = {"parameters": {**JOB["parameters"], "who": {"type": "date", "default": "2021-05-01"}}}
    load_job(write_job(tmp_path, **typed, sinks={"out": {**sink, "input": "big"}}))


@pytest.mark.parametrize(
    ("default", "sink", "field"),
    [
        ("none", {"type": "email", **MAIL, "text": "t", "security": "${who}"}, "security"),
        ("refuse", {"type": "files", "path": "./o", "on_failure": "${who}"}, "on_failure"),
        ("1", {"type": "files", "path": "./o", "retry": {"attempts": "${who}"}}, "retry"),
        ("jsonl", {"type": "files", "path": "./o", "format": "${who}"}, "format"),
    ],
)
def test_a_text_from_an_event_chooses_nothing(
    tmp_path: Path, default: str, sink: dict[str, Any], field: str
) -> None:
    """The default is a choice that the field takes."""
    who = {**JOB["parameters"], "who": {"type": "string", "default": default}}
    with pytest.raises(PipelineError, match=f"parameter-in-text.*in its {field}"):
        load_job(write_job(tmp_path, parameters=who, sinks={"out": {**sink, "input": "big"}}))


def test_a_text_from_an_event_is_no_setting(tmp_path: Path) -> None:
    config = {"spark.driver.extraJavaOptions": "-D${who}"}
    who = {**JOB["parameters"], "who": "string"}
    with pytest.raises(PipelineError, match="parameter-in-text"):
        load_job(write_job(tmp_path, parameters=who, spark={"config": config}))


def test_a_pipeline_is_no_job(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="not-a-job"):
        load_job(write_job(tmp_path, parameters={}, key=[], sources={"results": STREAM}, transforms={},
                           sinks={"s": {"type": "console", "input": "results"}}))  # fmt: skip


def test_a_parameter_stands_in_fields_as_a_variable_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("day", "not this one")
    file = write_job(tmp_path)
    from datetime import date

    graph = load_job(file, {"day": date(2021, 5, 2), "least": 0})
    assert graph.nodes["day_file"].config.path == "./out-2021-05-02"  # type: ignore[attr-defined]
    assert load(file, default(), {}, require_secrets=False).is_job  # without values a sample stands there


def test_the_engine_gets_the_rows_of_what_others_read(tmp_path: Path) -> None:
    half = second_half(load_job(write_job(tmp_path)))
    assert list(half.sources) == ["by_station"]
    assert [str(port) for port in half.nodes["big"].inputs] == ["by_station.rows"]
    assert half.upstream_sources("table") == {"by_station"}


@pytest.mark.spark
def test_spark_is_asked_about_queries_and_what_is_behind_them(tmp_path: Path, spark: SparkSession) -> None:
    graph, problems = check(load_job(write_job(tmp_path)), spark)
    assert not problems and [each.code for each in graph.warnings] == ["unknown-table"]  # no file, no schema
    write_results(tmp_path / "results.db")
    assert check(load_job(write_job(tmp_path)), spark)[1] == []
    wrong = {"type": "sql", "input": "results", "query": "SELECT stationId, failrues FROM results"}
    file = write_job(tmp_path, transforms={**JOB["transforms"], "by_station": wrong})
    (problem,) = check(load_job(file), spark)[1]
    assert problem.code == "bad-query" and "failrues" in problem.message and problem.line
    behind = {"type": "filter", "input": "by_station", "where": "station > 2"}
    (problem,) = check(load_job(write_job(tmp_path, transforms={**JOB["transforms"], "big": behind})), spark)[
        1
    ]
    assert problem.code == "unresolved-column" and '"station"' in problem.message


def test_signoff_run_says_how_a_job_is_run(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from signoff.cli import app

    result = CliRunner().invoke(app, ["run", str(write_job(tmp_path))])
    assert isinstance(result.exception, PipelineError) and "signoff jobs run" in str(result.exception)
