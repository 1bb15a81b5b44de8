"""Rows that several parts of a plan read are those of one computation, whatever its tasks went through."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from signoff.builder import Pipeline
from signoff.engine.parts import no_events
from signoff.engine.plan.compile import compile_source
from signoff.engine.plan.kept_rows import KeptRows, remove_kept_rows
from signoff.engine.plan.plan import Plan
from signoff.engine.spark_check import check
from signoff.log.spark import read_range
from signoff.pipeline.graph import Graph
from tests.engine.plan.ran_plan import Ran, log_of

pytestmark = pytest.mark.spark

ASKED = {"type": "enrich", "input": "parsed", "url": "http://127.0.0.1:1/{n}", "schema": "k STRING"}
ROWS = {"function": "tests.promises.functions:shaky", "mode": "rows", "schema": "n INT, k STRING"}
GROUPS = {
    "function": "tests.promises.functions:same_rows",
    "mode": "groups",
    "keys": ["k"],
    "schema": "k STRING, all ARRAY<INT>",
}
SPAN = {"type": "select", "input": "parsed", "columns": {"n": "n", "k": "k", "i": "make_interval(1)"}}
MERGE = {"type": "merge", "keys": ["k"]}


def with_a_udf(df: DataFrame) -> DataFrame:
    return df.withColumn("k", F.udf(lambda text: text)("k"))


def without_python(df: DataFrame) -> DataFrame:
    return df.withColumn("k", F.upper("k"))


DOUBTFUL: dict[str, dict[str, Any]] = {
    "a service": {"asked": ASKED, "one": MERGE | {"input": "asked"}},
    "a function on rows": {
        "asked": ROWS | {"type": "python", "input": "parsed"},
        "one": GROUPS | {"type": "python", "input": "asked"},
    },
    "a service before a function on DataFrames": {
        "asked": ASKED,
        "one": {"type": "python", "function": without_python, "input": "asked"},
    },
    "a step in between": {
        "asked": ASKED,
        "chosen": {"type": "filter", "input": "asked", "where": "n > 1"},
        "one": MERGE | {"input": "chosen"},
    },
    "duplicates": {
        "asked": {"type": "dedupe", "input": "parsed", "keys": ["n"]},
        "one": MERGE | {"input": "asked"},
    },
    "a throttle": {
        "asked": {"type": "throttle", "input": "parsed", "keys": ["n"], "every": "1m"},
        "one": MERGE | {"input": "asked"},
    },
    "lots": {
        "asked": {"type": "filter", "input": "parsed", "where": "rand() < 0.5"},
        "one": MERGE | {"input": "asked"},
    },
    "lots in a result of a merge": {
        "asked": MERGE | {"input": "parsed", "columns": {"lot": "max(n) + rand()"}},
        "one": MERGE | {"input": "asked"},
    },
    "the time of a job that is one of several": {
        "fresh": {"type": "filter", "input": "parsed", "where": "t > current_timestamp()"},
        "other": MERGE | {"input": "fresh"},
        "one": ASKED | {"input": "fresh"},
    },
    "a function on groups": {
        "asked": GROUPS | {"type": "python", "input": "parsed"},
        "one": MERGE | {"input": "asked"},
    },
    "a function on DataFrames that calls Python": {
        "asked": {"type": "python", "function": with_a_udf, "input": "parsed"},
        "one": MERGE | {"input": "asked"},
    },
    "a step whose inputs are of several parts": {
        "asked": ASKED,
        "other": MERGE | {"input": "parsed"},
        "one": {"type": "filter", "inputs": ["asked", "other"], "where": "n > 1"},
    },
}
CERTAIN: dict[str, dict[str, Any]] = {
    "the time of the only job": {
        "fresh": {"type": "filter", "input": "parsed", "where": "t > current_timestamp()"},
        "one": MERGE | {"input": "fresh"},
    },
    "steps of Spark's alone": {
        "asked": {"type": "filter", "input": "parsed", "where": "n / 2 > 1"},
        "one": MERGE | {"input": "asked"},
    },
    "a function on DataFrames without Python": {
        "asked": {"type": "python", "function": without_python, "input": "parsed"},
        "one": MERGE | {"input": "asked"},
    },
    "a service beside it": {"asked": ASKED, "one": MERGE | {"input": "parsed"}},
    "a service behind it": {"other": MERGE | {"input": "parsed"}, "one": ASKED | {"input": "other"}},
    "a service alone": {"asked": ASKED, "one": {"type": "filter", "input": "asked", "where": "n > 1"}},
}


def graph_of(
    tmp_path: Path, transforms: dict[str, Any], schema: str = "n INT, k STRING, t TIMESTAMP"
) -> Graph:
    pipeline = Pipeline("p", state=str(tmp_path / "state"), base=tmp_path)
    pipeline.source("incoming", "generate", count=1)
    pipeline.transform("parsed", "parse_json", input="incoming", schema=schema)
    for name, fields in transforms.items():
        fields = dict(fields)
        pipeline.transform(name, fields.pop("type"), **fields)
    read = {
        each for fields in transforms.values() for each in (fields.get("input"), *fields.get("inputs", ()))
    }
    for name in transforms:
        if name == "one" or name not in read:
            pipeline.sink(f"to_{name}", "files", input=name, path=f"out/{name}")
    pipeline.sink("to_parsed", "files", input="parsed", path="out/parsed")
    return pipeline.graph()


def plan_of(graph: Graph, spark: SparkSession) -> tuple[Plan, KeptRows]:
    kept = KeptRows(graph.state)
    plan = compile_source(graph, "incoming", no_events(graph, "incoming", spark), kept=kept)
    assert plan is not None
    return plan, kept


@pytest.mark.parametrize("case", DOUBTFUL)
def test_what_may_come_out_otherwise_is_kept_for_a_part_that_reads_it(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    graph = graph_of(tmp_path, DOUBTFUL[case])
    plan, kept = plan_of(graph, spark)
    assert len(kept.steps) == 1
    with plan.ready():
        assert plan.df.count() == 0, "no event"
    assert not (graph.state / "kept").exists() or not any((graph.state / "kept").iterdir())


@pytest.mark.parametrize("case", CERTAIN)
def test_nothing_is_kept_where_each_computation_gives_the_same_or_only_one_part_reads_it(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    _, kept = plan_of(graph_of(tmp_path, CERTAIN[case]), spark)
    assert not kept.steps


def test_a_part_that_reads_no_row_of_a_function_does_not_call_it(spark: SparkSession, tmp_path: Path) -> None:
    steps = {"asked": ROWS | {"type": "python", "input": "parsed"}, "one": MERGE | {"input": "parsed"}}
    plan, kept = plan_of(graph_of(tmp_path, steps), spark)
    assert not kept.steps
    assert plan.df._jdf.queryExecution().executedPlan().toString().count("ArrowEvalPython") == 1


def test_what_was_kept_is_kept_once_for_all_parts(spark: SparkSession, tmp_path: Path) -> None:
    steps = {"asked": ASKED, "other": MERGE | {"input": "asked"}, "one": MERGE | {"input": "asked"}}
    _, kept = plan_of(graph_of(tmp_path, steps), spark)
    assert len(kept.steps) == 1


def test_only_columns_that_are_read_are_kept(spark: SparkSession, tmp_path: Path) -> None:
    steps = {
        "span": {
            "type": "select",
            "input": "parsed",
            "columns": {"n": "n", "k": "k", "i": "make_interval(1)"},
        },
        "asked": ASKED | {"input": "span"},
        "slim": {"type": "select", "input": "asked", "columns": {"n": "n", "k": "k"}},
        "one": MERGE | {"input": "slim"},
    }
    _, kept = plan_of(graph_of(tmp_path, steps), spark)
    (df,) = kept.steps
    kinds = [kind for _, kind in df.dtypes]
    assert "interval" not in kinds and not [name for name in df.columns if "payload" in name]


def test_a_type_that_cannot_be_kept_is_found_before_the_run(spark: SparkSession, tmp_path: Path) -> None:
    steps = {
        "span": {
            "type": "select",
            "input": "parsed",
            "columns": {"n": "n", "k": "k", "i": "make_interval(1)"},
        },
        "asked": ASKED | {"input": "span"},
        "one": MERGE | {"input": "asked", "columns": {"i": "first(i)"}},
    }
    (problem, *_) = check(graph_of(tmp_path, steps), spark)
    assert problem.code == "type-error" and 'transform "one"' in problem.message
    assert "interval" in problem.message


# -- what is read is what counted


def test_values_of_every_type_are_read_as_they_were(spark: SparkSession, tmp_path: Path) -> None:
    df = spark.range(3).selectExpr(
        "id", "CAST(id AS TINYINT) AS b", "CAST(id / 3 AS DECIMAL(38, 12)) AS d", "id / 7D AS f",
        "TIMESTAMP '1900-01-01 00:00:00.000001' AS t", "TIMESTAMP_NTZ '2021-03-28 02:30:00' AS local",
        "DATE '0001-01-01' AS day", "INTERVAL 3 DAYS AS span", "X'00FF' AS bytes",
        "IF(id = 1, NULL, array(named_struct('x', id, 'y', array('ä', NULL)))) AS nested",
        "NULL AS nothing", "map('a', map('b', id)) AS maps", "parse_json('{\"a\": [1, null]}') AS v",
        "'ß' COLLATE UNICODE_CI AS c",
    )  # fmt: skip
    kept = KeptRows(tmp_path)
    read = kept.keep(df)
    with kept.computed():
        rows = [read.selectExpr("*", "to_json(v) AS text").drop("v") for _ in range(2)]
        wanted = df.selectExpr("*", "to_json(v) AS text").drop("v")
        assert [sorted(each.collect(), key=lambda row: row["id"]) for each in rows] == [wanted.collect()] * 2
    assert read.schema.simpleString() == df.schema.simpleString()


class Lottery:
    """Rows that are others each time, of tasks of which the first fails at its end, once."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            for _ in range(2):
                lots = pa.array([os.urandom(8).hex() for _ in range(batch.num_rows)])
                yield pa.RecordBatch.from_arrays([batch.column(0), lots], names=["id", "lot"])
        if context.attemptNumber() == context.partitionId() == 0:
            raise RuntimeError("the task fails when all of its rows are written")


