"""Critical alerts start analyses of their station: they are settled when the reports are there."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from signoff_alarms import pipeline
from tests.alarms import expected
from tests.servers import wait_until

pytestmark = pytest.mark.spark

JOBS = ("repeated_failures", "voltage_and_failures")
FIRST, SECOND = "2021-05-01T00:00:00Z", "2021-05-02T00:00:00Z"


def told(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    # What a run of these tests says of its Spark is not for processes that have one of their own.
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SIGNOFF_ALARMS")}
    return subprocess.run(
        [sys.executable, "-m", *map(str, arguments)], capture_output=True, text=True, timeout=500, env=environ
    )


@pytest.mark.case(48)
def test_critical_alerts_are_settled_by_the_reports_of_their_station_and_day(tmp_path: Path) -> None:
    """Three alerts of one station and day, one of them twice, and one of another station: two runs of each
    analysis, each of its station alone."""
    sent = expected.alarms(20_000, per_day=15_000, stations=30)
    home = tmp_path / "alarms"
    pipeline.write(pipeline.analysis(pipeline.embedded(pipeline.simulated(count=1), "1s")), home)
    (home / "out" / "critical.alerts.queue").mkdir(parents=True)
    expected.store(sent, home / "out" / "results.db")
    noisy, other = sent[sent.alarmId == 303].stationId.value_counts().index[:2]
    alerts = [alert(int(noisy), n) for n in (6, 7, 8, 8)] + [alert(int(other), 6)]
    lines = "".join(f"{json.dumps(each)}\n" for each in alerts)
    (home / "out" / "critical.alerts.queue" / "a.jsonl").write_text(lines)

    done = told("signoff_alarms", "react", "--home", home, "--once")
    assert done.returncode == 0, done.stderr
    for station in (noisy, other):
        found = rows(home, int(station), "repeated_failures")
        due = expected.rows("repeated_failures", sent[sent.stationId == station], FIRST, SECOND)
        assert due and sorted(map(str, found)) == sorted(map(str, due))
        assert len(rows(home, int(station), "voltage_and_failures")) == 14
    for job in JOBS:
        listed = told("signoff.cli", "jobs", "list", home / "jobs" / f"{job}.yaml", "--json")
        runs = json.loads(listed.stdout)
        assert [run["state"] for run in runs] == ["done", "done"], "one for each station"
        assert {run["parameters"]["station"] for run in runs} == {int(noisy), int(other)}
    audit = told("signoff.cli", "audit", home / "critical" / "pipeline.yaml")
    assert "received=5 delivered=5 " in audit.stdout and "in_flight=0" in audit.stdout, audit.stdout


@pytest.mark.case(48)
def test_an_alert_is_not_settled_by_a_report_that_lacks_its_failures(tmp_path: Path) -> None:
    """The alert is raised before the windows of its failures are closed, or while their table is down."""
    sent = expected.alarms(20_000, per_day=15_000, stations=30)
    home = tmp_path / "alarms"
    pipeline.write(pipeline.analysis(pipeline.embedded(pipeline.simulated(count=1), "1s")), home)
    (home / "out" / "critical.alerts.queue").mkdir(parents=True)
    database = home / "out" / "results.db"
    expected.store(sent, database)
    later = moved(database, "DELETE FROM failed_equipment WHERE windowEnd > '2021-05-01T06:30'")
    station = int(sent[sent.alarmId == 303].stationId.value_counts().index[0])
    raised = {
        **alert(station, 5),
        "windowStart": "2021-04-30 23:50:00 UTC",
        "windowEnd": "2021-05-01 06:31:00 UTC",
    }
    (home / "out" / "critical.alerts.queue" / "a.jsonl").write_text(json.dumps(raised) + "\n")
    command = [sys.executable, "-m", "signoff_alarms", "react", "--home", str(home), "--once"]
    reacting = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: all("is needed to" in reason(home, job) for job in JOBS), 200)
        assert "delivered=0 " in told("signoff.cli", "audit", home / "critical" / "pipeline.yaml").stdout
        assert not (home / "reports").exists()
        with closing(sqlite3.connect(database)) as connection:
            marks = ", ".join("?" * len(later[0]))
            connection.executemany(f"INSERT INTO failed_equipment VALUES ({marks})", later)
            connection.commit()
        assert reacting.wait(300) == 0
    finally:
        reacting.kill()
        reacting.wait()
    found = rows(home, station, "repeated_failures", "2021-04-30")  # of both days of the burst
    due = expected.rows("repeated_failures", sent[sent.stationId == station], "2021-04-30T00:00:00Z", SECOND)
    assert due and sorted(map(str, found)) == sorted(map(str, due))
    audit = told("signoff.cli", "audit", home / "critical" / "pipeline.yaml")
    assert "received=1 delivered=1 " in audit.stdout, audit.stdout


def moved(database: Path, statement: str) -> list[tuple[Any, ...]]:
    """What a statement takes out of a table."""
    with closing(sqlite3.connect(database)) as connection:
        rows = connection.execute(f"{statement} RETURNING *").fetchall()
        connection.commit()
    assert rows
    return rows


def reason(home: Path, job: str) -> str:
    """Why the last run of a job has failed."""
    file = home / "jobs" / f"{job}.yaml"
    if not file.is_file():
        return ""
    listed = told("signoff.cli", "jobs", "list", file, "--json")
    runs = json.loads(listed.stdout) if listed.returncode == 0 else []
    return str(runs[0]["reason"]) if runs else ""


def alert(station: int, failures: int) -> dict[str, Any]:
    return {
        "event_id": f"frequent_failures/{station}/{failures}", "windowStart": "2021-05-01 06:00:00 UTC",
        "windowEnd": "2021-05-01 07:00:00 UTC", "stationId": station, "datapointId": 121, "alarmId": 303,
        "numberOfEquipmentFailures": failures, "severity": "critical",
    }  # fmt: skip


def rows(home: Path, station: int, name: str, day: str = "2021-05-01") -> list[dict[str, Any]]:
    made = json.loads((home / "reports" / f"{day}_{station}" / f"{name}.json").read_text())
    found: list[dict[str, Any]] = made["inputs"]["rows"]["rows"]
    return found
