"""docs/jobs.md: its first job, run for two days as it is."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.jobs.scenes import job_run, lines

PAGE = Path(__file__).parents[2] / "docs" / "jobs.md"


@pytest.mark.spark
def test_job_of_the_docs_keeps_its_days_apart_in_the_table(tmp_path: Path, spark: SparkSession) -> None:
    shown = re.search(r"^```yaml\n(name: failures\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    (tmp_path / "job.yaml").write_text(shown[1])
    with closing(sqlite3.connect(tmp_path / "results.db")) as db:
        db.execute("CREATE TABLE windows (stationId INTEGER, day TEXT, failures INTEGER, windowEnd TEXT)")
        rows = [(1, "2021-05-01", 4), (2, "2021-05-01", 6), (1, "2021-05-02", 5)]
        db.executemany("INSERT INTO windows VALUES (?, ?, ?, '2021-05-03T00:00:00Z')", rows)
        db.commit()
    for day in ("2021-05-01", "2021-05-02"):
        assert job_run(tmp_path / "job.yaml", spark, {"day": day}).execute() == 0
    with closing(sqlite3.connect(tmp_path / "reports.db")) as db:
        found = db.execute("SELECT day, stationId, total, place FROM failures ORDER BY day, place")
        assert found.fetchall() == [
            ("2021-05-01", 2, 6, 1), ("2021-05-01", 1, 4, 2), ("2021-05-02", 1, 5, 1),
        ]  # fmt: skip
    assert [row["stationId"] for row in lines(tmp_path / "reports/2021-05-02")] == [1]
