"""A source is acknowledged when, and only when, every event is settled: cases 1 to 12."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future

import httpx
import psycopg
import pytest

from signoff.ledger import Ledger, Outcome, RowOutcome, RowRef
from signoff.ledger.batch_state import Done
from tests.promises.product import FILES, HTTP, PARSE, SOON, Inline, books
from tests.servers import PostgresServer, WebhookServer, wait_until

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]
NAMES = ("first", "second", "third")
ANSWER_S = 120
"""Long enough for Spark's first batch on a busy machine."""


def webhook_sink(
    server: WebhookServer, given: str | None = "incoming", **fields: object
) -> dict[str, object]:
    return {"type": "http", "input": given, "url": server.url, "retry": SOON, **fields}


def assert_waits(answer: Future[httpx.Response]) -> None:
    """Nothing has come, and nothing comes in a time in which an early answer would have."""
    with pytest.raises(TimeoutError):
        answer.result(0.3)


def code(answer: Future[httpx.Response]) -> int:
    return answer.result(ANSWER_S).status_code


def warm_up(product: Inline) -> None:
    """Send events until one is delivered in time: Spark's first batch takes its time."""
    wait_until(lambda: code(product.post({"n": 0})) == 200)


def late_outcomes(product: Inline) -> int:
    """Outcomes that came for events settled already, and were ignored."""
    return int(product.status()["sources"]["incoming"]["ignored"])


# -- case 1


@pytest.mark.case(1)
def test_source_is_not_acknowledged_until_the_sink_confirms(inline: Make, webhook: WebhookServer) -> None:
    hold = webhook.hold()
    product = inline(sources={"incoming": HTTP}, sinks={"first": webhook_sink(webhook)})
    product.start()
    answer = product.post({"n": 1})
    hold.wait_for(1)
    assert_waits(answer)
    assert product.account() == books(in_flight=1)
    assert product.explain("incoming/0")["acknowledged"] is False
    hold.release()
    assert code(answer) == 200
    assert product.account() == books(delivered=1)
    assert product.explain("incoming/0")["acknowledged"] is True


@pytest.mark.case(1)
def test_source_is_not_acknowledged_while_postgres_has_not_committed(
    inline: Make, postgres: PostgresServer
) -> None:
    table = {"type": "postgres", "input": "incoming", "url": postgres.url, "table": "held"}
    product = inline(sources={"incoming": HTTP}, sinks={"table": table})
    with psycopg.connect(postgres.url, autocommit=True) as admin, psycopg.connect(postgres.url) as other:
        admin.execute("CREATE TABLE held (event_id text PRIMARY KEY, payload text)")
        other.execute("LOCK TABLE held IN SHARE MODE")
        product.start()
        answer = product.post({"n": 1})
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'held'::regclass"
        wait_until(lambda: admin.execute(waiting).fetchall(), what="the sink's insert")
        assert_waits(answer)
        assert product.account() == books(in_flight=1)
        other.rollback()
        assert code(answer) == 200
        assert admin.execute("SELECT event_id, payload FROM held").fetchall() == [("incoming/0", '{"n": 1}')]


@pytest.mark.case(1)
def test_a_file_is_moved_only_when_the_sink_has_confirmed_its_last_event(
    inline: Make, webhook: WebhookServer
) -> None:
    hold = webhook.hold(lambda request: request.ids == ["incoming/2"])
    product = inline(sources={"incoming": FILES}, sinks={"first": webhook_sink(webhook)})
    file = product.put("a.jsonl", [{"n": n} for n in range(3)])
    product.start()
    hold.wait_for(1)
    webhook.wait_for(lambda server: len(server.accepted) == 2)
    assert file.exists()
    assert product.account() == books(in_flight=3)
    hold.release()
    wait_until(lambda: (product.directory / "in/acknowledged/a.jsonl").exists())
    assert not file.exists()
    assert product.account() == books(delivered=3)


# -- cases 2 and 3


