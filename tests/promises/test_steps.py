"""Steps that parse, check, mask and look up: every row is delivered, counted as dropped, or a letter."""

from __future__ import annotations

import csv
import hashlib
import hmac
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.promises.product import FILES, HTTP, Inline, books, wait_until
from tests.promises.test_settling import code

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]
KEY = "0123456789abcdef-mask-key"
NGINX = (
    '203.0.113.7 - anna [18/Nov/2026:14:03:12 +0100] "GET /a?b=c HTTP/1.1" 200 512 "-" "curl/8.5"',
    "2026-11-18T13:03:12Z ERROR disk full",
    "nothing of the kind",
    '10.0.0.1 - - [31/Nov/2026:14:03:12 +0100] "GET / HTTP/1.1" 200 1 "-" "x"',
)
PAIRS = (
    'level=warn host="web 1" took=15',
    'level=info host="a \\"b\\"" took=',
    "level=warn bare took=1",
    "level=warn level=info",
    "host=x took=soon",
)


def out(given: str, path: str = "out") -> dict[str, Any]:
    return {"type": "files", "input": given, "path": path}


@pytest.mark.case(5)
def test_lines_are_parsed_by_the_first_pattern_that_matches_and_pairs_by_their_keys(inline: Make) -> None:
    lines = {
        "type": "parse_regex",
        "input": "logs",
        "patterns": ["^%{COMBINEDLOG}$", r"^%{TIMESTAMP_ISO8601:iso:TIMESTAMP} (?P<level>\w+) (?P<text>.*)$"],
        "schema": "client STRING, timestamp TIMESTAMP, status INT, bytes BIGINT, iso STRING, level STRING",
        "timestamp_format": "dd/MMM/yyyy:HH:mm:ss Z",
        "keep": ["payload"],
    }
    pairs = {
        "type": "parse_key_value",
        "input": "pairs_in",
        "schema": "level STRING NOT NULL, host STRING, took INT",
        "into": "all",
    }
    text = {**FILES, "format": "text"}
    product = inline(
        sources={"logs": {**text, "path": "./logs/*"}, "pairs_in": {**text, "path": "./pairs/*"}},
        transforms={"lines": lines, "pairs": pairs},
        sinks={"out": out("lines"), "pairs_out": out("pairs", "pairs_out")},
    )
    product.put("a.log", NGINX, folder="logs")
    product.put("b.log", PAIRS, folder="pairs")
    done = product.run_once()
    assert done.code == 0, done.output
    first, second = product.rows()
    assert (first["client"], first["status"], first["bytes"], first["level"]) == (
        "203.0.113.7",
        200,
        512,
        None,
    )
    assert first["timestamp"].startswith("2026-11-18T13:03:12") and first["payload"] == NGINX[0]
    assert (second["level"], second["iso"], second["status"]) == ("ERROR", "2026-11-18T13:03:12Z", None)
    rows = [(row["level"], row["host"], row["took"]) for row in product.rows("pairs_out")]
    assert rows == [("warn", "web 1", 15), ("info", 'a "b"', None)]
    assert product.rows("pairs_out")[1]["all"]["took"] == ""
    reasons = {letter["event_id"]: letter["reason"] for letter in product.dead_letters()}
    assert reasons == {
        "logs/2": 'no pattern matches "nothing of the kind"',
        "logs/3": 'column "timestamp": "31/Nov/2026:14:03:12 +0100" does not match "dd/MMM/yyyy:HH:mm:ss Z"',
        "pairs_in/2": 'no pair at character 11: "bare took=1"',
        "pairs_in/3": 'key "level" is there twice',
        "pairs_in/4": 'column "level" is empty, and is NOT NULL; column "took": "soon" is not an INT',
    }
    assert product.account("logs") == books(delivered=2, dead_lettered=2)
    assert product.account("pairs_in") == books(delivered=2, dead_lettered=3)


