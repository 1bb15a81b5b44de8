"""Events of several sources, united by one step: what becomes of the result becomes of all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.promises.product import FILES, HTTP, PARSE, SOON, Inline, Product, books
from tests.promises.test_settling import assert_waits, code, webhook_sink
from tests.servers import WebhookServer

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]


def pipeline(hook: WebhookServer, source: dict[str, Any] = HTTP, **more: Any) -> dict[str, Any]:
    """Two sources whose events with the same n are united."""
    united = {"type": "merge", "inputs": ["a", "b"], "keys": ["n"], "columns": {"events": "count(*)"}}
    return {
        "sources": {
            "left": source,
            "right": source | ({"path": "./right/*.jsonl"} if "path" in source else {}),
        },
        "transforms": {
            "a": PARSE | {"input": "left"},
            "b": PARSE | {"input": "right"},
            "united": united,
        },
        "sinks": {"all": webhook_sink(hook, "united") | {"retry": SOON} | more},
    }


@pytest.mark.case(8)
def test_the_result_of_events_of_two_sources_settles_all_of_them_at_both(
    inline: Make, webhook: WebhookServer
) -> None:
    held = webhook.hold()
    product = inline(**pipeline(webhook))
    running = product.start()
    left, right = product.post([{"n": 1}, {"n": 2}], "left"), product.post({"n": 1}, "right")
    running.wait_for(lambda: held.held)
    assert_waits(left)
    assert_waits(right)
    held.release()
    assert [code(left), code(right)] == [200, 200]
    assert product.account("left") == books(delivered=2)
    assert product.account("right") == books(delivered=1)
    assert product.audit()["buffers"]["united.buffer"]["delivered"] == 3
    assert sum(row["events"] for row in webhook.accepted) == 3


@pytest.mark.case(3, 8)
def test_a_refusal_of_the_result_reaches_both_sources(inline: Make, webhook: WebhookServer) -> None:
    webhook.answer(400)
    product = inline(**pipeline(webhook, on_failure="refuse"))
    product.start()
    left, right = product.post({"n": 1}, "left"), product.post({"n": 1}, "right")
    assert [code(left), code(right)] == [422, 422]
    assert product.account("left") == product.account("right") == books(refused=1)


@pytest.mark.crash
@pytest.mark.case(8, 24)
def test_a_kill_while_the_result_is_owed_forgets_no_event_of_either_source(
    real: Callable[..., Product], webhook: WebhookServer
) -> None:
    failing = webhook.answer(503)
    product = real(**pipeline(webhook, FILES))
    files = [
        product.put("x.jsonl", [{"n": n} for n in range(100)]),
        product.put("x.jsonl", [{"n": n} for n in range(50)], "right"),
    ]
    running = product.start()
    running.wait_for(lambda: 'sink "all" failed on batch united.buffer' in running.output)
    running.kill9()
    assert all(file.exists() for file in files)
    failing.stop()
    again = product.start()
    again.wait_for(lambda: not any(file.exists() for file in files))
    assert product.account("left") == books(delivered=100)
    assert product.account("right") == books(delivered=50)
    assert sum(row["events"] for row in webhook.accepted) == 150


def test_a_united_row_in_a_buffer_holds_up_all_its_events_and_is_the_letter_of_each(
    inline: Make, webhook: WebhookServer
) -> None:
    failing = webhook.answer(503)
    united = {"type": "merge", "input": "parsed", "keys": ["n"], "columns": {"events": "count(*)"}}
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "united": united},
        sinks={"all": webhook_sink(webhook, "united", buffer={"type": "disk"})},
    )
    running = product.start()
    answer = product.post([{"n": 1}, {"n": 1}, {"n": 1}])
    running.wait_for(lambda: 'sink "all" failed on batch all.buffer' in running.output)
    assert_waits(answer)
    assert product.account() == books(in_flight=3)
    refusing = webhook.answer(400)
    failing.stop()
    assert code(answer) == 200
    assert product.account() == books(dead_lettered=3)
    assert product.audit()["buffers"]["all.buffer"] == books(dead_lettered=1)
    assert [len(product.explain(f"incoming/{n}")["dead_letters"]) for n in range(3)] == [1, 1, 1]
    refusing.stop()
    product.command("dead-letters", "replay", str(product.file), "--all")
    running.wait_for(lambda: product.account() == books(delivered=3))
    assert [row["events"] for row in webhook.accepted] == [3]
