"""An SQL expression that fails for a row is that row's dead letter, at its step, with Spark's own reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from signoff.sinks.files.sink import FilesSinkConfig
from tests.promises.product import FILES, Inline, books

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]
ROWS = {"type": "parse_json", "input": "incoming", "schema": "n INT, text STRING, list ARRAY<STRING>"}


def out(given: str = "step", path: str = "out") -> dict[str, Any]:
    return {"type": "files", "input": given, "path": path}


def step(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "input": "rows", **fields}


STEPS = {
    "filter": (step("filter", where="cast(text AS INT) >= 0"), "where: [CAST_INVALID_INPUT]"),
    "select": (
        step("select", columns={"n": "n", "value": "cast(text AS INT)"}),
        "value: [CAST_INVALID_INPUT]",
    ),
    "a date": (
        step("select", columns={"n": "n", "at": "to_date(if(n % 10 = 7, '2026-13-01', '2026-01-01'))"}),
        "at: [CAST_INVALID_INPUT]",
    ),
    "a repeated part": (
        step("select", columns={"n": "n", "a": "cast(text AS INT)", "b": "cast(text AS INT) + 1"}),
        "a: [CAST_INVALID_INPUT]",
    ),
    "an overflow": (
        step("select", columns={"n": "n", "big": "2147483647 + if(n % 10 = 7, 1, 0)"}),
        "big: [ARITHMETIC_OVERFLOW]",
    ),
    "own words": (
        step("select", columns=["n", "if(n % 10 = 7, raise_error('no sevens'), n) AS m"]),
        "m: [USER_RAISED_EXCEPTION] no sevens",
    ),
    "sample": (step("sample", fraction=1, key="1 / (n % 10 - 7)"), "[DIVIDE_BY_ZERO]"),
    "unfold": (step("unfold", column="array(1 / (n % 10 - 7))"), "[DIVIDE_BY_ZERO]"),
}


@pytest.mark.case(5)
@pytest.mark.parametrize(("transform", "reason"), STEPS.values(), ids=STEPS.keys())
def test_rows_that_an_expression_fails_for_are_dead_letters_and_their_neighbours_are_delivered(
    inline: Make, transform: dict[str, Any], reason: str
) -> None:
    product = inline(
        sources={"incoming": FILES}, transforms={"rows": ROWS, "step": transform}, sinks={"out": out()}
    )
    product.put("a.jsonl", [{"n": n, "text": "x" if n % 10 == 7 else str(n)} for n in range(40)])
    result = product.run_once()
    assert result.code == 0
    letters = product.dead_letters()
    assert [(letter["event_id"], letter["stage"]) for letter in letters] == [
        (f"incoming/{n}", "step") for n in (7, 17, 27, 37)
    ]
    assert all(reason in letter["reason"] for letter in letters), letters[0]["reason"]
    assert not any("SQLSTATE" in letter["reason"] for letter in letters)
    assert product.account() == books(delivered=36, dead_lettered=4)
    assert "trying it again" not in result.output, "the plan itself did not fail"


@pytest.mark.case(5, 6)
def test_a_condition_of_a_route_that_fails_is_an_error_and_not_a_case_without_a_match(inline: Make) -> None:
    product = inline(
        sources={"incoming": FILES},
        transforms={
            "rows": ROWS,
            "step": step("route", routes={"small": "cast(text AS INT) < 3"}, no_match="drop"),
        },
        sinks={"out": out("step.small")},
    )
    product.put("a.jsonl", [{"n": 1, "text": "1"}, {"n": 2, "text": "two"}, {"n": 9, "text": "9"}])
    assert product.run_once().code == 0
    (letter,) = product.dead_letters()
    assert letter["event_id"] == "incoming/1" and "small: [CAST_INVALID_INPUT]" in letter["reason"]
    assert product.account() == books(delivered=1, dropped=1, dead_lettered=1)


@pytest.mark.case(5)
def test_a_filter_protects_the_expressions_behind_it_and_a_second_output_keeps_its_row(inline: Make) -> None:
    product = inline(
        sources={"incoming": FILES},
        transforms={
            "rows": ROWS,
            "numbers": step("filter", where="text RLIKE '^[0-9]+$'"),
            "step": {"type": "select", "input": "numbers", "columns": ["cast(text AS INT) AS value"]},
            "wild": step("select", columns=["cast(text AS INT) AS value"], on_error="drop"),
        },
        sinks={"out": out(), "wild_out": out("wild", "wild")},
    )
    product.put("a.jsonl", [{"n": 1, "text": "1"}, {"n": 2, "text": "two"}])
    assert product.run_once().code == 0
    assert [row["value"] for row in product.rows()] == [1]
    assert [row["value"] for row in product.rows("wild")] == [1]
    assert product.account() == books(delivered=1, dropped=1)


@pytest.mark.case(5, 40)
def test_a_letter_of_an_expression_is_replayed_through_the_mended_one(inline: Make) -> None:
    columns = {"n": "n", "value": "cast(text AS INT)"}
    product = inline(
        sources={"incoming": FILES},
        transforms={"rows": ROWS, "step": step("select", columns=columns)},
        sinks={"out": out()},
    )
    product.put("a.jsonl", [{"n": 1, "text": "1"}, {"n": 2, "text": "two"}])
    assert product.run_once().code == 0
    assert len(product.dead_letters()) == 1
    assert json.loads(product.dead_letters()[0]["payload"])["text"] == "two"


MERGE = {
    "total": "sum(cast(text AS INT))",
    "different": "count(DISTINCT upper(text), cast(text AS INT))",
    "halves": "collect_list(10 / (n - 4)) FILTER (WHERE n <> 4)",
    "rows": "count(*)",
}


@pytest.mark.case(5)
def test_a_row_that_an_aggregate_of_a_merge_fails_for_is_a_letter_and_the_others_are_united(
    inline: Make,
) -> None:
    product = inline(
        sources={"incoming": FILES},
        transforms={"rows": ROWS, "step": step("merge", keys=["list"], columns=MERGE)},
        sinks={"out": out()},
    )
    texts = ["1", "2", "two", "4", "4", "x", "7"]
    product.put("a.jsonl", [{"n": n, "text": text, "list": [str(n % 2)]} for n, text in enumerate(texts)])
    result = product.run_once()
    assert result.code == 0 and "trying it again" not in result.output
    rows = {row["list"][0]: row for row in product.rows()}
    assert [rows[key]["total"] for key in "01"] == [12, 6]
    assert [rows[key]["different"] for key in "01"] == [3, 2]
    assert rows["0"]["halves"] == [-2.5, 5.0] and [rows[key]["rows"] for key in "01"] == [3, 2]
    letters = {letter["event_id"]: letter["reason"] for letter in product.dead_letters()}
    assert letters.keys() == {"incoming/2", "incoming/5"}
    assert all(reason.startswith("total: [CAST_INVALID_INPUT]") for reason in letters.values()), letters
    assert product.account() == books(delivered=5, dead_lettered=2)


@pytest.mark.case(5, 40)
def test_what_fails_of_aggregates_together_is_the_error_of_each_event_of_the_group(inline: Make) -> None:
    columns = {"mean": "sum(n) / sum(size(list))", "label": "concat(text, ':', max(n))"}
    merge = step("merge", keys=["text"], columns=columns)
    product = inline(
        sources={"incoming": FILES}, transforms={"rows": ROWS, "step": merge}, sinks={"out": out()}
    )
    product.put(
        "a.jsonl",
        [{"n": n, "text": "ab"[n % 2], "list": ["one"] if n % 2 else []} for n in range(5)],
    )
    result = product.run_once()
    assert result.code == 0 and "trying it again" not in result.output
    assert [(row["text"], row["mean"], row["label"]) for row in product.rows()] == [("b", 2.0, "b:3")]
    letters = {letter["event_id"]: letter["reason"] for letter in product.dead_letters()}
    assert letters.keys() == {"incoming/0", "incoming/2", "incoming/4"}
    assert all(reason.startswith("mean: [DIVIDE_BY_ZERO]") for reason in letters.values()), letters
    assert product.account() == books(delivered=2, dead_lettered=3)
    again = inline(
        sources={"incoming": FILES},
        transforms={
            "rows": ROWS,
            "step": {**merge, "columns": {"mean": "try_divide(sum(n), sum(size(list)))"}},
        },
        sinks={"out": out()},
    )
    again.start()
    again.command("dead-letters", "replay", str(again.file), "--all")
    assert again.account() == books(delivered=5), "replayed together, they are one row"
    assert sorted(row["text"] for row in again.rows()) == ["a", "b"]


@pytest.mark.case(5)
def test_the_ways_of_an_event_are_united_also_where_an_expression_could_fail(inline: Make) -> None:
    product = inline(
        sources={"incoming": FILES},
        transforms={
            "rows": ROWS,
            "each": step("unfold", column="list", **{"as": "part"}),
            "step": {"type": "merge", "input": "each", "columns": {"n": "max(cast(part AS INT)) / max(n)"}},
        },
        sinks={"out": out()},
    )
    product.put(
        "a.jsonl", [{"n": 2, "list": ["8", "4"]}, {"n": 1, "list": ["3", "x"]}, {"n": 0, "list": ["1"]}]
    )
    assert product.run_once().code == 0
    assert sorted((row["event_id"], row["n"]) for row in product.rows()) == [
        ("incoming/0", 4.0),
        ("incoming/1", 3.0),
    ]
    reasons = {letter["event_id"]: letter["reason"].split("]")[0] for letter in product.dead_letters()}
    assert reasons == {"incoming/1/1": "n: [CAST_INVALID_INPUT", "incoming/2/0": "n: [DIVIDE_BY_ZERO"}


@pytest.mark.case(5)
def test_an_expression_of_a_sink_that_fails_for_a_row_is_a_letter_of_that_sink_alone(
    inline: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the `routing_key` of RabbitMQ is one; here the files sink has one, which needs no broker."""
    keys = {"key": "10 / (n - 2)"}
    monkeypatch.setattr(FilesSinkConfig, "expressions", lambda sink: keys if sink.path == "out" else {})
    product = inline(
        sources={"incoming": FILES},
        transforms={"rows": ROWS},
        sinks={"out": out("rows"), "all": out("rows", "all")},
    )
    product.put("a.jsonl", [{"n": n} for n in range(4)])
    result = product.run_once()
    assert result.code == 0 and "trying it again" not in result.output
    assert [row["n"] for row in product.rows()] == [0, 1, 3]
    assert [row["n"] for row in product.rows("all")] == [0, 1, 2, 3]
    (letter,) = product.dead_letters()
    assert (letter["event_id"], letter["stage"]) == ("incoming/2", "out")
    assert "key: [DIVIDE_BY_ZERO]" in letter["reason"]
    assert product.account() == books(delivered=3, dead_lettered=1)