@pytest.mark.case(5)
def test_rows_are_flattened_masked_and_checked_against_every_rule(
    inline: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASK_KEY", KEY)
    schema = (
        "n INT, who STRUCT<name: STRING, at: STRUCT<city: STRING, zip: STRING>>, tags MAP<STRING, STRING>, "
        "card STRING, mail STRING, phone STRING"
    )
    rules = {
        "positive": {"where": "n > 0", "reason": "n must be positive"},
        "short": "length(card) < 20",
        "divides": "10 / (n - 3) < 100",
    }
    masked = {
        "columns": {
            "card": {"last": 4},
            "mail": "hash",
            "who_name": "redact",
            "phone": {"first": 2, "last": 2},
        },
        "key": "${MASK_KEY}",
    }
    product = inline(
        sources={"incoming": FILES},
        transforms={
            "parsed": {"type": "parse_json", "input": "incoming", "schema": schema},
            "flat": {"type": "flatten", "input": "parsed", "keys": {"tags": ["kind"]}, "depth": 1},
            "masked": {"type": "mask", "input": "flat", **masked},
            "valid": {"type": "validate", "input": "masked", "rules": rules},
            "sorted": {
                "type": "validate",
                "input": "masked",
                "rules": {"small": "n < 3"},
                "invalid": "output",
            },
        },
        sinks={"out": out("valid"), "large": out("sorted.invalid", "large"), "small": out("sorted", "small")},
    )
    who = {"name": "Anna", "at": {"city": "Wien", "zip": "1010"}}
    whole = {"who": who, "tags": {"kind": "x"}, "card": "4111111111111111", "mail": "a@b", "phone": "0123"}
    product.put("a.jsonl", [{"n": 1, **whole}, {"n": 2}, {"n": -1, "card": "c" * 21}, {"n": 3, **whole}])
    done = product.run_once()
    assert done.code == 0, done.output
    assert KEY not in done.output
    first, second = sorted(product.rows("small"), key=lambda row: row["n"])[1:]
    hashed = hmac.new(KEY.encode(), b"a@b", hashlib.sha256).hexdigest()
    assert (first["card"], first["mail"], first["who_name"]) == ("************1111", hashed, "***")
    assert (first["phone"], first["tags_kind"], first["who_at"]["city"]) == ("****", "x", "Wien")
    assert {second[name] for name in ("card", "mail", "who_name", "phone", "tags_kind")} == {None}
    assert [(row["n"], row["broken_rules"]) for row in product.rows("large")] == [(3, ["small"])]
    reasons = {letter["event_id"]: letter["reason"] for letter in product.dead_letters()}
    assert reasons["incoming/1"] == "short: not length(card) < 20", "null is not true"
    assert reasons["incoming/2"] == "n must be positive; short: not length(card) < 20"
    assert "divides: [DIVIDE_BY_ZERO]" in reasons["incoming/3"]
    assert [row["n"] for row in product.rows()] == [1]
    for file in product.state.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file


def write_table(path: Path, rows: list[tuple[object, ...]]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("id", "name", "region"), *rows])


