"""Sinks with a buffer: what waits for them, what is told when, and that nothing in a buffer is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.promises.product import FILES, HTTP, LATER, PARSE, SOON, Inline, Product, books
from tests.promises.test_settling import assert_waits, code, webhook_sink
from tests.servers import WebhookServer

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]


def pipeline(hook: WebhookServer, buffer: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A pipeline with one sink, which has a buffer."""
    sink = webhook_sink(hook, "parsed") | {"retry": SOON, "buffer": buffer or {"type": "disk"}} | more
    return {"sources": {"incoming": HTTP}, "transforms": {"parsed": PARSE}, "sinks": {"a": sink}}


def rewrite(product: Inline, sinks: dict[str, Any]) -> None:
    """The same pipeline with other sinks."""
    product.write({"sources": {"incoming": FILES}, "transforms": {"parsed": PARSE}, "sinks": sinks})


def rows(product: Inline) -> dict[str, int]:
    """The account of the rows in the buffer."""
    found: dict[str, int] = product.audit()["buffers"]["a.buffer"]
    return found


@pytest.mark.case(20)
def test_an_event_in_a_buffer_is_acknowledged_when_the_sink_has_taken_it(
    inline: Make, webhook: WebhookServer
) -> None:
    failing = webhook.answer(503)
    product = inline(**pipeline(webhook))
    running = product.start()
    answer = product.post([{"n": n} for n in range(3)])
    running.wait_for(lambda: 'sink "a" failed on batch a.buffer' in running.output)
    assert_waits(answer)
    assert product.account() == books(in_flight=3)
    assert rows(product) == books(in_flight=3)
    running.wait_for(lambda: "has it in its buffer" in product.explain("incoming/1")["why"])
    story = product.explain("incoming/1")
    assert story["state"] == "in flight"
    assert [stage["state"] for stage in story["stages"]] == ["buffered"]
    (row,) = story["buffered"]
    assert row["event_id"] == "a.buffer/1" and "a owes it (since" in row["why"]
    failing.stop()
    assert code(answer) == 200
    assert sorted(webhook.accepted_ids) == [f"incoming/{n}" for n in range(3)], (
        "under the ids they always had"
    )
    assert sorted(webhook.accepted, key=lambda row: row["n"]) == [
        {"event_id": f"incoming/{n}", "n": n, "parts": None} for n in range(3)
    ]
    assert product.account() == books(delivered=3)
    assert rows(product) == books(delivered=3)


@pytest.mark.case(20)
def test_a_buffer_that_signs_for_its_rows_acknowledges_while_its_sink_is_down(
    inline: Make, webhook: WebhookServer
) -> None:
    failing = webhook.answer(503)
    product = inline(**pipeline(webhook, {"acknowledgements": True}))
    running = product.start()
    assert code(product.post([{"n": n} for n in range(3)])) == 200
    running.wait_for(lambda: 'sink "a" failed on batch a.buffer' in running.output)
    assert product.account() == books(delivered=3)
    assert rows(product) == books(in_flight=3)
    assert product.status()["buffers"]["a"]["waiting"] == 3
    failing.stop()
    running.wait_for(lambda: rows(product) == books(delivered=3))
    assert sorted(webhook.accepted_ids) == [f"incoming/{n}" for n in range(3)]


@pytest.mark.case(20)
def test_the_outcome_of_a_buffered_row_survives_a_restart_in_between(
    inline: Make, webhook: WebhookServer
) -> None:
    failing = webhook.answer(503)
    product = inline(**pipeline(webhook, retry=LATER) | {"sources": {"incoming": FILES}})
    file = product.put("a.jsonl", [{"n": n} for n in range(3)])
    running = product.start(drain_s=0.5)
    running.wait_for(lambda: 'sink "a" failed on batch a.buffer' in running.output)
    running.terminate()
    assert file.exists() and product.account() == books(in_flight=3)
    failing.stop()
    again = product.start()
    again.wait_for(lambda: not file.exists())
    assert product.account() == books(delivered=3) == rows(product)
    assert sorted(webhook.accepted_ids) == [f"incoming/{n}" for n in range(3)]


def test_a_row_refused_behind_a_buffer_is_the_dead_letter_of_its_event(
    inline: Make, webhook: WebhookServer
) -> None:
    refusing = webhook.answer_rows(400, {"incoming/1"})
    product = inline(**pipeline(webhook))
    running = product.start()
    assert code(product.post([{"n": n} for n in range(3)])) == 200
    assert product.account() == books(delivered=2, dead_lettered=1) == rows(product)
    (letter,) = product.dead_letters()
    assert letter["event_id"].startswith("a.buffer/") and letter["stage"] == "a"
    assert product.explain("incoming/1")["state"] == "dead_lettered"
    assert len(product.explain("incoming/1")["dead_letters"]) == 1
    refusing.stop()
    product.command("dead-letters", "replay", str(product.file), "--all")
    running.wait_for(lambda: product.account() == books(delivered=3))
    assert rows(product) == books(delivered=3)
    assert sorted(webhook.accepted_ids) == ["incoming/0", "incoming/1", "incoming/2"]


