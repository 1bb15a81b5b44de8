"""Metrics of a real run: they add up to the account at any moment, and hold nothing that an event brought."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.promises.product import LATER, PARSE, Product, Running
from tests.promises.test_settling import webhook_sink
from tests.servers import WebhookServer, wait_until

pytestmark = pytest.mark.spark

Make = Callable[..., Product]
EVENTS = "signoff_events"
_SERVED = re.compile(r"metrics at http://(\S+)/metrics")
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scrape(address: str) -> tuple[str, Samples]:
    text = httpx.get(f"http://{address}/metrics", timeout=30).raise_for_status().text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "pipeline"}
            found[sample.name, frozenset(labels.items())] = sample.value
    return text, found


def of(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


def account(samples: Samples) -> dict[str, Any]:
    return {
        dict(labels)["outcome"]: value
        for (name, labels), value in samples.items()
        if name == "signoff_events"
    }


def served_at(running: Running, run: int) -> str:
    """Where the metrics of the so-manieth run are; all of them write to the same file."""
    running.wait_for(lambda: len(_SERVED.findall(running.output)) >= run)
    return str(_SERVED.findall(running.output)[run - 1])


def test_metrics_add_up_while_a_sink_is_down_and_when_all_is_settled(
    real: Make, webhook: WebhookServer
) -> None:
    webhook.down()
    product = real(
        sources={"incoming": {"type": "files", "path": "./in/*.jsonl"}},
        transforms={
            "parsed": PARSE,
            "kept": {"type": "filter", "input": "parsed", "where": "n <> 3"},
        },
        sinks={
            "hook": {**webhook_sink(webhook), "input": "kept", "retry": LATER},
            "out": {"type": "files", "input": "kept", "path": "out"},
        },
    )
    product.put("a.jsonl", [{"n": 1}, {"n": 2}, {"n": 3}])
    (product.directory / "in" / "b.jsonl").write_text('{"n": secret-of-an-event\n')
    running = product.start("--metrics", "127.0.0.1:0")
    address = served_at(running, 1)

    def waits() -> Samples | None:
        _, samples = scrape(address)
        failing = of(samples, "signoff_sink_failing_seconds", sink="hook")
        return (
            samples
            if failing and of(samples, "signoff_dead_letters", source="incoming", stage="parsed")
            else None
        )

    samples = running.wait_for(waits)
    books = account(samples)
    assert books == {
        "delivered": 0, "dropped": 1, "dead_lettered": 1, "refused": 0, "expired": 0, "in_flight": 2,
    }  # fmt: skip
    assert sum(books.values()) == of(samples, "signoff_events_received_total", source="incoming") == 4
    assert of(samples, "signoff_oldest_event_in_flight_seconds", source="incoming")
    assert of(samples, "signoff_sink_rows_total", sink="out") == 2
    for process in ("run", "engine", "intake incoming"):
        assert (of(samples, "signoff_process_resident_memory_bytes", process=process) or 0) > 10_000_000
    running.kill9()

    webhook.up()  # what the run before left is finished, and the account goes on
    running = product.start("--metrics", "127.0.0.1:0")
    address = served_at(running, 2)
    text, samples = wait_until(
        lambda: (found := scrape(address)) and not account(found[1])["in_flight"] and found, 120
    )
    said = product.account()
    assert account(samples) == {name: said[name] for name in account(samples)}
    assert (
        of(samples, "signoff_undelivered_rows_total", source="incoming", stage="kept", outcome="dropped") == 1
    )
    assert "secret-of-an-event" not in text, "no payload and no reason is in a metric"

    product.put("c.jsonl", [{"n": 5}])
    measured = "signoff_receipt_to_settled_seconds_count"
    wait_until(lambda: of(scrape(address)[1], measured, source="incoming") == 1, 120)
    assert running.terminate().code == 0
