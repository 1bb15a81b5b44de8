"""The analyses of results: each equal to what pandas computes straight from the alarms."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import openpyxl
import pandas as pd
import pypdfium2
import pytest
import yaml
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from signoff.jobs.parameters import asked
from signoff.jobs.run import JobRun, load_job
from signoff_alarms import analyses, pipeline, reporting
from signoff_alarms.__main__ import app
from signoff_alarms.analyses import Analysis, Home
from signoff_alarms.statistics import p_value
from tests.alarms import expected
from tests.mail_server import MailServer
from tests.servers import PostgresServer

FIRST, SECOND, THIRD, FOURTH = (f"2021-05-0{day}T00:00:00Z" for day in (1, 2, 3, 4))
SIMULATION = {"per_day": 30_000, "stations": 60, "late": 0.05}


@pytest.fixture(scope="module")
def sent() -> pd.DataFrame:
    """A day and a half of alarms of a few noisy stations; a twentieth came too late for their windows."""
    return expected.alarms(45_000, **SIMULATION)


def home_of(directory: Path, *, postgres: bool = False) -> Home:
    places = pipeline.embedded(pipeline.simulated(count=1), "1s", postgres=postgres)
    home = Home(directory / "alarms")
    pipeline.write(pipeline.analysis(places), home.path)
    (home.path / "out").mkdir()
    return home


def document(
    home: Home, name: Analysis, begin: str, end: str, spark: SparkSession, **options: Any
) -> dict[str, Any]:
    period = reporting._period(begin, end)
    (file,) = reporting.make(home, name, period, ["json"], home.path / "told", spark=spark, **options)
    found: dict[str, Any] = json.loads(file.read_text())
    assert list(found) == ["analysis", "from", "to", "complete_to", "rows"]
    assert (found["analysis"], found["from"], found["to"]) == (str(name), begin, end)
    return found


def check(found: dict[str, Any], due: expected.Rows) -> None:
    assert len(found["rows"]) == len(due)
    in_order = sorted(due, key=lambda row: [str(value) for value in row.values()])
    for row, wanted in zip(
        sorted(found["rows"], key=lambda row: [str(value) for value in row.values()]), in_order, strict=True
    ):
        assert list(row) == list(wanted)
        for name, value in wanted.items():
            close = isinstance(value, float)
            assert row[name] == (pytest.approx(value, rel=1e-6, abs=1e-12) if close else value)


@pytest.mark.spark
@pytest.mark.parametrize("name", list(Analysis))
def test_an_analysis_says_what_the_alarms_say(
    name: Analysis, sent: pd.DataFrame, tmp_path: Path, spark: SparkSession
) -> None:
    home = home_of(tmp_path)
    expected.store(sent, home.path / "out" / "results.db")
    due = expected.rows(name, sent, FIRST, SECOND)
    assert len(due) > 5, "there is something to be found"
    found = document(home, name, FIRST, SECOND, spark)
    check(found, due)
    assert found["complete_to"][:10] == "2021-05-02"

    # One station; a day of which nothing is known.
    station = int(expected.of_window(sent, "failed_equipment").stationId.mode()[0])
    only = sent[sent.stationId == station]
    check(
        document(home, name, FIRST, SECOND, spark, station=station), expected.rows(name, only, FIRST, SECOND)
    )
    empty = document(home, name, THIRD, FOURTH, spark)
    assert empty["rows"] == [] and empty["complete_to"] == found["complete_to"]


@pytest.mark.spark
def test_results_that_were_corrected_later_are_in_the_next_report_of_the_day(
    sent: pd.DataFrame, tmp_path: Path, spark: SparkSession
) -> None:
    """The second edition replaces the first, also where windows came and went."""
    home = home_of(tmp_path)
    database = home.path / "out" / "results.db"
    first = sent[sent.index % 3 > 0]
    expected.store(first, database)
    check(
        document(home, Analysis.REPEATED_FAILURES, FIRST, SECOND, spark),
        expected.rows("repeated_failures", first, FIRST, SECOND),
    )
    database.unlink()
    expected.store(sent, database)
    found = document(home, Analysis.REPEATED_FAILURES, FIRST, SECOND, spark)
    check(found, expected.rows("repeated_failures", sent, FIRST, SECOND))


@pytest.mark.spark
def test_a_report_is_a_pdf_and_a_workbook_that_say_it(
    sent: pd.DataFrame, tmp_path: Path, spark: SparkSession
) -> None:
    home = home_of(tmp_path)
    expected.store(sent, home.path / "out" / "results.db")
    period = reporting._period(FIRST, SECOND)
    pdf, xlsx, page = reporting.make(
        home, Analysis.REPEATED_FAILURES, period, ["pdf", "xlsx", "html"], tmp_path / "told", spark=spark
    )
    due = expected.rows("repeated_failures", sent, FIRST, SECOND)
    failures = sum(row["failures"] for row in due)
    said = f"{failures:,} failures of {len(due)} sensors"
    text = " ".join(pypdfium2.PdfDocument(pdf.read_bytes())[0].get_textpage().get_text_bounded().split())
    assert said in text and "What failed most often on a day" in text
    assert said in " ".join(page.read_text().split())
    sheet = openpyxl.load_workbook(xlsx)["Failures by day and sensor"]
    rows = list(sheet.iter_rows(values_only=True))
    assert rows[0] == ("Day", "Station", "Sensor", "Failures", "More than three")
    assert sum(row[3] for row in rows[1:]) == failures


@pytest.mark.spark
@pytest.mark.servers
def test_the_same_is_said_of_results_in_postgresql(
    sent: pd.DataFrame,
    tmp_path: Path,
    spark: SparkSession,
    postgres: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import psycopg

    monkeypatch.setenv(pipeline.POSTGRES, postgres.url)
    home = home_of(tmp_path, postgres=True)
    embedded = home_of(tmp_path / "embedded")
    database = embedded.path / "out" / "results.db"
    expected.store(sent, database)
    home.prepare(postgres.url)
    with psycopg.connect(postgres.url) as connection, closing(sqlite3.connect(database)) as source:
        try:
            for table in ("failed_equipment", "grid_voltage", "battery_low_voltage", "late_alarms"):
                cursor = source.execute(f'SELECT * FROM "{table}"')
                names = [column[0] for column in cursor.description]
                columns, marks = ", ".join(f'"{name}"' for name in names), ", ".join(["%s"] * len(names))
                values = [
                    [
                        bool(value) if name == "isActive" else value
                        for name, value in zip(names, row, strict=True)
                    ]
                    for row in cursor
                ]
                connection.cursor().executemany(f'INSERT INTO "{table}" ({columns}) VALUES ({marks})', values)
            connection.commit()
            for name in (Analysis.REPEATED_FAILURES, Analysis.VOLTAGE_AND_FAILURES):
                found = document(home, name, FIRST, SECOND, spark, postgres=postgres.url)
                check(found, expected.rows(name, sent, FIRST, SECOND))
                assert found["complete_to"][:10] == "2021-05-02"
        finally:
            for table in ("failed_equipment", "grid_voltage", "battery_low_voltage", "late_alarms"):
                connection.execute(f'DROP TABLE IF EXISTS "{table}"')


def report(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["weather", "--from", "2021-05-01", "--to", "2021-05-02"], 2, "'weather' is not one of"),
        (["busy_windows", "--from", "2021-05-02", "--to", "2021-05-02"], 2, "is not before"),
        (["busy_windows", "--from", "yesterday", "--to", "2021-05-02"], 2, '"yesterday" is no time'),
        (["busy_windows", "--from", "0001-01-01T00:00+14:00", "--to", "2021-05-02"], 2, "is no time"),
        (
            ["busy_windows", "--from", "2021-05-01", "--to", "2021-05-02", "--format", "doc"],
            2,
            'no form "doc"',
        ),
        (
            ["busy_windows", "--from", "2021-05-01", "--to", "2021-05-02", "--home", "x"],
            1,
            "x holds no alarms",
        ),
    ],
)
def test_what_cannot_be_reported_is_said(
    arguments: list[str], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = report(*arguments)
    assert done.exit_code == code, done.output
    assert said in " ".join(done.output.replace("│", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_jobs_are_written_to_be_run_every_day(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    sqlite3.connect(home.path / "out" / "results.db").close()
    done = CliRunner().invoke(app, ["jobs", "--home", str(home.path)])
    assert done.exit_code == 0, done.output
    files = [Path(line.removeprefix("signoff jobs schedule ")) for line in done.output.splitlines()]
    assert [file.stem for file in files] == list(Analysis)
    day = (datetime(2021, 5, 2, 6, tzinfo=UTC), datetime(2021, 5, 3, 6, tzinfo=UTC))
    for file in files:
        graph = load_job(file)
        assert graph.settings.schedule is not None and graph.settings.schedule.cron == "0 6 * * *"
        given = {
            name: text.format(start=day[0], end=day[1])
            for name, text in analyses._DAILY["parameters"].items()
        }
        values = asked(graph, given).values
        assert (values["from"], values["to"]) == (day[0].replace(hour=0), day[1].replace(hour=0))
        assert values["out"] == "2021-05-02"


@pytest.mark.spark
@pytest.mark.servers
def test_reports_that_nobody_waits_for_at_a_terminal_are_mailed_if_that_is_wanted(
    sent: pd.DataFrame, tmp_path: Path, spark: SparkSession
) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    home = home_of(tmp_path)
    expected.store(sent, home.path / "out" / "results.db")
    with MailServer(tmp_path) as server:
        fields = {name: value for name, value in server.fields().items() if name != "subject"}
        (tmp_path / "who.yaml").write_text(yaml.safe_dump({"desk": fields}))
        done = CliRunner().invoke(
            app, ["jobs", "--home", str(home.path), "--notify", str(tmp_path / "who.yaml")]
        )
        assert done.exit_code == 0, done.output
        found = document(home, Analysis.BUSY_WINDOWS, FIRST, SECOND, spark)
        assert found["rows"] and not server.mails, "who asks at a terminal has the files"
        job = home.path / "jobs" / "busy_windows.yaml"
        daily = {"from": FIRST, "to": SECOND, "out": "2021-05-01"}
        assert JobRun(job, asked(load_job(job), daily), spark=spark).execute() == 0
        (mail,) = server.mails
        assert str(mail.message["Subject"]) == "Windows with more than five failures, 2021-05-01"
        names = [part.get_filename() for part in mail.message.iter_attachments()]
        assert names == [f"busy_windows.{form}" for form in analyses.forms()]
        assert "Input complete to: 2021-05-02" in mail.text


@pytest.mark.parametrize(
    "text", ["- desk", "desk: [1]", "{}", "desk: {host: x}", "report: {type: console}", "a: ["]
)
def test_who_is_to_be_told_must_be_sinks(text: str, tmp_path: Path) -> None:
    home = home_of(tmp_path)
    sqlite3.connect(home.path / "out" / "results.db").close()
    (tmp_path / "who.yaml").write_text(text)
    done = CliRunner().invoke(app, ["jobs", "--home", str(home.path), "--notify", str(tmp_path / "who.yaml")])
    assert done.exit_code == 1 and "who.yaml" in done.output and not (home.path / "notify.yaml").exists()


def test_a_home_of_another_pipeline_is_said(tmp_path: Path) -> None:
    (tmp_path / "pipeline.yaml").write_text("name: precious")
    done = report("busy_windows", "--from", "2021-05-01", "--to", "2021-05-02", "--home", tmp_path)
    assert done.exit_code == 1 and "it is of another one" in " ".join(done.output.split())


def test_a_home_without_results_is_said(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    done = report("busy_windows", "--from", "2021-05-01", "--to", "2021-05-02", "--home", home.path)
    assert done.exit_code == 1 and "has no results yet" in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("t", "freedom", "both_tails"),
    [(2.228, 10, 0.05), (12.706, 1, 0.05), (1.96, 1_000_000, 0.05), (3.169, 10, 0.01), (4.587, 10, 0.001)],
)
def test_p_values_are_those_of_tables(t: float, freedom: int, both_tails: float) -> None:
    r = t / (freedom + t * t) ** 0.5
    assert p_value(r, freedom + 2) == pytest.approx(both_tails, rel=2e-3)
    assert p_value(r, freedom + 2) == pytest.approx(expected.p_value(r, freedom + 2), rel=1e-6)
    assert p_value(-r, freedom + 2) == p_value(r, freedom + 2)


def test_p_values_at_the_ends() -> None:
    assert p_value(None, 100) is None and p_value(0.5, 2) is None
    assert p_value(0.0, 100) == 1.0 and p_value(1.0, 100) == 0.0
    assert p_value(0.9, 1_000_000) == pytest.approx(0.0, abs=1e-200)