@pytest.mark.case(5, 27)
def test_a_lookup_gives_one_row_for_each_and_follows_its_table_while_running(inline: Make) -> None:
    def looked_up(**fields: Any) -> dict[str, Any]:
        table = {"path": "./table.csv", "schema": "id INT, name STRING, region STRING"}
        given = {"from": table, "keys": {"n": "id"}, "columns": ["name"], "refresh": "1s"}
        return {"type": "lookup", "input": "parsed", **given, **fields}

    product = inline(
        sources={"incoming": HTTP},
        transforms={
            "parsed": {"type": "parse_json", "input": "incoming", "schema": "n BIGINT, name STRING"},
            "with_null": looked_up(on_missing=None, columns={"name": "name", "area": "region"}),
            "or_dropped": looked_up(on_missing="drop"),
            "or_letter": looked_up(),
        },
        sinks={"null": out("with_null", "null"), "drop": out("or_dropped", "drop"), "out": out("or_letter")},
    )
    write_table(product.directory / "table.csv", [(1, "one", "N"), (2, "two", "S")])
    running = product.start()
    assert code(product.post([{"n": 1}, {"n": 3, "name": "mine"}, {}])) == 200
    named = [(row["n"], row["name"], row["area"]) for row in product.rows("null")]
    assert named == [(1, "one", "N"), (3, None, None), (None, None, None)]
    assert [row["name"] for row in product.rows("drop")] == [row["name"] for row in product.rows()] == ["one"]
    assert [x["reason"] for x in product.dead_letters()] == [
        "not in the table: n 3",
        "not in the table: n null",
    ]
    assert product.account() == books(delivered=1, dead_lettered=2)

    write_table(product.directory / "table.csv", [(1, "uno", "N"), (3, "tre", "S")])

    def name_of(n: int) -> str | None:
        assert code(product.post([{"n": n}])) == 200
        last: str | None = product.rows("null")[-1]["name"]
        return last

    wait_until(lambda: name_of(3) == "tre", what="the table is read again")
    assert name_of(1) == "uno" and name_of(2) is None
    write_table(product.directory / "table.csv", [(1, "eins", "N"), (1, "one", "S")])
    wait_until(lambda: name_of(1) == "uno" and "was not read again" in running.output, what="the warning")
    assert "1 keys are there more than once, the first is id 1" in running.output
    assert running.terminate().code == 0


def test_a_lookup_reads_parquet_and_sqlite_and_refuses_a_table_it_cannot_use(inline: Make) -> None:
    database = {"path": "./t.db", "query": "SELECT id, name FROM t"}
    product = inline(
        sources={"incoming": FILES},
        transforms={
            "parsed": {"type": "parse_json", "input": "incoming", "schema": "id INT"},
            "named": {
                "type": "lookup",
                "input": "parsed",
                "from": database,
                "keys": ["id"],
                "columns": ["name"],
            },
        },
        sinks={"out": out("named")},
    )
    with closing(sqlite3.connect(product.directory / "t.db")) as made:
        made.executescript("CREATE TABLE t (id INT, name TEXT); INSERT INTO t VALUES (1, 'a'), (1, 'b')")
    product.put("a.jsonl", [{"id": 1}])
    refused = product.run_once()
    assert refused.code == 2 and "[bad-table]" in refused.output and "the first is id 1" in refused.output
    with closing(sqlite3.connect(product.directory / "t.db")) as made:
        made.execute("DELETE FROM t WHERE name = 'b'")
        made.commit()
    assert product.run_once().code == 0
    assert [json.loads(json.dumps(row))["name"] for row in product.rows()] == ["a"]


@pytest.mark.case(5, 32)
def test_an_object_without_a_value_for_a_column_that_is_not_null_is_a_letter(inline: Make) -> None:
    schema = "id BIGINT NOT NULL, name STRING NOT NULL, tags ARRAY<STRING>"
    product = inline(
        sources={"incoming": FILES},
        transforms={"parsed": {"type": "parse_json", "input": "incoming", "schema": schema}},
        sinks={"out": out("parsed")},
    )
    flat = [{"id": 1, "name": "a"}, {"name": "b"}, {"id": None}]
    product.put("a.jsonl", [*flat, {"id": 4, "name": "d", "tags": ["x"]}, {"id": 5, "tags": ["y"]}])
    assert product.run_once().code == 0
    assert [row["id"] for row in product.rows()] == [1, 4]
    missing = {name: f'field "{name}" is null or missing, and is NOT NULL' for name in ("id", "name")}
    assert {letter["event_id"]: letter["reason"] for letter in product.dead_letters()} == {
        "incoming/1": missing["id"],
        "incoming/2": f"{missing['id']}; {missing['name']}",
        "incoming/4": missing["name"],
    }
    assert product.account() == books(delivered=2, dead_lettered=3)