def test_rows_of_a_try_that_failed_are_read_by_nobody(spark: SparkSession, tmp_path: Path) -> None:
    kept = KeptRows(tmp_path)
    first = kept.keep(spark.range(0, 20, 1, 4).mapInArrow(Lottery(), "id BIGINT, lot STRING"))
    second = kept.keep(first.repartition(3).withColumn("lot", F.upper("lot")))
    with kept.computed():
        files = list(tmp_path.rglob("0/*.arrow"))
        for file in files:  # as a task leaves it whose machine is lost, or that was overtaken by a copy
            shutil.copyfile(file, file.with_name(f"{file.name[0]}-1000000.arrow"))
        rows = [
            sorted((row.id, row.lot.upper()) for row in each.collect()) for each in (first, second, first)
        ]
    assert len(files) >= 4
    assert len(rows[0]) == 40 and rows[0] == rows[1] == rows[2]


def test_the_next_pass_reads_rows_of_its_own(spark: SparkSession, tmp_path: Path) -> None:
    kept = KeptRows(tmp_path)
    read = kept.keep(spark.range(3).repartition(2).mapInArrow(Lottery(), "id BIGINT, lot STRING"))
    found = []
    for _ in range(2):
        with kept.computed():
            found.append({row.lot for row in read.select("*").collect()})
    assert len(found[0] | found[1]) == 12


