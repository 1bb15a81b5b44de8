"""The spans of a real intake process: from receipt to acknowledgement, also when it is killed in between."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from signoff.pipeline.trace_settings import TraceSettings
from signoff.sources.generate import GenerateConfig
from signoff.sources.http.source import ADDRESS_FILE, HttpConfig
from tests.intake.processes import IntakeProcess, settle
from tests.servers import free_port
from tests.traces.collector import Collector

pytestmark = pytest.mark.servers

TRACE, SENDER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


def posted(base: Path, headers: dict[str, str], answers: list[int]) -> threading.Thread:
    address = json.loads((base / "state/intake/incoming" / ADDRESS_FILE).read_text())["address"]

    def post() -> None:
        with httpx.Client(trust_env=False, timeout=60) as client:
            answers.append(client.post(address, content=b'{"n": 1}', headers=headers).status_code)

    thread = threading.Thread(target=post, daemon=True)
    thread.start()
    return thread


def test_a_request_with_a_context_is_received_and_answered_in_its_trace(
    tmp_path: Path, collector: Collector
) -> None:
    config = HttpConfig.model_validate({"port": 0, "acknowledge_within": "1m"})
    answers: list[int] = []
    with IntakeProcess(tmp_path, config, traces=TraceSettings(endpoint=collector.endpoint)) as intake:
        intake.wait_for(lambda _: (tmp_path / "state/intake/incoming" / ADDRESS_FILE).exists())
        both = [posted(tmp_path, {"Traceparent": f"00-{TRACE}-{SENDER}-01"}, answers)]
        intake.wait_for_events(1)
        both.append(posted(tmp_path, {}, answers))
        intake.wait_for_events(2)
        settle(tmp_path, 0, 2)
        for thread in both:
            thread.join(60)
        assert answers == [200, 200]
        assert intake.end() == 0
    spans = {span.name: span for span in collector.spans}
    assert set(spans) == {"receive incoming", "ack incoming"}, "one of the two requests brought a context"
    assert spans["receive incoming"].trace == TRACE
    assert spans["receive incoming"].parent == SENDER
    assert spans["ack incoming"].parent == spans["receive incoming"].id
    assert spans["receive incoming"].resource["signoff.process"] == "intake incoming"


@pytest.mark.crash
def test_after_sigkill_the_same_events_are_acknowledged_in_the_same_traces(
    tmp_path: Path, collector: Collector
) -> None:
    config: Any = GenerateConfig(count=50)
    traces = TraceSettings(endpoint=collector.endpoint, ratio=0.5, max_events_per_second=1000)
    with IntakeProcess(tmp_path, config, traces=traces) as intake:
        intake.wait_for_events(50)
        collector.wait_for(lambda it: it.named("receive incoming"))
        intake.kill()
    received = {span.trace: span.id for span in collector.named("receive incoming")}
    assert 10 <= len(received) <= 40
    settle(tmp_path, 0, 25)
    settle(tmp_path, 25, 50, refused="the archive does not want it")
    with IntakeProcess(tmp_path, config, traces=traces) as intake:
        intake.wait_for(lambda status: status.settled_sequence >= 50)
        intake.end()
    told = collector.named("ack incoming") + collector.named("nack incoming")
    assert {span.trace: span.parent for span in told} == received
    for span in told:
        number = int(span.attributes["signoff.event.id"].removeprefix("incoming/"))
        assert span.failed == (span.name == "nack incoming") == (number >= 25)
        assert "does not want" not in span.text


def test_a_collector_that_is_down_holds_up_neither_events_nor_the_end(tmp_path: Path) -> None:
    traces = TraceSettings(endpoint=f"http://127.0.0.1:{free_port()}", ratio=1.0)
    with IntakeProcess(tmp_path, GenerateConfig(count=5_000), traces=traces) as intake:
        intake.wait_for_events(5_000)
        settle(tmp_path, 0, 5_000)
        intake.wait_for(lambda status: status.settled_sequence >= 5_000)
        assert intake.end() == 0
