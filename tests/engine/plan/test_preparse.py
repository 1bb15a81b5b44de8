"""What is done with events while their log is read, and which columns Spark is then not given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from signoff.builder import Pipeline
from signoff.engine.plan.preparse import early_of
from signoff.transforms.preparse import Early

pytestmark = pytest.mark.spark

SCHEMA = "n BIGINT, s STRING"


def early(spark: SparkSession, path: Path, *steps: dict[str, Any], **source: Any) -> Early | None:
    pipeline = Pipeline("early", state=str(path / "state"), base=path)
    pipeline.source("incoming", "generate", count=1, **source)
    for number, step in enumerate(steps):
        pipeline.transform(f"step{number}", step.pop("type"), input="incoming", **step)
        pipeline.sink(f"out{number}", "console", input=f"step{number}")
    return early_of(pipeline.graph(), "incoming", spark)


def parse(**fields: Any) -> dict[str, Any]:
    return {"type": "parse_json", "schema": SCHEMA, **fields}


def test_spark_is_not_given_what_nobody_reads(spark: SparkSession, tmp_path: Path) -> None:
    found = early(spark, tmp_path, parse())
    assert found is not None
    rows = pa.RecordBatch.from_pydict(
        {
            "_sequence": [0, 1],
            "payload": ['{"n": 5, "s": "x"}', "{"],
            "message_id": ["a", "b"],
            "error": [None, None],
            "_mark_w": [7, 7],
        }
    )
    made = found(rows).to_pydict()
    assert made == {
        "_sequence": [0, 1],
        "payload": [None, "{"],
        "error": [None, None],
        "_mark_w": [7, 7],
        "_whole": [True, True],
        "_early_step0": [True, False],
        "_early_step0~~0": [5, None],
        "_early_step0~~1": ["x", None],
    }
    log = StructType([StructField(name, LongType()) for name in rows.schema.names])
    assert found.schema(log).names == list(made)


def test_a_column_that_a_step_keeps_is_given(spark: SparkSession, tmp_path: Path) -> None:
    found = early(spark, tmp_path, parse(keep=["headers"]), parse(keep=["payload"]))
    assert found is not None and found.unread == {"message_id", "unit", "position"}
    assert list(found.parsers) == ["step0", "step1"]


def test_a_step_that_is_no_parser_reads_everything(spark: SparkSession, tmp_path: Path) -> None:
    found = early(spark, tmp_path, parse(), {"type": "filter", "where": "payload LIKE 'a%'"})
    assert found is not None and found.unread == {"unit", "position"}


@pytest.mark.parametrize(
    "step",
    [
        parse(column="message_id"),
        parse(schema="n BIGINT, parts ARRAY<INT>"),
        parse(schema="at TIMESTAMP", timestamp_format="d MMM yyyy"),
        {"type": "filter", "where": "true"},
    ],
)
def test_what_only_spark_can_do(spark: SparkSession, tmp_path: Path, step: dict[str, Any]) -> None:
    assert early(spark, tmp_path, dict(step)) is None


def test_in_another_time_zone_times_are_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    there = spark.newSession()
    there.conf.set("spark.sql.session.timeZone", "Europe/Prague")
    assert early(there, tmp_path, parse()) is None
