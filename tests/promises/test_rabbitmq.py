"""A RabbitMQ message is acknowledged when its event is settled, and comes to no harm before.

Cases 1 to 3, 11, 16, 20, 27, 28, 30 and 31 against a real broker; 24 to 26 are in `test_chaos`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from signoff.engine.state_queries.window_query import Silence
from tests.brokers import RabbitMQ
from tests.promises.product import LATER, SOON, Inline, books
from tests.servers import WebhookServer, wait_until

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]


@pytest.fixture
def queue(rabbitmq: RabbitMQ) -> Iterator[str]:
    rabbitmq.declare_queue("promised")
    yield "promised"
    rabbitmq.delete_queue("promised")


def source(rabbitmq: RabbitMQ, queue: str, **fields: Any) -> dict[str, Any]:
    return {"type": "rabbitmq", "url": rabbitmq.url, "queues": [queue], **fields}


def to(webhook: WebhookServer, **fields: Any) -> dict[str, Any]:
    return {"type": "http", "input": "incoming", "url": webhook.url, "retry": SOON, **fields}


def numbers(*values: int) -> list[bytes]:
    return [b'{"n": %d}' % value for value in values]


def delivered_to(webhook: WebhookServer) -> list[int]:
    """The numbers the webhook has answered 200 for, in order."""
    answered = [request for request in list(webhook.requests) if request.status == 200]
    return sorted(json.loads(row["payload"])["n"] for request in answered for row in request.rows)


@pytest.mark.case(1, 31)
def test_a_message_is_not_acknowledged_until_the_sink_confirms_and_goes_back_when_the_run_ends_before(
    inline: Make, rabbitmq: RabbitMQ, queue: str, webhook: WebhookServer
) -> None:
    hold = webhook.hold()
    product = inline(sources={"incoming": source(rabbitmq, queue)}, sinks={"out": to(webhook)})
    rabbitmq.publish(numbers(1), queue)
    running = product.start(drain_s=0.2)
    hold.wait_for(1)
    assert (rabbitmq.count(queue), product.told_upto()) == (0, 0), "with us, and not acknowledged"
    hold.release()
    wait_until(lambda: product.told_upto() == 1)
    hold = webhook.hold()
    rabbitmq.publish(numbers(2), queue, message_id=lambda _: "second")
    hold.wait_for(1)
    running.terminate()
    rabbitmq.wait_for(queue, 1)
    hold.release()

    product.start()
    wait_until(lambda: product.told_upto() == 2)
    assert product.account() == books(delivered=2), "the message that came again is the old event"
    assert set(delivered_to(webhook)) == {1, 2}
    product.close()
    assert rabbitmq.count(queue) == 0


@pytest.mark.case(2)
def test_of_three_sinks_the_last_one_decides(
    inline: Make, rabbitmq: RabbitMQ, queue: str, webhooks: list[WebhookServer]
) -> None:
    hold = webhooks[2].hold()
    sinks = {name: to(hook) for name, hook in zip(("one", "two", "three"), webhooks, strict=True)}
    product = inline(sources={"incoming": source(rabbitmq, queue)}, sinks=sinks)
    rabbitmq.publish(numbers(1, 2), queue)
    product.start(engine_when=lambda: product.received() == 2)
    hold.wait_for(1)
    wait_until(lambda: delivered_to(webhooks[0]) == delivered_to(webhooks[1]) == [1, 2])
    assert product.told_upto() == 0
    hold.release()
    wait_until(lambda: product.told_upto() == 2)
    product.close()
    assert rabbitmq.count(queue) == 0
    assert [len(hook.requests) for hook in webhooks] == [2, 2, 2]


@pytest.mark.case(3, 16)
def test_a_permanent_refusal_is_one_rejection_and_a_transient_one_is_tried_again_so_often(
    inline: Make, rabbitmq: RabbitMQ, webhook: WebhookServer
) -> None:
    rabbitmq.declare_exchange("refused", "fanout")
    rabbitmq.declare_queue("refused")
    rabbitmq.bind("refused", "refused", "")
    rabbitmq.declare_queue("strict", arguments={"x-dead-letter-exchange": "refused"})
    webhook.answer(422, when=lambda request: request.rows[0]["payload"] == '{"n": 1}')
    webhook.answer(503, when=lambda request: request.rows[0]["payload"] == '{"n": 2}')
    product = inline(
        sources={"incoming": source(rabbitmq, "strict", max_redeliveries=2)},
        sinks={"out": to(webhook, on_failure="refuse", retry={"attempts": 1})},
    )
    rabbitmq.publish(numbers(1, 2, 3), "strict")
    product.start()
    rabbitmq.wait_for("refused", 2)
    wait_until(lambda: product.account()["in_flight"] == 0)
    # Number 2 came three times: once, and twice again. Each time it is an event of its own.
    assert product.account() == books(delivered=1, refused=4)
    product.close()
    assert sorted(message.body for message in rabbitmq.take("refused")) == numbers(1, 2)
    assert rabbitmq.count("strict") == 0
    for name in ("strict", "refused"):
        rabbitmq.delete_queue(name)


@pytest.mark.case(16)
def test_what_cannot_be_delivered_is_a_dead_letter_and_acknowledged(
    inline: Make, rabbitmq: RabbitMQ, queue: str, webhook: WebhookServer
) -> None:
    webhook.answer(503)
    product = inline(
        sources={"incoming": source(rabbitmq, queue)},
        sinks={"out": to(webhook, retry={"attempts": 2, **SOON}, on_failure="dead_letter")},
    )
    rabbitmq.publish(numbers(7), queue)
    product.start()
    wait_until(lambda: product.told_upto() == 1)
    (letter,) = product.dead_letters()
    assert (letter["stage"], letter["payload"]) == ("out", '{"n": 7}')
    product.close()
    assert rabbitmq.count(queue) == 0


@pytest.mark.case(11)
def test_the_first_and_the_third_are_acknowledged_while_the_second_is_owed(
    inline: Make, rabbitmq: RabbitMQ, queue: str, webhook: WebhookServer
) -> None:
    webhook.answer_rows(503, {"incoming/1"})
    product = inline(sources={"incoming": source(rabbitmq, queue)}, sinks={"out": to(webhook)})
    rabbitmq.publish(numbers(1, 2, 3), queue)
    running = product.start(drain_s=0.2, engine_when=lambda: product.received() == 3)
    wait_until(lambda: product.account() == books(delivered=2, in_flight=1))
    running.terminate()
    rabbitmq.wait_for(queue, 1)
    assert [message.body for message in rabbitmq.take(queue)] == numbers(2)


@pytest.mark.case(20)
def test_acknowledged_when_logged_the_message_is_ours_although_the_sink_is_down(
    inline: Make, rabbitmq: RabbitMQ, queue: str, webhook: WebhookServer
) -> None:
    webhook.down()
    fields = {"acknowledge": "logged"}
    sinks = {"out": to(webhook, retry=LATER)}
    product = inline(sources={"incoming": source(rabbitmq, queue, **fields)}, sinks=sinks)
    rabbitmq.publish(numbers(*range(5)), queue)
    running = product.start(drain_s=0.2)
    wait_until(lambda: product.told_upto() == 5)
    running.terminate()
    assert rabbitmq.count(queue) == 0, "the broker was told, and has forgotten them"
    webhook.up()
    product.start()
    wait_until(lambda: product.account() == books(delivered=5))
    assert delivered_to(webhook) == [0, 1, 2, 3, 4]


@pytest.mark.case(27)
def test_the_last_batch_before_a_silence_is_acknowledged_although_prefetch_is_used_up(
    inline: Make, rabbitmq: RabbitMQ, queue: str, webhook: WebhookServer
) -> None:
    product = inline(
        sources={"incoming": source(rabbitmq, queue, prefetch=10, max_events_per_batch=10)},
        sinks={"out": to(webhook)},
    )
    product.start()
    rabbitmq.publish(numbers(*range(10)), queue)
    wait_until(lambda: product.told_upto() == 10)
    product.close()
    assert rabbitmq.count(queue) == 0


@pytest.mark.case(28)
def test_a_broker_that_restarts_while_a_batch_is_under_way_makes_no_second_delivery(
    inline: Make, rabbitmq: RabbitMQ, queue: str, webhook: WebhookServer
) -> None:
    hold = webhook.hold()
    patient = to(webhook, timeout_ms=900_000)
    product = inline(sources={"incoming": source(rabbitmq, queue)}, sinks={"out": patient})
    rabbitmq.publish(numbers(*range(20)), queue)
    product.start()
    hold.wait_for(1)
    rabbitmq.kill()
    rabbitmq.start()
    hold.release()
    wait_until(lambda: product.told_upto() == 20)
    wait_until(lambda: (now := product.intake_status()) and not now.reason, what="connected again")
    rabbitmq.publish(numbers(20), queue, message_id=lambda _: "behind those that come again")
    wait_until(lambda: product.told_upto() == 21)
    assert product.account() == books(delivered=21), "no second event"
    product.close()
    assert rabbitmq.count(queue) == 0, "and acknowledged on the new channel"
    assert delivered_to(webhook) == list(range(21)), "no second copy"


@pytest.mark.case(30)
def test_while_a_sink_is_down_the_broker_keeps_what_exceeds_the_prefetch(
    inline: Make, rabbitmq: RabbitMQ, queue: str, webhook: WebhookServer
) -> None:
    webhook.down()
    product = inline(
        sources={"incoming": source(rabbitmq, queue, prefetch=50)},
        sinks={"out": to(webhook, mode="array")},
    )
    rabbitmq.publish(numbers(*range(500)), queue)
    product.start()
    wait_until(lambda: product.received() == 50)
    wait_until(lambda: product.status()["sinks"]["out"]["failing_since"] is not None)
    assert (product.received(), rabbitmq.count(queue)) == (50, 450)
    webhook.up()
    wait_until(lambda: product.account() == books(delivered=500))
    product.close()
    assert rabbitmq.count(queue) == 0


def test_what_the_broker_says_of_a_message_can_be_used_and_rows_go_on_by_a_key_of_their_own(
    inline: Make, rabbitmq: RabbitMQ, queue: str
) -> None:
    rabbitmq.declare_exchange("onward", "direct")
    for name in ("even", "odd"):
        rabbitmq.declare_queue(name)
        rabbitmq.bind(name, "onward", f"{name}.key")
    product = inline(
        sources={"incoming": source(rabbitmq, queue)},
        transforms={
            "told": {
                "type": "select",
                "input": "incoming",
                "columns": {
                    "n": "CAST(get_json_object(payload, '$.n') AS INT)",
                    "came_by": "headers['rabbitmq.routing_key']",
                    "id": "message_id",
                },
            }
        },
        sinks={
            "onward": {
                "type": "rabbitmq", "input": "told", "url": rabbitmq.url, "exchange": "onward",
                "routing_key": "CASE n % 3 WHEN 0 THEN 'even.key' WHEN 1 THEN 'odd.key' ELSE 'nowhere' END",
            }
        },
    )  # fmt: skip
    rabbitmq.publish(numbers(*range(6)), queue)
    product.start()
    wait_until(lambda: product.told_upto() == 6)
    product.close()
    assert product.account() == books(delivered=4, dead_lettered=2)
    assert {letter["event_id"] for letter in product.dead_letters()} == {"incoming/2", "incoming/5"}
    (first, _) = rabbitmq.take("even")
    assert first.id == "incoming/0"
    assert json.loads(first.body) == {"event_id": "incoming/0", "n": 0, "came_by": queue, "id": "m0"}
    assert [message.id for message in rabbitmq.take("odd")] == ["incoming/1", "incoming/4"]
    for name in ("even", "odd"):
        rabbitmq.delete_queue(name)


WINDOW = {
    "type": "window", "input": "parsed", "time": "t", "size": "1m", "aggregates": {"events": "count(*)"},
}  # fmt: skip
TIMED = {"type": "parse_json", "input": "incoming", "schema": "t TIMESTAMP"}


def moments(number: int) -> list[bytes]:
    """Messages of one minute."""
    return [b'{"t": "2021-05-01T00:00:%02dZ"}' % (second % 60) for second in range(number)]


@pytest.mark.case(34, 35)
def test_a_window_with_a_save_point_takes_more_than_may_be_unacknowledged(
    inline: Make, rabbitmq: RabbitMQ, queue: str
) -> None:
    product = inline(
        sources={"incoming": source(rabbitmq, queue, prefetch=10)},
        transforms={"parsed": TIMED, "counts": WINDOW},
        sinks={"out": {"type": "files", "input": "counts", "path": "out", "format": "jsonl"}},
    )
    rabbitmq.publish(moments(100), queue)
    product.start()
    wait_until(lambda: product.told_upto() == 100)
    assert product.account() == books(delivered=100)
    assert product.rows() == [], "the window is open"


@pytest.mark.case(34, 35)
def test_a_window_is_not_closed_while_the_limit_of_unacknowledged_messages_keeps_its_events_out(
    inline: Make,
    rabbitmq: RabbitMQ,
    queue: str,
    webhook: WebhookServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To be closed it would take more messages than may be unacknowledged: none of them becomes late."""
    held, look = threading.Event(), Silence._look

    def looks(self: Silence, source: str, *, waits: bool) -> None:
        look(self, source, waits=waits)
        if waits and source in self._held_at:
            held.set()

    monkeypatch.setattr(Silence, "_look", looks)

    def pipeline(prefetch: int) -> dict[str, Any]:
        window = WINDOW | {"acknowledge": "delivered", "idle_after": "1s"}
        return {
            "sources": {"incoming": source(rabbitmq, queue, prefetch=prefetch)},
            "transforms": {"parsed": TIMED, "counts": window},
            "sinks": {
                "out": to(webhook) | {"input": "counts"},
                "late": {"type": "files", "input": "counts.late", "path": "late", "format": "jsonl"},
            },
        }

    product = inline(**pipeline(prefetch=10))
    rabbitmq.publish(moments(15), queue)
    running = product.start(engine_when=lambda: product.received() == 10, drain_s=1.0)
    running.wait_for(held.is_set)  # silent for as long as the window waits, and known to be held back
    running.terminate()
    assert (product.received(), product.told_upto(), webhook.accepted) == (10, 0, [])
    product.write(pipeline(prefetch=100))
    running = product.start()
    running.wait_for(lambda: product.told_upto() == 15)
    assert [row["events"] for row in webhook.accepted] == [15]
    assert product.rows("late") == [] and product.account() == books(delivered=15)