def test_a_pass_that_cannot_read_what_was_kept_fails(spark: SparkSession, tmp_path: Path) -> None:
    kept = KeptRows(tmp_path)
    read = kept.keep(spark.range(3))
    with kept.computed():
        for file in tmp_path.rglob("*.arrow"):
            file.unlink()
        with pytest.raises(PySparkException, match="No such file"):
            read.collect()
    with pytest.raises(PySparkException):
        read.select("*").collect()


def test_what_was_kept_is_removed_also_when_the_pass_fails_or_was_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    kept = KeptRows(tmp_path)
    kept.keep(spark.range(3))
    with pytest.raises(ZeroDivisionError), kept.computed():
        assert {file.stat().st_mode & 0o777 for file in tmp_path.rglob("*.arrow")} == {0o600}
        raise ZeroDivisionError
    assert not list(tmp_path.rglob("*.arrow"))
    (left := tmp_path / "kept" / "x" / "0").mkdir(parents=True)
    remove_kept_rows(tmp_path)
    assert not left.exists()


# -- what tells the time, or draws lots, does so once for all parts


NOW = "CAST(pmod(xxhash64(current_timestamp(), n), 2) AS INT)"
OTHERWISE = {"type": "python", "mode": "rows", "function": "tests.engine.plan.test_kept_rows:with_lot"}
ASKED_BEHIND = {"asked": OTHERWISE | {"schema": "n INT, lot INT", "input": "other"}}
DRAWN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the time, and lots behind it": (
        {"type": "select", "columns": {"n": "n", "lot": NOW}},
        {"asked": {"type": "filter", "input": "other", "where": "rand() >= 0"}},
    ),
    "the time, and a function on DataFrames behind it": (
        {"type": "select", "columns": {"n": "n", "lot": NOW}},
        {"asked": {"type": "python", "function": "tests.engine.plan.test_kept_rows:on_n", "input": "other"}},
    ),
    "the time in a result of a merge": (
        {"type": "merge", "keys": ["n"], "columns": {"lot": f"coalesce(max(n) * 0, 0) + {NOW}"}},
        ASKED_BEHIND,
    ),
    "the time in what a merge is given": (
        {"type": "merge", "keys": ["n"], "columns": {"lot": f"max({NOW})"}},
        ASKED_BEHIND,
    ),
    "the time in a function on DataFrames": (
        {"type": "python", "function": "tests.engine.plan.test_kept_rows:at_this_time"},
        ASKED_BEHIND,
    ),
}


