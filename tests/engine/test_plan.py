"""The plan Spark makes of a pipeline: what it must not do to us behind our back."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from signoff.engine.compile import compile_source
from signoff.log import LogWriter
from signoff.log.spark import read_range
from signoff.pipeline.builder import Pipeline
from signoff.pipeline.model import LogSettings

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
    LogWriter(tmp_path / "log", LogSettings()).close()
    rows = read_range(spark, tmp_path / "log", 0, 0, encoding="utf-8")

    plan = compile_source(pipeline.graph(), "incoming", rows, streaming=False)

    assert plan is not None
    made = plan.df._jdf.queryExecution().executedPlan().toString()
    assert made.count(f"from_{kind}(") == 1, made
