"""Case 40: dead letters are listed, shown, replayed to what failed only, and dropped."""

from __future__ import annotations

import gzip
import json
import random
import subprocess
from typing import Any

import pytest

from tests.promises.product import SIGNOFF
from tests.servers import PATIENCE_S

pytestmark = pytest.mark.spark

FILES = {"type": "files", "path": "in/*.jsonl"}
ROWS = {"type": "parse_json", "input": "incoming", "schema": "n BIGINT, parts ARRAY<INT>"}


def hook(webhook: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "http", "input": "rows", "url": webhook.url, **fields}


def letters_command(product: Any, action: str, *args: str) -> Any:
    return product.command("dead-letters", action, str(product.file), *args)


@pytest.mark.case(40)
def test_letters_are_shown_replayed_to_the_sink_that_failed_and_dropped_while_a_run_is_alive(
    inline, webhooks
):
    first, second, _ = webhooks
    bad = second.answer(422, lambda request: request.rows[0]["n"] in (1, 2, 3), body="no such station")
    product = inline(
        sources={"incoming": FILES}, transforms={"rows": ROWS},
        sinks={"first": hook(first), "second": hook(second)},
    )  # fmt: skip
    product.put("1.jsonl", [{"n": n} for n in range(5)])
    running = product.start()
    running.wait_for(lambda: product.told_upto() == 5)
    assert product.account()["dead_lettered"] == 3 and product.account()["delivered"] == 2
    listed = product.dead_letters()
    assert [(x["event_id"], x["source"], x["stage"]) for x in listed] == [
        (f"incoming/{n}", "incoming", "second") for n in (1, 2, 3)
    ]
    shown = letters_command(product, "show", "incoming/1").output
    assert "no such station" in shown and '{"n": 1}' in shown

    again = letters_command(product, "replay", "incoming/1", "--json")
    assert again.code == 1 and '"failed_again": 1' in again.output, "it stays, with the new reason"
    assert product.dead_letters()[0]["attempts"] == 2
    bad.stop()
    before = (len(first.requests), len(second.requests))
    assert letters_command(product, "replay", "incoming/1", "incoming/2").code == 0
    assert len(first.requests) == before[0], "the sink that had it sees nothing again"
    assert {id_ for r in second.requests[before[1] :] for id_ in r.ids} == {"incoming/1", "incoming/2"}
    assert len(second.requests) == before[1] + 2
    assert product.account()["dead_lettered"] == 1 and product.account()["delivered"] == 4
    assert letters_command(product, "drop", "incoming/3").code == 0
    account = product.account()
    assert (account["dead_lettered"], account["delivered"], account["dropped"]) == (0, 5, 0)
    assert product.dead_letters() == []
    assert letters_command(product, "replay", "incoming/3").code == 2, "what was dropped is gone"
    running.terminate()
    assert product.account()["received"] == 5


