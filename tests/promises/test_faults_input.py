"""Case 32: malformed input of every kind becomes a dead letter with a reason, and the pipeline lives on."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from tests.promises.product import HTTP

pytestmark = pytest.mark.spark

SCHEMA = "n BIGINT, at TIMESTAMP, value DOUBLE, on BOOLEAN, tags ARRAY<STRING>, place STRUCT<x: INT>"

BAD = {
    "no JSON": (b"hello", "not valid JSON"),
    "cut off": (b'{"n": 1', "not valid JSON"),
    "a comma too many": (b'{"n": 1,}', "not valid JSON"),
    "text behind it": (b'{"n": 1} and more', "not valid JSON"),
    "two objects": (b'{"n": 1}{"n": 2}', "not valid JSON"),
    "two objects and a comma": (b'{"n": 1}, {"n": 2}', "not valid JSON"),
    "a field behind the object": (b'{"n": 1}, "b": {"n": 2}', "not valid JSON"),
    "a bracket and an object": (b'{"n": 1}] {"n": 2}', "not valid JSON"),
    "a brace and an object": (b'{"n": 1}} {"n": 2}', "not valid JSON"),
    "text between objects": (b'{"n": 1} and {"n": 2}', "not valid JSON"),
    "a byte order mark": (b'\xef\xbb\xbf{"n": 5}', "BOM"),
    "an array": (b'[{"n": 1}]', "array"),
    "a number": (b"17", "number"),
    "a string": (b'"n"', "string"),
    "null": (b"null", "null"),
    "a text for a number": (b'{"n": "seventeen"}', '"n" is string'),
    "a fraction for a whole number": (b'{"n": 1.5}', '"n" is number 1.5'),
    "an object for a number": (b'{"n": {"n": 1}}', '"n" is object'),
    "a number beyond 64 bits": (b'{"n": 9223372036854775808}', '"n" is number 9223372036854775808'),
    "a number of 400 digits": (b'{"n": ' + b"9" * 400 + b"}", '"n" is number'),
    "a text for a boolean": (b'{"on": "perhaps"}', '"on" is string'),
    "an object for an array": (b'{"tags": {}}', '"tags" is object'),
    "an array for an object": (b'{"place": [1]}', '"place" is array'),
    "no time": (b'{"at": "the day before"}', ""),
    "an absurd time": (b'{"at": "2021-99-99T99:99:99Z"}', ""),
    "a boolean for a time": (b'{"at": true}', '"at" is boolean'),
    "no UTF-8": (b'{"n": 1, "tags": ["\xff\xfe"]}', "not valid UTF-8"),
    "half a character": (b'{"n": 1}\xe2\x82', "not valid UTF-8"),
    "a NUL byte": (b'{"n": 1}\x00', "not valid JSON"),
    "only NUL bytes": (b"\x00\x00\x00", "not valid JSON"),
    "only blanks": (b"   ", "empty"),
    "deeply nested": (b'{"place": ' + b'{"x": ' * 5000 + b"1" + b"}" * 5000 + b"}", ""),
    "deeply nested and open": (b"[" * 100_000, ""),
    "too large": (b'{"n": 1, "pad": "' + b"x" * 300_000 + b'"}', "max_event_bytes"),
}
GOOD = {
    "all fields": b'{"n": 1, "at": "2021-05-01T10:00:00Z", "value": 1.5, "on": true, "tags": ["a"]}',
    "nulls": b'{"n": null, "at": null, "value": null, "on": null, "tags": null, "place": null}',
    "no field": b"{}",
    "single quotes": b"{'n': 20}",
    "unknown fields": b'{"n": 2, "unknown": [1, {"a": null}]}',
    "a key twice": b'{"n": 3, "n": 4}',
    "an escaped NUL": b'{"n": 6, "tags": ["a\\u0000b"]}',
    "an object in an object": b'{"place": {"x": 1}, "n": 14}',
    "objects in an array": b'{"n": 15, "more": [{"a": 1}, {"a": {"b": [{}, {}]}}], "tags": []}',
    "braces in a text": b'{"n": 7, "tags": ["} not the end {"]}',
    "a whole number for a fraction": b'{"n": 8, "value": 1}',
    "the largest number": b'{"n": 9223372036854775807}',
    "an early time": b'{"n": 10, "at": "0001-01-01T00:00:00Z"}',
    "a late time": b'{"n": 11, "at": "9999-12-31T23:59:59Z"}',
    "blanks around it": b'  {"n": 12}  ',
    "carriage return": b'{"n": 13}\r',
}


def rows(path: Path) -> dict[str, dict[str, object]]:
    with sqlite3.connect(path) as db:
        db.row_factory = sqlite3.Row
        found = {row["event_id"]: dict(row) for row in db.execute("SELECT * FROM events")}
    db.close()
    return found


@pytest.mark.case(32)
def test_malformed_lines_of_every_kind_are_dead_letters_with_a_reason(inline):
    product = inline(
        sources={"incoming": {"type": "files", "path": "in/*.jsonl", "max_event_bytes": 250_000}},
        transforms={"rows": {"type": "parse_json", "input": "incoming", "schema": SCHEMA}},
        sinks={
            "table": {"type": "sqlite", "input": "rows", "path": "out.db", "table": "events"},
            "archive": {"type": "files", "input": "rows", "path": "out"},
        },
    )
    lines, names = [], []
    for name in [*BAD, *GOOD]:
        lines.append(BAD[name][0] if name in BAD else GOOD[name])
        names.append(name)
    folder = product.directory / "in"
    folder.mkdir()
    (folder / "1.jsonl").write_bytes(b"\n".join(lines) + b"\n\n\r\n\n")  # empty lines are no events
    assert product.run_once(90).code == 0

    letters = {letter["event_id"]: letter for letter in product.dead_letters()}
    table = rows(product.directory / "out.db")
    wrong = {}
    for sequence, name in enumerate(names):
        reason = letters.get(f"incoming/{sequence}", {}).get("reason")
        taken = f"incoming/{sequence}" in table
        if taken == (name in BAD) or (name in BAD and (not reason or BAD[name][1] not in reason)):
            wrong[name] = (taken, reason)
    assert not wrong
    assert len(letters) == len(BAD) and len(table) == len(GOOD)
    by_name = {name: table[f"incoming/{names.index(name)}"] for name in GOOD}
    assert by_name["a key twice"]["n"] in (3, 4) and by_name["the largest number"]["n"] == 2**63 - 1
    assert str(by_name["an early time"]["at"]).startswith("0001-01-01T00:00:00")
    assert str(by_name["a late time"]["at"]).startswith("9999-12-31T23:59:59")
    account = product.account()
    assert (account["delivered"], account["dead_lettered"]) == (len(GOOD), len(BAD))
    (archived,) = (product.directory / "out").glob("*.jsonl")
    assert {json.loads(line)["event_id"] for line in archived.read_text().splitlines()} == set(table)


@pytest.mark.case(32)
def test_malformed_requests_are_refused_or_dead_lettered_and_good_ones_still_settle(inline):
    product = inline(
        sources={"incoming": {**HTTP, "max_body_bytes": 100_000}},
        transforms={"rows": {"type": "parse_json", "input": "incoming", "schema": "n BIGINT"}},
        sinks={"archive": {"type": "files", "input": "rows", "path": "out"}},
    )
    running = product.start()
    as_json, as_lines = {"Content-Type": "application/json"}, {"Content-Type": "application/x-ndjson"}
    never = [(b"", 400), (b"{", 400), (b'{"n": 1} x', 400), (b"[1, 2", 400), (b"x" * 100_001, 413)]
    for body, status in never:
        assert product.post(body, headers=as_json).result(30).status_code == status, body[:20]
    assert product.received() == 0, "what cannot be understood never became an event"
    lines = b'{"n": 1}\n{"n": \xff}\nnonsense\n[1]\n\n{"n": "x"}\n{"n": 2}\n'
    answer = product.post(lines, headers=as_lines).result(120)
    assert answer.status_code == 200 and answer.json()["events"] == 6
    running.terminate()
    letters = product.dead_letters()
    assert [letter["event_id"] for letter in letters] == [f"incoming/{n}" for n in (1, 2, 3, 4)]
    assert all(letter["reason"] for letter in letters)
    account = product.account()
    assert (account["delivered"], account["dead_lettered"]) == (2, 4)