@pytest.mark.case(3, 20)
def test_a_refusal_behind_a_buffer_reaches_the_source(inline: Make, webhook: WebhookServer) -> None:
    webhook.answer_rows(400, {"incoming/0"})
    product = inline(**pipeline(webhook, on_failure="refuse"))
    product.start()
    answer = product.post({"n": 0})
    assert code(answer) == 422
    assert code(product.post({"n": 1})) == 200
    assert product.account() == books(delivered=1, refused=1)


def test_a_full_buffer_drops_the_newest_if_it_is_told_to(inline: Make, webhook: WebhookServer) -> None:
    failing = webhook.answer(503)
    buffer = {"acknowledgements": True, "when_full": "drop_newest", "max_bytes": 1024 * 1024}
    product = inline(**pipeline(webhook, buffer))
    running = product.start()
    large = {"n": 1, "parts": list(range(100_000, 200_000))}
    assert code(product.post([large, large])) == 200
    assert code(product.post({"n": 2})) == 200
    assert product.account() == books(delivered=2, dropped=1)
    running.wait_for(lambda: "the buffer is full" in running.output)
    failing.stop()
    running.wait_for(lambda: rows(product) == books(delivered=2))


def test_a_full_buffer_holds_the_source_back_by_default(inline: Make, webhook: WebhookServer) -> None:
    failing = webhook.answer(503)
    product = inline(**pipeline(webhook, {"acknowledgements": True, "max_bytes": 1024 * 1024}))
    running = product.start()
    large = {"n": 1, "parts": list(range(100_000, 200_000))}
    assert code(product.post([large, large])) == 200
    waiting = product.post({"n": 2})
    running.wait_for(lambda: "[log-full]" in running.output)
    assert_waits(waiting)
    failing.stop()
    assert code(waiting) == 200
    running.wait_for(lambda: rows(product) == books(delivered=3))


@pytest.mark.case(18)
def test_an_authoritative_sink_settles_events_while_another_catches_up(
    inline: Make, webhooks: list[WebhookServer]
) -> None:
    a, b, _ = webhooks
    failing = b.answer(503)
    sinks = {
        "a": webhook_sink(a, "parsed") | {"authoritative": True},
        "b": webhook_sink(b, "parsed") | {"retry": SOON},
    }
    product = inline(sources={"incoming": HTTP}, transforms={"parsed": PARSE}, sinks=sinks)
    running = product.start()
    assert code(product.post([{"n": n} for n in range(3)])) == 200, "b owes them, and nobody waits for it"
    running.wait_for(lambda: 'sink "b" failed on batch b.buffer' in running.output)
    assert product.account() == books(delivered=3)
    assert product.status()["buffers"]["b"]["waiting"] == 3, "its lag is visible"
    failing.stop()
    running.wait_for(lambda: product.status()["buffers"]["b"]["waiting"] == 0)
    assert sorted(b.accepted_ids) == sorted(a.accepted_ids) == [f"incoming/{n}" for n in range(3)]


@pytest.mark.case(18)
def test_while_the_authoritative_sink_is_down_events_wait_and_the_other_gets_them(
    inline: Make, webhooks: list[WebhookServer]
) -> None:
    a, b, _ = webhooks
    failing = a.answer(503)
    sinks = {
        "a": webhook_sink(a, "parsed") | {"authoritative": True, "retry": SOON},
        "b": webhook_sink(b, "parsed"),
    }
    product = inline(sources={"incoming": HTTP}, transforms={"parsed": PARSE}, sinks=sinks)
    running = product.start()
    answer = product.post({"n": 1})
    running.wait_for(lambda: b.accepted_ids == ["incoming/0"])
    assert_waits(answer)
    failing.stop()
    assert code(answer) == 200


def test_nobody_waits_for_a_best_effort_sink(inline: Make, webhooks: list[WebhookServer]) -> None:
    a, b, _ = webhooks
    b.answer(503)
    sinks = {
        "a": webhook_sink(a, "parsed"),
        "b": webhook_sink(b, "parsed") | {"best_effort": True, "retry": {**SOON, "attempts": 2}},
    }
    product = inline(sources={"incoming": HTTP}, transforms={"parsed": PARSE}, sinks=sinks)
    running = product.start()
    assert code(product.post({"n": 1})) == 200
    running.wait_for(lambda: product.audit()["buffers"].get("b.buffer") == books(dead_lettered=1))
    assert len(product.dead_letters()) == 1
    assert product.account() == books(delivered=1), "the event itself was delivered"


def test_rows_of_a_sink_that_lost_its_buffer_are_still_taken_from_it(
    inline: Make, webhook: WebhookServer
) -> None:
    failing = webhook.answer(503)
    product = inline(**pipeline(webhook, retry=LATER) | {"sources": {"incoming": FILES}})
    file = product.put("a.jsonl", [{"n": 1}])
    running = product.start(drain_s=0.5)
    running.wait_for(lambda: 'sink "a" failed on batch a.buffer' in running.output)
    running.terminate()
    failing.stop()
    rewrite(product, sinks={"a": webhook_sink(webhook, "parsed")})
    again = product.start()
    again.wait_for(lambda: not file.exists())
    assert webhook.accepted_ids == ["incoming/0"]
    assert product.account() == books(delivered=1)