@pytest.mark.case(40)
def test_letters_are_replayed_and_dropped_without_a_run(inline, webhooks):
    first, second, _ = webhooks
    bad = second.answer(422, lambda request: request.rows[0]["n"] in (1, 2))
    product = inline(
        sources={"incoming": FILES}, transforms={"rows": ROWS},
        sinks={"first": hook(first), "second": hook(second)},
    )  # fmt: skip
    product.put("1.jsonl", [{"n": 0}, {"n": 1}, {"n": 2}, "{no"])
    assert product.run_once().code == 0
    bad.stop()
    calls = len(first.requests)
    command = [str(SIGNOFF), "dead-letters", "replay", str(product.file), "incoming/1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["replayed"] == 1
    assert len(first.requests) == calls and second.accepted_ids[-1] == "incoming/1"
    assert letters_command(product, "drop", "incoming/3").code == 0
    account = product.account()
    assert (account["delivered"], account["dead_lettered"], account["dropped"]) == (2, 1, 1)
    assert [letter["event_id"] for letter in product.dead_letters()] == ["incoming/2"]


@pytest.mark.case(40)
def test_of_an_unfolded_event_only_the_row_that_failed_is_replayed(inline, webhook):
    def pipeline(kind: str) -> dict[str, Any]:
        return {
            "sources": {"incoming": FILES},
            "transforms": {
                "rows": {**ROWS, "schema": "parts ARRAY<STRING>"},
                "part": {"type": "unfold", "input": "rows", "column": "parts", "as": "part"},
                "value": {"type": "parse_json", "input": "part", "column": "part", "schema": f"v {kind}"},
            },
            "sinks": {"hook": {"type": "http", "input": "value", "url": webhook.url}},
        }

    product = inline(**pipeline("INT"))
    values = [5, "seven", 6, "eight"]
    product.put("1.jsonl", [{"parts": [json.dumps({"v": value}) for value in values]}])
    assert product.run_once().code == 0
    assert [x["event_id"] for x in product.dead_letters()] == ["incoming/0/1", "incoming/0/3"]
    assert letters_command(product, "drop", "incoming/0/3").code == 0
    product.write(pipeline("STRING"))
    calls = len(webhook.requests)
    running = product.start()
    assert letters_command(product, "replay", "incoming/0/1").code == 0
    assert [id_ for r in webhook.requests[calls:] for id_ in r.ids] == ["incoming/0/1"]
    running.terminate()
    assert product.dead_letters() == [], "the letter that was dropped stays dropped"
    assert product.account()["delivered"] == 1


@pytest.mark.case(40)
def test_a_letter_goes_only_where_it_failed_under_its_name_as_it_was_or_corrected(inline):
    def pipeline(kind: str) -> dict[str, Any]:
        return {
            "sources": {"incoming": FILES},
            "transforms": {
                "rows": {**ROWS, "schema": f"n {kind}"},
                "big": {"type": "filter", "input": "rows", "where": "n IS NOT NULL"},
                "plain": {"type": "filter", "input": "incoming", "where": "true"},
            },
            "sinks": {"archive": {"type": "files", "inputs": ["incoming", "plain", "big"], "path": "out"}},
        }

    product = inline(**pipeline("INT"))
    product.put("1.jsonl", [{"n": 1}, {"n": "two"}, {"n": "three"}])
    assert product.run_once().code == 0
    before = sorted(row["event_id"] for row in product.rows())
    ways = ("big", "incoming", "plain")
    other_ways = [f"incoming/{n}/{way}" for n in (1, 2) for way in ways[1:]]
    assert before == [*(f"incoming/0/{way}" for way in ways), *other_ways]
    corrected = product.directory / "corrected.json"
    corrected.write_text('{"n": "3"}')
    product.write(pipeline("STRING"))
    running = product.start()
    assert letters_command(product, "replay", "incoming/1").code == 0
    done = letters_command(product, "resubmit", "incoming/2", "--payload", str(corrected), "--json")
    assert done.code == 0 and json.loads(done.answer)["delivered"] == 1, done.output
    running.terminate()
    new = {row["event_id"]: row["n"] for row in product.rows() if row["event_id"] not in before}
    assert new == {"incoming/1/big": "two", "incoming/2/+1/big": "3"}
    assert len(product.rows()) == len(before) + 2, "what had come by another way was not sent again"
    assert product.account()["delivered"] == 3 and product.dead_letters() == []
    told = product.explain("incoming/2")
    assert told["state"] == "delivered"
    assert any("resubmitted as incoming/2/+1" in stage["text"] for stage in told["stages"])


@pytest.mark.case(40)
def test_a_letter_of_what_a_sink_wants_computed_is_of_the_input_it_failed_at(inline):
    def pipeline(expression: str) -> dict[str, Any]:
        return {
            "sources": {"incoming": FILES},
            "transforms": {
                "rows": {**ROWS, "schema": "n INT"},
                "next": {"type": "select", "input": "rows", "columns": {"n": "n + 1"}},
            },
            "sinks": {
                "archive": {
                    "type": "files",
                    "inputs": ["rows", "next"],
                    "path": "out",
                    "partition_by": {"p": expression},
                }
            },
        }

    product = inline(**pipeline("CAST(10 / n AS INT)"))
    product.put("1.jsonl", [{"n": 0}, {"n": 1}])
    assert product.run_once().code == 0
    (letter,) = product.dead_letters()
    assert letter["event_id"] == "incoming/0/rows" and "DIVIDE_BY_ZERO" in letter["reason"]
    product.write(pipeline("n"))
    running = product.start()
    assert letters_command(product, "replay", "--all").code == 0
    running.terminate()
    files = (product.directory / "out").rglob("*.jsonl")
    lines = [line for file in files for line in file.read_text().splitlines()]
    ids = sorted(json.loads(line)["event_id"] for line in lines)
    assert ids == [f"incoming/{n}/{way}" for n in (0, 1) for way in ("next", "rows")]
    assert product.account()["delivered"] == 2 and product.dead_letters() == []


@pytest.mark.case(40)
def test_a_batch_of_files_that_could_not_be_written_is_replayed_with_all_rows_of_its_events(inline):
    product = inline(
        sources={"incoming": FILES},
        transforms={"rows": ROWS, "part": {"type": "unfold", "input": "rows", "column": "parts"}},
        sinks={
            "archive": {
                "type": "files", "input": "part", "path": "out", "retry": {"attempts": 2, "initial_ms": 10},
            }
        },
    )  # fmt: skip
    out = product.directory / "out"
    out.mkdir()
    # The batch is written, but a directory stands where its file is to be put.
    (out / "incoming-000000000000-000000000002.jsonl" / "in the way").mkdir(parents=True)
    product.put("1.jsonl", [{"n": 0, "parts": [1, 2]}, {"n": 1, "parts": [3]}])
    assert product.run_once().code == 0
    assert product.account()["dead_lettered"] == 2
    running = product.start()
    assert letters_command(product, "replay", "--all").code == 0
    found = sorted(
        json.loads(line)["event_id"]
        for f in out.glob("*.jsonl")
        if f.is_file()
        for line in f.read_text().splitlines()
    )
    assert found == ["incoming/0/0", "incoming/0/1", "incoming/1/0"]
    running.terminate()
    assert product.account()["delivered"] == 2 and product.dead_letters() == []


@pytest.mark.case(40)
def test_a_letter_that_does_not_hold_its_whole_event_is_shown_and_dropped_and_never_replayed(inline):
    product = inline(
        sources={"incoming": {"type": "files", "path": "in/*", "format": "jsonl", "max_event_bytes": 1000}},
        sinks={"archive": {"type": "files", "input": "incoming", "path": "out"}},
    )
    product.put("1.jsonl", [{"n": 0}, {"n": 1, "long": "x" * 2000}])
    whole = gzip.compress(b'{"n": 2}\n' + random.Random(1).randbytes(4000).hex().encode())
    (product.directory / "in" / "2.jsonl.gz").write_bytes(whole[:-100])
    assert product.run_once().code == 0
    letters = product.dead_letters()
    assert [x["stage"] for x in letters] == ["incoming"] * 2 and not any(x["replayable"] for x in letters)
    before = product.rows()

    listed = letters_command(product, "list").output
    assert listed.count("stored*") == 2 and "cannot be replayed: its source could not read it whole" in listed
    shown = letters_command(product, "show", letters[0]["event_id"]).output
    assert "not_replayable: its source could not read it whole" in shown
    done = letters_command(product, "replay", "--all", "--json")
    assert done.code == 1 and json.loads(done.answer)["not_replayable"] == 2
    assert product.rows() == before and len(product.dead_letters()) == 2, "nothing was tried"
    assert letters_command(product, "drop", "--all").code == 0
    assert product.account()["dropped"] == 2


@pytest.mark.case(40, 44)
def test_a_letter_that_goes_through_a_buffer_is_closed_by_what_becomes_of_it_there_and_says_so(
    inline, webhook
):
    def pipeline(schema: str) -> dict[str, Any]:
        rows = {"type": "parse_json", "input": "incoming", "schema": schema}
        positive = {"type": "filter", "input": "rows", "where": "n > 0"}
        return {
            "sources": {"incoming": FILES}, "transforms": {"rows": rows, "positive": positive},
            "sinks": {"hook": {"type": "http", "input": "positive", "url": webhook.url, "buffer": {}}},
        }  # fmt: skip

    product = inline(**pipeline("n BIGINT, v INT"))
    product.put("1.jsonl", [{"n": n, "v": "seven"} for n in range(3)])
    assert product.run_once().code == 0
    assert product.account()["dead_lettered"] == 3
    refuses = webhook.answer(422, lambda request: request.rows[0]["n"] == 2, body="no such thing")
    product.write(pipeline("n BIGINT, v STRING"))
    running = product.start()
    done = letters_command(product, "replay", "--all", "--json")
    found = {x["event_id"]: (x["outcome"], x["reason"]) for x in json.loads(done.answer)["letters"]}
    assert done.code == 1, "one failed again"
    assert found["incoming/0"] == ("dropped", 'by "positive" (the condition does not hold)')
    assert found["incoming/1"] == ("delivered", "")
    assert found["incoming/2"][0] == "failed_later" and "no such thing" in found["incoming/2"][1]
    account = product.account()
    assert (account["delivered"], account["dropped"], account["dead_lettered"]) == (1, 1, 1)
    refuses.stop()
    (letter,) = product.dead_letters()
    assert (letter["source"], letter["stage"]) == ("hook.buffer", "hook")
    assert letters_command(product, "replay", letter["event_id"]).code == 0
    running.terminate()
    account = product.account()
    assert (account["delivered"], account["dropped"], account["dead_lettered"]) == (2, 1, 0)


@pytest.mark.case(40, 44)
def test_what_is_refused_behind_a_buffer_in_a_replay_is_replayed_to_that_sink_alone(inline, webhook):
    def pipeline(schema: str) -> dict[str, Any]:
        return {
            "sources": {"incoming": FILES},
            "transforms": {"rows": {"type": "parse_json", "input": "incoming", "schema": schema}},
            "sinks": {
                "hook": hook(webhook, buffer={}, on_failure="refuse"),
                "archive": {"type": "files", "input": "rows", "path": "out"},
            },
        }

    product = inline(**pipeline("n INT"))
    product.put("1.jsonl", [{"n": 1}, {"n": "two"}])
    assert product.run_once().code == 0
    refuses = webhook.answer(422, body="no such thing")
    product.write(pipeline("n STRING"))
    running = product.start()
    done = letters_command(product, "replay", "incoming/1", "--json")
    assert done.code == 1 and json.loads(done.answer)["letters"][0]["outcome"] == "failed_later"
    (letter,) = product.dead_letters()
    assert (letter["event_id"], letter["stage"]) == ("incoming/1", "hook")
    assert "no such thing" in letter["reason"] and product.account()["dead_lettered"] == 1
    refuses.stop()
    assert letters_command(product, "replay", "incoming/1").code == 0
    running.terminate()
    assert sorted(row["event_id"] for row in product.rows()) == ["incoming/0", "incoming/1"]
    assert webhook.accepted_ids == ["incoming/0", "incoming/1"]
    assert product.account()["delivered"] == 2 and product.dead_letters() == []
