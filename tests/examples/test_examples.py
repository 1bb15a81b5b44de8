"""Every example is run as its README says, and does what it says."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from signoff.engine.spark.java import find_java
from tests.brokers import RabbitMQ
from tests.servers import PostgresServer, free_port, wait_until

pytestmark = pytest.mark.spark

EXAMPLES = Path(__file__).parents[2] / "examples"
SIGNOFF = Path(sys.executable).with_name("signoff")
SECONDS = 240


@pytest.fixture
def copy(tmp_path: Path) -> Callable[[str], Path]:
    """An example in a place of its own."""
    return lambda name: Path(shutil.copytree(EXAMPLES / name, tmp_path / name))


def call(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        stdin=subprocess.DEVNULL,
    )


def on_a_terminal(*command: object) -> tuple[int, str]:
    """The exit code, and what a terminal of 80 columns has shown, without what moves its cursor."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 80))
    environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
    with subprocess.Popen(
        [str(part) for part in command], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = bytearray()
        with suppress(OSError):  # Linux says so when the last process has closed its end
            while part := os.read(ours, 65536):
                shown += part
        os.close(ours)
        code = process.wait(SECONDS)
    return code, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", shown.decode())


def account(file: Path) -> dict[str, int]:
    done = call(SIGNOFF, "audit", file, "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout)["sources"]["incoming"])


def dead_letters(file: Path) -> list[dict[str, Any]]:
    lines = call(SIGNOFF, "dead-letters", "list", file, "--json").stdout.splitlines()
    return [json.loads(line) for line in lines]


def query(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()


def test_files_go_to_an_archive_and_a_table_and_the_log_can_be_read_by_plain_pyspark(
    copy: Callable[[str], Path],
) -> None:
    home = copy("files_to_sqlite")
    done = call(SIGNOFF, "run", home / "pipeline.yaml", "--once")
    assert done.returncode == 0, done.stderr
    assert account(home / "pipeline.yaml") == {
        "received": 40, "delivered": 39, "dropped": 0, "dead_lettered": 1,
        "refused": 0, "expired": 0, "in_flight": 0,
    }  # fmt: skip
    (archived,) = (home / "out/archive").glob("*.jsonl")
    assert len(archived.read_text().splitlines()) == 39
    assert query(home / "out/alarms.db", "SELECT count(*) FROM failed_equipment WHERE alarmId = 303") == [
        (10,)
    ]
    assert [letter["event_id"] for letter in dead_letters(home / "pipeline.yaml")] == ["incoming/39"]
    assert [file.name for file in (home / "in/acknowledged").iterdir()] == ["alarms.jsonl"]

    program = EXAMPLES / "read_the_log" / "read_log.py"
    read = call(sys.executable, program, home / "state/log/incoming", JAVA_HOME=str(find_java()))
    assert "batch 0: 25 events, 0 to 24\nbatch 1: 15 events, 25 to 39\n" in read.stdout, read.stderr


def test_a_queue_is_read_by_plain_pyspark_and_is_empty_afterwards(
    copy: Callable[[str], Path], rabbitmq: RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy("rabbitmq_on_its_own"))
    rabbitmq.declare_queue("alarms")
    rabbitmq.publish((b'{"alarmId": %d}' % (303 + number % 2) for number in range(300)), "alarms")
    program = "count_alarms.py"
    done = call(sys.executable, program, "alarms", JAVA_HOME=str(find_java()), RABBITMQ_URL=rabbitmq.url)
    assert done.returncode == 0, done.stderr
    assert "|  303|  150|\n|  304|  150|\n" in done.stdout
    assert rabbitmq.count("alarms") == 0
    rabbitmq.delete_queue("alarms")


def test_python_functions_work_on_frames_and_on_single_events(
    copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = copy("python_functions")
    monkeypatch.chdir(home)
    code, shown = on_a_terminal(sys.executable, "pipeline.py")
    assert code == 0, shown
    assert "readings: starting Spark, " in shown, "nobody has to guess why nothing happens yet"
    assert "100 % 4 of 4" in " ".join(shown.split()), "a bar, as the end of the input is known"
    assert shown.rstrip().splitlines()[-1] == (
        "account of incoming: "
        "received=4 delivered=2 dropped=1 dead_lettered=1 refused=0 expired=0 in_flight=0"
    )
    rows = query(
        home / "out/readings.db", "SELECT station, celsius, fahrenheit FROM readings ORDER BY event_id"
    )
    assert rows == [("north", 21.5, 70.7), ("west", -4.0, 24.8)]
    result = account(home / "pipeline.py")
    assert (result["delivered"], result["dropped"], result["dead_lettered"]) == (2, 1, 1)
    (letter,) = dead_letters(home / "pipeline.py")
    assert letter["stage"] == "checked"
    assert "could not convert string to float" in letter["reason"]


def test_a_function_says_what_became_of_each_event(copy: Callable[[str], Path]) -> None:
    home = copy("python_answers")
    prices = home / "prices.txt"
    prices.rename(home / "later.txt")
    with running(home / "pipeline.py"):
        wait_until(lambda: account(home / "pipeline.py")["in_flight"] == 3)
        waits = call(SIGNOFF, "explain", home / "pipeline.py", "incoming/0").stdout
        assert "it waits for step priced since" in waits and "the price list is not there" in waits
        (home / "later.txt").rename(prices)
        wait_until(lambda: account(home / "pipeline.py")["in_flight"] == 0)
    rows = query(home / "out/orders.db", "SELECT event_id, item, price FROM items ORDER BY event_id")
    assert rows == [
        ("incoming/0/0", "lamp", 19.5),
        ("incoming/0/1", "rope", 4.2),
        ("incoming/3/0", "rope", 4.2),
    ]
    result = account(home / "pipeline.py")
    assert (result["delivered"], result["dropped"], result["dead_lettered"]) == (1, 2, 2)
    reasons = {letter["event_id"]: letter["reason"] for letter in dead_letters(home / "pipeline.py")}
    assert reasons == {"incoming/2": "an order without a customer", "incoming/3/1": "moon has no price"}


@contextmanager
def running(file: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [SIGNOFF, "run", file, "--quiet"], env={**os.environ, **environment}, stdin=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0


def test_an_http_client_has_its_answer_when_postgres_has_its_rows(
    copy: Callable[[str], Path], postgres: PostgresServer
) -> None:
    import psycopg

    file = copy("http_to_postgres") / "pipeline.yaml"
    port = free_port()
    secrets = {"ALARMS_PORT": str(port), "ALARMS_TOKEN": "open sesame", "DATABASE_URL": postgres.url}
    alarm = {"stationId": 7, "alarmId": 303, "eventTime": "2021-05-01 10:00:00 UTC", "value": 1.5}
    with running(file, **secrets), httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        wait_until(lambda: is_up(client), SECONDS, "the source listens")
        client.headers["Authorization"] = "Bearer open sesame"
        while (taken := client.post("/", json=[alarm, {**alarm, "stationId": 8}])).status_code == 503:
            pass  # Spark is still starting; what was not settled in time is refused with 503
        assert taken.status_code == 200, taken.text
        with psycopg.connect(postgres.url) as db:
            rows = db.execute('SELECT DISTINCT "stationId" FROM alarms ORDER BY 1').fetchall()
        assert rows == [(7,), (8,)]
        assert client.post("/", json={"stationId": "seven"}).status_code == 422


def is_up(client: httpx.Client) -> bool:
    try:
        return client.get("/health").is_success
    except httpx.TransportError:
        return False
