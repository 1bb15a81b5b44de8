"""Folds: events of one key become one, by condition, count or timeout; each once, whatever is killed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from signoff.catalog import default
from signoff.engine.spark_check import check
from signoff.errors import StateError
from signoff.pipeline.load import load
from signoff.stateful.open_groups import OpenGroups
from tests.promises.product import FILES, HTTP, SOON, Inline, Product, books
from tests.promises.test_settling import assert_waits, code, webhook_sink
from tests.promises.test_windows import written
from tests.servers import WebhookServer

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]

PARSED = {"type": "parse_json", "input": "incoming", "schema": "key STRING, n INT, state STRING"}
FOLDED = {
    "type": "fold",
    "input": "parsed",
    "keys": ["key"],
    "columns": {
        "numbers": "to_json(events.n)",
        "total": "aggregate(events.n, 0, (a, b) -> a + b)",
        "folded": "folded",
        "ended_by": "ended_by",
        "in_order": "first_at <= last_at",
    },
}
RESULTS = {"type": "sqlite", "input": "orders", "path": "out.db", "table": "events"}


def pipeline(source: dict[str, Any] = FILES, **fold: Any) -> dict[str, Any]:
    return {
        "sources": {"incoming": source},
        "transforms": {"parsed": PARSED, "orders": FOLDED | fold},
        "sinks": {"results": RESULTS},
    }


def events(text: str) -> list[dict[str, Any]]:
    """`x1 y2 x3!`: key and number of each event; ! ends its group."""
    return [
        {"key": each[0], "n": int(each[1:].rstrip("!")), "state": "done" if each.endswith("!") else "open"}
        for each in text.split()
    ]


def groups(rows: Iterable[dict[str, Any]]) -> set[tuple[str, tuple[int, ...], str]]:
    """Of each result the key, the numbers of its events, and what ended it."""
    found = [(row["key"], tuple(json.loads(row["numbers"])), row["ended_by"]) for row in rows]
    assert len(set(found)) == len(found)
    return set(found)


def test_events_of_a_key_are_folded_by_condition_count_and_timeout(inline: Make) -> None:
    described = {"source": FILES | {"max_events_per_batch": 4}, "until": "state = 'done'", "count": 3}
    product = inline(**pipeline(**described, timeout="10m"))
    product.put("a.jsonl", events("x1 y1 x2 z1! x3 x4 y2 x5 x6 y3!"))
    assert product.run_once().code == 0
    product.write(pipeline(**described, timeout="1s"))
    product.put("b.jsonl", events("x7"))
    assert product.run_once().code == 0
    assert groups(product.table()) == {
        ("x", (1, 2, 3), "count"),
        ("x", (4, 5, 6), "count"),
        ("x", (7,), "timeout"),
        ("y", (1, 2, 3), "until"),
        ("z", (1,), "until"),
    }
    assert {row["total"] for row in product.table() if row["key"] == "y"} == {6}
    assert all(row["in_order"] for row in product.table())
    assert product.account() == books(delivered=11)


def test_an_error_in_a_column_is_that_of_one_result(inline: Make) -> None:
    product = inline(**pipeline(FILES, count=2, columns={"share": "1000 / (events[0].n - 7)"}))
    product.put("a.jsonl", events("x1 y7 y8 x2 z107 z1"))
    product.run_once()
    assert product.account() == books(delivered=6)
    assert {(row["key"], round(row["share"])) for row in product.table()} == {("x", -167), ("z", 10)}
    assert product.audit()["buffers"]["orders.results.buffer"]["dead_lettered"] == 1
    (letter,) = product.dead_letters()
    assert "DIVIDE_BY_ZERO" in letter["reason"]


@pytest.mark.case(34, 35)
def test_with_a_save_point_an_event_is_settled_before_its_group_ends(inline: Make) -> None:
    product = inline(**pipeline(HTTP, count=3))
    running = product.start()
    assert code(product.post(events("x1 x2 y1"))) == 200
    assert product.account() == books(delivered=3)
    assert written(product) == []
    assert code(product.post(events("x3"))) == 200
    running.wait_for(lambda: groups(written(product)) == {("x", (1, 2, 3), "count")})


@pytest.mark.case(8, 34)
def test_events_of_two_sources_wait_for_the_result_they_were_folded_into(
    inline: Make, webhook: WebhookServer
) -> None:
    held = webhook.hold()
    nodes = pipeline(HTTP, count=3, timeout="1m", acknowledge="delivered", inputs=["parsed", "other"])
    del nodes["transforms"]["orders"]["input"]
    nodes["sources"]["second"] = HTTP
    nodes["transforms"] = {"other": PARSED | {"input": "second"}, **nodes["transforms"]}
    nodes["sinks"] = {"results": webhook_sink(webhook, "orders") | {"retry": SOON}}
    product = inline(**nodes)
    running = product.start()
    answers = [product.post(events("x1 x2")), product.post(events("x3"), "second")]
    other = product.post(events("y1"))
    running.wait_for(lambda: held.held)
    for answer in answers:
        assert_waits(answer)
    held.release()
    assert [code(answer) for answer in answers] == [200, 200]
    assert_waits(other)  # its group is open
    assert product.account() == books(delivered=2, in_flight=1)
    assert product.account("second") == books(delivered=1)
    assert [row["folded"] for row in webhook.accepted] == [3]


@pytest.mark.case(34, 3)
def test_a_folded_result_that_is_refused_refuses_its_events_and_no_others(
    inline: Make, webhook: WebhookServer
) -> None:
    webhook.answer(400)
    nodes = pipeline(HTTP, until="state = 'done'", timeout="1s", acknowledge="delivered")
    nodes["sinks"] = {"results": webhook_sink(webhook, "orders") | {"on_failure": "refuse"}}
    product = inline(**nodes)
    running = product.start()
    answer = product.post(events("x1 x2!"))
    assert code(answer) >= 400
    webhook.answer(200)
    assert code(product.post(events("y1"))) == 200
    running.wait_for(lambda: [row["ended_by"] for row in webhook.accepted] == ["timeout"])
    assert product.account() == books(refused=2, delivered=1)


@pytest.mark.case(34)
def test_groups_are_carried_over_a_change_that_leaves_them_readable_and_refused_otherwise(
    inline: Make, spark: Any
) -> None:
    product = inline(**pipeline(FILES, count=3))
    product.put("a.jsonl", events("x1 x2"))
    assert product.run_once().code == 0
    assert written(product) == []
    product.write(pipeline(FILES, count=3, keys=["key", "state"]))
    (problem,) = check(load(product.file, default()), spark)
    assert problem.code == "state-changed" and "1 open group" in problem.message
    changed = pipeline(FILES, count=4, columns={"numbers": "to_json(events.n)", "ended_by": "ended_by"})
    changed["transforms"]["parsed"] = PARSED | {"schema": "key STRING, n INT, extra STRING"}
    product.write(changed)
    product.put("b.jsonl", events("x3 x4"))
    assert product.run_once().code == 0
    assert groups(product.table()) == {("x", (1, 2, 3, 4), "count")}


@pytest.mark.case(25)
def test_a_batch_that_is_done_again_ends_the_same_groups_at_the_same_time(
    inline: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, tries = OpenGroups.note, dict[int, list[Mapping[int, int]]]()

    def note_at_the_second_try(self: OpenGroups, batch: int, changes: Mapping[int, int]) -> None:
        tries.setdefault(batch, []).append(dict(changes))
        if changes and len(tries[batch]) == 1:  # results are handed on, and nobody has noted it
            raise StateError("no room")
        note(self, batch, changes)

    monkeypatch.setattr(OpenGroups, "note", note_at_the_second_try)
    product = inline(**pipeline(FILES, count=3, timeout="1s"))
    product.put("a.jsonl", events("x1 x2 y1 y2 y3"))
    assert product.run_once().code == 0
    assert groups(product.table()) == {("x", (1, 2), "timeout"), ("y", (1, 2, 3), "count")}
    again = [each for each in tries.values() if len(each) > 1]
    assert len(again) == 2 and all(first == second for first, second in again)  # also the deadlines
    assert product.received("orders.results.buffer") == 2


@pytest.mark.case(24, 34)
def test_folds_survive_a_kill_whenever_their_events_are_settled(real: Callable[..., Product]) -> None:
    nodes = pipeline(FILES | {"max_events_per_batch": 100}, count=7, timeout="3s", acknowledge="delivered")
    nodes["transforms"]["saved"] = FOLDED | {"count": 11, "timeout": "2s"}
    nodes["sinks"]["others"] = RESULTS | {"input": "saved", "table": "others"}
    product = real(**nodes)
    for number in range(2):
        product.put(f"{number}.jsonl", events(" ".join(f"{k}{n}" for n in range(75) for k in "xyz")))
    running = product.start("--once")
    running.wait_for(lambda: running.ended or written(product), timeout=180)
    running.kill9()
    assert product.run_once(timeout=300).code == 0
    assert product.account() == books(delivered=450)
    for table, most in (("events", 7), ("others", 11)):
        rows = product.table(table)
        assert all(row["folded"] == most or row["ended_by"] == "timeout" for row in rows)
        found = sorted((row["key"], n) for row in rows for n in json.loads(row["numbers"]))
        assert found == sorted((k, n) for k in "xyz" for n in range(75) for _ in range(2))
