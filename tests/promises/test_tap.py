"""`signoff tap` shows the rows at any node, and what became of them; and nothing is different afterwards."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from signoff.errors import PipelineError
from signoff.pipeline.secrets import register_secret
from signoff.watch.tap import Tap, TappedRow, tap, tap_apart
from tests.promises.product import LATER, PARSE, Inline, books
from tests.promises.test_settling import webhook_sink
from tests.servers import WebhookServer

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]
EVENTS = ['{"n": 1}', '{"n": 2}', '{"n": 3}', '{"n": 1}', '{"n": sesame-open']


def outline(rows: list[TappedRow]) -> list[tuple[Any, ...]]:
    """Number of the event, what the node did with its row, and what became of it."""
    return [(int(row.event_id.split("/")[1]), row.at, row.event, row.sink) for row in rows]


def kept(state: Path) -> dict[str, Any]:
    """All that decides about events: every database, and every byte of the logs."""
    found: dict[str, Any] = {}
    for file in sorted(state.rglob("*.db")):
        with closing(sqlite3.connect(file)) as database:
            found[str(file)] = list(database.iterdump())
    for directory in ("log", "links", "receipts", "intake"):
        for file in sorted((state / directory).rglob("*")):
            if file.is_file() and file.name != "status.json" and not file.name.endswith(("-shm", "-wal")):
                found[str(file)] = file.read_bytes()
    return found


def product_of(inline: Make, webhook: WebhookServer) -> Inline:
    product = inline(
        sources={"incoming": {"type": "files", "path": "./in/*.jsonl"}},
        transforms={
            "parsed": PARSE,
            "wanted": {"type": "filter", "input": "parsed", "where": "n <> 3"},
            "once": {"type": "dedupe", "input": "wanted", "keys": ["n"]},
            "paced": {"type": "throttle", "input": "once", "keys": ["n"], "every": "1h"},
        },
        sinks={
            "hook": {**webhook_sink(webhook), "input": "paced", "retry": LATER},
            "out": {"type": "files", "input": "paced", "path": "out"},
        },
    )
    product.put("a.jsonl", EVENTS)
    return product


def test_rows_that_are_owed_dropped_and_failed_are_told_apart_and_the_account_is_as_before(
    inline: Make, webhook: WebhookServer, spark: Any
) -> None:
    register_secret("sesame")
    webhook.down()
    product = product_of(inline, webhook)
    running = product.start()
    running.wait_for(lambda: product.explain("incoming/1")["stages"] and product.rows())
    running.wait_for(lambda: product.account()["dead_lettered"] == 1)
    graph, before, files = product.graph(), kept(product.state), sorted(product.directory.glob("in/*"))

    with Tap(graph, "incoming") as at_source:
        events = at_source.take()
        assert outline(events) == [
            (0, "passed", "in flight", ""),
            (1, "passed", "in flight", ""),
            (2, "passed", "dropped", ""),
            (3, "passed", "in flight", ""),
            (4, "passed", "dead_lettered", ""),
        ]
        assert events[4].row["payload"] == '{"n": ***-open'
        assert at_source.take() == [], "nothing has come since"
    parsed = tap(graph, "parsed", spark=spark)
    assert outline(parsed)[3:] == [(3, "passed", "in flight", ""), (4, "failed", "dead_lettered", "")]
    assert [row.row for row in parsed[:2]] == [{"n": 1, "parts": None}, {"n": 2, "parts": None}]
    assert "sesame" not in parsed[4].reason
    assert parsed[4].reason
    wanted = tap(graph, "wanted", spark=spark)
    assert [(row.at, row.event) for row in wanted] == [
        ("passed", "in flight"), ("passed", "in flight"), ("dropped", "dropped"), ("passed", "in flight")
    ]  # fmt: skip
    once = tap(graph, "once", spark=spark)
    assert [(row.event_id, row.at) for row in once] == [
        ("incoming/0", "passed"), ("incoming/1", "passed"), ("incoming/3", "waits")
    ]  # fmt: skip
    assert once[2].reason == "repeats incoming/0, which is not settled yet"
    assert [row.event_id for row in tap(graph, "paced", spark=spark)] == ["incoming/0", "incoming/1"]
    assert outline(tap(graph, "hook", spark=spark)) == [
        (0, "passed", "in flight", "owed"),
        (1, "passed", "in flight", "owed"),
    ]
    assert [row.sink for row in tap(graph, "out", spark=spark)] == ["done", "done"]
    assert [row.event_id for row in tap(graph, "wanted", where="n = 2", spark=spark)] == ["incoming/1"]
    assert [row.event_id for row in tap(graph, "wanted", limit=1, spark=spark)] == ["incoming/3"]

    assert kept(product.state) == before
    assert sorted(product.directory.glob("in/*")) == files
    running.terminate()
    webhook.up()
    product.run_once()
    assert product.account() == books(delivered=2, dropped=2, dead_lettered=1)
    assert [row["n"] for row in product.rows()] == [1, 2], "nobody took a key or a place but the run"
    assert [row.at for row in tap(graph, "once", spark=spark)] == ["passed", "passed", "dropped"]


def test_a_tap_of_its_own_process_shows_a_state_directory_that_nobody_runs(
    inline: Make, webhook: WebhookServer
) -> None:
    product = product_of(inline, webhook)
    product.run_once()
    before = kept(product.state)
    rows = tap_apart(product.file, "paced", where="n > 1", timeout_s=600)
    assert [(row["event_id"], row["event"], row["row"]["n"]) for row in rows] == [
        ("incoming/1", "delivered", 2)
    ]
    assert kept(product.state) == before
    shown = product.command("tap", str(product.file), "incoming", "--limit", "1", "--json")
    assert json.loads(shown.answer)["row"]["payload"] == EVENTS[4]


def test_no_service_and_no_function_is_called_by_somebody_who_looks(
    inline: Make, webhook: WebhookServer, spark: Any
) -> None:
    product = inline(
        sources={"incoming": {"type": "files", "path": "./in/*.jsonl"}},
        transforms={
            "parsed": PARSE,
            "asked": {"type": "enrich", "input": "parsed", "url": f"{webhook.url}?n={{n}}", "into": "answer"},
        },
        sinks={"out": {"type": "files", "input": "asked", "path": "out"}},
    )
    product.put("a.jsonl", EVENTS[:2])
    product.run_once()
    graph, asked = product.graph(), len(webhook.requests)
    assert asked == 2
    for node in ("asked", "out"):
        with pytest.raises(PipelineError, match="cannot-tap"):
            tap(graph, node, spark=spark)
    assert [row.row["n"] for row in tap(graph, "parsed", spark=spark)] == [1, 2]
    assert len(webhook.requests) == asked
    assert [row.row["n"] for row in tap(graph, "out", limit=1, calls=True, spark=spark)] == [2]
    assert len(webhook.requests) == asked + 1, "of the one event that was to be shown"


def test_results_of_a_window_are_shown_and_late_events_are_refused(inline: Make, spark: Any) -> None:
    product = inline(
        sources={"incoming": {"type": "files", "path": "./in/*.jsonl"}},
        transforms={
            "parsed": {**PARSE, "schema": "at TIMESTAMP, n INT"},
            "counts": {
                "type": "window", "input": "parsed", "time": "at", "size": "10m", "keys": ["n"],
                "aggregates": {"many": "count(*)"}, "allowed_lateness": "0s",
            },
        },
        sinks={
            "out": {"type": "files", "input": "counts", "path": "out"},
            "late": {"type": "files", "input": "counts.late", "path": "late"},
        },
    )  # fmt: skip
    product.put("a.jsonl", [{"at": f"2026-01-01T10:{minute}:00Z", "n": 1} for minute in (10, 11, 55)])
    running = product.start()
    running.wait_for(lambda: product.rows())
    (row,) = tap(product.graph(), "counts", spark=spark)
    assert row.row["many"] == 2
    assert row.at == "passed"
    with pytest.raises(PipelineError, match="cannot-tap"):
        tap(product.graph(), "late", spark=spark)
    running.terminate()


def test_a_wrong_name_or_condition_says_what_there_is(
    inline: Make, webhook: WebhookServer, spark: Any
) -> None:
    graph = product_of(inline, webhook).graph()
    with pytest.raises(PipelineError, match=r'no node "wantd"; did you mean "wanted"'):
        tap(graph, "wantd", spark=spark)
    with pytest.raises(PipelineError, match="unknown-output"):
        tap(graph, "wanted.high", spark=spark)
    assert tap(graph, "incoming", spark=spark) == [], "there was no run yet"
    assert tap(graph, "wanted", spark=spark) == []
    with pytest.raises(PipelineError, match=r"unresolved-column.*there is: n, parts"):
        tap(graph, "wanted", where="m = 1", spark=spark)
    assert not graph.state.exists(), "nothing was made by looking"
