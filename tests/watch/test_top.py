"""`signoff top`: what is drawn of given readings, and on a real terminal."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from signoff import load
from signoff.cli import app
from signoff.watch.status import read_status
from signoff.watch.top import Readings, picture, problems
from tests.servers import wait_until

PIPELINE = """
name: alarms
sources:
  incoming: {type: files, path: "./in/*.jsonl"}
transforms:
  fresh: {type: dedupe, input: incoming, keys: [payload]}
  hourly: {type: window, input: incoming, time: received_at, size: 1h, aggregates: {n: count(*)}}
sinks:
  table: {type: sqlite, input: fresh, path: ./out.db, table: alarms}
  hours: {type: sqlite, input: hourly, path: ./out.db, table: hours}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "alarms.yaml"
    path.write_text(PIPELINE)
    return path


@pytest.fixture
def status(file: Path) -> dict[str, Any]:
    """Of a pipeline that never ran; a test says what is different."""
    return read_status(load(file))


def later(status: dict[str, Any], **counts: int) -> dict[str, Any]:
    return {**status, "sources": {"incoming": {**status["sources"]["incoming"], **counts}}}


def drawn(readings: Readings, width: int = 80) -> str:
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(picture(readings, width))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_rates_are_those_of_the_last_seconds(status: dict[str, Any]) -> None:
    readings = Readings()
    readings.add(later(status, received=0, in_flight=0), at=0.0)
    readings.add(later(status, received=1_000_000, in_flight=1_000_000), at=100.0)
    assert readings.rate(lambda found: found["sources"]["incoming"]["received"]) == 10_000.0
    readings.add(later(status, received=1_000_500, in_flight=999_500, delivered=1000), at=105.0)
    text = drawn(readings)
    cells = next(line.split() for line in text.splitlines() if line.startswith("incoming"))
    assert cells == ["incoming", "100", "200", "999,500", "-", "-"]
    assert "incoming: delivered 1,000, of 1,000,500" in text


def test_a_pipeline_that_never_ran_is_drawn(status: dict[str, Any]) -> None:
    readings = Readings()
    readings.add(status)
    text = drawn(readings)
    assert "alarms: not running" in text
    for name in ("incoming", "table", "hours", "hourly", "fresh"):
        assert name in text


def test_a_sink_that_owes_events_is_not_ok(status: dict[str, Any]) -> None:
    readings = Readings()
    sinks = {**status["sinks"], "table": {**status["sinks"]["table"], "owes": 10}}
    readings.add({**status, "sinks": sinks})
    (row,) = (line for line in drawn(readings).splitlines() if line.startswith("table"))
    assert row.split() == ["table", "0", "0", "owes", "10", "events"]


def test_problems_are_named_the_most_urgent_first(status: dict[str, Any]) -> None:
    failing = {"rows": 5, "owes": 3, "failing_since": "2026-01-01T00:00:00Z", "failing_seconds": 90.0}
    status = {
        **status,
        "sinks": {**status["sinks"], "table": {**failing, "last_error": "disk I/O error"}},
        "dead_letters": 1200,
        "left_at": [
            {"stage": "kept", "source": "incoming", "outcome": "dropped", "reason": "no", "rows": 900},
            {"stage": "parsed", "source": "incoming", "outcome": "dead_lettered", "reason": "bad", "rows": 7},
        ],
    }
    assert list(problems(status)) == [
        'sink "table" fails: disk I/O error',
        "1,200 dead letters (signoff dead-letters list)",
        "parsed: 7 rows dead-lettered: bad",
    ]
    readings = Readings()
    readings.add(status)
    assert "failing for 90 s: disk I/O error" in drawn(readings)


def test_no_line_is_wider_than_the_terminal_and_no_control_character_reaches_it(
    status: dict[str, Any],
) -> None:
    error = "\x1b[2J" + "x" * 500
    sink = {
        "rows": 10**9,
        "owes": 1,
        "failing_since": "2026-01-01T00:00:00Z",
        "failing_seconds": 1e6,
        "last_error": error,
    }
    status = {**status, "sinks": {"a_very_long_name_of_a_sink_that_somebody_gave_it" * 2: sink}}
    readings = Readings()
    readings.add(later(status, received=10**9, in_flight=10**9, delivered=10**9))
    text = drawn(readings)
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b[2J" not in text


def test_without_a_terminal_it_says_what_to_use_instead(file: Path) -> None:
    done = CliRunner().invoke(app, ["top", str(file)])
    assert done.exit_code == 2
    assert "signoff status" in done.output


def test_on_a_terminal_it_is_drawn_until_it_is_interrupted(file: Path) -> None:
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "30"}
    command = [str(Path(sys.executable).with_name("signoff")), "top", str(file), "--every", "0.2"]
    with subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environ,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # also where the tests ignore it
    ) as process:
        os.close(theirs)
        os.set_blocking(ours, False)
        shown = bytearray()

        def twice() -> bool:
            with suppress(BlockingIOError):
                shown.extend(os.read(ours, 65536))
            return shown.count(b"alarms: not running") >= 2

        wait_until(twice, 60)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    os.close(ours)
