"""What each step does to events, seen from both ends: the rows at the sinks, and the account."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.promises.product import FILES, HTTP, PARSE, Inline, books
from tests.promises.test_settling import code

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]


def out(given: str, path: str = "out") -> dict[str, Any]:
    return {"type": "files", "input": given, "path": path}


def python(function: str, **fields: Any) -> dict[str, Any]:
    return {"type": "python", "input": "parsed", "function": f"tests.promises.functions:{function}", **fields}


def numbers(*values: int) -> list[dict[str, int]]:
    return [{"n": value} for value in values]


def test_a_row_function_returns_a_row_several_rows_or_none(inline: Make) -> None:
    product = inline(
        sources={"incoming": FILES},
        transforms={"parsed": PARSE, "made": python("three_ways", mode="rows", schema="n INT")},
        sinks={"out": out("made")},
    )
    product.put("a.jsonl", numbers(0, 1, 5))
    assert product.run_once().code == 0
    rows = [(row["event_id"], row["n"]) for row in product.rows()]
    assert rows == [("incoming/1", 1), ("incoming/2/0", 5), ("incoming/2/1", -5)]
    assert product.account() == books(delivered=2, dropped=1)


def test_the_time_in_an_expression_is_that_of_its_batch(inline: Make) -> None:
    columns = {"at": "unix_micros(current_timestamp())"}
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "timed": {"type": "select", "input": "parsed", "columns": columns}},
        sinks={"out": out("timed")},
    )
    running = product.start()
    sent = []
    for number in range(3):
        sent.append(time.time())
        assert code(product.post({"n": number})) == 200
    running.terminate()
    times = [row["at"] / 1e6 for row in product.rows()]
    assert all(at >= when for at, when in zip(times, sent, strict=True)), (times, sent)


@pytest.mark.case(5)
def test_a_row_function_that_returns_the_wrong_type_makes_a_dead_letter_not_a_null(inline: Make) -> None:
    product = inline(
        sources={"incoming": FILES},
        transforms={"parsed": PARSE, "made": python("wrong_type", mode="rows", schema="n INT")},
        sinks={"out": out("made")},
    )
    product.put("a.jsonl", numbers(6, 7))
    assert product.run_once().code == 0
    assert [row["event_id"] for row in product.rows()] == ["incoming/0"]
    (letter,) = product.dead_letters()
    assert (letter["event_id"], letter["stage"]) == ("incoming/1", "made")
    assert "text" in letter["reason"]
    assert product.account() == books(delivered=1, dead_lettered=1)


def test_a_dataframe_function_keeps_the_origin_of_every_event(inline: Make) -> None:
    product = inline(
        sources={"incoming": FILES},
        transforms={"parsed": PARSE, "made": python("twice")},
        sinks={"out": out("made"), "other": out("parsed", "other")},
    )
    product.put("a.jsonl", [*numbers(2, 3, 4), "not json"])
    assert product.run_once().code == 0
    assert [(row["event_id"], row["twice"]) for row in product.rows()] == [
        ("incoming/0", 4),
        ("incoming/2", 8),
    ]
    assert [row["event_id"] for row in product.rows("other")] == ["incoming/0", "incoming/1", "incoming/2"]
    assert product.account() == books(delivered=3, dead_lettered=1)


@pytest.mark.parametrize(
    ("function", "reason"),
    [("lose_origins", "[lost-origins]"), ("numbered", "use mode: groups, or a window")],
)
def test_a_dataframe_function_that_loses_origins_or_looks_at_several_rows_is_refused_before_an_event_is_lost(
    inline: Make, function: str, reason: str
) -> None:
    product = inline(
        sources={"incoming": FILES},
        transforms={"parsed": PARSE, "made": python(function)},
        sinks={"out": out("made")},
    )
    file = product.put("a.jsonl", numbers(1))
    done = product.run_once()
    assert done.code == 2
    assert reason in done.output
    assert file.exists()


def test_dedupe_knows_an_event_again_in_later_batches_and_after_a_restart(inline: Make) -> None:
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "new": {"type": "dedupe", "input": "parsed", "keys": ["n"]}},
        sinks={"out": out("new")},
    )
    running = product.start()
    assert code(product.post(numbers(1, 1, 2))) == 200
    assert code(product.post(numbers(2, 3))) == 200
    assert running.terminate().code == 0
    product.start()
    assert code(product.post(numbers(3, 1, 4))) == 200
    assert sorted(row["n"] for row in product.rows()) == [1, 2, 3, 4]
    assert product.account() == books(delivered=4, dropped=4)


def test_a_sample_is_the_same_in_every_run_and_another_with_another_seed(inline: Make) -> None:
    def kept(folder: str) -> dict[str, list[str]]:
        steps = {
            "share": {"type": "sample", "input": "parsed", "fraction": 0.3},
            "other": {"type": "sample", "input": "parsed", "fraction": 0.3, "seed": 1},
            "group": {"type": "sample", "input": "parsed", "fraction": 0.5, "key": "n % 10"},
        }
        product = inline(
            folder,
            sources={"incoming": FILES},
            transforms={"parsed": PARSE, **steps},
            sinks={f"to_{name}": out(name, name) for name in steps},
        )
        product.put("a.jsonl", numbers(*range(300)))
        assert product.run_once().code == 0
        assert product.account()["dropped"] > 0
        groups = {row["n"] % 10 for row in product.rows("group")}
        assert len(product.rows("group")) == 30 * len(groups), "all of a group, or none"
        return {name: [row["event_id"] for row in product.rows(name)] for name in steps}

    first = kept("first")
    assert 50 < len(first["share"]) < 130
    assert first["share"] != first["other"]
    assert kept("again") == first


def test_lines_of_csv_become_columns_or_dead_letters_that_say_why(inline: Make) -> None:
    parse = {"type": "parse_csv", "input": "incoming", "schema": "n INT, name STRING", "separator": ";"}
    product = inline(
        sources={"incoming": {**FILES, "format": "text"}},
        transforms={"parsed": parse},
        sinks={"out": out("parsed")},
    )
    product.put("a.jsonl", ["1;one", 'x;"a;b"', "3", '4;"f;our"', "5;five;more"])
    assert product.run_once().code == 0
    rows = [(row["event_id"], row["n"], row["name"]) for row in product.rows()]
    assert rows == [("incoming/0", 1, "one"), ("incoming/3", 4, "f;our")]
    reasons = {letter["event_id"]: letter["reason"] for letter in product.dead_letters()}
    assert reasons == {
        "incoming/1": 'column "n": "x" is not an INT',
        "incoming/2": "1 fields, expected 2",
        "incoming/4": "3 fields, expected 2",
    }
    assert product.account() == books(delivered=2, dead_lettered=3)


def test_select_takes_a_list_as_in_sql_or_names_with_expressions(inline: Make) -> None:
    product = inline(
        sources={"incoming": FILES},
        transforms={
            "parsed": PARSE,
            "listed": {"type": "select", "input": "parsed", "columns": ["*", "n * 2 AS twice"]},
            "named": {"type": "select", "input": "parsed", "columns": {"half": "n / 2", "kind": "'x'"}},
        },
        sinks={"a": out("listed", "a"), "b": out("named", "b")},
    )
    product.put("a.jsonl", numbers(3))
    assert product.run_once().code == 0
    assert product.rows("a") == [{"event_id": "incoming/0", "n": 3, "parts": None, "twice": 6}]
    assert product.rows("b") == [{"event_id": "incoming/0", "half": 1.5, "kind": "x"}]


@pytest.mark.case(7)
def test_an_unfolded_row_that_fails_leaves_its_siblings_delivered(inline: Make) -> None:
    checked = {**python("fail_on_seven", mode="rows", schema="n INT"), "input": "renamed"}
    product = inline(
        sources={"incoming": FILES},
        transforms={
            "parsed": PARSE,
            "parts": {"type": "unfold", "input": "parsed", "column": "parts", "as": "part"},
            "renamed": {"type": "select", "input": "parts", "columns": {"n": "part"}},
            "checked": checked,
        },
        sinks={"out": out("checked"), "whole": out("parsed", "whole")},
    )
    product.put("a.jsonl", [{"parts": [6, 7, 8]}, {"parts": [9]}])
    assert product.run_once().code == 0
    rows = [(row["event_id"], row["n"]) for row in product.rows()]
    assert rows == [("incoming/0/0", 6), ("incoming/0/2", 8), ("incoming/1/0", 9)]
    assert [row["event_id"] for row in product.rows("whole")] == ["incoming/0", "incoming/1"]
    assert [letter["event_id"] for letter in product.dead_letters()] == ["incoming/0/1"]
    assert product.account() == books(delivered=1, dead_lettered=1)


@pytest.mark.case(5)
@pytest.mark.parametrize(
    ("policy", "counted", "ends"),
    [("drop", "dropped", 0), ("refuse", "refused", 3), ("dead_letter", "dead_lettered", 0)],
)
def test_an_event_that_cannot_be_parsed_meets_the_configured_policy(
    inline: Make, policy: str, counted: str, ends: int
) -> None:
    product = inline(
        sources={"incoming": FILES},
        transforms={"parsed": {**PARSE, "on_error": policy}},
        sinks={"out": out("parsed")},
    )
    product.put("a.jsonl", [*numbers(1), '{"n": ', *numbers(3)])
    done = product.run_once()
    assert done.code == ends
    assert [row["event_id"] for row in product.rows()] == ["incoming/0", "incoming/2"]
    assert product.account() == books(delivered=2, **{counted: 1})
    assert ('1 row dropped at "parsed" (incoming/1: ' in done.output) == (policy == "drop")