@pytest.mark.case(2)
def test_source_is_acknowledged_once_when_the_last_of_three_sinks_confirms(
    inline: Make, webhooks: list[WebhookServer]
) -> None:
    hold = webhooks[2].hold()
    sinks = {name: webhook_sink(server) for name, server in zip(NAMES, webhooks, strict=True)}
    product = inline(sources={"incoming": HTTP}, sinks=sinks)
    product.start()
    answer = product.post({"n": 1})
    hold.wait_for(1)
    for server in webhooks[:2]:
        server.wait_for(lambda s: s.accepted_ids == ["incoming/0"])
    assert_waits(answer)
    assert product.account() == books(in_flight=1)
    hold.release()
    assert code(answer) == 200
    assert [server.accepted_ids for server in webhooks] == [["incoming/0"]] * 3
    assert product.account() == books(delivered=1)
    assert {name: sink["rows"] for name, sink in product.status()["sinks"].items()} == dict.fromkeys(NAMES, 1)


@pytest.mark.case(3)
def test_source_gets_one_negative_answer_when_one_of_three_sinks_refuses(
    inline: Make, webhooks: list[WebhookServer]
) -> None:
    webhooks[1].answer(422, body="no such station")
    sinks = {
        name: webhook_sink(server, on_failure="refuse") for name, server in zip(NAMES, webhooks, strict=True)
    }
    product = inline(sources={"incoming": HTTP}, sinks=sinks)
    product.start()
    response = product.post({"n": 1}).result(ANSWER_S)
    assert response.status_code == 422
    (refused,) = response.json()["refused"]
    assert refused["event_id"] == "incoming/0"
    assert "no such station" in refused["reason"]
    assert product.account() == books(refused=1)
    assert product.dead_letters() == []
    assert [len(server.requests) for server in webhooks] == [1, 1, 1]
    assert product.explain("incoming/0")["state"] == "refused"


@pytest.mark.case(3)
def test_a_refused_file_goes_where_refused_files_go(inline: Make, webhook: WebhookServer) -> None:
    webhook.answer_rows(400, {"incoming/1"})
    product = inline(
        sources={"incoming": {**FILES, "on_refuse": "move"}},
        sinks={"first": webhook_sink(webhook, on_failure="refuse")},
    )
    product.put("bad.jsonl", [{"n": n} for n in range(3)])
    product.put("good.jsonl", [{"n": n} for n in range(2)])
    assert product.run_once().code == 3
    assert [path.name for path in (product.directory / "in/refused").iterdir()] == ["bad.jsonl"]
    assert [path.name for path in (product.directory / "in/acknowledged").iterdir()] == ["good.jsonl"]
    assert product.account() == books(delivered=4, refused=1)


# -- cases 4 to 6


@pytest.mark.case(4)
def test_events_a_filter_drops_are_acknowledged_and_counted_as_dropped(
    inline: Make, webhook: WebhookServer
) -> None:
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "none": {"type": "filter", "input": "parsed", "where": "n > 10"}},
        sinks={"first": webhook_sink(webhook, "none")},
    )
    product.start()
    assert code(product.post([{"n": 1}, {"n": 2}, {}])) == 200
    assert product.account() == books(dropped=3)
    assert webhook.requests == []
    assert product.explain("incoming/0")["state"] == "dropped"


RAISING = {
    "type": "python",
    "input": "parsed",
    "mode": "rows",
    "schema": "n INT",
    "function": "tests.promises.functions:fail_on_seven",
}


@pytest.mark.case(5)
def test_an_event_a_function_raises_on_is_a_dead_letter_and_its_neighbours_are_delivered(
    inline: Make, webhook: WebhookServer
) -> None:
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "checked": RAISING},
        sinks={"first": webhook_sink(webhook, "checked")},
    )
    product.start()
    assert code(product.post([{"n": 6}, {"n": 7}, {"n": 8}])) == 200
    assert sorted(webhook.accepted_ids) == ["incoming/0", "incoming/2"]
    assert product.account() == books(delivered=2, dead_lettered=1)
    (letter,) = product.dead_letters()
    assert letter["reason"] == "ValueError: seven is not allowed"
    assert (letter["event_id"], letter["stage"], letter["source"]) == ("incoming/1", "checked", "incoming")
    assert json.loads(letter["payload"]) == {"n": 7}


