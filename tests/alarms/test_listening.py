"""`python -m signoff_alarms listen`: what comes is shown in words, once, and signed for when it was shown."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from signoff_alarms import listening, topology
from signoff_alarms.__main__ import app
from signoff_alarms.notices import notice, of_report
from tests.brokers import RabbitMQ
from tests.servers import wait_until

WINDOW = {
    "windowStart": "2021-05-01 06:00:00 UTC",
    "windowEnd": "2021-05-01 07:00:00 UTC",
    "stationId": 17,
    "datapointId": 121,
}
OUTAGE = {**WINDOW, "alarmId": 309, "numberOfPowerGridVoltageOutrage": 7, "meanDeviation": -45.8431}
FAILURES = {**WINDOW, "alarmId": 303, "numberOfEquipmentFailures": 6}
ALERT = {**FAILURES, "severity": "critical"}
ENDED = {**FAILURES, "severity": "ended", "alert": "frequent_failures/1619848800/0d962da228dcaf20"}
BATTERY = {**WINDOW, "datapointId": 141, "alarmId": 309, "numberOfBatteryLowVoltage": 8}


def listen(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["listen", "--once", *map(str, arguments)])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "pipeline.yaml").write_text("# of a run")
    (tmp_path / "out" / "notifications").mkdir(parents=True)
    return tmp_path


def put(home: Path, name: str, *messages: dict[str, object]) -> None:
    lines = "".join(json.dumps(message) + "\n" for message in messages)
    (home / "out" / "notifications" / name).write_text(lines)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (
            OUTAGE,
            "result   2021-05-01 06:00 to 07:00  station 17, sensor 121: "
            "grid voltage too low 7 times, by -45.8 V on average",
        ),
        (FAILURES, "result   2021-05-01 06:00 to 07:00  station 17, sensor 121: failed 6 times"),
        (ALERT, "ALERT    2021-05-01 06:00 to 07:00  station 17, sensor 121: failed 6 times"),
        (ENDED, "ENDED    2021-05-01 06:00 to 07:00  station 17, sensor 121: failed 6 times"),
        (
            BATTERY,
            "result   2021-05-01 06:00 to 07:00  station 17, sensor 141: battery voltage too low 8 times",
        ),
        ({"weather": "fine"}, 'message  {"weather": "fine"}'),
        ({"alarmId": None, "numberOfEquipmentFailures": 2}, 'message  {"alarmId": null, "numberOfEquip'),
    ],
)
def test_a_message_is_told_in_words(message: dict[str, object], line: str) -> None:
    assert notice(json.dumps(message)).startswith(line)
    assert notice(json.dumps(message).encode()) == notice(json.dumps(message))


def test_what_is_no_json_is_shown_on_one_line() -> None:
    assert notice(b"so\nmuch\x1b[2J \xff") == "message  so much\x1b[2J \ufffd"


def test_without_a_broker_results_and_reports_are_shown_once(home: Path) -> None:
    put(home, "0.jsonl", OUTAGE, ALERT)
    first = listen("--home", home)
    assert first.exit_code == 0, first.output
    assert [line.split()[0] for line in first.output.splitlines()] == ["result", "ALERT"]
    assert listen("--home", home).output == ""
    put(home, "1.jsonl", FAILURES)
    report = home / "reports" / "2021-05-01"
    report.mkdir(parents=True)
    for form in ("pdf", "html", "json"):
        (report / f"busy_windows.{form}").write_text("")
    shown = listen("--home", home).output.splitlines()
    assert [line.split()[0] for line in shown] == ["result", "REPORT"]
    assert shown[1] == f"REPORT   busy_windows: {report}/busy_windows.pdf"
    # One that is made anew is shown again.
    os.utime(report / "busy_windows.pdf", (1, 1))
    assert listen("--home", home).output.startswith("REPORT")


def test_alerts_may_be_all_that_is_shown(home: Path) -> None:
    put(home, "0.jsonl", OUTAGE, ALERT)
    assert [line.split()[0] for line in listen("--home", home, "--alerts").output.splitlines()] == ["ALERT"]


def test_a_home_without_a_run_is_said(tmp_path: Path) -> None:
    done = listen("--home", tmp_path / "nowhere")
    assert done.exit_code == 1 and "holds no alarms" in done.output


@pytest.mark.servers
def test_what_a_closed_pipe_did_not_take_is_shown_again(home: Path) -> None:
    """It is signed for after it was shown, and not before."""
    put(home, "0.jsonl", *[FAILURES] * 5_000)
    command = [sys.executable, "-m", "signoff_alarms", "listen", "--once", "--home", str(home)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 1
    assert len(listen("--home", home).output.splitlines()) == 5_000


@pytest.fixture
def broker(rabbitmq: RabbitMQ) -> Iterator[RabbitMQ]:
    topology.declare_results(rabbitmq.url)
    rabbitmq.take(topology.RESULTS_QUEUE)
    yield rabbitmq
    for queue in (topology.RESULTS_QUEUE, topology.CRITICAL_QUEUE):
        rabbitmq.delete_queue(queue)
    rabbitmq.delete_exchange(topology.RESULTS)


@pytest.mark.servers
def test_messages_of_the_broker_are_acknowledged_when_they_were_shown(
    broker: RabbitMQ, tmp_path: Path
) -> None:
    bodies = [json.dumps(message).encode() for message in (OUTAGE, ALERT, {"what": "else"})]
    broker.publish(bodies, "121.309", exchange=topology.RESULTS)
    broker.wait_for(topology.RESULTS_QUEUE, 3)
    done = listen("--rabbitmq", broker.url, "--home", tmp_path)
    assert done.exit_code == 0, done.output
    assert [line.split()[0] for line in done.output.splitlines()] == ["result", "ALERT", "message"]
    assert broker.count(topology.RESULTS_QUEUE) == 0
    assert broker.take(topology.RESULTS_QUEUE) == []


@pytest.mark.servers
def test_reports_are_shown_however_many_messages_come(
    broker: RabbitMQ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.publish([json.dumps(FAILURES).encode()] * 300, "121.303", exchange=topology.RESULTS)
    broker.wait_for(topology.RESULTS_QUEUE, 300)
    ticks = itertools.count()
    monkeypatch.setattr(listening.time, "monotonic", lambda: next(ticks) / 10)
    (tmp_path / "reports").mkdir()
    shown: list[str] = []

    def show(line: str) -> None:
        shown.append(line.split()[0])
        if len(shown) in (1, 100):
            (tmp_path / "reports" / f"at_{len(shown)}.pdf").write_text("")

    reports = listening.Files(tmp_path, listening._reports(tmp_path), of_report, tmp_path / "shown.json")
    listening._listen(broker.url, show, reports, True, [])
    first, second = (place for place, what in enumerate(shown) if what == "REPORT")
    assert len(shown) == 302 and first < 10 and second < 120


@pytest.mark.servers
def test_messages_that_nobody_read_go_back_to_the_broker(broker: RabbitMQ, tmp_path: Path) -> None:
    broker.publish([json.dumps(ALERT).encode()] * 2_000, "121.303", exchange=topology.RESULTS)
    broker.wait_for(topology.RESULTS_QUEUE, 2_000)
    command = [sys.executable, "-m", "signoff_alarms", "listen", "--home", str(tmp_path)]
    environment = {**os.environ, "SIGNOFF_ALARMS_RABBITMQ": broker.url}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline().startswith(b"ALERT")
    process.stdout.close()
    assert process.wait(60) == 1
    wait_until(lambda: broker.count(topology.RESULTS_QUEUE) >= 1)
    left = broker.take(topology.RESULTS_QUEUE)
    assert 0 < len(left) < 2_000
