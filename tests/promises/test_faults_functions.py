"""Whatever a user's function returns, raises or does to its process: each event ends for itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = [pytest.mark.spark]

FILES = {"type": "files", "path": "in/*.jsonl"}
ROWS = {"type": "parse_json", "input": "incoming", "schema": "n BIGINT"}
SCHEMA = "n BIGINT, text STRING, amount DECIMAL(10,2), tags ARRAY<STRING>, at TIMESTAMP"
COUNT = 5_000
BAD = {n for n in range(COUNT) if n % 250 == 249}


def made_with(inline: Any, function: str, **fields: Any) -> Any:
    step = {"type": "python", "input": "rows", "function": f"tests.promises.functions:{function}", **fields}
    return inline(
        sources={"incoming": FILES},
        transforms={"rows": ROWS, "made": step},
        sinks={"archive": {"type": "files", "input": "made", "path": "out"}},
    )


def written(product: Any) -> set[int]:
    files = (product.directory / "out").glob("*.jsonl")
    lines = [line for file in files for line in file.read_text().splitlines()]
    numbers = [json.loads(line)["n"] for line in lines]
    assert len(numbers) == len(set(numbers)), "each once"
    return set(numbers)


@pytest.mark.case(32)
def test_each_odd_result_of_a_function_is_the_letter_of_its_own_event_at_its_step(inline):
    product = made_with(inline, "odd", mode="rows", schema=SCHEMA)
    product.put("1.jsonl", [{"n": n} for n in range(COUNT)])
    assert product.run_once(120).code == 0
    letters = product.dead_letters()
    assert {json.loads(letter["payload"])["n"] for letter in letters} == BAD and len(letters) == len(BAD)
    assert {letter["stage"] for letter in letters} == {"made"}
    assert not any("Python worker" in letter["reason"] for letter in letters)
    assert written(product) == set(range(COUNT)) - BAD


@pytest.mark.case(33)
def test_events_that_end_the_worker_of_their_function_are_found_together(inline):
    product = made_with(inline, "deadly", mode="rows", schema="n BIGINT")
    product.put("1.jsonl", [{"n": n} for n in range(750)])
    assert product.run_once(400).code == 0
    letters = product.dead_letters()
    assert sorted(json.loads(letter["payload"])["n"] for letter in letters) == [249, 499, 749]
    assert all('the function of "made" ends its worker' in letter["reason"] for letter in letters)
    assert written(product) == set(range(750)) - BAD
