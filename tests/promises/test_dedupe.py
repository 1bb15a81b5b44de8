"""A duplicate shares the fate of the event it repeats: case 41."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import httpx
import pytest

from tests.brokers import RabbitMQ
from tests.promises.product import FILES, HTTP, PARSE, SOON, Inline, books
from tests.servers import WebhookServer

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]
PATIENT = {**HTTP, "acknowledge_within": "15m"}
ARCHIVE = {"type": "files", "input": "once", "path": "./out"}
ONCE = {"type": "dedupe", "input": "incoming", "keys": ["message_id"]}


def to(webhook: WebhookServer, **fields: Any) -> dict[str, Any]:
    sink = {"type": "http", "input": "once", "url": webhook.url, "retry": SOON, "timeout_ms": 900_000}
    return {**sink, **fields}


def keyed(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Idempotency-Key": key}


def code(answer: Future[httpx.Response]) -> int:
    return answer.result(timeout=300).status_code


def repeat_until_acknowledged(product: Inline, key: str) -> None:
    """As a client does: a busy machine may need more than the time it waits."""
    while code(product.post({"n": 1}, headers=keyed(key))) != 200:
        pass


@pytest.mark.case(41, 21)
def test_a_request_that_is_repeated_after_its_first_expired_is_not_acknowledged_before_it_is_delivered(
    inline: Make, webhook: WebhookServer
) -> None:
    product = inline(
        sources={"incoming": {**HTTP, "acknowledge_within": "5s"}},
        transforms={"once": ONCE},
        sinks={"out": to(webhook)},
    )
    product.start()
    down = webhook.answer(503)
    assert code(product.post({"n": 1}, headers=keyed("a"))) == 503
    assert code(product.post({"n": 1}, headers=keyed("a"))) == 503, "its sink is down: nothing was delivered"
    assert webhook.accepted == []
    down.stop()
    repeat_until_acknowledged(product, "a")
    account = product.account()
    assert (account["delivered"], account["dropped"], account["in_flight"]) == (1, 0, 0)
    taken = len(webhook.accepted)
    assert taken >= 1
    repeat_until_acknowledged(product, "a")
    account = product.account()
    assert (account["delivered"], account["dropped"], account["in_flight"]) == (1, 1, 0)
    assert len(webhook.accepted) == taken, "seen before, and delivered"


@pytest.mark.case(41, 39)
def test_a_duplicate_waits_while_the_event_it_repeats_is_in_flight_and_is_acknowledged_with_it(
    inline: Make, webhook: WebhookServer
) -> None:
    product = inline(
        sources={"incoming": PATIENT},
        transforms={"once": ONCE},
        sinks={"out": to(webhook), "archive": ARCHIVE},
    )
    running = product.start()
    down = webhook.answer(503)
    first = product.post({"n": 1}, headers=keyed("a"))
    running.wait_for(lambda: len(product.rows()) == 1)
    again = product.post({"n": 1}, headers=keyed("a"))
    running.wait_for(lambda: "repeats incoming/0" in product.explain("incoming/1")["why"])
    assert not first.done() and not again.done()
    assert product.status()["dedupes"] == {"once": {"keys": 1, "waiting": 1, "waits_for": "incoming/0"}}
    shown = product.command("status", str(product.file)).output
    assert "duplicates waiting" in shown
    down.stop()
    assert code(first) == code(again) == 200
    assert len(webhook.accepted) == 1
    assert len(product.rows()) == 1
    assert product.account() == books(delivered=1, dropped=1)
    assert "repeats incoming/0" in product.explain("incoming/1")["stages"][0]["text"]
    (left,) = product.status()["left_at"]
    assert (left["stage"], left["outcome"], left["rows"]) == ("once", "dropped", 1)


@pytest.mark.case(41)
def test_a_duplicate_is_the_first_when_the_event_it_waited_for_is_refused(
    inline: Make, webhook: WebhookServer
) -> None:
    product = inline(
        sources={"incoming": PATIENT},
        transforms={"once": ONCE},
        sinks={"out": to(webhook, on_failure="refuse"), "archive": ARCHIVE},
    )
    running = product.start()
    down = webhook.answer(503)
    first = product.post({"n": 1}, headers=keyed("a"))
    running.wait_for(lambda: len(product.rows()) == 1)
    again = product.post({"n": 2}, headers=keyed("a"))
    running.wait_for(lambda: "repeats incoming/0" in product.explain("incoming/1")["why"])
    webhook.answer_rows(400, {"incoming/0"})
    assert code(first) >= 400
    down.stop()
    assert code(again) == 200
    assert webhook.accepted_ids == ["incoming/1"]
    assert [row["event_id"] for row in product.rows()] == ["incoming/0", "incoming/1"]
    assert product.account() == books(delivered=1, refused=1)


@pytest.mark.case(41, 44, 39)
def test_a_duplicate_of_an_event_whose_source_was_renamed_says_so_and_goes_on_when_that_is_given_up(
    inline: Make, webhook: WebhookServer
) -> None:
    def pipeline(name: str) -> dict[str, Any]:
        rows = {"type": "parse_json", "input": name, "schema": "n BIGINT"}
        return {
            "sources": {name: {**FILES, "on_acknowledge": "keep"}},
            "transforms": {"rows": rows, "once": {"type": "dedupe", "input": "rows", "keys": ["n"]}},
            "sinks": {"out": to(webhook)},
        }

    product = inline(**pipeline("incoming"))
    product.put("1.jsonl", [{"n": 1}])
    down = webhook.answer(503)
    running = product.start(drain_s=0.0)
    running.wait_for(lambda: product.status()["sinks"]["out"]["failing_since"])
    running.terminate()
    down.stop()
    (product.directory / "in" / "1.jsonl").unlink()
    product.put("2.jsonl", [{"n": 1}, {"n": 2}])
    product.write(pipeline("renamed"))
    running = product.start(drain_s=0.0)
    running.wait_for(lambda: product.account("renamed")["delivered"] == 1)
    running.wait_for(lambda: "repeats incoming/0" in product.explain("renamed/0")["why"])
    why = product.explain("renamed/0")["why"]
    assert 'source "incoming" is not in the pipeline any more' in why and "signoff sources drop" in why
    (said,) = product.status()["waits_for_gone"]
    assert 'dedupe "once": 1 row waits for events of source "incoming"' in said
    assert "signoff sources drop FILE incoming" in said
    running.terminate()
    assert product.command("sources", "drop", str(product.file), "incoming", "--yes").code == 0
    assert product.run_once().code == 0
    assert product.account("renamed") == books(delivered=2)
    assert product.status()["waits_for_gone"] == []
    assert sorted(webhook.accepted_ids) == ["renamed/0", "renamed/1"]


@pytest.mark.case(41)
def test_events_without_a_key_repeat_none(inline: Make) -> None:
    product = inline(
        sources={"incoming": HTTP},
        transforms={"once": ONCE, "parsed": {**PARSE, "input": "once"}},
        sinks={"out": {"type": "files", "input": "parsed", "path": "./out"}},
    )
    product.start()
    assert [code(product.post({"n": n})) for n in range(3)] == [200, 200, 200]
    assert sorted(row["n"] for row in product.rows()) == [0, 1, 2]
    assert product.account() == books(delivered=3)


@pytest.mark.case(41, 40, 7)
def test_rows_of_one_event_do_not_wait_for_each_other_and_letters_of_the_first_go_through(
    inline: Make, webhook: WebhookServer
) -> None:
    refused = webhook.answer_rows(400, {"incoming/0/0"})
    product = inline(
        sources={"incoming": FILES},
        transforms={
            "parsed": PARSE,
            "each": {"type": "unfold", "input": "parsed", "column": "parts"},
            "once": {"type": "dedupe", "input": "each", "keys": ["parts"]},
            "still": {"type": "dedupe", "input": "once", "keys": ["n", "parts"]},
        },
        sinks={"out": to(webhook, input="still")},
    )
    product.put(
        "a.jsonl", [{"n": 1, "parts": [7, 7, 8]}, {"n": 2, "parts": [8, 9, 7]}, {"n": 3, "parts": [9]}]
    )
    running = product.start()
    running.wait_for(lambda: product.received() == 3 and product.account()["in_flight"] == 0)
    assert product.account() == books(delivered=1, dead_lettered=1, dropped=1)
    assert sorted(webhook.accepted_ids) == ["incoming/0/2", "incoming/1/1"], "in any order: requests overlap"
    refused.stop()
    product.command("dead-letters", "replay", str(product.file), "--all")
    running.wait_for(lambda: product.account() == books(delivered=2, dropped=1))
    assert sorted(webhook.accepted_ids) == ["incoming/0/0", "incoming/0/2", "incoming/1/1"]


@pytest.fixture
def queue(rabbitmq: RabbitMQ) -> Iterator[str]:
    rabbitmq.declare_queue("repeats")
    yield "repeats"
    rabbitmq.delete_queue("repeats")


@pytest.mark.case(41, 21)
def test_a_message_that_expired_and_was_requeued_is_the_first_again(
    inline: Make, rabbitmq: RabbitMQ, queue: str, webhook: WebhookServer
) -> None:
    source = {"type": "rabbitmq", "url": rabbitmq.url, "queues": [queue], "acknowledge_within": "8s"}
    product = inline(sources={"incoming": source}, transforms={"once": ONCE}, sinks={"out": to(webhook)})
    running = product.start()
    down = webhook.answer(503)
    rabbitmq.publish([b'{"n": 1}'], queue, message_id=lambda _: "a")
    running.wait_for(lambda: product.account()["expired"] >= 1)
    running.wait_for(lambda: product.received() >= 2)
    assert webhook.accepted == [] and product.account()["dropped"] == 0
    down.stop()
    running.wait_for(lambda: product.account()["delivered"] == 1)
    running.wait_for(lambda: product.told_upto() == product.received())
    # What was under way to the sink when its time was up may come there as well.
    states = {product.explain(name)["state"] for name in webhook.accepted_ids}
    assert "delivered" in states and states <= {"delivered", "expired"}
    account = product.account()
    assert (account["dropped"], account["in_flight"]) == (0, 0)
