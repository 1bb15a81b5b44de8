"""Spans on their way to a collector: nobody waits for it, and what it does not take is counted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from signoff.pipeline.trace_settings import TraceSettings
from signoff.traces import export
from signoff.traces.export import Exporter
from signoff.traces.ids import traced
from signoff.traces.spans import Happened, Where, span
from tests.servers import free_port, wait_until
from tests.traces.collector import Collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


def one(by: Exporter, sequence: int = 1) -> Any:
    event = traced("incoming", sequence, 1_000, {})
    return span(
        by, Where("incoming", "rabbitmq"), "settle", event.context("settle"), event.context("receive"), 5, 9,
        kind="client", name="nack", attributes={"signoff.event.id": event.event_id},
        happened=[Happened("retry", 7, {"signoff.attempt": 2})], links=[event.context("process")],
        failed=True,
    )  # fmt: skip


def test_spans_come_as_they_were_made(collector: Collector) -> None:
    settings = TraceSettings(endpoint=collector.endpoint, headers={"x-key": "open"})
    exporter = Exporter(settings, "alarms", "engine")
    exporter.put([one(exporter)])
    exporter.close()
    (came,) = collector.spans
    event = traced("incoming", 1, 1_000, {})
    assert (came.name, came.failed, came.start_ns, came.end_ns) == ("nack incoming", True, 5, 9)
    assert came.trace == f"{event.trace:032x}"
    assert came.parent == f"{event.context('receive').span:016x}"
    assert came.events == (("retry", {"signoff.attempt": 2}),)
    assert came.links == ((came.trace, f"{event.context('process').span:016x}"),)
    assert came.attributes == {
        "messaging.system": "rabbitmq", "messaging.operation.name": "nack",
        "messaging.operation.type": "settle", "messaging.destination.name": "incoming",
        "signoff.node.type": "rabbitmq", "signoff.event.id": "incoming/1",
    }  # fmt: skip
    assert came.resource["service.name"] == "alarms"
    assert collector.requests[0]["x-key"] == "open"
    assert (exporter.sent, exporter.dropped) == (1, 0)


def test_a_collector_that_is_down_or_slow_holds_up_nobody_and_what_is_lost_is_counted(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(export, "_MOST", 100)
    monkeypatch.setattr(export, "_END_S", 0.2)
    monkeypatch.setattr(export, "_TIMEOUT_S", 0.5)
    collector.slow_s = 60
    for endpoint in (f"http://127.0.0.1:{free_port()}", collector.endpoint):
        exporter = Exporter(TraceSettings(endpoint=endpoint), "alarms", "engine")
        exporter.put(one(exporter, n) for n in range(1_000))
        assert exporter.dropped >= 800
        wait_until(lambda by=exporter: by.dropped >= 900, what="the first spans to be given up")
        began = time.monotonic()
        exporter.close()
        assert time.monotonic() - began < 30, "it does not wait for an answer"
        assert exporter.dropped + exporter.sent == 1_000
    assert "spans were dropped" in caplog.text


def test_what_is_lost_now_does_not_keep_later_spans(collector: Collector) -> None:
    exporter = Exporter(TraceSettings(endpoint=collector.endpoint), "alarms", "engine")
    collector.status = 400
    exporter.put([one(exporter)])
    wait_until(lambda: exporter.dropped == 1)
    collector.status = 200
    exporter.put([one(exporter, 2)])
    wait_until(lambda: exporter.sent == 1)
    exporter.close()
