"""What is not settled within `acknowledge_within` expires, whatever the source: case 21."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.brokers import RabbitMQ
from tests.promises.product import FILES, SOON, Inline, Product, books
from tests.servers import WebhookServer, wait_until

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]
SOURCE = {**FILES, "on_refuse": "move", "acknowledge_within": "8s"}


def to(webhook: WebhookServer, **fields: Any) -> dict[str, Any]:
    sink = {"type": "http", "input": "incoming", "url": webhook.url, "retry": SOON, "timeout_ms": 900_000}
    return {**sink, **fields}


def warm_up(product: Product) -> dict[str, int]:
    """Put files until one is delivered in time: Spark's first batch takes its time. Returns the account."""
    for number in itertools.count(1):
        product.put(f"warm-{number}.jsonl", [{"n": 0}])
        wait_until(lambda: sum(product.account().values()), what="an event")
        wait_until(lambda n=number: product.told_upto() >= n, what="the end of one event")
        if product.account()["delivered"]:
            return product.account()
    raise AssertionError


def deliver_one(product: Product, name: str) -> int:
    """Put files until one is delivered in time. Returns how many were put."""
    before = product.account()
    for number in itertools.count(1):
        product.put(f"warm-{name}-{number}.jsonl", [{"n": 3}])
        wait_until(
            lambda n=number: product.told_upto() >= before["received"] + n, what="the end of one event"
        )
        if product.account()["delivered"] > before["delivered"]:
            return number
    raise AssertionError


def ignored(product: Product) -> int:
    return int(product.audit()["ignored"]["incoming"])


def refused(product: Product) -> set[str]:
    names = {path.name for path in (product.directory / "in/refused").glob("*.jsonl")}
    return {name for name in names if not name.startswith("warm")}


@pytest.mark.case(10, 21, 39)
def test_a_file_expires_while_a_sink_hangs_and_what_the_sink_says_later_is_ignored(
    inline: Make, webhook: WebhookServer
) -> None:
    product = inline(sources={"incoming": SOURCE}, sinks={"first": to(webhook)})
    running = product.start()
    before, late = warm_up(product), ignored(product)
    hold = webhook.hold()
    put_at = time.monotonic()
    product.put("slow.jsonl", [{"n": 1}, {"n": 2}])
    hold.wait_for(1)
    assert refused(product) == set() or time.monotonic() - put_at >= 8
    running.wait_for(lambda: refused(product) == {"slow.jsonl"})
    expired = {**before, "received": before["received"] + 2, "expired": before["expired"] + 2}
    assert product.account() == expired
    told = product.explain(f"incoming/{before['received']}")
    assert (told["state"], told["acknowledged"]) == ("expired", False)
    assert "not settled within 8 s (acknowledge_within); owed by first" in told["why"]

    hold.release()
    running.wait_for(lambda: ignored(product) == late + 2)
    assert product.account() == expired, "the second outcome changes nothing"
    for command in ("audit", "status"):
        shown = product.command(command, str(product.file)).output
        assert f"incoming: {late + 2} outcomes came for events settled already, and were ignored" in shown
    deliver_one(product, "next")


@pytest.mark.case(21)
def test_of_two_sinks_the_one_that_owes_an_expired_event_is_named(
    inline: Make, webhooks: list[WebhookServer]
) -> None:
    first, second, _ = webhooks
    product = inline(sources={"incoming": SOURCE}, sinks={"first": to(first), "second": to(second)})
    running = product.start()
    before = warm_up(product)
    failing = second.answer(503, body="come back later")
    product.put("slow.jsonl", [{"n": 1}])
    running.wait_for(lambda: refused(product) == {"slow.jsonl"})
    told = product.explain(f"incoming/{before['received']}")
    assert "owed by second (tried" in told["why"] and "503" in told["why"]
    assert "first" not in told["why"]
    failing.stop()
    tries = deliver_one(product, "next")
    account = product.account()
    assert account == {
        **before,
        "received": before["received"] + 1 + tries,
        "delivered": before["delivered"] + 1,
        "expired": before["expired"] + tries,
    }


@pytest.fixture
def queue(rabbitmq: RabbitMQ) -> Iterator[str]:
    rabbitmq.declare_queue("expires")
    yield "expires"
    rabbitmq.delete_queue("expires")


@pytest.mark.case(21)
def test_a_message_that_expired_comes_again_as_a_new_event_and_is_delivered(
    inline: Make, rabbitmq: RabbitMQ, queue: str, webhook: WebhookServer
) -> None:
    source = {"type": "rabbitmq", "url": rabbitmq.url, "queues": [queue], "acknowledge_within": "8s"}
    product = inline(sources={"incoming": source}, sinks={"out": to(webhook)})
    running = product.start()
    rabbitmq.publish([b'{"n": 0}'], queue, message_id=lambda _: "warm")
    running.wait_for(lambda: product.account()["delivered"] == 1)
    before, late = product.account(), ignored(product)

    hold = webhook.hold()
    rabbitmq.publish([b'{"n": 1}'], queue, message_id=lambda _: "slow")
    hold.wait_for(1)
    running.wait_for(lambda: product.received() >= before["received"] + 2)
    assert product.account()["expired"] > before["expired"]
    hold.release()
    running.wait_for(lambda: product.account()["delivered"] == 2)
    running.wait_for(lambda: product.told_upto() == product.received())
    account = product.account()
    assert account == books(delivered=2, expired=product.received() - 2)
    running.wait_for(lambda: ignored(product) == late + account["expired"] - before["expired"])
    product.close()
    assert rabbitmq.count(queue) == 0


@pytest.mark.crash
@pytest.mark.case(21, 24)
def test_events_expire_in_their_time_although_the_run_is_killed(
    real: Callable[..., Product], webhook: WebhookServer
) -> None:
    product = real(sources={"incoming": SOURCE}, sinks={"first": to(webhook)})
    running = product.start()
    before = warm_up(product)
    hold = webhook.hold()
    product.put("before.jsonl", [{"n": 1}, {"n": 2}])
    hold.wait_for(1)
    running.wait_for(lambda: refused(product) == {"before.jsonl"})
    running.wait_for(lambda: f"2 events expired (incoming/{before['received']} to" in running.output)
    assert "owed by first" in running.output
    product.put("after.jsonl", [{"n": 3}])
    running.wait_for(lambda: product.received() == before["received"] + 3)
    running.kill9()
    assert product.account()["expired"] - before["expired"] in (2, 3), "it was killed before, or just after"

    running = product.start()
    running.wait_for(lambda: refused(product) == {"before.jsonl", "after.jsonl"})
    expired = {**before, "received": before["received"] + 3, "expired": before["expired"] + 3}
    assert product.account() == expired
    hold.release()
    running.wait_for(lambda: product.engine_pid())
    deliver_one(product, "again")
    assert running.terminate().code in (0, 3)
    assert product.balanced
    assert {row["event_id"] for row in webhook.accepted} >= {f"incoming/{product.received() - 1}"}
