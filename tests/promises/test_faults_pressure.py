"""Cases 29 and 30: the disk is full; a sink is down for long."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.spark

ROWS = {"type": "parse_json", "input": "incoming", "schema": "n BIGINT, pad STRING"}
LIMIT = 1024 * 1024
ONE_READ = 5 * 1024 * 1024
"""What the intake reads of files at a time: the last of it may go beyond the limit."""


def numbered(first: int, count: int, pad: int = 100) -> list[dict[str, Any]]:
    return [{"n": n, "pad": "x" * pad} for n in range(first, first + count)]


def written(folder: Path) -> list[int]:
    return [
        json.loads(line)["n"]
        for file in sorted(folder.glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]


def log_bytes(product: Any) -> int:
    return sum(map(size, (product.state / "log" / "incoming").glob("*.log")))


def size(file: Path) -> int:
    """Of a file that may be gone by now."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def limit_file_size(pid: int, size: int) -> None:
    """No file of the process may grow beyond this: to it, a disk that is full."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.mark.case(30)
def test_a_sink_that_is_down_for_long_fills_the_log_to_its_limit_and_holds_the_source(inline, webhook):
    webhook.down()
    product = inline(
        sources={
            "incoming": {
                "type": "files",
                "path": "in/*.jsonl",
                "on_acknowledge": "move",
                "max_events_per_batch": 2000,
                "log": {"max_bytes": LIMIT, "segment_bytes": 64 * 1024},
            }
        },
        transforms={"rows": ROWS},
        sinks={
            "archive": {"type": "files", "input": "rows", "path": "out"},
            "hook": {
                "type": "http",
                "input": "rows",
                "url": webhook.url,
                "mode": "ndjson",
                "retry": {"initial_ms": 50, "max_ms": 200},
            },
        },
    )
    for number in range(40):
        product.put(f"{number:02}.jsonl", numbered(number * 500, 500, pad=1000))
    running = product.start()
    running.wait_for(lambda: (status := product.intake_status()) and status.state == "held")
    running.wait_for(lambda: _attempts(product) > 0)
    running.wait_for(lambda: product.status()["sources"]["incoming"]["held"])
    status = product.status()
    assert status["sources"]["incoming"]["held_back"]
    (by_intake,) = status["sources"]["incoming"]["held"]
    assert by_intake["by"] == "intake" and "log.max_bytes" in by_intake["reason"] and by_intake["since"]
    assert (
        f"incoming is held back since {by_intake['since']}"
        in product.command("status", str(product.file)).output
    )
    assert status["sinks"]["hook"]["failing_since"] and webhook.url in status["sinks"]["hook"]["last_error"]

    held = product.received()
    memory = psutil.Process(product.intake_pid()).memory_info().rss
    attempts = _attempts(product)
    running.wait_for(lambda: _attempts(product) > attempts + 1)
    assert product.received() == held < 20_000, "nothing more was taken while the sink was down"
    assert log_bytes(product) <= LIMIT + ONE_READ
    assert psutil.Process(product.intake_pid()).memory_info().rss < memory + 32 * 1024**2
    assert not (product.directory / "in" / "acknowledged").exists()
    assert "log.max_bytes" in product.status()["sources"]["incoming"]["reason"]

    webhook.up()
    running.wait_for(lambda: product.told_upto() == 20_000)
    assert log_bytes(product) <= LIMIT + ONE_READ
    assert sorted(written(product.directory / "out")) == list(range(20_000))
    assert {row["n"] for row in webhook.accepted} == set(range(20_000))
    running.wait_for(lambda: len(list((product.directory / "in" / "acknowledged").glob("*.jsonl"))) == 40)
    running.wait_for(lambda: not product.status()["sources"]["incoming"]["held_back"])
    running.terminate()
    assert product.account()["delivered"] == 20_000


@pytest.mark.case(30)
def test_it_is_said_that_no_batch_begins_while_no_sink_takes_any(inline, webhook):
    webhook.down()
    product = inline(
        sources={"incoming": {"type": "files", "path": "in/*.jsonl"}},
        transforms={"rows": ROWS},
        sinks={
            "hook": {
                "type": "http",
                "input": "rows",
                "url": webhook.url,
                "mode": "ndjson",
                "retry": {"initial_ms": 50, "max_ms": 200},
            }
        },
    )
    product.put("1.jsonl", numbered(0, 10))
    running = product.start()
    running.wait_for(lambda: _attempts(product) > 0)
    assert product.status()["sources"]["incoming"]["held"] == [], "nothing new waits"
    product.put("2.jsonl", numbered(10, 10))
    (held,) = running.wait_for(lambda: product.status()["sources"]["incoming"]["held"])
    assert held["by"] == "engine" and held["since"]
    assert 'sink "hook" delivered nothing' in held["reason"] and "10 events wait in the log" in held["reason"]
    assert '"incoming" is held back: no sink can take a new batch' in running.output
    webhook.up()
    running.wait_for(lambda: product.told_upto() == 20)
    running.wait_for(lambda: '"incoming" is no longer held back' in running.output)
    running.wait_for(lambda: not product.status()["sources"]["incoming"]["held_back"])
    running.terminate()


def _attempts(product: Any) -> int:
    with product.ledger() as ledger:
        return sum(state.attempts for b in ledger.open_batches("incoming") for state in b.sinks.values())


@pytest.mark.case(29)
def test_a_full_disk_stops_the_intake_and_loses_nothing(inline):
    product = inline(
        sources={"incoming": {"type": "files", "path": "in/*.jsonl", "on_acknowledge": "move"}},
        transforms={"rows": ROWS},
        sinks={"archive": {"type": "files", "input": "rows", "path": "out"}},
    )
    (product.directory / "in").mkdir()
    running = product.start()
    running.wait_for(product.intake_pid)
    product.put("1.jsonl", numbered(0, 100))
    running.wait_for(lambda: product.told_upto() == 100)
    # More than any file of the intake has now, and less than the log will need.
    kept = [*(product.state / "log" / "incoming").iterdir(), *(product.state / "intake").rglob("*")]
    largest = max(map(size, [*kept, *product.state.glob("*.db*")]))
    limit_file_size(product.intake_pid(), largest + 64 * 1024)
    product.put("2.jsonl", numbered(100, 400, pad=largest // 400 + 1000))
    running.wait_for(lambda: product.intake_status().state == "held")
    product.put("3.jsonl", numbered(500, 100))
    status = product.status()["sources"]["incoming"]
    assert status["held_back"] and "wait in memory" in status["reason"], status
    assert product.account()["received"] == 100, "what is not durable was not received"
    assert sorted(path.name for path in (product.directory / "in").glob("*.jsonl")) == ["2.jsonl", "3.jsonl"]

    limit_file_size(product.intake_pid(), resource.RLIM_INFINITY)
    running.wait_for(lambda: product.told_upto() == 600)
    assert written(product.directory / "out") == list(range(600))
    running.wait_for(lambda: not product.status()["sources"]["incoming"]["held_back"])
    running.terminate()
    assert product.account()["delivered"] == 600


@pytest.mark.case(24, 29)
def test_an_intake_that_is_killed_on_a_full_disk_loses_nothing(inline):
    product = inline(
        sources={"incoming": {"type": "files", "path": "in/*.jsonl", "on_acknowledge": "move"}},
        transforms={"rows": ROWS},
        sinks={"archive": {"type": "files", "input": "rows", "path": "out"}},
    )
    (product.directory / "in").mkdir()
    running = product.start()
    pid = running.wait_for(product.intake_pid)
    limit_file_size(pid, 4096)
    product.put("1.jsonl", numbered(0, 400))
    running.wait_for(lambda: product.intake_status().state == "held")
    product.kill9(pid)
    running.wait_for(lambda: product.told_upto() == 400)
    running.terminate()
    assert written(product.directory / "out") == list(range(400))
    assert product.account()["delivered"] == 400


@pytest.mark.case(29)
def test_a_sink_on_a_full_disk_is_waited_for(inline):
    """The files sink cannot write; nothing is acknowledged until it can."""
    product = inline(
        sources={"incoming": {"type": "files", "path": "in/*.jsonl", "on_acknowledge": "move"}},
        transforms={"rows": ROWS},
        sinks={
            "archive": {
                "type": "files",
                "input": "rows",
                "path": "out",
                "retry": {"initial_ms": 20, "max_ms": 50},
            }
        },
    )
    full = product.directory / "out" / ".parts"
    full.parent.mkdir()
    full.write_text("in the way: no part can be written")
    product.put("1.jsonl", numbered(0, 10))
    running = product.start()
    running.wait_for(lambda: _attempts(product) > 1)
    assert product.account()["in_flight"] == 10 and (product.directory / "in" / "1.jsonl").exists()
    full.unlink()
    running.wait_for(lambda: product.told_upto() == 10)
    running.terminate()
    assert written(product.directory / "out") == list(range(10))
