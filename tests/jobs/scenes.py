"""A job over a table of results, and what its runs put out."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import yaml
from pyspark.sql import SparkSession

from signoff.jobs.parameters import asked
from signoff.jobs.records import Record, Records
from signoff.jobs.run import JobRun, load_job

BY_STATION = """
SELECT stationId, sum(failures) AS failures, max(CAST(at AS TIMESTAMP)) AS last,
       rank() OVER (ORDER BY sum(failures) DESC) AS place
FROM results WHERE failures >= :least GROUP BY stationId ORDER BY stationId
"""
JOB: dict[str, Any] = {
    "name": "failures",
    "parameters": {"day": "date", "least": {"type": "bigint", "default": 0}},
    "key": ["day"],
    "sources": {
        "results": {
            "type": "table", "path": "./results.db", "table": "results", "where": "day = :day",
            "complete_to": "max(at)",
        }
    },
    "transforms": {
        "by_station": {"type": "sql", "input": "results", "query": BY_STATION},
        "big": {"type": "filter", "input": "by_station", "where": "stationId > 2"},
    },
    "sinks": {
        "day_file": {"type": "files", "input": "by_station", "path": "./out-${day}"},
        "table": {"type": "sqlite", "input": "big", "path": "./out.db", "table": "big"},
    },
}  # fmt: skip


def write_results(path: Path, days: int = 3, stations: int = 5, each: int = 4) -> None:
    """For each day and station some rows; failures are the number of the station."""
    rows = [
        (station, f"2021-05-{day:02d}", station, f"2021-05-{day:02d}T{hour:02d}:00:00Z")
        for day in range(1, days + 1)
        for station in range(1, stations + 1)
        for hour in range(each)
    ]
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE results (stationId INTEGER, day TEXT, failures INTEGER, at TEXT)")
        db.executemany("INSERT INTO results VALUES (?, ?, ?, ?)", rows)
        db.commit()


def write_job(directory: Path, **changes: Any) -> Path:
    file = directory / "job.yaml"
    file.write_text(yaml.safe_dump({**JOB, **changes}, sort_keys=False))
    return file


def job_run(file: Path, spark: SparkSession, given: Mapping[str, object], **options: Any) -> JobRun:
    return JobRun(file, asked(load_job(file), given), spark=spark, **options)


def lines(directory: Path) -> list[dict[str, Any]]:
    files = sorted(file for file in directory.glob("*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def stored(path: Path, table: str = "big") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as db:
        return sorted(db.execute(f"SELECT stationId, failures FROM {table}"))


def records(directory: Path) -> list[Record]:
    with Records(directory / "state", readonly=True) as found:
        return found.newest()
