"""A sink that fails holds up nobody else: later events go on, and are settled where nobody owes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.promises.product import FILES, HTTP, PARSE, SOON, Inline, Product, books
from tests.promises.test_settling import assert_waits, code, webhook_sink
from tests.servers import WebhookServer

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]
ROUTED = {"type": "route", "input": "parsed", "routes": {"a": "n < 10", "b": "n >= 10"}}


def archive() -> dict[str, object]:
    return {"type": "files", "input": "made", "path": "out"}


def both(source: dict[str, object], a: WebhookServer, b: WebhookServer) -> dict[str, object]:
    """A pipeline whose every event goes to both."""
    sinks = {"a": webhook_sink(a, "parsed"), "b": webhook_sink(b, "parsed")}
    return {"sources": {"incoming": source}, "transforms": {"parsed": PARSE}, "sinks": sinks}


@pytest.mark.case(15)
def test_later_events_of_other_routes_are_settled_while_one_route_is_down(
    inline: Make, webhooks: list[WebhookServer]
) -> None:
    a, b, _ = webhooks
    failing = a.answer(503)
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "routed": ROUTED},
        sinks={"a": webhook_sink(a, "routed.a"), "b": webhook_sink(b, "routed.b")},
    )
    running = product.start()
    owed = product.post({"n": 1})
    running.wait_for(lambda: 'sink "a" failed on batch' in running.output)
    for n in range(10, 15):
        assert code(product.post({"n": n})) == 200, "it goes to b only"
    assert_waits(owed)
    assert product.account() == books(delivered=5, in_flight=1)
    failing.stop()
    assert code(owed) == 200
    assert b.accepted_ids == [f"incoming/{n}" for n in range(1, 6)], "b has no second copy"
    assert product.account() == books(delivered=6)


@pytest.mark.case(15)
def test_behind_a_function_on_dataframes_a_sink_that_is_down_or_slow_with_one_row_holds_up_no_other(
    inline: Make, webhooks: list[WebhookServer]
) -> None:
    a, b, _ = webhooks
    failing = a.answer(503)
    twice = {"type": "python", "input": "parsed", "function": "tests.promises.functions:twice"}
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "made": twice, "routed": ROUTED | {"input": "made"}},
        sinks={"a": webhook_sink(a, "routed.a"), "b": webhook_sink(b, "routed.b"), "all": archive()},
    )
    running = product.start()
    owed = product.post([{"n": 1}, {"n": 3}, {"n": 20}])
    running.wait_for(lambda: 'sink "a" failed on batch' in running.output)
    for n in range(10, 15):
        assert code(product.post({"n": n})) == 200, "it goes to b only"
    assert_waits(owed)
    failing.stop()
    assert code(owed) == 200
    assert a.accepted_ids == ["incoming/0"]
    assert b.accepted_ids == [f"incoming/{n}" for n in range(2, 8)], "b has no second copy"
    running.terminate()
    assert [row["twice"] for row in product.rows("out")] == [2, 40, 20, 22, 24, 26, 28]
    assert product.account() == books(delivered=7, dropped=1)


@pytest.mark.case(15)
def test_a_sink_that_was_down_gets_what_waited_in_order_and_the_others_nothing_again(
    inline: Make, webhooks: list[WebhookServer]
) -> None:
    a, b, _ = webhooks
    failing = a.answer(503)
    product = inline(**both(HTTP, a, b))
    running = product.start()
    answers = []
    for n in range(5):
        answers.append(product.post({"n": n}))
        running.wait_for(lambda n=n: len(b.accepted) == n + 1)
    assert not any(answer.done() for answer in answers), "a owes all of them"
    assert {id_ for request in a.requests for id_ in request.ids} == {"incoming/0"}
    failing.stop()
    assert [code(answer) for answer in answers] == [200] * 5
    assert a.accepted_ids == b.accepted_ids == [f"incoming/{n}" for n in range(5)]
    assert product.account() == books(delivered=5)


@pytest.mark.case(14)
def test_one_row_that_is_not_taken_holds_up_no_later_row_of_its_sink(
    inline: Make, webhook: WebhookServer
) -> None:
    failing = webhook.answer_rows(503, {"incoming/1"})
    product = inline(
        sources={"incoming": HTTP}, transforms={"parsed": PARSE}, sinks={"a": webhook_sink(webhook, "parsed")}
    )
    running = product.start()
    stuck = product.post([{"n": n} for n in range(3)])
    running.wait_for(lambda: 'sink "a" failed on batch' in running.output)
    assert code(product.post({"n": 3})) == 200
    assert_waits(stuck)
    failing.stop()
    assert code(stuck) == 200
    assert sorted(webhook.accepted_ids) == [f"incoming/{n}" for n in range(4)]


@pytest.mark.case(16)
def test_a_bounded_retry_gives_up_on_its_own_rows_while_others_go_on(
    inline: Make, webhooks: list[WebhookServer]
) -> None:
    a, b, _ = webhooks
    a.answer(503)
    bounded = webhook_sink(a, "routed.a", retry={"attempts": 3, **SOON})
    product = inline(
        sources={"incoming": FILES},
        transforms={"parsed": PARSE, "routed": ROUTED},
        sinks={"a": bounded, "b": webhook_sink(b, "routed.b")},
    )
    product.put("1.jsonl", [{"n": 1}, {"n": 11}])
    running = product.start()
    running.wait_for(lambda: product.received() == 2)
    product.put("2.jsonl", [{"n": 12}])
    running.wait_for(lambda: product.account() == books(delivered=2, dead_lettered=1))
    (letter,) = product.dead_letters()
    assert letter["stage"] == "a" and "gave up after 3 attempts" in letter["reason"]
    assert len(b.accepted_ids) == 2


@pytest.mark.case(26, 39)
@pytest.mark.crash
def test_what_waits_is_known_to_explain_and_survives_a_kill(
    real: Callable[..., Product], webhooks: list[WebhookServer]
) -> None:
    a, b, _ = webhooks
    failing = a.answer(503)
    product = real(**both(FILES, a, b))
    running = product.start()
    for n in range(3):
        product.put(f"{n}.jsonl", [{"n": n}])
        running.wait_for(lambda n=n: len(b.accepted) == n + 1)
    running.wait_for(lambda: product.settled_upto() == 0 and _batches(product) == 3)
    assert "a owes it" in (first := product.explain("incoming/0")["why"]) and "503" in first
    assert "a owes it" in (behind := product.explain("incoming/2")["why"]) and "earlier" in behind
    running.kill9()
    failing.stop()
    assert product.run_once().code == 0
    assert a.accepted_ids == b.accepted_ids == [f"incoming/{n}" for n in range(3)]
    assert product.account() == books(delivered=3)


def _batches(product: Product) -> int:
    with product.ledger() as ledger:
        return sum(
            any(state.done or state.error for state in batch.sinks.values())
            for batch in ledger.open_batches("incoming")
        )
