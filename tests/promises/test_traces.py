"""A sampled event has one trace from receipt to acknowledgement, through every sink: case 57."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.brokers import RabbitMQ
from tests.promises.product import HTTP, LATER, PARSE, SOON, Inline, books
from tests.promises.test_settling import webhook_sink
from tests.servers import WebhookServer, free_port, wait_until
from tests.traces.collector import Collector, Received

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]
TRACE, SENDER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SENT = f"00-{TRACE}-{SENDER}-01"
OTHER = f"00-{'1' * 32}-{'2' * 16}-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


@pytest.fixture
def queues(rabbitmq: RabbitMQ) -> Iterator[tuple[str, str]]:
    names = "traced", "traced.out"
    for name in names:
        rabbitmq.declare_queue(name)
    yield names
    for name in names:
        rabbitmq.delete_queue(name)


def is_tried_again(story: dict[str, Any], sink: str) -> bool:
    return any(line["stage"] == sink and re.search(r"tried \d", line["text"]) for line in story["stages"])


def of_trace(collector: Collector, trace: str) -> dict[str, Received]:
    return {span.name: span for span in collector.spans if span.trace == trace}


@pytest.mark.case(57)
def test_one_trace_from_receipt_to_acknowledgement_through_every_sink_and_handed_on(
    inline: Make, rabbitmq: RabbitMQ, queues: tuple[str, str], webhook: WebhookServer, collector: Collector
) -> None:
    down = webhook.answer(503)
    product = inline(
        sources={"incoming": {"type": "rabbitmq", "url": rabbitmq.url, "queues": [queues[0]]}},
        transforms={"parsed": PARSE},
        sinks={
            "out": {
                "type": "rabbitmq",
                "input": "parsed",
                "url": rabbitmq.url,
                "routing_key": f"'{queues[1]}'",
            },
            "hook": {
                "type": "http",
                "input": "parsed",
                "url": webhook.url,
                "retry": {**SOON, "attempts": 50},
            },
            "table": {"type": "sqlite", "input": "parsed", "path": "out.db", "table": "events"},
        },
        traces={"endpoint": collector.endpoint, "headers": {"x-key": "sesame"}},
    )
    private = {"x-private": "nobodys-business"}
    rabbitmq.publish([b'{"n": 4711}'], queues[0], headers={"traceparent": SENT, **private})
    rabbitmq.publish([b'{"n": broken-4712'], queues[0], headers={"traceparent": OTHER, **private})
    rabbitmq.publish([b'{"n": 3}'], queues[0], headers={"traceparent": SENT[:-1] + "0"})
    running = product.start(engine_when=lambda: product.received() == 3)
    running.wait_for(lambda: is_tried_again(product.explain("incoming/0"), "hook"))
    down.stop()
    running.wait_for(lambda: product.told_upto() == 3)
    running.terminate()
    assert product.account() == books(delivered=2, dead_lettered=1)

    spans = of_trace(collector, TRACE)
    assert set(spans) == {
        "receive incoming", "process incoming", "send out", "send hook", "send table", "ack incoming"
    }  # fmt: skip
    received, processed = spans["receive incoming"], spans["process incoming"]
    assert received.parent == SENDER, "the trace that the message brought goes on"
    assert processed.parent == spans["ack incoming"].parent == received.id
    assert {spans[f"send {sink}"].parent for sink in ("out", "hook", "table")} == {processed.id}
    assert [name for name, _ in spans["send hook"].events] == ["retry"] * len(spans["send hook"].events)
    assert spans["send hook"].events, "it failed first"
    assert not any(span.failed for span in spans.values())
    assert received.attributes["messaging.operation.type"] == "receive"
    assert received.attributes["messaging.system"] == "rabbitmq"
    assert spans["ack incoming"].attributes["messaging.operation.type"] == "settle"
    assert spans["ack incoming"].attributes["signoff.outcome"] == "acknowledged"
    assert processed.end_ns <= spans["ack incoming"].end_ns

    sent = {str(message.id): message.properties.headers for message in rabbitmq.take(queues[1])}
    assert sent["incoming/0"]["traceparent"] == f"00-{TRACE}-{spans['send out'].id}-01"
    assert not sent["incoming/2"], "what was not sampled hands on nothing"
    handed = [request.headers.get("traceparent") for request in webhook.requests]
    assert set(filter(None, handed)) == {f"00-{TRACE}-{spans['send hook'].id}-01"}

    failed = of_trace(collector, "1" * 32)
    assert set(failed) == {"receive incoming", "process incoming", "ack incoming"}
    assert failed["process incoming"].events == (("dead_letter", {"signoff.stage": "parsed"}),)
    assert failed["process incoming"].failed
    (whole,) = [span for span in collector.named("process incoming") if not span.parent]
    assert set(whole.links) == {(TRACE, received.id), ("1" * 32, failed["receive incoming"].id)}
    assert processed.links == ((whole.trace, whole.id),)
    assert whole.attributes["messaging.batch.message_count"] == 3

    assert collector.requests[0]["x-key"] == "sesame"
    everything = "".join(span.text for span in collector.spans)
    for secret in ("4711", "4712", "nobodys-business", "sesame", rabbitmq.url, "x-private"):
        assert secret not in everything


@pytest.mark.case(57)
def test_the_next_pipeline_and_what_is_behind_a_buffer_continue_the_trace(
    inline: Make, webhook: WebhookServer, collector: Collector
) -> None:
    link, traces = {"type": "pipeline", "path": "../link"}, {"endpoint": collector.endpoint}
    first = inline(
        "first",
        sources={"incoming": HTTP},
        sinks={"next": {**link, "input": "incoming"}},
        name="first",
        traces=traces,
    )
    second = inline(
        "second",
        sources={"linked": link},
        sinks={"hook": webhook_sink(webhook, "linked", buffer={})},
        name="second",
        traces=traces,
    )
    runs = first.start(), second.start()
    assert first.post([{"n": 1}], headers={"traceparent": SENT}).result(300).status_code == 200
    for running in runs:
        running.terminate()
    spans = of_trace(collector, TRACE)
    way = [
        "receive incoming", "process incoming", "send next", "receive linked", "process linked", "send hook"
    ]  # fmt: skip
    assert {*way, "ack incoming", "ack linked"} <= set(spans)
    for before, after in pairwise(way[:5]):
        assert spans[after].parent == spans[before].id, (before, after)
    assert spans["receive incoming"].parent == SENDER
    assert spans["receive incoming"].resource["service.name"] == "first"
    assert spans["receive linked"].resource["service.name"] == "second"
    sends = [span for span in collector.named("send hook") if span.trace == TRACE]
    behind = next(span for span in collector.spans if span.name == "process hook.buffer")
    assert behind.parent in {span.id for span in sends}, "the buffer was given it by that span"
    (request,) = webhook.requests
    assert request.headers["traceparent"].split("-")[1] == TRACE
    assert request.headers["traceparent"].split("-")[2] in {span.id for span in sends}


@pytest.mark.case(57)
def test_a_trace_goes_on_after_a_restart_and_a_collector_that_is_down_is_nobodys_trouble(
    inline: Make, webhook: WebhookServer, collector: Collector
) -> None:
    webhook.down()
    nodes: dict[str, Any] = {
        "sources": {"incoming": {"type": "files", "path": "./in/*.jsonl"}},
        "sinks": {"hook": {"type": "http", "input": "incoming", "url": webhook.url, "retry": LATER}},
    }
    settings = {"ratio": 1.0, "max_events_per_second": 1000}
    product = inline(**nodes, traces={"endpoint": collector.endpoint, **settings})
    product.put("a.jsonl", [{"n": n} for n in range(3)])
    running = product.start()
    running.wait_for(lambda: product.explain("incoming/0")["stages"])
    running.terminate()
    received = {span.trace: span for span in collector.named("receive incoming")}
    assert len(received) == 3, "each has a trace of its own"
    assert not collector.named("ack incoming")

    product.write({**nodes, "traces": {"endpoint": f"http://127.0.0.1:{free_port()}", **settings}})
    running = product.start()
    running.wait_for(lambda: product.told_upto() == 0 and product.explain("incoming/0")["stages"])
    running.terminate()

    webhook.up()
    product.write({**nodes, "traces": {"endpoint": collector.endpoint, **settings}})
    assert product.run_once().code == 0
    assert product.account() == books(delivered=3)
    wait_until(lambda: len(collector.named("ack incoming")) == 3)
    for name, parent in (("ack incoming", "receive incoming"), ("process incoming", "receive incoming")):
        assert {span.trace for span in collector.named(name) if span.parent} == set(received), parent
        for span in collector.named(name):
            assert not span.parent or span.parent == received[span.trace].id
