"""Case 44: a node is renamed, removed or changed while rows are owed to it, or letters name it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.promises.product import FILES, LATER, Inline, books

pytestmark = pytest.mark.spark

ROWS = {"type": "parse_json", "input": "incoming", "schema": "n BIGINT, parts ARRAY<BIGINT>"}
EVEN = {"type": "filter", "input": "rows", "where": "n % 2 = 0"}


def hook(webhook: Any, *inputs: str, **fields: Any) -> dict[str, Any]:
    return {"type": "http", "inputs": list(inputs), "url": webhook.url, "retry": LATER, **fields}


def pipeline(transforms: dict[str, Any], sinks: dict[str, Any]) -> dict[str, Any]:
    return {"sources": {"incoming": FILES}, "transforms": transforms, "sinks": sinks}


def run_while_owed(product: Inline, sink: str) -> None:
    """Run until a sink owes rows, and end."""
    running = product.start(drain_s=0.0)
    running.wait_for(lambda: owes(product, sink))
    running.terminate()
    assert product.account()["in_flight"] > 0


def owes(product: Inline, sink: str) -> bool:
    with product.ledger() as ledger:
        found = [batch.sinks.get(sink) for batch in ledger.open_batches("incoming")]
    return any(state is not None and state.attempts > 0 for state in found)


def replay(product: Inline, *args: str) -> Any:
    """`signoff dead-letters replay`, by a run that is alive."""
    running = product.start()
    done = product.command("dead-letters", "replay", str(product.file), *args)
    running.terminate()
    return done


@pytest.mark.case(44)
def test_a_row_owed_under_the_name_of_an_input_that_is_renamed_is_a_letter_until_it_is_renamed_back(
    inline, webhook
):
    down = webhook.answer(503, lambda request: request.ids[0] == "incoming/2/even")
    before = pipeline({"rows": ROWS, "even": EVEN}, {"hook": hook(webhook, "rows", "even")})
    product = inline(**before)
    product.put("1.jsonl", [{"n": n} for n in range(4)])
    run_while_owed(product, "hook")
    down.stop()

    product.write(pipeline({"rows": ROWS, "pair": EVEN}, {"hook": hook(webhook, "rows", "pair")}))
    assert product.run_once().code == 0
    (letter,) = product.dead_letters()
    assert (letter["event_id"], letter["stage"]) == ("incoming/2/even", "hook")
    assert "does not come any more" in letter["reason"] and letter["payload"] == '{"n": 2}'
    assert product.account() == books(delivered=3, dead_lettered=1)
    done = replay(product, "incoming/2/even")
    assert done.code == 1 and "does not come to" in done.output
    assert len(product.dead_letters()) == 1, "a letter of which nothing was delivered is not closed"

    product.write(before)
    done = replay(product, "incoming/2/even")
    assert done.code == 0 and "delivered: 1" in done.output
    assert webhook.accepted_ids.count("incoming/2/even") == 1
    assert product.account() == books(delivered=4) and product.dead_letters() == []


@pytest.mark.case(44)
def test_what_a_sink_that_is_taken_out_owes_becomes_letters_of_exactly_the_rows_it_was_to_have(
    inline, webhook
):
    down = webhook.answer(503)
    archive = {"type": "files", "input": "rows", "path": "./out"}
    both = {"archive": archive, "hook": hook(webhook, "even")}
    product = inline(**pipeline({"rows": ROWS, "even": EVEN}, both))
    product.put("1.jsonl", [{"n": n} for n in range(6)])
    run_while_owed(product, "hook")
    down.stop()

    product.write(pipeline({"rows": ROWS}, {"archive": archive}))
    assert product.status()["gone"] == {"hook": {"rows": 3}}
    done = product.run_once()
    assert done.code == 0 and 'sink "hook" is no longer in the pipeline' in done.output
    letters = product.dead_letters()
    assert [(x["event_id"], x["stage"]) for x in letters] == [(f"incoming/{n}", "hook") for n in (0, 2, 4)]
    assert not any(letter["replayable"] for letter in letters)
    assert product.account() == books(delivered=3, dead_lettered=3)
    status = product.command("status", str(product.file)).output
    assert '3 dead letters are of "hook", which is not in the pipeline' in status
    done = replay(product, "--all")
    assert done.code == 1 and 'its stage "hook" is not in the pipeline any more' in done.output

    product.write(pipeline({"rows": ROWS, "even": EVEN}, both))
    assert replay(product, "--all").code == 0
    assert sorted(row["n"] for row in webhook.accepted) == [0, 2, 4]
    assert product.account() == books(delivered=6)


@pytest.mark.case(44)
def test_an_owed_row_that_a_changed_condition_leaves_out_is_a_letter_and_so_is_one_that_waits_for_a_batch(
    inline, webhooks
):
    first, second, _ = webhooks
    owed = first.answer(503, lambda request: request.ids[0] == "incoming/2")
    down = second.answer(503)
    sinks = {"first": hook(first, "even"), "second": hook(second, "even")}
    product = inline(**pipeline({"rows": ROWS, "even": EVEN}, sinks))
    product.put("1.jsonl", [{"n": n} for n in range(6)])
    run_while_owed(product, "second")
    owed.stop(), down.stop()

    product.write(pipeline({"rows": ROWS, "even": {**EVEN, "where": "n = 4"}}, sinks))
    assert product.run_once().code == 0
    found = {(x["event_id"], x["stage"]) for x in product.dead_letters()}
    assert found == {("incoming/2", "first"), ("incoming/0", "second"), ("incoming/2", "second")}
    assert all('changed (the condition of "even")' in x["reason"] for x in product.dead_letters())
    assert [row["n"] for row in second.accepted] == [4]
    assert product.account() == books(delivered=1, dropped=3, dead_lettered=2)
    done = replay(product, "incoming/2", "--stage", "second")
    assert done.code == 1 and 'left out by "even" (the condition does not hold)' in done.output
    assert product.command("dead-letters", "drop", str(product.file), "--all").code == 0
    assert product.account() == books(delivered=2, dropped=4)


@pytest.mark.case(44)
def test_of_a_renamed_sink_behind_a_changed_condition_only_what_does_not_come_is_a_letter_and_that_is_said(
    inline, webhook
):
    down = webhook.answer(503)
    product = inline(**pipeline({"rows": ROWS, "even": EVEN}, {"hook": hook(webhook, "even")}))
    product.put("1.jsonl", [{"n": n} for n in range(6)])
    run_while_owed(product, "hook")
    down.stop()

    few = {**EVEN, "where": "n = 4"}
    product.write(pipeline({"rows": ROWS, "even": few}, {"renamed": hook(webhook, "even")}))
    said = "a run makes dead letters of those that do not come to a new sink in its place"
    assert said in product.command("status", str(product.file)).output
    done = product.run_once()
    assert (
        "what it owes goes to the new sink in its place; rows that do not come to that become" in done.output
    )
    assert [row["n"] for row in webhook.accepted] == [4]
    letters = product.dead_letters()
    assert [x["event_id"] for x in letters] == ["incoming/0", "incoming/2"]
    said = 'the row does not come to "renamed", which is new (the condition of "even")'
    assert all(said in x["reason"] for x in letters)


@pytest.mark.case(44)
def test_a_row_of_an_event_that_is_split_no_more_is_a_letter(inline, webhook):
    down = webhook.answer(503, lambda request: request.ids[0] == "incoming/0/1")
    parts = {"type": "unfold", "input": "rows", "column": "parts"}
    product = inline(**pipeline({"rows": ROWS, "part": parts}, {"hook": hook(webhook, "part")}))
    product.put("1.jsonl", [{"n": 0, "parts": [7, 8, 9]}])
    run_while_owed(product, "hook")
    down.stop()
    product.write(pipeline({"rows": ROWS}, {"hook": hook(webhook, "rows")}))
    assert product.run_once().code == 0
    (letter,) = product.dead_letters()
    assert (letter["event_id"], letter["stage"]) == ("incoming/0/1", "hook")
    assert "incoming/0" not in webhook.accepted_ids


@pytest.mark.case(44)
def test_a_renamed_sink_of_files_keeps_every_row_that_it_had_under_its_old_name_once(inline, webhook):
    down = webhook.answer(503, lambda request: request.ids[0] == "incoming/2")
    archive = {"type": "files", "input": "rows", "path": "./out"}
    sinks = {"archive": archive, "hook": hook(webhook, "rows")}
    product = inline(**pipeline({"rows": ROWS}, sinks))
    product.put("1.jsonl", [{"n": n} for n in range(4)])
    run_while_owed(product, "hook")
    down.stop()
    before = {path.name: path.read_bytes() for path in (product.directory / "out").glob("*.jsonl")}

    product.write(pipeline({"rows": ROWS}, {"kept": archive, "hook": hook(webhook, "rows")}))
    done = product.run_once()
    after = {path.name: path.read_bytes() for path in (product.directory / "out").glob("*.jsonl")}
    assert after == before, "all rows of events that were settled, and none twice"
    assert done.code == 0 and 'sink "archive" is called "kept" now' in done.output
    assert product.account() == books(delivered=4)


@pytest.mark.case(44)
def test_a_sink_of_files_in_the_directory_of_another_replaces_none_of_its_rows(inline, webhook):
    down = webhook.answer(503)
    odd = {"type": "filter", "input": "rows", "where": "n % 2 = 1"}
    steps = {"rows": ROWS, "odd": odd}
    first, second = ({"type": "files", "input": name} for name in ("odd", "even"))
    sinks = {"first": first | {"path": "./1"}, "hook": hook(webhook, "rows")}
    product = inline(**pipeline(steps, sinks))
    product.put("1.jsonl", [{"n": n} for n in range(4)])
    run_while_owed(product, "hook")
    down.stop()

    sinks = {"first": first | {"path": "./2"}, "second": second | {"path": "./1"}}
    product.write(pipeline(steps | {"even": EVEN}, sinks | {"hook": hook(webhook, "rows")}))
    assert product.run_once().code == 0
    files = (product.directory / "1").glob("*.jsonl")
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert sorted(row["n"] for row in rows) == [0, 1, 2, 3]
    assert product.account() == books(delivered=4)
