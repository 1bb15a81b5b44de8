"""Case 38: the account adds up at any moment, and the audit finds out when it does not."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.promises.product import SIGNOFF, Inline, Product
from tests.servers import PATIENCE_S, WebhookServer

pytestmark = pytest.mark.spark

QUICK = {"initial_ms": 20, "max_ms": 50}
ROWS = {"type": "parse_json", "input": "incoming", "schema": "n BIGINT, parts ARRAY<INT>"}


@pytest.mark.case(38)
def test_the_account_adds_up_at_every_moment_of_a_run(inline, webhook):
    refused = webhook.answer(422, lambda request: any(row["n"] % 50 == 3 for row in request.rows))
    webhook.answer(503, lambda request: any(row["n"] % 40 == 4 for row in request.rows), times=40)
    product = inline(
        sources={"incoming": {"type": "files", "path": "in/*.jsonl", "max_events_per_batch": 60}},
        transforms={
            "rows": ROWS,
            "picked": {"type": "filter", "input": "rows", "where": "n % 10 <> 5"},
            "part": {"type": "unfold", "input": "picked", "column": "parts"},
        },
        sinks={
            "archive": {"type": "files", "input": "part", "path": "out"},
            "hook": {"type": "http", "input": "picked", "url": webhook.url, "retry": QUICK, "mode": "ndjson",
                     "max_rows": 20},
        },
    )  # fmt: skip
    count = 600
    for number in range(4):
        first = number * count // 4
        lines = [
            "{no" if n % 30 == 7 else {"n": n, "parts": list(range(n % 3))}
            for n in range(first, first + count // 4)
        ]
        product.put(f"{number}.jsonl", lines)
    running = product.start()
    seen: list[dict[str, int]] = []

    def finished() -> bool:
        seen.append(product.account())  # which asserts that it is balanced
        return product.told_upto() == count

    running.wait_for(finished)
    running.terminate()
    last = product.account()
    kinds = ("delivered", "dropped", "dead_lettered", "refused", "expired", "in_flight")
    assert all(one["received"] == sum(one[kind] for kind in kinds) for one in [*seen, last])
    assert any(one["in_flight"] and one["delivered"] for one in seen), "it was also looked at half way"
    assert [one["received"] for one in seen] == sorted(one["received"] for one in seen)
    for kind in ("delivered", "dropped", "dead_lettered"):
        assert [one[kind] for one in seen] == sorted(one[kind] for one in seen), "what is settled stays so"
    malformed = {n for n in range(count) if n % 30 == 7}
    rejected = {n for n in range(count) if n % 50 == 3} - malformed
    filtered = {n for n in range(count) if n % 10 == 5} - malformed
    assert refused.used and last["dead_lettered"] == len(malformed | rejected - filtered)
    assert last["dropped"] == len(filtered) and last["in_flight"] == 0


# -- a state directory that was tampered with


class Left:
    """What a run leaves behind that was stopped while a sink was down: settled, dead-lettered, owed."""

    def __init__(self, directory: Path, spark: Any, webhook: WebhookServer) -> None:
        self.product = Inline(
            directory,
            spark,
            sources={
                "incoming": {
                    "type": "files",
                    "path": "in/*.jsonl",
                    "max_events_per_batch": 10,
                    "log": {"max_bytes": 1024**2, "segment_bytes": 64 * 1024},
                }
            },
            transforms={"rows": {**ROWS, "schema": "n BIGINT"}},
            sinks={"hook": {"type": "http", "input": "rows", "url": webhook.url, "retry": QUICK}},
        )
        self.webhook = webhook

    def run(self) -> None:
        product, webhook = self.product, self.webhook
        product.put("1.jsonl", [*({"n": n} for n in range(19)), "{no"])
        assert product.run_once().code == 0
        webhook.answer(503)
        product.put("2.jsonl", [{"n": n, "pad": "x" * 3000} for n in range(20, 100)])
        running = product.start(drain_s=0.0)
        with product.ledger() as ledger:
            running.wait_for(lambda: ledger.sink_totals()["hook"].failing_since)
        running.terminate()


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory, spark: Any) -> Iterator[Left]:
    with WebhookServer() as webhook:
        scene = Left(tmp_path_factory.mktemp("left"), spark, webhook)
        try:
            scene.run()
            yield scene
        finally:
            scene.product.close()


@pytest.fixture
def copy(left: Left, tmp_path: Path) -> Product:
    """The same pipeline on a copy of the state."""
    copied = Product(tmp_path)
    copied.write(left.product.file.read_text())
    shutil.copytree(left.product.state, copied.state)
    return copied


def ledger(statement: str) -> Callable[[Path], None]:
    return lambda state: _execute(state / "ledger.db", statement)


def letters(statement: str) -> Callable[[Path], None]:
    return lambda state: _execute(state / "dead_letters.db", statement)


def _execute(path: Path, statement: str) -> None:
    with sqlite3.connect(path) as db:
        changed = db.execute(statement).rowcount
    db.close()
    assert changed


def _last_segment(state: Path) -> Path:
    """The last one that holds events."""
    segments = sorted((state / "log" / "incoming").glob("*.log"))
    return next(segment for segment in reversed(segments) if b"xxxx" in segment.read_bytes())


def _flip(state: Path) -> None:
    """One bit of an event that is not settled."""
    last = _last_segment(state)
    data = bytearray(last.read_bytes())
    data[data.rindex(b"xxxx")] ^= 1
    last.write_bytes(data)


def _cut(state: Path) -> None:
    last = _last_segment(state)
    last.write_bytes(last.read_bytes()[:-3000])


def _remove_log(state: Path) -> None:
    shutil.rmtree(state / "log" / "incoming")


def _garbage(state: Path) -> None:
    for rest in state.glob("ledger.db-*"):
        rest.unlink()
    (state / "ledger.db").write_bytes(b"no database " * 1000)


TAMPERED = {
    "a count": (ledger("UPDATE batches SET delivered = delivered - 1 WHERE start = 0"), "batch-sum"),
    "an outcome": (
        ledger("UPDATE batches SET delivered = delivered - 1, dropped = dropped + 1 WHERE start = 0"),
        "batch-count",
    ),
    "a batch is gone": (ledger("DELETE FROM batches WHERE start = 10"), "gap"),
    "a debt": (ledger("UPDATE batches SET owed_count = owed_count - 1 WHERE owed_count > 0"), "owed"),
    "the end": (ledger("UPDATE sources SET next = next + 5"), "gap"),
    "an exception is gone": (ledger("DELETE FROM exceptions"), "batch-count"),
    "a letter is gone": (letters("DELETE FROM letters"), "letter-missing"),
    "a bit of the log": (_flip, "log-corrupt"),
    "the end of the log": (_cut, "log-corrupt"),
    "the log is gone": (_remove_log, "log-behind"),
    "no database": (_garbage, "ledger.db"),
}


@pytest.mark.case(38)
@pytest.mark.parametrize("tampered", TAMPERED)
def test_the_audit_says_what_was_tampered_with(copy, tampered):
    before = copy.command("audit", str(copy.file))
    assert before.code == 0, before.output
    damage, word = TAMPERED[tampered]
    damage(copy.state)
    command = [str(SIGNOFF), "audit", str(copy.file)]
    after = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert after.returncode != 0 and word in after.stderr, after.stdout + after.stderr
    assert "Traceback" not in after.stderr