@pytest.mark.case(5)
def test_an_event_a_function_raises_on_is_refused_where_the_step_says_so(
    inline: Make, webhook: WebhookServer
) -> None:
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "checked": {**RAISING, "on_error": "refuse"}},
        sinks={"first": webhook_sink(webhook, "checked")},
    )
    product.start()
    response = product.post([{"n": 6}, {"n": 7}, {"n": 8}]).result(ANSWER_S)
    assert response.status_code == 422
    reason = "ValueError: seven is not allowed"
    assert response.json()["refused"] == [{"event_id": "incoming/1", "reason": reason}]
    assert sorted(webhook.accepted_ids) == ["incoming/0", "incoming/2"]
    assert product.account() == books(delivered=2, refused=1)


@pytest.mark.case(6)
@pytest.mark.parametrize(
    ("policy", "status", "counted"),
    [
        ({}, 200, {"dead_lettered": 1}),
        ({"no_match": "dead_letter"}, 200, {"dead_lettered": 1}),
        ({"no_match": "refuse"}, 422, {"refused": 1}),
        ({"no_match": "drop"}, 200, {"dropped": 1}),
    ],
    ids=["default", "dead_letter", "refuse", "drop"],
)
def test_an_event_no_route_matches_meets_the_configured_policy(
    inline: Make,
    webhooks: list[WebhookServer],
    policy: dict[str, str],
    status: int,
    counted: dict[str, int],
) -> None:
    routed = {"type": "route", "input": "parsed", "routes": {"low": "n < 10", "even": "n % 2 = 0"}, **policy}
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "routed": routed},
        sinks={
            "first": webhook_sink(webhooks[0], "routed.low"),
            "second": webhook_sink(webhooks[1], "routed.even"),
        },
    )
    product.start()
    both, low, none = {"n": 2}, {"n": 3}, {"n": 11}
    assert code(product.post([both, low, none])) == status
    assert product.account() == books(delivered=2, **counted)
    assert sorted(webhooks[0].accepted_ids) == ["incoming/0", "incoming/1"]
    assert webhooks[1].accepted_ids == ["incoming/0"]
    letters = [(letter["event_id"], letter["stage"]) for letter in product.dead_letters()]
    assert letters == ([("incoming/2", "routed")] if "dead_lettered" in counted else [])


# -- case 7


@pytest.mark.case(7)
def test_an_unfolded_event_is_acknowledged_when_its_last_child_is_delivered(
    inline: Make, webhook: WebhookServer
) -> None:
    hold = webhook.hold(lambda request: request.ids == ["incoming/0/2"])
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "parts": {"type": "unfold", "input": "parsed", "column": "parts"}},
        sinks={"first": webhook_sink(webhook, "parts")},
    )
    product.start()
    answer = product.post({"n": 1, "parts": [10, 20, 30]})
    hold.wait_for(1)
    webhook.wait_for(lambda server: len(server.accepted) == 2)
    assert_waits(answer)
    assert product.account() == books(in_flight=1)
    hold.release()
    assert code(answer) == 200
    rows = {row["event_id"]: row["parts"] for row in webhook.accepted}
    assert rows == {"incoming/0/0": 10, "incoming/0/1": 20, "incoming/0/2": 30}
    assert product.account() == books(delivered=1)


@pytest.mark.case(7)
def test_an_event_that_unfolds_into_nothing_is_acknowledged(inline: Make, webhook: WebhookServer) -> None:
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "parts": {"type": "unfold", "input": "parsed", "column": "parts"}},
        sinks={"first": webhook_sink(webhook, "parts")},
    )
    product.start()
    assert code(product.post([{"parts": []}, {"parts": None}, {"parts": [1]}])) == 200
    assert webhook.accepted_ids == ["incoming/2/0"]
    assert product.account() == books(delivered=1, dropped=2)


# -- case 9


@pytest.mark.case(9)
def test_an_event_that_comes_through_two_filters_is_acknowledged_once_and_has_two_rows(
    inline: Make, webhook: WebhookServer
) -> None:
    product = inline(
        sources={"incoming": HTTP},
        transforms={
            "parsed": PARSE,
            "high": {"type": "filter", "input": "parsed", "where": "n >= 5"},
            "low": {"type": "filter", "input": "parsed", "where": "n <= 5"},
        },
        sinks={
            "both": webhook_sink(webhook, None, inputs=["high", "low"]),
            "table": {"type": "sqlite", "inputs": ["high", "low"], "path": "out.db", "table": "events"},
        },
    )
    hold = webhook.hold(lambda request: request.ids == ["incoming/0/low"])
    product.start()
    answer = product.post([{"n": 5}, {"n": 9}])
    hold.wait_for(1)
    webhook.wait_for(lambda server: len(server.accepted) == 2)
    assert_waits(answer)
    hold.release()
    assert code(answer) == 200
    ids = ["incoming/0/high", "incoming/0/low", "incoming/1/high"]
    assert sorted(webhook.accepted_ids) == ids
    assert [row["event_id"] for row in product.table()] == ids
    assert product.account() == books(delivered=2)


