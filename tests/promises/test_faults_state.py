"""What is on disk is changed between two runs: the checkpoint, the pipeline, the owner."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.promises.product import LATER, SIGNOFF
from tests.servers import PATIENCE_S, wait_until

pytestmark = pytest.mark.spark

FILES = {"type": "files", "path": "in/*.jsonl", "on_acknowledge": "move"}
ROWS = {"type": "parse_json", "input": "incoming", "schema": "n BIGINT"}
FRAME = {"type": "python", "input": "parsed", "function": "tests.promises.functions:unchanged"}
ARCHIVE = {"type": "files", "input": "rows", "path": "out"}
QUICK = {"initial_ms": 20, "max_ms": 50}


def numbered(first: int, count: int) -> list[dict[str, int]]:
    return [{"n": n} for n in range(first, first + count)]


def written(folder: Path) -> list[int]:
    return [
        json.loads(line)["n"]
        for file in sorted(folder.glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]


def hook_to(webhook: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "http", "input": "rows", "url": webhook.url, "retry": QUICK, **fields}


def owing(product: Any, sink: str) -> bool:
    with product.ledger() as ledger:
        return any(
            sink in batch.sinks and batch.sinks[sink].attempts and not batch.sinks[sink].done
            for batch in ledger.open_batches("incoming")
        )


def test_a_source_that_an_earlier_version_read_as_a_stream_goes_on_where_the_ledger_stands(inline, webhook):
    product = inline(
        sources={"incoming": FILES}, transforms={"parsed": ROWS, "rows": FRAME},
        sinks={"archive": ARCHIVE, "hook": hook_to(webhook, retry=LATER)},
    )  # fmt: skip
    down = webhook.answer(503)
    product.put("1.jsonl", numbered(0, 10))
    running = product.start(drain_s=0.0)
    running.wait_for(lambda: owing(product, "hook"))
    running.terminate()
    checkpoint = product.state / "checkpoints" / "incoming"
    for file, text in {"metadata": "{}", "offsets/0": "torn", "commits/0": ""}.items():
        (checkpoint / file).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / file).write_text(text)
    checkpoint.with_name("incoming.first").write_text("0")

    down.stop()
    product.put("2.jsonl", numbered(10, 10))
    done = product.run_once()
    assert done.code == 0 and "needs no checkpoint" in done.output
    assert not list((product.state / "checkpoints").iterdir())
    assert product.account()["delivered"] == 20
    assert sorted(written(product.directory / "out")) == list(range(20)), "each event once"
    assert sorted(row["n"] for row in webhook.accepted) == list(range(20))


def test_steps_that_keep_state_can_be_taken_out_and_put_in_again(inline):
    seen = {"type": "dedupe", "input": "rows", "keys": ["n"]}
    product = inline(sources={"incoming": FILES}, transforms={"rows": ROWS}, sinks={"archive": ARCHIVE})
    plain = {"sources": {"incoming": FILES}, "transforms": {"rows": ROWS}, "sinks": {"archive": ARCHIVE}}
    stateful = {
        "sources": {"incoming": FILES}, "transforms": {"rows": ROWS, "seen": seen},
        "sinks": {"archive": {**ARCHIVE, "input": "seen"}},
    }  # fmt: skip
    for run, pipeline in enumerate([plain, stateful, plain, stateful]):
        product.write(pipeline)
        product.put(f"{run}.jsonl", numbered(run * 10, 10))
        assert product.run_once().code == 0
    assert product.account()["delivered"] == 40
    assert sorted(written(product.directory / "out")) == list(range(40))


def test_what_a_dedupe_has_seen_is_known_in_the_next_run(inline):
    product = inline(
        sources={"incoming": FILES},
        transforms={"rows": ROWS, "seen": {"type": "dedupe", "input": "rows", "keys": ["n"]}},
        sinks={"archive": {**ARCHIVE, "input": "seen"}},
    )  # fmt: skip
    product.put("1.jsonl", numbered(0, 10))
    assert product.run_once().code == 0
    product.put("2.jsonl", [{"n": 3}, {"n": 10}])
    assert product.run_once().code == 0
    assert sorted(written(product.directory / "out")) == list(range(11)), "3 was seen before"
    account = product.account()
    assert (account["delivered"], account["dropped"]) == (11, 1)


def test_a_sink_that_is_renamed_while_it_owes_a_batch_gets_it_under_its_new_name(inline, webhook):
    down = webhook.answer(503)
    sinks = {"archive": ARCHIVE, "hook": hook_to(webhook, retry=LATER)}
    product = inline(sources={"incoming": FILES}, transforms={"rows": ROWS}, sinks=sinks)
    product.put("1.jsonl", numbered(0, 10))
    running = product.start(drain_s=0.0)
    running.wait_for(lambda: owing(product, "hook"))
    running.terminate()
    assert product.account()["in_flight"] == 10

    down.stop()
    renamed = {"archive": ARCHIVE, "alarm": hook_to(webhook)}
    product.write({"sources": {"incoming": FILES}, "transforms": {"rows": ROWS}, "sinks": renamed})
    assert product.run_once().code == 0
    assert sorted(row["n"] for row in webhook.accepted) == list(range(10))
    assert written(product.directory / "out") == list(range(10)), "the sink that was done saw nothing again"
    assert product.account()["delivered"] == 10


def test_a_sink_that_is_taken_out_while_it_owes_a_batch_holds_nothing_up(inline, webhook):
    webhook.answer(503)
    sinks = {"archive": ARCHIVE, "hook": hook_to(webhook, retry=LATER)}
    product = inline(sources={"incoming": FILES}, transforms={"rows": ROWS}, sinks=sinks)
    product.put("1.jsonl", numbered(0, 10))
    running = product.start(drain_s=0.0)
    running.wait_for(lambda: owing(product, "hook"))
    running.terminate()
    pipeline = {"sources": {"incoming": FILES}, "transforms": {"rows": ROWS}, "sinks": {"archive": ARCHIVE}}
    product.write(pipeline)
    done = product.run_once()
    assert done.code == 0 and 'sink "hook" is no longer in the pipeline' in done.output
    assert product.account()["dead_lettered"] == 10, "it was owed, and nobody has had it"
    assert [letter["stage"] for letter in product.dead_letters()] == ["hook"] * 10
    assert written(product.directory / "out") == list(range(10))
    assert (product.directory / "in" / "acknowledged" / "1.jsonl").exists()


def test_a_sink_that_is_added_while_a_batch_is_open_gets_the_batch_and_its_own_errors(inline, webhook):
    webhook.answer(503, times=None)
    hook = hook_to(webhook, retry=LATER)
    product = inline(sources={"incoming": FILES}, transforms={"rows": ROWS}, sinks={"hook": hook})
    product.put("1.jsonl", [*numbered(0, 9), {"n": 9, "late": "no number"}])
    running = product.start(drain_s=0.0)
    running.wait_for(lambda: owing(product, "hook"))
    running.terminate()
    strict = {"type": "parse_json", "input": "incoming", "schema": "n BIGINT, late BIGINT"}
    webhook.answer(200)
    product.write({
        "sources": {"incoming": FILES}, "transforms": {"rows": ROWS, "strict": strict},
        "sinks": {"hook": hook_to(webhook), "archive": {**ARCHIVE, "input": "strict"}},
    })  # fmt: skip
    assert product.run_once().code == 0
    assert written(product.directory / "out") == list(range(9))
    assert sorted(row["n"] for row in webhook.accepted) == list(range(10))
    (letter,) = product.dead_letters()
    assert (letter["event_id"], letter["stage"]) == ("incoming/9", "strict")
    assert product.account()["dead_lettered"] == 1 and product.account()["delivered"] == 9


def test_a_second_run_on_the_same_state_is_refused_with_the_pid_of_the_first(inline):
    product = inline(sources={"incoming": FILES}, transforms={"rows": ROWS}, sinks={"archive": ARCHIVE})
    (product.directory / "in").mkdir()
    running = product.start()
    pid = wait_until(lambda: product.status()["pid"])
    command = [str(SIGNOFF), "run", str(product.file), "--quiet"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert second.returncode == 2 and f"in use by the run with pid {pid}" in second.stderr
    product.put("1.jsonl", numbered(0, 3))
    running.wait_for(lambda: product.told_upto() == 3)
    running.terminate()
    assert written(product.directory / "out") == [0, 1, 2]


def test_a_batch_that_is_half_retried_keeps_its_attempts_across_runs(inline, webhook):
    webhook.answer(503, lambda request: request.rows[0]["n"] % 2 == 0)
    patient = {"attempts": 12, "initial_ms": 60, "max_ms": 400}
    product = inline(
        sources={"incoming": FILES}, transforms={"rows": ROWS},
        sinks={"hook": hook_to(webhook, retry=patient, concurrency=1)},
    )  # fmt: skip
    product.put("1.jsonl", numbered(0, 4))
    running = product.start(drain_s=0.0)
    running.wait_for(lambda: owing(product, "hook"))
    running.terminate()
    tried = len(webhook.requests)
    assert product.run_once(patience_s=300).code == 0
    sent = [request.ids[0] for request in webhook.requests]
    assert sorted(id_ for id_ in set(sent) if sent.count(id_) == 1) == ["incoming/1", "incoming/3"]
    # The pass that the end of the first run cut off may have sent what was not recorded any more.
    assert 12 <= sent.count("incoming/0") <= 12 + 5 and tried >= 4
    letters = product.dead_letters()
    assert [letter["event_id"] for letter in letters] == ["incoming/0", "incoming/2"]
    assert all("gave up after 12 attempts" in letter["reason"] for letter in letters)
    assert product.account()["dead_lettered"] == 2 and product.account()["delivered"] == 2
