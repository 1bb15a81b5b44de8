"""The demo, as `make demo` runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pypdfium2
import pytest

LAST_LINE = (
    r"account: received=(\d+) delivered=(\d+) dropped=(\d+) dead_lettered=(\d+) "
    r"refused=(\d+) expired=(\d+) in_flight=0"
)
COUNTED = re.compile(r" = [\d,]+ counted \+ [1-9][\d,]* late \+ [\d,]+ without a time")


@pytest.mark.spark
def test_the_demo_counts_every_alarm_survives_its_webhook_and_ends_with_an_account_that_adds_up(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "signoff_alarms.demo"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=540,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The desk is DOWN" in done.stdout
    assert "The desk is BACK" in done.stdout
    assert done.stdout.count(", as signed for") == 12
    assert len(COUNTED.findall(done.stdout)) == 3, "each alarm is in a window, late or a dead letter"
    assert re.search(r"late alarms: .* [1-9][\d,]* times; by sensor 121: [1-9]", done.stdout)
    assert re.search(r"alerts: [1-9]", done.stdout)
    reports = tmp_path / "demo-run"
    assert "The same as a report: demo-run/report.html and demo-run/report.pdf" in done.stdout
    page = (reports / "report.html").read_text()
    assert "What each sink holds" in page and "Voltage of the power grid beyond its threshold" in page
    pages = pypdfium2.PdfDocument((reports / "report.pdf").read_bytes())
    assert "Where every alarm is" in "".join(one.get_textpage().get_text_bounded() for one in pages)
    account = re.fullmatch(LAST_LINE, done.stdout.splitlines()[-1])
    assert account is not None, done.stdout
    received, *outcomes = map(int, account.groups())
    assert received == sum(outcomes) >= 50_000


@pytest.mark.servers
def test_the_demo_touches_no_directory_that_is_not_its_own(tmp_path: Path) -> None:
    precious = tmp_path / "demo-run" / "thesis.txt"
    precious.parent.mkdir()
    precious.write_text("ten years of work")
    command = [sys.executable, "-m", "signoff_alarms.demo"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "move it away first" in done.stdout
    assert precious.exists()
