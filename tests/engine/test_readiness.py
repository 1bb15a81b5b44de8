"""Who keeps an event that comes now from being settled: a failing sink, while somebody will ask it again."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyroaring import BitMap64

from signoff.catalog import default
from signoff.engine.readiness import not_ready
from signoff.ledger import Ledger
from signoff.ledger.batch_state import OwesAll
from signoff.pipeline.load import load

PIPELINE = """
name: ready
sources: {incoming: {type: http}}
sinks: {first: {type: http, input: incoming, url: "http://127.0.0.1:1/", retry: {max_ms: 5000}}}
"""
FAILED = OwesAll(attempts=9, error="connection refused", since=1.0)


@pytest.fixture
def queries(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "pipeline.yaml"
    file.write_text(PIPELINE)
    shared = SimpleNamespace(graph=load(file, default()))
    query = SimpleNamespace(source="incoming", shared=shared, failure=lambda: None, why_held=lambda: "")
    return {"incoming": query}


def failed(ledger: Ledger) -> None:
    ledger.open_batch("incoming", 0, 1, ["first"])
    ledger.record(
        "incoming", 0, 1, delivered=BitMap64(), outcomes=[], sinks={"first": FAILED}, owed=BitMap64([0])
    )


def test_a_sink_that_failed_counts_until_its_next_try_once_nothing_is_owed_to_it(
    tmp_path: Path, queries: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    monkeypatch.setattr("time.monotonic", lambda: now)
    says = {"incoming": {"first": "connection refused"}}
    with Ledger(tmp_path / "ledger.db") as ledger:
        failed(ledger)
        now += 1000
        assert not_ready(["incoming"], queries, ledger, "") == says, "it is owed an event, and will be asked"
        now -= 999
        ledger.expire("incoming", {0: "not settled within 1 s"})
        assert not_ready(["incoming"], queries, ledger, "") == says
        now += 3.9
        assert not_ready(["incoming"], queries, ledger, "") == says
        now += 0.2
        assert not_ready(["incoming"], queries, ledger, "") == {}, "nobody knows: an event may find out"
        ledger.open_batch("incoming", 1, 2, ["first"])
        assert not_ready(["incoming"], queries, ledger, "") == says, "it is about to be asked"


def test_a_failure_that_an_earlier_engine_saw_does_not_count_when_nothing_is_owed(
    tmp_path: Path, queries: dict[str, Any]
) -> None:
    with Ledger(tmp_path / "ledger.db") as ledger:
        failed(ledger)
        ledger.expire("incoming", {0: "not settled within 1 s"})
    with Ledger(tmp_path / "ledger.db") as ledger:
        assert not_ready(["incoming"], queries, ledger, "") == {}
