"""Runs of jobs over real tables, on the tests' own Spark session."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from signoff.cli import app
from signoff.errors import PipelineError, TransientError
from signoff.jobs import children, compute, deliver, owners, run
from signoff.jobs.records import Records
from signoff.sinks.contract import RunRef
from signoff.sinks.sqlite import SqliteSink
from tests.jobs.scenes import JOB, job_run, lines, records, stored, write_job, write_results
from tests.servers import PostgresServer

pytestmark = pytest.mark.spark


def test_a_run_reads_tables_runs_queries_and_records_what_it_did(tmp_path: Path, spark: SparkSession) -> None:
    write_results(tmp_path / "results.db")
    run = job_run(write_job(tmp_path), spark, {"day": "2021-05-02"})
    assert run.execute() == 0
    rows = lines(tmp_path / "out-2021-05-02")
    assert [(row["stationId"], row["failures"], row["place"]) for row in rows] == [
        (1, 4, 5), (2, 8, 4), (3, 12, 3), (4, 16, 2), (5, 20, 1),
    ]  # fmt: skip
    assert rows[0]["event_id"] == "by_station/0" and rows[0]["last"] == "2021-05-02T03:00:00Z"
    assert stored(tmp_path / "out.db") == [(3, 12), (4, 16), (5, 20)]
    (record,) = records(tmp_path)
    assert (record.id, record.state, record.tries) == ("failures@day=2021-05-02#1", "done", 1)
    assert record.inputs == {"results": {"rows": 20, "complete_to": "2021-05-03T03:00:00Z"}}
    assert record.complete_to == "2021-05-03T03:00:00Z"
    assert record.outputs["by_station"].rows == 5 and record.outcome["delivered"] == 5

    # Another day stays beside it; the same day again, with more rows dropped, takes its own place.
    assert job_run(write_job(tmp_path), spark, {"day": "2021-05-01"}).execute() == 0
    assert job_run(write_job(tmp_path), spark, {"day": "2021-05-02", "least": 4}).execute() == 0
    again = lines(tmp_path / "out-2021-05-02")
    assert [(row["stationId"], row["place"]) for row in again] == [(4, 2), (5, 1)]
    assert len(lines(tmp_path / "out-2021-05-01")) == 5
    assert stored(tmp_path / "out.db") == [(3, 12), (4, 16), (4, 16), (5, 20), (5, 20)]
    assert [record.edition for record in records(tmp_path) if "05-02" in record.key] == [2, 1]


def test_what_interrupts_a_run_anywhere_leaves_one_result(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just before each record: files are written, rows are in the log, the sinks have finished."""
    write_results(tmp_path / "results.db")
    file = write_job(tmp_path)
    change, left = Records.change, ["computed", "appending", "delivering", "done"]

    def cut_off(self: Records, record: Any, **fields: Any) -> Any:
        if left and fields.get("state") == left[0]:
            del left[0]
            raise KeyboardInterrupt
        return change(self, record, **fields)

    monkeypatch.setattr(Records, "change", cut_off)
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            job_run(file, spark, {"day": "2021-05-02"}).execute()
    assert not left
    assert job_run(file, spark, {"day": "2021-05-02"}).execute() == 0
    assert [row["event_id"] for row in lines(tmp_path / "out-2021-05-02")] == [
        f"by_station/{n}" for n in range(5)
    ]
    assert stored(tmp_path / "out.db") == [(3, 12), (4, 16), (5, 20)]
    (record,) = records(tmp_path)
    assert (record.edition, record.tries, record.state) == (1, 5, "done")

    # Who asks once, and asks again because he was not told that it is done, starts nothing.
    for _ in range(2):
        assert job_run(file, spark, {"day": "2021-05-02"}, asked_by="schedule a").execute() == 0
    assert [record.edition for record in records(tmp_path)] == [2, 1]


