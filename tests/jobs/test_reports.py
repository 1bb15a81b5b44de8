"""A report of a job with several inputs: queries, tables and what is behind them, in one document."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from signoff.errors import TransientError
from signoff.jobs.check import check
from signoff.jobs.run import load_job
from signoff.sinks.report.sink import ReportSink
from tests.jobs.scenes import JOB, job_run, records, write_job, write_results

pytestmark = pytest.mark.spark
DAY = {"day": "2021-05-02"}
BY_HOUR = """
SELECT substr(at, 12, 2) AS hour, sum(failures) AS failures
FROM results WHERE failures >= :least GROUP BY hour
"""
TRANSFORMS = {**JOB["transforms"], "by_hour": {"type": "sql", "input": "results", "query": BY_HOUR}}
REPORT: dict[str, Any] = {
    "type": "report", "inputs": ["by_station", "by_hour", "big", "results"],
    "path": "./day", "formats": ["json"],
    "title": "{sum(by_hour.failures)} failures at {count(by_station)} stations in {count(by_hour)} hours",
    "content": [{"table": "by_hour", "order_by": ["hour"]}],
}  # fmt: skip
HOURS = [("00", 15), ("01", 15), ("02", 15), ("03", 15)]


def report(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "day.json").read_bytes())
    return found


def column(found: dict[str, Any], name: str, *columns: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[each] for each in columns) for row in found["inputs"][name]["rows"])


def test_a_report_has_the_rows_of_several_queries_each_by_its_own_name(
    tmp_path: Path, spark: SparkSession
) -> None:
    write_results(tmp_path / "results.db")
    file = write_job(tmp_path, transforms=TRANSFORMS, sinks={"report": REPORT})
    assert check(load_job(file), spark)[1] == []
    assert job_run(file, spark, DAY).execute() == 0
    found = report(tmp_path)
    assert found["title"] == "60 failures at 5 stations in 4 hours"
    assert column(found, "by_hour", "hour", "failures") == HOURS
    assert column(found, "by_station", "stationId", "failures") == [
        (station, 4 * station) for station in range(1, 6)
    ]
    assert column(found, "big", "stationId") == [(3,), (4,), (5,)]
    assert len(found["inputs"]["results"]["rows"]) == 20

    # Done again with other values it is another edition of all inputs; without rows, one that says so.
    assert job_run(file, spark, {**DAY, "least": 5}).execute() == 0
    found = report(tmp_path)
    assert column(found, "by_hour", "hour", "failures") == [(hour, 5) for hour, _ in HOURS]
    assert column(found, "by_station", "stationId") == column(found, "big", "stationId") == [(5,)]
    assert job_run(file, spark, {**DAY, "least": 9}).execute() == 0
    assert report(tmp_path)["title"] == "0 failures at 0 stations in 0 hours"


def test_a_run_that_was_cut_off_makes_one_report_of_all_queries(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the rows of one query are with the report, and those of the other are not; and before its end."""
    write_results(tmp_path / "results.db")
    file = write_job(tmp_path, transforms=TRANSFORMS, sinks={"report": REPORT})
    commit = ReportSink.commit

    def without_hours(self: ReportSink, batch: Any, parts: Any) -> None:
        if batch.source == "by_hour":
            raise TransientError("not now")
        commit(self, batch, parts)

    def unfinished(*_: object) -> None:
        raise TransientError("not now")

    for name, broken in (("commit", without_hours), ("finish", unfinished)):
        with monkeypatch.context() as patch:
            patch.setattr(ReportSink, name, broken)
            assert job_run(file, spark, DAY, patience_s=0.0).execute() == 3
        assert not (tmp_path / "day.json").exists()
    assert job_run(file, spark, DAY).execute() == 0
    assert column(report(tmp_path), "by_hour", "hour", "failures") == HOURS
    assert len(column(report(tmp_path), "by_station", "stationId")) == 5
    (record,) = records(tmp_path)
    assert (record.state, record.edition, record.tries) == ("done", 1, 3)


def test_a_column_that_one_of_several_queries_does_not_have_is_said_by_its_name(
    tmp_path: Path, spark: SparkSession
) -> None:
    write_results(tmp_path / "results.db")
    wrong = {**REPORT, "content": [{"text": "{sum(by_hour.place)}"}]}
    file = write_job(tmp_path, transforms=TRANSFORMS, sinks={"report": wrong})
    (problem,) = check(load_job(file), spark)[1]
    assert problem.code == "unresolved-column" and '"by_hour.place"' in problem.message and problem.line
