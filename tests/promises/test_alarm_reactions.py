"""Critical alerts start analyses of their station: they are settled when the reports are there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from signoff_alarms import pipeline
from tests.alarms import expected

pytestmark = pytest.mark.spark

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
    for job in ("repeated_failures", "voltage_and_failures"):
        listed = told("signoff.cli", "jobs", "list", home / "jobs" / f"{job}.yaml", "--json")
        runs = json.loads(listed.stdout)
        assert [run["state"] for run in runs] == ["done", "done"], "one for each station"
        assert {run["parameters"]["station"] for run in runs} == {int(noisy), int(other)}
    audit = told("signoff.cli", "audit", home / "critical" / "pipeline.yaml")
    assert "received=5 delivered=5 " in audit.stdout and "in_flight=0" in audit.stdout, audit.stdout


def alert(station: int, failures: int) -> dict[str, Any]:
    return {
        "event_id": f"frequent_failures/{station}/{failures}", "windowStart": "2021-05-01 06:00:00 UTC",
        "windowEnd": "2021-05-01 07:00:00 UTC", "stationId": station, "datapointId": 121, "alarmId": 303,
        "numberOfEquipmentFailures": failures, "severity": "critical",
    }  # fmt: skip


def rows(home: Path, station: int, name: str) -> list[dict[str, Any]]:
    made = json.loads((home / "reports" / f"2021-05-01_{station}" / f"{name}.json").read_text())
    found: list[dict[str, Any]] = made["inputs"]["rows"]["rows"]
    return found
