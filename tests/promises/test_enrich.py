"""Events about which a web service is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.promises.product import FILES, HTTP, SOON, Inline, books
from tests.promises.test_settling import assert_waits, code, webhook_sink
from tests.servers import Request, WebhookServer

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]
PARSE = {"type": "parse_json", "input": "incoming", "schema": "n INT, kind STRING"}
KNOWN = {"type": "filter", "input": "parsed", "where": "n < 90"}


def asking(server: WebhookServer, **fields: Any) -> dict[str, Any]:
    url = server.url + ("" if "body" in fields else "/{n}?kind={kind}")
    return {"type": "enrich", "input": "known", "url": url, "retry": SOON, **fields}


def number(request: Request) -> int:
    return int(request.path.rpartition("/")[2].partition("?")[0])


def name(request: Request) -> str:
    return json.dumps({"name": f"station {number(request)}", "height": number(request) * 1.5})


@pytest.mark.case(5)
def test_an_answer_becomes_columns_and_what_the_service_refuses_is_a_dead_letter(
    inline: Make, webhook: WebhookServer
) -> None:
    webhook.answer(200, body=name)
    webhook.answer(400, lambda request: number(request) == 3, body="there is no third, says the-secret-token")
    webhook.answer(404, lambda request: number(request) == 4)
    webhook.answer(200, lambda request: number(request) == 5, body='{"name": "five", "height": "tall"}')
    step = asking(webhook, schema="name STRING, height DOUBLE", on_missing="drop", token="the-secret-token")
    product = inline(
        sources={"incoming": FILES},
        transforms={"parsed": PARSE, "known": KNOWN, "step": step},
        sinks={"out": {"type": "files", "path": "out", "input": "step"}},
    )
    events = [{"n": n, "kind": "a b"} for n in (1, 2, 3, 4, 5, 99)]
    product.put("a.jsonl", events)
    assert product.run_once().code == 0
    assert product.rows() == [
        {"event_id": "incoming/0", "n": 1, "kind": "a b", "name": "station 1", "height": 1.5},
        {"event_id": "incoming/1", "n": 2, "kind": "a b", "name": "station 2", "height": 3.0},
    ]
    assert sorted(map(number, webhook.requests)) == [1, 2, 3, 4, 5], "each once, and not what was filtered"
    assert {request.path.partition("?")[2] for request in webhook.requests} == {"kind=a%20b"}
    assert {request.headers["authorization"] for request in webhook.requests} == {"Bearer the-secret-token"}
    refused, misfit = product.dead_letters()
    assert (refused["event_id"], refused["stage"]) == ("incoming/2", "step")
    assert "answered 400 Bad Request: there is no third, says ***" in refused["reason"]
    assert misfit["reason"].endswith('does not fit: field "height" is string "tall", not double')
    assert product.account() == books(delivered=2, dropped=2, dead_lettered=2)
    written = [path for path in product.directory.rglob("*") if path.is_file() and path != product.file]
    assert not [path for path in written if b"the-secret-token" in path.read_bytes()]


def test_events_wait_while_the_service_fails_for_them_and_their_neighbours_are_delivered(
    inline: Make, webhooks: list[WebhookServer]
) -> None:
    service, first, second = webhooks
    service.answer(200, body=name)
    failing = service.answer(500, lambda request: number(request) in (1, 3), body="overloaded")
    step = asking(service, schema="name STRING, height DOUBLE", tries=2)
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "known": KNOWN, "step": step},
        sinks={"first": webhook_sink(first, "step"), "second": webhook_sink(second, "step"),
               "out": {"type": "files", "path": "out", "input": "step"}},
    )  # fmt: skip
    running = product.start()
    answer = product.post([{"n": n, "kind": "x"} for n in (1, 2, 3)])
    running.wait_for(lambda: failing.used >= 12)
    assert_waits(answer)
    for sink in (first, second):
        assert sink.accepted_ids == ["incoming/1"]
    why = product.explain("incoming/2")["why"]
    assert "it waits for step step since 20" in why and "answered 500 Internal Server Error: overl" in why
    assert all(sink["failing_since"] is None for sink in product.status()["sinks"].values())
    assert code(product.post({"n": 7, "kind": "x"})) == 200
    failing.stop()
    assert code(answer) == 200
    everything = [f"incoming/{n}" for n in range(4)]
    assert sorted(first.accepted_ids) == sorted(second.accepted_ids) == everything
    assert [row["event_id"] for row in product.rows()] == everything
    asked = sorted(map(number, service.requests))
    assert [n for n in asked if n not in (1, 3)] == [2, 7], "only those that wait are asked about again"
    assert product.account() == books(delivered=4)


def test_several_events_go_into_one_request_and_what_is_known_is_not_asked_again(
    inline: Make, webhook: WebhookServer
) -> None:
    webhook.answer(200, body=lambda request: json.dumps([{"twice": row["n"] * 2} for row in request.rows]))
    step = asking(webhook, method="POST", body=["n"], batch=4, schema="twice BIGINT", into="told",
                  cache={"seconds": 600})  # fmt: skip
    product = inline(
        sources={"incoming": FILES},
        transforms={"parsed": PARSE, "known": KNOWN, "step": step},
        sinks={"out": {"type": "files", "path": "out", "input": "step"}},
    )
    product.put("a.jsonl", [{"n": n % 10} for n in range(100)])
    assert product.run_once().code == 0
    assert [(row["n"], row["told"]) for row in product.rows()] == [
        (n % 10, {"twice": n % 10 * 2}) for n in range(100)
    ]
    assert sorted(row["n"] for request in webhook.requests for row in request.rows) == list(range(10))
    assert sorted(len(request.rows) for request in webhook.requests) == [2, 4, 4]
