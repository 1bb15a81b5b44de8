"""Somebody sets the clock: by an hour, forwards and back, in a run and between two."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from signoff.log import LogReader
from tests.promises.product import SOON

pytestmark = pytest.mark.spark

BEGIN = 1_600_000_020  # a full minute
PARSED = {"type": "parse_json", "input": "incoming", "schema": "t TIMESTAMP, n INT"}
COUNTS = {
    "type": "window", "input": "parsed", "time": "t", "size": "1m", "aggregates": {"events": "count(*)"},
    "allowed_lateness": "0s", "idle_after": "10m",
}  # fmt: skip


def at(second: int) -> dict[str, Any]:
    return {"t": datetime.fromtimestamp(BEGIN + second, UTC).isoformat(), "n": second}


class WallClock:
    """The time of day as the processes of a run see it; their other clocks are as they are."""

    def __init__(self, directory: Path) -> None:
        self.file, self.library = directory / "clock", directory / "wall_clock.so"
        self.set(0)

    def set(self, seconds: int) -> None:
        aside = self.file.with_suffix(".part")
        aside.write_text(str(seconds))
        aside.replace(self.file)


@pytest.fixture
def wall_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WallClock:
    compiler, clock = shutil.which("cc"), WallClock(tmp_path)
    if compiler is None:
        pytest.skip("there is no C compiler (cc) to make a clock with that can be set")
    source = Path(__file__).with_name("wall_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", clock.library, source], check=True)
    clock.set(7200)
    monkeypatch.setenv("SIGNOFF_TEST_CLOCK", str(clock.file))
    asked = [sys.executable, "-c", "import time; print(time.time())"]
    env = {**os.environ, "LD_PRELOAD": str(clock.library)}
    said = subprocess.run(asked, env=env, capture_output=True, text=True, check=True).stdout
    assert abs(float(said) - time.time() - 7200) < 60, "the clock can be set"
    clock.set(0)
    monkeypatch.setenv("LD_PRELOAD", str(clock.library))
    return clock


def windows(product: Any) -> list[int]:
    try:
        return [row["events"] for row in product.table("counts")]
    except sqlite3.OperationalError:
        return []


def received_at(product: Any) -> list[int]:
    log = LogReader(product.state / "log" / "incoming")
    read = log.read(log.first(), log.head(), ["received_at"])
    return [moment.value for _, events in read for moment in events.column("received_at")]


@pytest.mark.case(42)
def test_a_clock_that_jumps_by_an_hour_drops_closes_and_expires_nothing(real, webhook, wall_clock):
    webhook.down()
    product = real(
        sources={
            "incoming": {
                "type": "files", "path": "in/*.jsonl", "acknowledge_within": "15m", "on_acknowledge": "move",
            }
        },
        transforms={"parsed": PARSED, "counts": COUNTS},
        sinks={
            "archive": {"type": "files", "input": "parsed", "path": "out"},
            "hook": {"type": "http", "input": "parsed", "url": webhook.url, "retry": SOON},
            "results": {"type": "sqlite", "input": "counts", "path": "out.db", "table": "counts"},
        },
    )  # fmt: skip
    running = product.start("--drain-seconds", "0")
    number = 0

    def put_more() -> None:
        nonlocal number
        product.put(f"{number}.jsonl", [at(number), at(number + 1)])
        number += 2
        running.wait_for(lambda: len(product.rows()) == number)

    put_more()
    for hours in (1, 0, -1):
        wall_clock.set(hours * 3600)
        put_more()
    running.terminate()
    wall_clock.set(3600)
    running = product.start()
    put_more()
    assert windows(product) == [], "no window was closed by the clock"
    assert product.account()["in_flight"] == number, "nothing has expired"
    assert received_at(product) == sorted(received_at(product))

    webhook.up()
    product.put("last.jsonl", [at(3600)])  # closes the first minute
    running.wait_for(lambda: windows(product) == [number])
    running.wait_for(lambda: product.told_upto() == number + 1)
    assert product.status()["windows"]["counts"]["late"] == 0
    running.terminate()
    assert product.account()["delivered"] == number + 1
    assert sorted({row["n"] for row in webhook.accepted}) == [*range(number), 3600]