def test_a_renamed_sink_finds_its_buffer_by_name(inline: Make, webhook: WebhookServer) -> None:
    failing = webhook.answer(503)
    product = inline(**pipeline(webhook, retry=LATER) | {"sources": {"incoming": FILES}})
    file = product.put("a.jsonl", [{"n": 1}])
    running = product.start(drain_s=0.5)
    running.wait_for(lambda: 'sink "a" failed on batch a.buffer' in running.output)
    running.terminate()
    rewrite(product, sinks={"z": webhook_sink(webhook, "parsed") | {"retry": SOON}})
    lost = product.start(drain_s=0.5)
    lost.wait_for(lambda: 'buffer "a" holds 1 row' in lost.output)
    assert product.status()["buffers"]["a"]["orphan"]
    assert file.exists() and product.account() == books(in_flight=1), "nothing of it is forgotten"
    lost.terminate()
    failing.stop()
    rewrite(product, sinks={"z": webhook_sink(webhook, "parsed") | {"buffer": {"name": "a"}}})
    again = product.start()
    again.wait_for(lambda: not file.exists())
    assert webhook.accepted_ids == ["incoming/0"]
    assert product.account() == books(delivered=1)


def test_a_buffer_nobody_drains_can_be_given_up(inline: Make, webhooks: list[WebhookServer]) -> None:
    a, z, _ = webhooks
    a.answer(503)
    product = inline(**pipeline(a) | {"sources": {"incoming": FILES}})
    product.put("a.jsonl", [{"n": 1}, {"n": 2}])
    running = product.start(drain_s=0.5)
    running.wait_for(lambda: 'sink "a" failed on batch a.buffer' in running.output)
    running.terminate()
    rewrite(product, sinks={"z": webhook_sink(z, "parsed")})
    listed = product.command("buffers", "list", str(product.file))
    assert "a" in listed.output and "2" in listed.output
    done = product.command("buffers", "drop", str(product.file), "a", "--yes")
    assert done.code == 0, done.output
    assert product.account() == books(dropped=2)
    assert product.audit()["buffers"]["a.buffer"] == books(dropped=2)


@pytest.mark.crash
@pytest.mark.case(20, 24)
def test_a_kill_while_rows_wait_in_a_buffer_loses_and_doubles_nothing(
    real: Callable[..., Product], webhook: WebhookServer
) -> None:
    failing = webhook.answer(503)
    made = real(**pipeline(webhook) | {"sources": {"incoming": FILES}})
    file = made.put("a.jsonl", [{"n": n} for n in range(2000)])
    running = made.start()
    running.wait_for(lambda: 'sink "a" failed on batch a.buffer' in running.output)
    running.kill9()
    assert file.exists()
    failing.stop()
    again = made.start()
    again.wait_for(lambda: not file.exists())
    assert made.account() == books(delivered=2000)
    assert len(webhook.accepted_ids) == len(set(webhook.accepted_ids)) == 2000


def test_rows_of_one_key_keep_their_order_while_one_of_them_is_tried_again(
    inline: Make, webhook: WebhookServer
) -> None:
    failing = webhook.answer_rows(503, {"incoming/2"})
    keyed = {"type": "select", "input": "parsed", "columns": {"n": "n", "k": "n % 3"}}
    sink = webhook_sink(webhook, "keyed", ordered_by="k")
    product = inline(
        sources={"incoming": HTTP}, transforms={"parsed": PARSE, "keyed": keyed}, sinks={"a": sink}
    )
    running = product.start()
    first = product.post([{"n": n} for n in range(9)])
    running.wait_for(lambda: 'sink "a" failed on batch a.buffer' in running.output)
    later = product.post([{"n": n} for n in range(9, 12)])
    running.wait_for(lambda: product.received() == 12)
    assert sorted(row["n"] for row in webhook.accepted if row["k"] != 2) == [0, 1, 3, 4, 6, 7]
    assert not [row for row in webhook.accepted if row["k"] == 2], "2 is the first of them"
    failing.stop()
    assert [code(first), code(later)] == [200, 200]
    for key in range(3):
        assert [row["n"] for row in webhook.accepted if row["k"] == key] == list(range(key, 12, 3))


def test_a_run_that_is_to_end_waits_for_its_buffers_and_says_if_they_are_not_empty(
    inline: Make, webhook: WebhookServer
) -> None:
    failing = webhook.answer(503)
    nodes = pipeline(webhook, {"acknowledgements": True}) | {"sources": {"incoming": FILES}}
    product = inline(**nodes)
    product.put("a.jsonl", [{"n": 1}])
    done = product.run_once(patience_s=2.0)
    assert done.code == 3 and 'sink "a" still fails' in done.output
    assert product.account() == books(delivered=1) and rows(product) == books(in_flight=1)
    failing.stop()
    assert product.run_once().code == 0
    assert rows(product) == books(delivered=1)