def with_lot(row: dict[str, Any]) -> dict[str, Any]:
    return {"n": row["n"], "lot": row["lot"]}


def on_n(df: DataFrame) -> DataFrame:
    return df.withColumn("n", F.udf(lambda n: n, "int")("n"))


def at_this_time(df: DataFrame) -> DataFrame:
    return df.withColumn("lot", F.expr(NOW))


@pytest.mark.parametrize("case", DRAWN)
def test_a_row_goes_one_way_although_parts_of_a_plan_that_are_run_one_after_the_other_ask_for_it(
    spark: SparkSession, tmp_path: Path, case: str
) -> None:
    split, behind = DRAWN[case]
    graph = graph_of(
        tmp_path,
        {
            "split": split | {"input": "parsed"},
            "this": {"type": "filter", "input": "split", "where": "lot = 0"},
            "that": {"type": "filter", "input": "split", "where": "lot = 1"},
            "other": {"type": "merge", "keys": ["n"], "input": "this"},
            **behind,
            "one": {"type": "merge", "keys": ["n"], "input": "asked"},
        },
    )
    log = log_of([{"n": n} for n in range(40)], tmp_path / "log")
    rows = read_range(spark, log, 0, 40, encoding="utf-8", parts=1)
    plan = compile_source(graph, "incoming", rows, kept=KeptRows(graph.state))
    assert plan is not None
    came = Ran(plan).came
    assert sorted(came["to_one"] + came["to_that"]) == list(range(40))