@pytest.mark.case(9)
def test_paths_that_meet_again_in_a_transform_keep_their_rows_apart(inline: Make) -> None:
    product = inline(
        sources={"incoming": FILES},
        transforms={
            "parsed": PARSE,
            "high": {"type": "filter", "input": "parsed", "where": "n >= 5"},
            "low": {"type": "filter", "input": "parsed", "where": "n <= 5"},
            "named": {"type": "select", "inputs": ["high", "low"], "columns": ["n", "n * 2 AS twice"]},
        },
        sinks={"out": {"type": "files", "input": "named", "path": "out"}},
    )
    product.put("a.jsonl", [{"n": 5}, {"n": 1}])
    assert product.run_once().code == 0
    rows = [(row["event_id"], row["n"], row["twice"]) for row in product.rows()]
    assert rows == [("incoming/0/high", 5, 10), ("incoming/0/low", 5, 10), ("incoming/1/low", 1, 2)]
    assert product.account() == books(delivered=2)


# -- case 10


@pytest.mark.case(10)
def test_a_second_outcome_for_a_settled_event_changes_nothing_and_is_counted(
    inline: Make, webhook: WebhookServer
) -> None:
    product = inline(sources={"incoming": HTTP}, sinks={"first": webhook_sink(webhook)})
    running = product.start()
    assert code(product.post([{"n": 1}, {"n": 2}])) == 200
    running.terminate()
    late = [RowOutcome(RowRef(1), "first", Outcome.REFUSED, "late failure")]
    with Ledger(product.state / "ledger.db") as ledger:
        batch = ledger.batch_of("incoming", 1)
        assert batch is not None
        ledger.record(
            "incoming", batch.ref.start, batch.ref.end,
            delivered=batch.delivered - batch.delivered, outcomes=late,
            sinks={"first": Done()}, owed=batch.owed,
        )  # fmt: skip
    assert product.account() == books(delivered=2)
    assert late_outcomes(product) == 1
    assert product.explain("incoming/1")["state"] == "delivered"


@pytest.mark.case(10, 21)
def test_a_sink_that_fails_after_the_event_has_expired_changes_nothing_and_is_counted(
    inline: Make, webhook: WebhookServer
) -> None:
    product = inline(
        sources={"incoming": {**HTTP, "acknowledge_within": "1500ms"}},
        sinks={"first": webhook_sink(webhook, on_failure="refuse")},
    )
    running = product.start()
    warm_up(product)
    before, ignored = product.account(), late_outcomes(product)
    hold = webhook.hold()
    webhook.answer(422)
    answers: list[int] = []
    wait_until(lambda: answers.append(code(product.post({"n": 1}))) or hold.held)
    assert set(answers) == {503}
    (held,) = hold.held[0].ids
    account = product.account()
    added = account["received"] - before["received"]
    expired = {**before, "received": before["received"] + added, "expired": before["expired"] + added}
    assert account == expired
    hold.release()
    running.wait_for(lambda: late_outcomes(product) > ignored)
    assert product.account() == expired
    assert product.explain(held)["state"] == "expired"


# -- case 11


@pytest.mark.case(11)
def test_a_source_with_answers_per_message_hears_of_1_and_3_while_2_is_owed(
    inline: Make, webhook: WebhookServer
) -> None:
    failing = webhook.answer(503, lambda request: request.rows[0]["payload"] == '{"n": 2}')
    product = inline(sources={"incoming": HTTP}, sinks={"first": webhook_sink(webhook)})
    product.start(engine_when=lambda: product.received() == 3)
    answers = [product.post({"n": n}) for n in (1, 2, 3)]
    assert (code(answers[0]), code(answers[2])) == (200, 200)
    assert_waits(answers[1])
    assert product.account() == books(delivered=2, in_flight=1)
    failing.stop()
    assert code(answers[1]) == 200
    assert product.account() == books(delivered=3)