def test_what_a_run_left_is_delivered_with_its_own_parameters(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_results(tmp_path / "results.db")
    file = write_job(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(deliver.JobDelivery, "_settle", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            job_run(file, spark, {"day": "2021-05-02"}).execute()
    assert job_run(file, spark, {"day": "2021-05-03"}).execute() == 0
    assert len(lines(tmp_path / "out-2021-05-02")) == len(lines(tmp_path / "out-2021-05-03")) == 5
    assert {record.state for record in records(tmp_path)} == {"done"}


def test_who_asks_because_of_new_data_does_not_get_what_a_run_left_that_has_not_seen_it(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_results(tmp_path / "results.db")
    file = write_job(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(deliver.JobDelivery, "_settle", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            job_run(file, spark, {"day": "2021-05-02"}).execute()
    with closing(sqlite3.connect(tmp_path / "results.db")) as db:
        db.execute("INSERT INTO results VALUES (6, '2021-05-02', 6, '2021-05-02T12:00:00Z')")
        db.commit()
    assert job_run(file, spark, {"day": "2021-05-02"}, asked_by="alert 1").execute() == 0
    assert len(lines(tmp_path / "out-2021-05-02")) == 6
    found = [(record.edition, record.state, record.asked_by) for record in records(tmp_path)]
    assert found == [(2, "done", "alert 1"), (1, "done", "person")]


def test_a_run_is_not_done_before_every_sink_has_finished(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_results(tmp_path / "results.db")
    told: list[RunRef] = []

    def finish(self: SqliteSink, run: RunRef) -> None:
        told.append(run)
        raise TransientError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(SqliteSink, "finish", finish)
        assert job_run(write_job(tmp_path), spark, {"day": "2021-05-02"}, patience_s=0.0).execute() == 3
    (record,) = records(tmp_path)
    assert record.state == "delivering" and "has not finished: not now" in record.reason
    assert told[0].ranges == {"by_station": (0, 5)} and told[0].id == "failures@day=2021-05-02#1"
    assert job_run(write_job(tmp_path), spark, {"day": "2021-05-02"}).execute() == 0
    assert records(tmp_path)[0].state == "done" and records(tmp_path)[0].tries == 2


def test_a_run_that_cannot_compute_fails_and_says_why(tmp_path: Path, spark: SparkSession) -> None:
    file = write_job(tmp_path)
    assert job_run(file, spark, {"day": "2021-05-02"}).execute() == 1
    assert "there is no file" in records(tmp_path)[0].reason
    write_results(tmp_path / "results.db")
    with closing(sqlite3.connect(tmp_path / "results.db")) as db:
        db.execute("UPDATE results SET at = 'soon' WHERE stationId = 3")
        db.commit()
    assert job_run(file, spark, {"day": "2021-05-02"}).execute() == 1
    (record,) = records(tmp_path)
    assert (record.state, record.tries) == ("failed", 2) and "'soon'" in record.reason
    assert not (tmp_path / "out-2021-05-02").exists()


def test_a_run_whose_table_is_not_complete_as_far_as_it_is_needed_computes_nothing(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = {**JOB["sources"]["results"], "needed_to": "upto"}
    parameters = {**JOB["parameters"], "upto": {"type": "timestamp", "default": None}}
    file = write_job(tmp_path, sources={"results": table}, parameters=parameters)
    write_results(tmp_path / "results.db")  # to the third day, three o'clock
    late = {"day": "2021-05-02", "upto": "2021-05-03T03:00:01Z"}
    assert job_run(file, spark, late).execute() == run.INCOMPLETE
    (record,) = records(tmp_path)
    assert record.state == "failed" and record.reason == (
        '"results" is complete to 2021-05-03T03:00:00+00:00, and is needed to 2021-05-03T03:00:01+00:00'
    )
    assert not (tmp_path / "out-2021-05-02").exists()
    assert job_run(file, spark, {**late, "upto": "2021-05-03T03:00:00Z"}).execute() == 0
    (record,) = records(tmp_path)
    assert (record.state, record.tries) == ("done", 2)
    assert job_run(file, spark, {"day": "2021-05-02"}).execute() == 0, "nothing is needed"
    with closing(sqlite3.connect(tmp_path / "results.db")) as db:
        db.execute("DELETE FROM results")
        db.commit()
    assert job_run(file, spark, late).execute() == run.INCOMPLETE
    assert "is empty" in records(tmp_path)[0].reason


PARQUET = {"type": "table", "path": "./archive", "where": "value >= :least", "complete_to": "max(value)"}
SELECTED = {
    "twice": {
        "type": "sql",
        "inputs": ["archive", "names"],
        "query": "SELECT a.value, b.value AS other, n.name, a.day FROM archive a JOIN archive b "
        "ON a.value = b.value + 1 JOIN names n ON n.value = a.value ORDER BY a.value",
    }
}


def test_parquet_directories_and_several_tables_meet_in_a_query(tmp_path: Path, spark: SparkSession) -> None:
    for day in (1, 2):
        directory = tmp_path / "archive" / f"day={day}"
        directory.mkdir(parents=True)
        values = pa.array(range(day * 10, day * 10 + 10), pa.int64())
        pq.write_table(pa.table({"value": values}), directory / "a.parquet")
    (tmp_path / "archive" / ".parts").mkdir()
    (tmp_path / "archive" / ".parts" / "half.parquet").write_bytes(b"half of a file")
    with closing(sqlite3.connect(tmp_path / "names.db")) as db:
        db.execute("CREATE TABLE names (value INTEGER, name TEXT)")
        db.executemany("INSERT INTO names VALUES (?, ?)", [(n, f"name {n}") for n in range(40)])
        db.commit()
    names = {"type": "table", "path": "./names.db", "table": "names"}
    sinks = {"out": {"type": "files", "input": "twice", "path": "./out"}}
    sources = {"archive": PARQUET, "names": names}
    file = write_job(
        tmp_path, parameters={"least": "bigint"}, key=[], sources=sources, transforms=SELECTED, sinks=sinks
    )
    assert job_run(file, spark, {"least": 15}).execute() == 0
    rows = lines(tmp_path / "out")
    assert [(row["value"], row["other"], row["name"]) for row in rows] == [
        (n, n - 1, f"name {n}") for n in range(16, 30)
    ]
    assert {row["day"] for row in rows} == {1, 2}
    (record,) = records(tmp_path)
    assert (
        record.inputs["archive"] == {"rows": 15, "complete_to": "29"} and record.inputs["names"]["rows"] == 40
    )


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_a_parquet_file_that_is_written_to_while_it_is_read_fails_the_run(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    """As pandas does it: in its place, so that a hard link shows it as well."""
    (tmp_path / "archive").mkdir()
    file = tmp_path / "archive" / "a.parquet"
    pq.write_table(pa.table({"value": pa.array(range(20), pa.int64())}), file)
    query = {"type": "sql", "input": "archive", "query": "SELECT value FROM archive"}
    job = write_job(
        tmp_path, parameters={}, key=[], sources={"archive": {"type": "table", "path": "./archive"}},
        transforms={"all": query}, sinks={"out": {"type": "files", "input": "all", "path": "./out"}},
    )  # fmt: skip
    if not links:
        monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError("another disk")))
    written = compute._written

    def meanwhile(*given: Any) -> Any:
        found = written(*given)
        pq.write_table(pa.table({"value": pa.array(range(50), pa.int64())}), file)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(compute, "_written", meanwhile)
        assert job_run(job, spark, {}).execute() == 1
    (record,) = records(tmp_path)
    assert record.state == "failed" and "a.parquet was changed while it was read" in record.reason
    assert job_run(job, spark, {}).execute() == 0
    assert len(lines(tmp_path / "out")) == 50


def archive_job(directory: Path, **fields: Any) -> Path:
    """Hands on all rows of the Parquet files in `archive`."""
    table = {"type": "table", "path": "./archive", **fields}
    out = {"type": "files", "input": "archive", "path": "./out"}
    return write_job(
        directory, parameters={}, key=[], sources={"archive": table}, transforms={}, sinks={"out": out}
    )


def write_archive(directory: Path, **values: list[Any]) -> None:
    for name, column in values.items():
        file = directory / "archive" / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"value": column}), file)


def test_every_row_of_every_parquet_file_is_read_once_whatever_it_is_called(
    tmp_path: Path, spark: SparkSession
) -> None:
    """A path with signs of a pattern, and links: relative, to a directory, and to one that they are in."""
    project = tmp_path / "project [1]"
    write_archive(project, **{"a[1]": [1], "a1": [2], "b?": [3], "bc": [4], "x{1}": [5]})
    write_archive(tmp_path / "one", file=[6])
    write_archive(tmp_path / "two", file=[7])
    for name, target in (("link.parquet", "one/archive/file.parquet"), ("links", "two/archive")):
        (project / "archive" / name).symlink_to(f"../../{target}")
    (project / "archive" / "again").symlink_to(".")
    assert job_run(archive_job(project), spark, {}).execute() == 0
    assert sorted(row["value"] for row in lines(project / "out")) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(
    ("files", "fields", "said"),
    [
        ({"a": [1]}, {"where": "nothing = 1"}, "`nothing` cannot be resolved"),
        ({"a": ["soon"]}, {"complete_to": "max(CAST(value AS INT))"}, "'soon'"),
        ({"a": [1]}, {"columns": ["nothing"]}, "`nothing` cannot be resolved"),
        ({"a": [1]}, {"schema": "value NOTHING"}, "has a schema that is none"),
        ({"a": [1], "b": ["x"]}, {}, "Failed merging schemas"),
        ({"a": [1], "b": ["x"]}, {"schema": "value BIGINT"}, "b.parquet"),
        ({"a": [1], "b": None}, {"schema": "value BIGINT"}, "b.parquet is empty"),
        ({"day=1/a": [1], "b": [2]}, {}, "b.parquet is not in those that day=1/a.parquet is in"),
        ({"a": [1]}, {"path": "./archive/a.parquet", "schema": "value BIGINT"}, "is no directory"),
    ],
)
def test_a_parquet_table_that_cannot_be_read_as_a_whole_fails_the_run_and_says_why(
    tmp_path: Path, spark: SparkSession, files: dict[str, Any], fields: dict[str, Any], said: str
) -> None:
    for name, values in files.items():
        write_archive(tmp_path, **{name: values or []})
        if values is None:
            (tmp_path / "archive" / f"{name}.parquet").write_bytes(b"")
    assert job_run(archive_job(tmp_path, **fields), spark, {}).execute() == 1
    (record,) = records(tmp_path)
    assert record.state == "failed" and said in record.reason
    assert not (tmp_path / "out").exists()


def test_a_column_that_a_table_of_sqlite_has_not_any_more_is_no_text(
    tmp_path: Path, spark: SparkSession
) -> None:
    """SQLite takes a quoted name that is no column for a text."""
    write_results(tmp_path / "results.db")
    schema = "stationId STRING, failures BIGINT, at STRING"
    file = write_job(tmp_path, sources={"results": {**JOB["sources"]["results"], "schema": schema}})
    with closing(sqlite3.connect(tmp_path / "results.db")) as db:
        db.execute("ALTER TABLE results RENAME COLUMN stationId TO station")
        db.commit()
    assert job_run(file, spark, {"day": "2021-05-02"}).execute() == 1
    assert "no such column: results.stationId" in records(tmp_path)[0].reason


def test_a_name_that_the_disk_does_not_take_fails_its_run_and_no_other(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Of 248 letters: with what the sink adds to it, too long. It does not wait for a disk that takes it."""
    write_results(tmp_path / "results.db")
    report = {"type": "report", "input": "big", "path": "./${name}", "title": "t", "formats": ["json"]}
    name = {"type": "string", "default": "short"}
    file = write_job(tmp_path, parameters={**JOB["parameters"], "name": name}, sinks={"report": report})
    first = job_run(file, spark, {"day": "2021-05-02", "name": "a" * 248}, patience_s=1.0)
    assert first.execute() == 3
    (record,) = records(tmp_path)
    assert record.state == "failed" and "File name too long" in record.reason
    assert job_run(file, spark, {"day": "2021-05-03"}, patience_s=5.0).execute() == 0
    assert (tmp_path / "short.json").exists()


def test_two_jobs_with_a_query_of_the_same_name_do_not_share_a_table(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Their rows would have the same ids, and the later run would remove those of the other."""
    write_results(tmp_path / "results.db")
    assert job_run(write_job(tmp_path), spark, {"day": "2021-05-02"}).execute() == 0
    other = {"name": "others", "state": "./others", "sinks": {"table": JOB["sinks"]["table"]}}
    again = job_run(write_job(tmp_path, **other), spark, {"day": "2021-05-03"})
    assert again.execute() == 1 and again.record is not None
    assert 'rows of a query "by_station" of the job "failures"' in again.record.reason
    assert again.record.state == "failed" and not again.record.inputs, "it has computed before it was refused"
    assert stored(tmp_path / "out.db") == [(3, 12), (4, 16), (5, 20)]
    steps = JOB["transforms"]
    renamed = {"theirs": steps["by_station"], "big": {**steps["big"], "input": "theirs"}}
    file = write_job(tmp_path, **other, transforms=renamed)
    assert job_run(file, spark, {"day": "2021-05-03"}).execute() == 0
    assert stored(tmp_path / "out.db") == [(3, 12), (3, 12), (4, 16), (4, 16), (5, 20), (5, 20)]

    # The first job is gone for good, with its rows: what the message says gives the place to the other one.
    with closing(sqlite3.connect(tmp_path / "out.db")) as db:
        db.execute("DELETE FROM big WHERE event_id LIKE 'by\\_station/%' ESCAPE '\\'")
        db.execute(again.record.reason.partition("give the place back: ")[2])
        db.commit()
    assert job_run(write_job(tmp_path, **other), spark, {"day": "2021-05-03"}).execute() == 0
    assert stored(tmp_path / "out.db") == [(3, 12), (4, 16), (5, 20)]


def test_a_run_that_is_refused_computes_nothing_and_takes_no_place(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_results(tmp_path / "results.db")
    report = {"type": "report", "input": "by_station", "path": "./out/day", "title": "{sum(by_station.loss)}"}
    wrong = {"sinks": {**JOB["sinks"], "report": report}}
    made = {"job.yaml", "results.db", "results.db-shm", "results.db-wal", "state"}
    with pytest.raises(PipelineError, match=r"by_station\.loss"):
        job_run(write_job(tmp_path, **wrong), spark, {"day": "2021-05-02"}, patience_s=0.0).execute()
    (record,) = records(tmp_path)
    assert (record.state, record.outputs) == ("failed", {}) and "by_station.loss" in record.reason
    assert {path.name for path in tmp_path.iterdir()} <= made

    # Nor does one that was computed when the job was right, and goes on when it is wrong; nor one of no rows.
    with monkeypatch.context() as patch:
        patch.setattr(owners, "claim", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            job_run(write_job(tmp_path), spark, {"day": "2021-05-02"}).execute()
    with pytest.raises(PipelineError, match=r"by_station\.loss"):
        job_run(write_job(tmp_path, **wrong), spark, {"day": "2021-05-02"}, patience_s=0.0).execute()
    assert records(tmp_path)[0].state == "computed" and {path.name for path in tmp_path.iterdir()} <= made
    assert job_run(write_job(tmp_path), spark, {"day": "2021-05-02", "least": 9}).execute() == 0
    other = {"name": "others", "state": "./others", "sinks": {"table": JOB["sinks"]["table"]}}
    assert job_run(write_job(tmp_path, **other), spark, {"day": "2021-05-03"}).execute() == 0
    assert stored(tmp_path / "out.db") == [(3, 12), (4, 16), (5, 20)]


def test_a_report_that_has_not_all_rows_says_so(tmp_path: Path, spark: SparkSession) -> None:
    write_results(tmp_path / "results.db")
    strict = {"type": "validate", "input": "by_station", "rules": {"few": "failures < 20"}}
    report = {"type": "report", "path": "./day", "title": "A day", "formats": ["json"], "max_rows": 2}
    file = write_job(
        tmp_path,
        transforms={"by_station": JOB["transforms"]["by_station"], "strict": strict},
        sinks={"report": {**report, "input": "strict"}, "all": {"type": "console", "input": "by_station"}},
    )
    assert job_run(file, spark, {"day": "2021-05-02"}).execute() == 0
    said = json.loads((tmp_path / "day.json").read_bytes())["about"]["Not included"]
    assert said.startswith("3 rows could not be included: ") and "max_rows is 2" in said and "few" in said
    result = CliRunner().invoke(app, ["jobs", "show", str(file), "failures@day=2021-05-02"])
    assert f"missing      report: {said}" in result.output and "missing      all" not in result.output
    shown = CliRunner().invoke(app, ["jobs", "show", str(file), "failures@day=2021-05-02", "--json"])
    missing = json.loads(shown.output)["missing"]
    assert sum(each["rows"] for each in missing["report"]) == 3 and list(missing) == ["report"]


def test_a_day_without_rows_is_a_run_as_well(tmp_path: Path, spark: SparkSession) -> None:
    write_results(tmp_path / "results.db")
    assert job_run(write_job(tmp_path), spark, {"day": "2021-06-01"}).execute() == 0
    (record,) = records(tmp_path)
    assert (record.state, record.inputs["results"]["rows"], record.outputs["by_station"].rows) == (
        "done",
        0,
        0,
    )


def test_values_are_never_part_of_the_text_of_a_query(tmp_path: Path, spark: SparkSession) -> None:
    write_results(tmp_path / "results.db")
    query = "SELECT :who AS who, CAST(:at AS STRING) AS at, :none AS nothing, count(*) AS n FROM results"
    source = {**JOB["sources"]["results"], "where": "day != :who"}
    file = write_job(
        tmp_path,
        parameters={"who": "string", "at": "timestamp", "none": {"type": "bigint", "default": None}},
        key=["who"],
        sources={"results": source},
        transforms={"q": {"type": "sql", "input": "results", "query": query}},
        sinks={"out": {"type": "files", "input": "q", "path": "./out"}},
    )
    hostile = "x' OR '1'='1"
    assert job_run(file, spark, {"who": hostile, "at": "2021-05-01T10:00:00Z"}).execute() == 0
    (row,) = lines(tmp_path / "out")
    assert (row["who"], row["at"], row["nothing"], row["n"]) == (hostile, "2021-05-01 10:00:00", None, 60)


def test_postgres_is_read_in_parts_of_one_snapshot(
    tmp_path: Path, spark: SparkSession, postgres: PostgresServer
) -> None:
    """Rows that others add, change and remove while the tasks read are seen by all of them or by none."""
    with psycopg.connect(postgres.url, autocommit=True) as db:
        db.execute("DROP TABLE IF EXISTS job_results")
        db.execute(
            "CREATE TABLE job_results (n bigint PRIMARY KEY, text text, amount numeric(12, 3), "
            "at timestamptz, day date, good boolean, raw bytea, many jsonb)"
        )
        db.execute(
            "INSERT INTO job_results SELECT i, "
            "CASE i % 3 WHEN 0 THEN NULL WHEN 1 THEN '' ELSE E'a \"b\"\\n,' END, "
            "i / 8.0, timestamptz '2021-05-01 10:00:00.000001+00' + i * interval '1 second', '2021-05-01', "
            "i % 2 = 0, '\\x00ff', '{\"a\": 1}' FROM generate_series(1, 20000) i"
        )
        source = {
            "type": "table", "url": postgres.url, "table": "job_results", "partitions": 4,
            "where": "n > :least AND text IS DISTINCT FROM '100%:x'::text", "complete_to": "max(at)",
        }  # fmt: skip
        query = "SELECT * FROM results WHERE n <= :least + 3 ORDER BY n"
        total = "SELECT count(*) AS rows, sum(n) AS total FROM results"
        file = write_job(
            tmp_path,
            parameters={"least": "bigint"},
            key=[],
            sources={"results": source},
            transforms={
                "first": {"type": "sql", "input": "results", "query": query},
                "sums": {"type": "sql", "input": "results", "query": total},
            },
            sinks={
                "first_file": {"type": "files", "input": "first", "path": "./first"},
                "sums_file": {"type": "files", "input": "sums", "path": "./sums"},
            },
        )
        run = job_run(file, spark, {"least": 10})
        # Between the first query and the second, everything is changed.
        run.on_tick = lambda what, done, all_: done and db.execute("UPDATE job_results SET n = n + 100000")  # type: ignore[assignment]
        assert run.execute() == 0
    one, two, three = lines(tmp_path / "first")
    assert (one["n"], one["text"], one["amount"], one["at"]) == (
        11,
        'a "b"\n,',
        1.375,
        "2021-05-01T10:00:11.000001Z",
    )
    assert (two["text"], three["text"]) == (None, "")
    assert (one["good"], one["day"], one["raw"], one["many"]) == (False, "2021-05-01", "AP8=", '{"a": 1}')
    assert lines(tmp_path / "sums")[0] == {
        "event_id": "sums/0",
        "rows": 19990,
        "total": sum(range(11, 20001)),
    }
    (record,) = records(tmp_path)
    assert record.inputs["results"] == {"rows": 19990, "complete_to": "2021-05-01 15:33:20.000001+00"}


KILLED = """
import os, signal, sys
from signoff.jobs.records import Records
change = Records.change
def killed(self, record, **fields):
    if fields.get("state") == sys.argv[2]:
        os.kill(os.getpid(), signal.SIGKILL)
    return change(self, record, **fields)
Records.change = killed
from signoff.cli import app
app(["jobs", "run", sys.argv[1], "-p", "day=2021-05-02"])
"""


@pytest.mark.crash
def test_a_kill_between_the_last_write_and_the_record_leaves_one_result(
    tmp_path: Path, spark: SparkSession
) -> None:
    write_results(tmp_path / "results.db")
    file = write_job(tmp_path)
    command = [sys.executable, "-c", KILLED, str(file), "done"]
    assert subprocess.run(command, timeout=300, check=False).returncode == -signal.SIGKILL
    assert records(tmp_path)[0].state == "delivering" and len(lines(tmp_path / "out-2021-05-02")) == 5
    assert job_run(file, spark, {"day": "2021-05-02"}, waits=True).execute() == 0
    assert [row["event_id"] for row in lines(tmp_path / "out-2021-05-02")] == [
        f"by_station/{n}" for n in range(5)
    ]
    assert stored(tmp_path / "out.db") == [(3, 12), (4, 16), (5, 20)]
    (record,) = records(tmp_path)
    assert (record.edition, record.state, record.tries) == (1, "done", 2)


JAVA_KILLED = """
import os, signal, sys
from pyspark import SparkContext
from signoff.jobs import {module}
do = {module}.{what}
def killed(*given, **named):
    os.kill(SparkContext._gateway.proc.pid, signal.SIGKILL)
    return do(*given, **named)
{module}.{what} = killed
from signoff.cli import app
app(["jobs", "run", sys.argv[1], "-p", "day=2021-05-02"])
"""


@pytest.mark.crash
@pytest.mark.parametrize(("module", "what"), [("compute", "queries"), ("deliver", "DeliveryEngine")])
def test_a_run_whose_java_is_killed_says_that_it_was_killed_and_goes_on(
    tmp_path: Path, spark: SparkSession, module: str, what: str
) -> None:
    """So that whoever asked for it takes it for no try that failed."""
    write_results(tmp_path / "results.db")
    file = write_job(tmp_path)
    script = JAVA_KILLED.format(module=module, what=what)
    done = subprocess.run([sys.executable, "-c", script, str(file)], timeout=300, check=False)
    assert done.returncode == children.KILLED
    assert job_run(file, spark, {"day": "2021-05-02"}, waits=True).execute() == 0
    (record,) = records(tmp_path)
    assert (record.edition, record.state, record.tries) == (1, "done", 2)
    assert len(lines(tmp_path / "out-2021-05-02")) == 5


def test_a_run_that_another_process_finishes_first_is_done(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits to deliver what a kill has left; a run with another key goes first, and finds that too."""
    write_results(tmp_path / "results.db")
    file = write_job(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("signoff.jobs.deliver.append", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            job_run(file, spark, {"day": "2021-05-02"}).execute()
    lock, other = run.delivery_lock, [job_run(file, spark, {"day": "2021-05-03"})]

    def later(*arguments: Any) -> Any:
        if other:
            assert other.pop().execute() == 0
        return lock(*arguments)

    monkeypatch.setattr(run, "delivery_lock", later)
    assert job_run(file, spark, {"day": "2021-05-02"}).execute() == 0
    assert len(lines(tmp_path / "out-2021-05-02")) == len(lines(tmp_path / "out-2021-05-03")) == 5
    assert {record.state for record in records(tmp_path)} == {"done"}
    assert len(records(tmp_path)) == 2
