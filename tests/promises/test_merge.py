"""One row of several events: each of them is settled when the row is, and shares its fate."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.promises.product import FILES, HTTP, SOON, Inline, Product, books
from tests.promises.test_settling import assert_waits, code, webhook_sink
from tests.promises.test_windows import written
from tests.servers import WebhookServer, wait_until

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]
PARSED = {"type": "parse_json", "input": "incoming", "schema": "k STRING, n INT, parts ARRAY<INT>"}
MERGED = {
    "type": "merge",
    "input": "parsed",
    "keys": ["k"],
    "columns": {"number": "count(*)", "all": "collect_list(n)"},
}


def merged(source: dict[str, Any], sinks: dict[str, Any], **merge: Any) -> dict[str, Any]:
    """A pipeline that unites the events of a batch with the same `k`."""
    return {
        "sources": {"incoming": source},
        "transforms": {"parsed": PARSED, "merged": {**MERGED, **merge}},
        "sinks": sinks,
    }


def event(k: str, n: int) -> dict[str, Any]:
    return {"k": k, "n": n}


def in_one_batch(product: Inline, events: list[Any]) -> Any:
    """A run whose first batch is these events."""
    product.put("events.jsonl", events)
    return product.start(engine_when=lambda: product.received() == len(events))


# -- settled together


@pytest.mark.case(1)
def test_all_events_are_settled_when_the_row_they_were_united_to_is_taken(
    inline: Make, webhook: WebhookServer
) -> None:
    hold = webhook.hold(lambda request: request.rows[0]["k"] == "a")
    product = inline(**merged(HTTP, {"first": webhook_sink(webhook, "merged")}))
    product.start()
    answer = product.post([event("a", 1), event("b", 2), event("a", 3), event("a", 4)])
    hold.wait_for(1)
    webhook.wait_for(lambda server: len(server.accepted) == 1)
    assert_waits(answer)
    assert product.account() == books(in_flight=4)
    hold.release()
    assert code(answer) == 200
    rows = {row["k"]: row for row in webhook.accepted}
    assert (rows["a"]["number"], rows["a"]["all"]) == (3, [1, 3, 4])
    assert rows["a"]["event_id"].startswith("incoming/0/~") and rows["b"]["event_id"].startswith(
        "incoming/1/~"
    )
    assert product.account() == books(delivered=4)
    assert product.status()["sinks"]["first"]["rows"] == 2


@pytest.mark.case(1)
def test_each_batch_is_united_on_its_own(inline: Make, webhook: WebhookServer) -> None:
    product = inline(**merged(HTTP, {"first": webhook_sink(webhook, "merged")}))
    product.start()
    for n in range(3):
        assert code(product.post([event("a", 10 * n), event("a", 10 * n + 1)])) == 200
    assert [row["all"] for row in webhook.accepted] == [[0, 1], [10, 11], [20, 21]]
    assert product.account() == books(delivered=6)


@pytest.mark.case(5)
def test_an_event_that_failed_before_is_not_united_and_has_a_letter_of_its_own(
    inline: Make, webhook: WebhookServer
) -> None:
    product = inline(**merged(HTTP, {"first": webhook_sink(webhook, "merged")}))
    product.start()
    assert code(product.post([event("a", 1), "no object", event("a", 3)])) == 200
    (row,) = webhook.accepted
    assert row["all"] == [1, 3]
    assert [letter["event_id"] for letter in product.dead_letters()] == ["incoming/1"]
    assert product.account() == books(delivered=2, dead_lettered=1)


@pytest.mark.case(7)
def test_an_event_in_two_united_rows_is_settled_when_both_are(inline: Make, webhook: WebhookServer) -> None:
    failing = webhook.answer(503, when=lambda request: request.rows[0]["parts"] == 2)
    nodes = merged(HTTP, {"first": webhook_sink(webhook, "merged")}, input="each", keys=["parts"])
    nodes["transforms"] = {
        "parsed": PARSED,
        "each": {"type": "unfold", "input": "parsed", "column": "parts"},
        "merged": nodes["transforms"]["merged"],
    }
    product = inline(**nodes)
    running = product.start()
    answer = product.post([{"n": 1, "parts": [1, 2]}, {"n": 2, "parts": [2]}, {"n": 3, "parts": [1]}])
    running.wait_for(lambda: product.account() == books(delivered=1, in_flight=2))
    assert product.explain("incoming/0")["state"] == product.explain("incoming/1")["state"] == "in flight"
    failing.stop()
    assert code(answer) == 200
    assert {(row["parts"], tuple(row["all"])) for row in webhook.accepted} == {(1, (1, 3)), (2, (1, 2))}
    assert len(webhook.accepted) == 2, "the row that was taken did not come again"
    assert product.account() == books(delivered=3)


# -- the sink refuses


@pytest.mark.case(3)
def test_all_events_are_refused_when_the_row_is(inline: Make, webhook: WebhookServer) -> None:
    webhook.answer(422, body="no", when=lambda request: request.rows[0]["k"] == "a")
    product = inline(**merged(HTTP, {"first": webhook_sink(webhook, "merged", on_failure="refuse")}))
    product.start()
    response = product.post([event("a", 1), event("b", 2), event("a", 3)]).result(120)
    assert response.status_code == 422
    assert [refused["event_id"] for refused in response.json()["refused"]] == ["incoming/0", "incoming/2"]
    assert product.account() == books(delivered=1, refused=2)


@pytest.mark.case(16, 40)
def test_letters_of_a_united_row_are_replayed_together_and_give_the_same_row(
    inline: Make, webhook: WebhookServer
) -> None:
    failing = webhook.answer(422, body="no", when=lambda request: request.rows[0]["k"] == "a")
    product = inline(**merged(FILES, {"first": webhook_sink(webhook, "merged")}))
    running = in_one_batch(product, [event("a", 1), event("b", 2), event("a", 3)])
    running.wait_for(lambda: product.account() == books(delivered=1, dead_lettered=2))
    product.put("more.jsonl", [event("a", 5), event("a", 6)])
    running.wait_for(lambda: product.account() == books(delivered=1, dead_lettered=4))
    letters = {letter["event_id"]: json.loads(letter["payload"]) for letter in product.dead_letters()}
    first, second, *_ = sorted(letters)
    assert (first[:12], second[:12]) == ("incoming/0/~", "incoming/2/~") and first[12:] == second[12:]
    assert letters[second] == event("a", 3), "each letter holds its own event"
    failing.stop()
    one = product.command("dead-letters", "replay", str(product.file), second, "--json")
    assert json.loads(one.output.splitlines()[-1])["replayed"] == 2
    assert (webhook.accepted[-1]["event_id"], webhook.accepted[-1]["all"]) == (first, [1, 3])
    assert product.account() == books(delivered=3, dead_lettered=2)
    product.command("dead-letters", "replay", str(product.file), "--all")
    assert webhook.accepted[-1]["all"] == [5, 6]
    assert product.account() == books(delivered=5)


@pytest.mark.case(40)
def test_letters_of_united_rows_of_several_batches_are_not_united_by_their_replay(
    inline: Make, webhook: WebhookServer
) -> None:
    failing = webhook.answer(422)
    product = inline(**merged(HTTP, {"first": webhook_sink(webhook, "merged")}))
    product.start()
    for n in (1, 2):
        assert code(product.post([event("a", n), event("a", 10 * n)])) == 200
    assert product.account() == books(dead_lettered=4)
    failing.stop()
    product.command("dead-letters", "replay", str(product.file), "--all")
    assert sorted(row["all"] for row in webhook.accepted) == [[1, 10], [2, 20]]
    assert product.account() == books(delivered=4)


@pytest.mark.case(40)
def test_dropping_one_letter_of_a_united_row_drops_the_row(inline: Make, webhook: WebhookServer) -> None:
    webhook.answer(422)
    product = inline(**merged(HTTP, {"first": webhook_sink(webhook, "merged")}))
    product.start()
    assert code(product.post([event("a", 1), event("a", 2)])) == 200
    letter = product.dead_letters()[1]["event_id"]
    assert product.command("dead-letters", "drop", str(product.file), letter).code == 0
    assert product.dead_letters() == []
    assert product.account() == books(dropped=2)


@pytest.mark.case(40)
def test_events_that_failed_before_the_merge_are_united_with_those_replayed_with_them(
    inline: Make, webhook: WebhookServer
) -> None:
    nodes = merged(HTTP, {"first": webhook_sink(webhook, "merged")}, input="routed.good")
    routed = {"type": "route", "input": "parsed", "routes": {"good": "n < 10"}}
    nodes["transforms"] = {"parsed": PARSED, "routed": routed, "merged": nodes["transforms"]["merged"]}
    product = inline(**nodes)
    running = product.start()
    assert code(product.post([event("a", 1), event("a", 20), event("a", 30)])) == 200
    assert product.account() == books(delivered=1, dead_lettered=2)
    running.terminate()
    nodes["transforms"]["routed"]["routes"]["good"] = "n < 100"
    again = inline(**nodes)
    again.start()
    again.command("dead-letters", "replay", str(again.file), "--all")
    assert [row["all"] for row in webhook.accepted] == [[1], [20, 30]]
    assert again.account() == books(delivered=3)


# -- the sink is down


@pytest.mark.case(13, 15)
def test_a_row_that_was_owed_comes_again_with_all_its_events_and_the_same_id(
    inline: Make, webhooks: list[WebhookServer]
) -> None:
    failing, steady, _ = webhooks
    rule = failing.answer(503, when=lambda request: request.rows[0]["k"] == "a")
    sinks = {"first": webhook_sink(failing, "merged"), "second": webhook_sink(steady, "merged")}
    product = inline(**merged(HTTP, sinks))
    running = product.start()
    answer = product.post([event("b", 0), event("a", 1), event("b", 2), event("a", 3), event("b", 4)])
    running.wait_for(lambda: 'sink "first" failed on batch' in running.output)
    assert product.account() == books(delivered=3, in_flight=2)
    assert "first owes it" in product.explain("incoming/3")["why"]
    rule.stop()
    assert code(answer) == 200
    assert sorted(failing.accepted_ids) == sorted(steady.accepted_ids)
    assert len(failing.accepted_ids) == len(steady.accepted_ids) == 2
    asked = {request.ids[0] for request in failing.requests if request.rows[0]["k"] == "a"}
    assert len(asked) == 1, "each try had the same id"
    assert product.account() == books(delivered=5)


@pytest.mark.case(15)
def test_later_batches_wait_with_all_their_events_for_a_sink_that_is_down(
    inline: Make, webhooks: list[WebhookServer]
) -> None:
    failing, steady, _ = webhooks
    rule = failing.answer(503)
    sinks = {"first": webhook_sink(failing, "merged"), "second": webhook_sink(steady, "merged")}
    product = inline(**merged(HTTP, sinks))
    running = product.start()
    answers = []
    for n in range(3):
        answers.append(product.post([event("a", 2 * n), event("a", 2 * n + 1)]))
        running.wait_for(lambda n=n: len(steady.accepted) == n + 1)
    running.wait_for(lambda: product.account() == books(in_flight=6))
    assert not any(answer.done() for answer in answers)
    rule.stop()
    assert [code(answer) for answer in answers] == [200] * 3
    assert [row["all"] for row in failing.accepted] == [[0, 1], [2, 3], [4, 5]]
    assert failing.accepted_ids == steady.accepted_ids
    assert product.account() == books(delivered=6)


@pytest.mark.case(16, 40)
def test_letters_of_a_commit_that_was_given_up_give_the_same_rows(inline: Make) -> None:
    archive = {"type": "files", "input": "merged", "path": "out", "retry": {"attempts": 2, **SOON}}
    product = inline(**merged(FILES, {"archive": archive}))
    in_the_way = product.directory / "out" / "incoming-000000000000-000000000003.jsonl" / "something"
    in_the_way.mkdir(parents=True)
    running = in_one_batch(product, [event("a", 1), event("b", 2), event("a", 3)])
    running.wait_for(lambda: product.account() == books(dead_lettered=3))
    ids = sorted(letter["event_id"] for letter in product.dead_letters())
    in_the_way.rmdir()
    in_the_way.parent.rmdir()
    for name in ids[1:]:  # the one that is left belongs to the row of another
        product.command("dead-letters", "replay", str(product.file), name)
    assert [(row["event_id"], row["all"]) for row in product.rows()] == [(ids[0], [1, 3]), (ids[1], [2])]
    assert product.account() == books(delivered=3)


# -- diamonds


@pytest.mark.case(9)
def test_the_two_halves_of_a_diamond_become_one_row_that_is_acknowledged_once(
    inline: Make, webhook: WebhookServer
) -> None:
    product = inline(
        sources={"incoming": HTTP},
        transforms={
            "parsed": PARSED,
            "doubled": {"type": "select", "input": "parsed", "columns": {"n": "n", "twice": "n * 2"}},
            "small": {"type": "filter", "input": "parsed", "where": "n < 10"},
            "named": {"type": "select", "input": "small", "columns": {"n": "n", "name": "'small'"}},
            "whole": {"type": "merge", "inputs": ["doubled", "named"]},
        },
        sinks={"first": webhook_sink(webhook, "whole")},
    )
    product.start()
    assert code(product.post([{"n": 1}, {"n": 20}])) == 200
    names = ("event_id", "n", "twice", "name")
    rows = [{name: row[name] for name in names} for row in webhook.accepted]
    assert sorted(rows, key=lambda row: row["event_id"]) == [
        {"event_id": "incoming/0", "n": 1, "twice": 2, "name": "small"},
        {"event_id": "incoming/1", "n": 20, "twice": 40, "name": None},
    ]
    assert product.account() == books(delivered=2)
    assert product.status()["sources"]["incoming"]["ignored"] == 0


@pytest.mark.case(7, 9)
def test_what_was_unfolded_becomes_one_event_again(inline: Make, webhook: WebhookServer) -> None:
    product = inline(
        sources={"incoming": HTTP},
        transforms={
            "parsed": PARSED,
            "each": {"type": "unfold", "input": "parsed", "column": "parts", "as": "part"},
            "large": {"type": "filter", "input": "each", "where": "part > 1"},
            "whole": {"type": "merge", "input": "large", "columns": {"parts": "collect_list(part)"}},
        },
        sinks={"first": webhook_sink(webhook, "whole")},
    )
    product.start()
    assert code(product.post([{"parts": [3, 1, 2]}, {"parts": [1]}])) == 200
    assert webhook.accepted == [{"event_id": "incoming/0", "parts": [3, 2]}]
    assert product.account() == books(delivered=1, dropped=1)


# -- functions on groups

SUMMED = {
    "type": "python",
    "mode": "groups",
    "input": "parsed",
    "keys": ["k"],
    "schema": "k STRING, total INT",
    "function": "tests.promises.functions:summed",
}


@pytest.mark.case(5)
def test_a_function_on_groups_says_what_is_made_of_which_events(inline: Make, webhook: WebhookServer) -> None:
    hold = webhook.hold(lambda request: request.rows[0]["k"] == "parity")
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSED, "summed": SUMMED},
        sinks={"first": webhook_sink(webhook, "summed")},
    )
    running = product.start()
    keys = ["a", "fail", "a", "drop", "none", "fail", "parity", "parity", "parity", "parity"]
    answer = product.post([event(key, n) for n, key in enumerate(keys)])
    hold.wait_for(1)
    webhook.wait_for(lambda server: len(server.accepted) == 1)
    hold.release()
    assert code(answer) == 200
    rows = {row["k"]: row for row in webhook.accepted}
    assert {key: row["total"] for key, row in rows.items()} == {"a": 2, "parity": 16}
    assert rows["a"]["event_id"].startswith("incoming/0/~")
    assert rows["parity"]["event_id"].startswith("incoming/7/~")
    reasons = {letter["event_id"]: letter["reason"] for letter in product.dead_letters()}
    assert reasons == {
        "incoming/1": "ValueError: not this group",
        "incoming/5": "ValueError: not this group",
        "incoming/8": "only the first even one",
    }
    assert running.wait_for(lambda: product.account()["in_flight"] == 0)
    assert product.account() == books(delivered=4, dead_lettered=3, dropped=3), "6 is part of no result"
    assert product.explain("incoming/3")["state"] == "dropped"


# -- poison


@pytest.mark.case(33)
def test_an_event_whose_sum_with_others_overflows_is_a_dead_letter_and_the_others_are_delivered(
    inline: Make, webhook: WebhookServer
) -> None:
    columns = {"total": "sum(CAST(n AS BIGINT) * 4000000000000000000)", "all": "collect_list(n)"}
    product = inline(**merged(HTTP, {"first": webhook_sink(webhook, "merged")}, columns=columns))
    product.start()
    assert (
        code(product.post([event("a", 1), event("b", 1), event("a", 1), event("a", 1), event("b", 0)])) == 200
    )
    assert {row["k"]: row["all"] for row in webhook.accepted} == {"a": [1, 1], "b": [1, 0]}
    (letter,) = product.dead_letters()
    assert letter["event_id"] == "incoming/3" and "overflow" in letter["reason"].lower()
    assert product.account() == books(delivered=4, dead_lettered=1)


# -- kills


@pytest.mark.case(25)
@pytest.mark.crash
def test_a_united_row_that_was_written_but_not_recorded_is_one_row_after_a_kill(
    real: Callable[..., Product], webhook: WebhookServer
) -> None:
    hold = webhook.hold()
    table = {"type": "sqlite", "input": "merged", "path": "out.db", "table": "events"}
    patient = webhook_sink(webhook, "merged", timeout_ms=900_000)
    product = real(**merged(FILES, {"table": table, "held": patient}, columns={"number": "count(*)"}))
    product.put("events.jsonl", [event("a", 1), event("a", 2), event("a", 3)])
    running = product.start()
    hold.wait_for(1)
    wait_until(lambda: written(product))
    before = product.table()
    running.kill9()
    assert product.account() == books(in_flight=3)
    hold.release()
    assert product.run_once().code == 0
    assert product.table() == before and [row["number"] for row in before] == [3]
    assert set(webhook.accepted_ids) == {before[0]["event_id"]}
    assert product.account() == books(delivered=3)