@pytest.mark.case(11)
def test_a_source_with_an_offset_stays_at_1_while_2_is_owed(inline: Make, webhook: WebhookServer) -> None:
    failing = webhook.answer_rows(503, {"incoming/1"})
    product = inline(sources={"incoming": FILES}, sinks={"first": webhook_sink(webhook)})
    file = product.put("a.jsonl", [{"n": n} for n in (1, 2, 3)])
    product.start(engine_when=lambda: product.received() == 3)
    wait_until(lambda: product.account() == books(delivered=2, in_flight=1))
    wait_until(lambda: product.told_upto() == 1)
    assert file.exists()
    failing.stop()
    wait_until(lambda: product.told_upto() == 3)
    assert not file.exists()


# -- case 12


def _ready(product: Inline) -> tuple[int, dict[str, str]]:
    said = httpx.get(f"{product._address('incoming')}ready", timeout=30)
    return said.status_code, said.json()["not_ready"]


@pytest.mark.case(12)
def test_a_source_is_ready_again_after_its_last_event_has_expired_although_nobody_asks_the_sink(
    inline: Make, webhook: WebhookServer
) -> None:
    product = inline(
        sources={"incoming": {**HTTP, "acknowledge_within": "5s"}}, sinks={"first": webhook_sink(webhook)}
    )
    product.start()
    wait_until(lambda: code(product.post({"n": 0})) == 200)
    assert _ready(product) == (200, {})
    down = webhook.answer(503)
    answer = product.post({"n": 1})
    wait_until(lambda: _ready(product)[0] == 503)
    assert code(answer) == 503
    down.stop()
    wait_until(lambda: _ready(product) == (200, {}), what="ready, though nothing was sent since")


@pytest.mark.case(12)
def test_outcomes_are_told_apart_in_account_status_and_explanation(
    inline: Make, webhook: WebhookServer
) -> None:
    webhook.answer(422, lambda request: request.rows[0]["n"] == 3)
    webhook.answer(503, lambda request: request.rows[0]["n"] == 5)
    product = inline(
        sources={"incoming": HTTP, "hasty": {**HTTP, "acknowledge_within": "1s"}},
        transforms={
            "parsed": {"type": "parse_json", "inputs": ["incoming", "hasty"], "schema": PARSE["schema"]},
            "kept": {"type": "filter", "input": "parsed", "where": "n <> 2"},
            "checked": {**RAISING, "input": "kept", "on_error": "refuse"},
        },
        sinks={"first": webhook_sink(webhook, "checked")},
    )
    product.start()
    answers = [product.post({"n": n}).result(ANSWER_S) for n in (1, 2, 3, 7)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 422]
    outcomes = ["delivered", "dropped", "dead_lettered"]
    counted = [[answer.json()[outcome] for outcome in outcomes] for answer in answers]
    assert counted == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]
    assert _ready(product) == (200, {})
    product.post({"n": 5})
    wait_until(lambda: product.status()["sinks"]["first"]["failing_since"], what="failed, to be retried")
    wait_until(lambda: product.explain("incoming/4")["state"] == "in flight")
    told = product.explain("incoming/4")
    assert not told["acknowledged"] and "first owes it" in told["why"]
    code_, waits_for = wait_until(lambda: (said := _ready(product))[1] and said)
    assert (code_, waits_for.keys()) == (503, {"first"}) and "503" in waits_for["first"]
    expired = product.post({"n": 5}, "hasty")
    assert code(expired) == 503
    wait_until(lambda: product.received("hasty") or product.post({"n": 5}, "hasty").result(ANSWER_S))
    ids = [*(answer.json()["first_id"] for answer in answers), "hasty/0", "incoming/4"]
    outcomes = ["delivered", "dropped", "dead_lettered", "refused", "expired", "in flight"]
    assert [product.explain(event_id)["state"] for event_id in ids] == outcomes
    account = product.account()
    assert account == books(delivered=1, dropped=1, dead_lettered=1, refused=1, in_flight=1)
    assert product.account("hasty")["expired"] == product.received("hasty")
    status = product.status()["sources"]["incoming"]
    assert {name: status[name] for name in account} == account
