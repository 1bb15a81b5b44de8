"""A step that may fail in one computation and not in the next is computed once in a pass, for all."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from tests.promises.product import FILES, SOON, Inline, books
from tests.promises.test_settling import webhook_sink
from tests.servers import Request, WebhookServer

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]
EVENTS = 30
PARSED = {"type": "parse_json", "input": "incoming", "schema": "n INT, calls STRING"}
ASKED = {
    "type": "python",
    "mode": "rows",
    "input": "parsed",
    "function": "tests.promises.functions:every_second_time",
    "schema": "n INT, k STRING",
    "retry": SOON,
}
MERGED = {"type": "merge", "keys": ["k"], "columns": {"all": "collect_list(n)"}}
GROUPED = {
    "type": "python",
    "mode": "groups",
    "keys": ["k"],
    "function": "tests.promises.functions:same_rows",
    "schema": "k STRING, all ARRAY<INT>",
}
FRAME = {"type": "python", "function": "tests.promises.functions:as_list"}
LISTED = {"type": "select", "input": "asked", "columns": {"k": "k", "all": "array(n)"}}
READERS: dict[str, dict[str, Any]] = {
    "merge": {"behind": MERGED | {"input": "asked"}},
    "groups": {"behind": GROUPED | {"input": "asked"}},
    "frame": {"behind": FRAME | {"input": "asked"}},
    "a merge of merged rows": {
        "merged": MERGED | {"input": "asked"},
        "behind": MERGED | {"input": "merged", "columns": {"all": "flatten(collect_list(all))"}},
    },
    "a step whose other input is a merge": {
        "listed": LISTED,
        "merged": MERGED | {"input": "parsed", "keys": ["n"], "columns": {"all": "array(first(n))"}},
        "chosen": {"type": "filter", "input": "merged", "where": "n < 0"},
        "behind": {"type": "filter", "inputs": ["listed", "chosen"], "where": "size(all) > 0"},
    },
}


@pytest.mark.case(1)
@pytest.mark.parametrize("reader", READERS)
def test_a_function_that_fails_in_every_second_computation_loses_no_row_and_none_comes_twice(
    inline: Make, tmp_path: Path, reader: str
) -> None:
    (calls := tmp_path / "calls").mkdir()
    product = inline(
        sources={"incoming": FILES},
        transforms={"parsed": PARSED, "asked": ASKED, **READERS[reader]},
        sinks={"out": {"type": "files", "path": "out", "input": "behind"},
               "alone": {"type": "files", "path": "alone", "input": "asked"}},
    )  # fmt: skip
    product.put("a.jsonl", [{"n": n, "calls": str(calls)} for n in range(EVENTS)])
    assert product.run_once().code == 0
    assert sorted(row["n"] for row in product.rows("alone")) == list(range(EVENTS))
    assert sorted(n for row in product.rows() for n in row["all"]) == list(range(EVENTS))
    if "chosen" not in READERS[reader]:  # there a retry reads all events that are merged, too
        called = {int(each.name): len(each.read_text().splitlines()) for each in calls.iterdir()}
        assert called == {n: 1 + n % 2 for n in range(EVENTS)}, "once in each pass that an event is in"
    assert product.account() == books(delivered=EVENTS)
    assert not [path for path in (product.state / "kept").rglob("*") if path.is_file()]


@pytest.mark.case(1)
def test_a_service_that_fails_every_second_request_loses_no_row_and_none_comes_twice(
    inline: Make, webhook: WebhookServer
) -> None:
    asked, lock = Counter[int](), Lock()

    def number(request: Request) -> int:
        return int(request.path.rpartition("/")[2])

    def fails(request: Request) -> bool:
        with lock:
            asked[number(request)] += 1
            return (asked[number(request)] + number(request)) % 2 == 0

    webhook.answer(200, body=lambda request: json.dumps({"k": str(number(request) % 3)}))
    webhook.answer(503, fails)
    step = {"type": "enrich", "input": "parsed", "url": webhook.url + "/{n}", "schema": "k STRING"}
    product = inline(
        sources={"incoming": FILES},
        transforms={
            "parsed": PARSED,
            "asked": step | {"tries": 1, "retry": SOON},
            "behind": MERGED | {"input": "asked"},
        },
        sinks={"out": {"type": "files", "path": "out", "input": "behind"}},
    )
    product.put("a.jsonl", [{"n": n, "calls": ""} for n in range(EVENTS)])
    assert product.run_once().code == 0
    assert sorted(n for row in product.rows() for n in row["all"]) == list(range(EVENTS))
    assert asked == {n: 1 + n % 2 for n in range(EVENTS)}
    assert product.account() == books(delivered=EVENTS)


@pytest.mark.case(1)
@pytest.mark.parametrize("reader", ["merge", "groups"])
def test_rows_that_their_sink_did_not_take_are_lost_by_no_step_that_fails_when_they_are_made_again(
    inline: Make, webhook: WebhookServer, tmp_path: Path, reader: str
) -> None:
    (calls := tmp_path / "calls").mkdir()
    webhook.answer(503, lambda request: any(3 in row["all"] for row in request.rows), times=2)
    asked = ASKED | {"function": "tests.promises.functions:not_the_second_time"}
    product = inline(
        sources={"incoming": FILES},
        transforms={"parsed": PARSED, "asked": asked, **READERS[reader]},
        sinks={"out": webhook_sink(webhook, "behind")},
    )
    product.put("a.jsonl", [{"n": n, "calls": str(calls)} for n in range(EVENTS)])
    assert product.run_once().code == 0
    assert sorted(n for row in webhook.accepted for n in row["all"]) == list(range(EVENTS))
    assert product.account() == books(delivered=EVENTS)


@pytest.mark.case(1)
def test_letters_whose_step_fails_in_every_second_computation_are_replayed_once(
    inline: Make, tmp_path: Path
) -> None:
    (calls := tmp_path / "calls").mkdir()
    product = inline(
        sources={"incoming": FILES},
        transforms={
            "parsed": PARSED,
            "asked": ASKED | {"retry": {"attempts": 1}},
            "behind": MERGED | {"input": "asked"},
        },
        sinks={"out": {"type": "files", "path": "out", "input": "behind"}},
    )
    product.put("a.jsonl", [{"n": n, "calls": str(calls)} for n in range(EVENTS)])
    assert product.run_once().code == 0
    assert product.account() == books(delivered=EVENTS // 2, dead_lettered=EVENTS // 2)
    running = product.start()  # without one the command would end the session that tests share
    assert product.command("dead-letters", "replay", str(product.file), "--all").code == 0
    running.terminate()
    assert sorted(n for row in product.rows() for n in row["all"]) == list(range(EVENTS))
    assert product.dead_letters() == []
