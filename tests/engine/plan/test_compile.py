"""The plan Spark makes of a pipeline: what it must not do to us behind our back."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from signoff.builder import Pipeline
from signoff.engine.plan.compile import compile_source
from signoff.engine.plan.failure_reasons import explained
from signoff.engine.plan.kept_rows import KeptRows
from signoff.engine.plan.task_report import ReportKind, TaskReport
from signoff.engine.query.base import stage_policies
from signoff.engine.spark_check import check
from signoff.log import LogWriter
from signoff.log.spark import read_range
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import LogSettings
from signoff.sources.events import event_batch, piece
from signoff.transforms.try_expressions import UNEXPLAINED
from tests.engine.plan.ran_plan import Ran, log_of

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_an_event_is_parsed_once_although_a_filter_asks_for_its_fields(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    pipeline = Pipeline("p", state=str(tmp_path / "state"), base=tmp_path)
    pipeline.source("incoming", "generate", count=1)
    pipeline.transform("parsed", f"parse_{kind}", input="incoming", schema="a INT, b INT, c STRING")
    pipeline.transform("chosen", "filter", input="parsed", where="a < 3 AND b > 1")
    pipeline.sink("out", "files", input="chosen", path="out")

    plan = compile_source(pipeline.graph(), "incoming", _nothing(spark, tmp_path))

    assert plan is not None
    made = plan.df._jdf.queryExecution().executedPlan().toString()
    assert made.count(f"from_{kind}(") == 1, made


def test_what_a_sink_wants_computed_stands_behind_the_columns_of_the_row(
    spark: SparkSession, tmp_path: Path
) -> None:
    graph = _published(tmp_path, routing_key="concat('sensor.', a)")

    plan = compile_source(graph, "incoming", _nothing(spark, tmp_path))

    assert plan is not None
    assert list(plan.sinks["out"].schema) == ["a", "b", "_routing_key"]
    ((_, physical),) = [pair for pair in plan.sinks["out"].deliveries[0].columns if pair[0] == "_routing_key"]
    assert dict(plan.df.dtypes)[str(physical)] == "string"


def test_an_expression_of_a_sink_that_does_not_resolve_is_reported_as_the_sinks(
    spark: SparkSession, tmp_path: Path
) -> None:
    (problem,) = check(_published(tmp_path, routing_key="concat('sensor.', sensr)"), spark)

    assert problem.code == "unresolved-column"
    assert 'sink "out"' in problem.message and "sensr" in problem.message


def test_a_column_that_a_template_names_and_rows_do_not_have_is_found_before_the_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    def sent(*fields: str, **more: object) -> Graph:
        pipeline = Pipeline("mailed", state=tmp_path)
        pipeline.source("incoming", "generate", count=1)
        pipeline.transform("parsed", "parse_json", input="incoming", schema="a INT, b INT")
        body = {"text": [f"{{{{ {field} }}}}" for field in fields]}
        pipeline.sink("out", "http", input="parsed", url="http://127.0.0.1:1/", body=body, **more)
        return pipeline.graph()

    assert check(sent("a", "event_id", "row.b"), spark) == []
    for more in ({}, {"buffer": {}}):
        (problem,) = check(sent("a", "stationID", **more), spark)
        assert problem.code == "unresolved-column"
        assert problem.message.startswith('sink "out"') and '"stationID"' in problem.message
        assert problem.hint == "there is: a, b"


def test_an_expression_of_a_sink_that_fails_for_a_row_is_an_error_of_the_sink_and_not_of_the_plan(
    spark: SparkSession, tmp_path: Path
) -> None:
    graph = _published(tmp_path, routing_key="concat('sensor.', 10 / a)")
    log = LogWriter(tmp_path / "log", LogSettings())
    texts = [b'{"a": 2}', b'{"a": 0}', b'{"a": 5}']
    log.append(event_batch(piece(texts, [1, 2, 3], {})))
    log.sync()
    log.close()
    rows = read_range(spark, tmp_path / "log", 0, 3, encoding="utf-8")

    plan = compile_source(graph, "incoming", rows)

    assert plan is not None
    (error,) = [each for each in plan.errors if each.stage == "out"]
    said = {row["_sequence"]: row[error.column] for row in plan.df.collect()}
    assert said == {0: None, 1: UNEXPLAINED, 2: None}
    assert stage_policies(graph, "incoming")["out"] == "dead_letter"
    (reason,) = explained([TaskReport("out", ReportKind.ERROR, 1, "", UNEXPLAINED)], plan.attempts)
    assert "[DIVIDE_BY_ZERO]" in str(reason.text)


@pytest.mark.parametrize(
    ("expression", "wrong"),
    [
        ("to_timestamp(b, 'yyyy-mm-ddQ')", "yyyy-mm-ddQ"),
        ("to_date(b, 'YYYY-MM-dd')", "YYYY-MM-dd"),
        ("unix_timestamp(b, 'yyyy-MM-dd bbb')", "yyyy-MM-dd bbb"),
        ("date_format(current_timestamp(), 'hello')", "hello"),
        ("to_timestamp(b, 'dd.MM.yyyy HH:mm')", None),
        ("date_format(current_timestamp(), 'QQQ yyyy')", None),
        ("to_timestamp(b, b)", None),
    ],
)
def test_a_datetime_pattern_that_no_row_could_be_read_with_is_found_by_check(
    spark: SparkSession, tmp_path: Path, expression: str, wrong: str | None
) -> None:
    pipeline = Pipeline("p", state=str(tmp_path / "state"), base=tmp_path)
    pipeline.source("incoming", "generate", count=1)
    pipeline.transform("parsed", "parse_json", input="incoming", schema="b STRING")
    pipeline.transform("times", "select", input="parsed", columns={"at": expression})
    pipeline.sink("out", "files", input="times", path="out")

    problems = check(pipeline.graph(), spark)

    assert [problem.code for problem in problems] == (["bad-pattern"] if wrong else [])
    assert all(f'"{wrong}" is not a datetime pattern: ' in problem.message for problem in problems)


def _published(tmp_path: Path, routing_key: str) -> Graph:
    pipeline = Pipeline("p", state=str(tmp_path / "state"), base=tmp_path)
    pipeline.source("incoming", "generate", count=1)
    pipeline.transform("parsed", "parse_json", input="incoming", schema="a INT, b INT")
    pipeline.sink("out", "rabbitmq", input="parsed", url="amqp://localhost", routing_key=routing_key)
    return pipeline.graph()


def _nothing(spark: SparkSession, tmp_path: Path) -> DataFrame:
    LogWriter(tmp_path / "log", LogSettings()).close()
    return read_range(spark, tmp_path / "log", 0, 0, encoding="utf-8")


def _merging(tmp_path: Path, **merge: object) -> Graph:
    pipeline = Pipeline("p", state=str(tmp_path / "state"), base=tmp_path)
    pipeline.source("incoming", "generate", count=1)
    pipeline.transform("parsed", "parse_json", input="incoming", schema="a INT, b INT")
    pipeline.transform("once", "dedupe", input="parsed", keys=["a"])
    pipeline.transform("framed", "python", input="once", function="tests.promises.functions:unchanged")
    pipeline.transform("merged", "merge", input=merge.pop("input", "parsed"), **merge)
    pipeline.sink("out", "files", input="merged", path="out")
    pipeline.sink("first", "files", input="once", path="first")
    pipeline.sink("same", "files", input="framed", path="same")
    return pipeline.graph()


def test_a_merge_of_one_event_may_be_behind_a_function_on_dataframes(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert check(_merging(tmp_path, input="framed"), spark) == []


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"keys": ["c"]}, "unresolved-column"),
        ({"keys": ["a"], "columns": {"a": "max(b)"}}, "duplicate-column"),
        ({"keys": ["a"], "columns": {"n": "b + 1"}}, "type-error"),
        ({"keys": ["a"], "columns": {"n": "max(c)"}}, "unresolved-column"),
    ],
)
def test_what_is_wrong_with_a_merge_is_said_before_the_run(
    spark: SparkSession, tmp_path: Path, fields: dict[str, object], code: str
) -> None:
    problems = check(_merging(tmp_path, **fields), spark)

    assert code in {problem.code for problem in problems}


def test_a_merge_sees_its_events_in_order_and_without_hashing(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = Pipeline("p", state=str(tmp_path / "state"), base=tmp_path)
    pipeline.source("incoming", "generate", count=1)
    columns = {"all": "collect_list(message_id)", "first": "first(message_id)"}
    pipeline.transform("merged", "merge", input="incoming", keys=["payload"], columns=columns)
    pipeline.sink("out", "files", input="merged", path="out")

    plan = compile_source(pipeline.graph(), "incoming", _nothing(spark, tmp_path))

    assert plan is not None and plan.unites and plan.shuffled
    made = plan.df._jdf.queryExecution().executedPlan().toString()
    assert "SortAggregate" in made and "HashAggregate" not in made, made


# -- what comes to a sink whatever else is in the plan


def _ran(spark: SparkSession, graph: Graph, tmp_path: Path, **asked: Any) -> Ran:
    log = log_of([{"a": n, "b": 1} for n in range(1, 4)], tmp_path / "log")
    rows = read_range(spark, log, 0, 3, encoding="utf-8", parts=1)
    plan = compile_source(graph, "incoming", rows, kept=KeptRows(graph.state), **asked)
    assert plan is not None
    return Ran(plan)


def test_a_sink_in_front_of_an_unfold_keeps_its_rows_where_a_function_is_called_behind_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline("p", state=str(tmp_path / "state"), base=tmp_path)
    pipeline.source("incoming", "generate", count=1)
    pipeline.transform("parsed", "parse_json", input="incoming", schema="a INT, b INT")
    pipeline.transform("each", "unfold", input="parsed", column="array(a, b)", **{"as": "n"})
    pipeline.transform("slim", "select", input="each", columns={"n": "n"})
    function = {"mode": "rows", "function": "tests.promises.functions:fail_on_seven", "schema": "n INT"}
    pipeline.transform("called", "python", input="slim", **function)
    pipeline.sink("whole", "files", input="parsed", path="whole")
    pipeline.sink("parts", "files", input="each", path="parts")
    pipeline.sink("out", "files", input="called", path="out")

    came = _ran(spark, pipeline.graph(), tmp_path).came

    assert {name: sorted(rows) for name, rows in came.items()} == {
        "whole": [0, 1, 2],
        "parts": [0, 0, 1, 1, 2, 2],
        "out": [0, 0, 1, 1, 2, 2],
    }


def test_a_letter_in_front_of_a_merge_does_not_come_again_to_a_sink_by_another_way(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline("p", state=str(tmp_path / "state"), base=tmp_path)
    pipeline.source("incoming", "generate", count=1)
    pipeline.transform("parsed", "parse_json", input="incoming", schema="a INT, b INT")
    pipeline.transform("good", "filter", input="parsed", where="10 / a > 0")
    pipeline.transform("merged", "merge", inputs=["good", "parsed"], keys=["a"])
    pipeline.sink("archive", "files", inputs=["parsed", "merged"], path="out")
    asked = {"entry": "good", "rows": {(1, "")}, "tells": True, "replay": True}

    ran = _ran(spark, pipeline.graph(), tmp_path, **asked)

    names = [row for row in ran.sinks["archive"] if row.startswith("(1,)")]
    assert len(names) == 1 and "/merged'" in names[0], "and what is merged has all its parts"


def test_what_fails_where_rows_of_several_parts_come_together_is_said(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = Pipeline("p", state=str(tmp_path / "state"), base=tmp_path)
    pipeline.source("incoming", "generate", count=1)
    pipeline.transform("parsed", "parse_json", input="incoming", schema="a INT, b INT")
    pipeline.transform("one", "merge", input="parsed", keys=["b"])
    columns = {"most": "max(10 / (a - 1))"}
    pipeline.transform("all", "merge", inputs=["one", "parsed"], keys=["a"], columns=columns)
    pipeline.sink("out", "files", input="all", path="out")

    ran = _ran(spark, pipeline.graph(), tmp_path)

    failed = Counter(sequence for stage, _, sequence, _ in ran.said if stage == "all")
    assert ran.came == {"out": [1, 2]} and failed == {0: 2, 1: 1, 2: 1}, "also the row of all three"
