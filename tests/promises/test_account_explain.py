"""Case 39: where is this event, and why is it not acknowledged?"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.promises.product import SIGNOFF
from tests.servers import PATIENCE_S

pytestmark = pytest.mark.spark

SCHEMA = "n BIGINT"
JSON = {"Content-Type": "application/json"}


@pytest.mark.case(39)
def test_every_state_of_an_event_is_explained_while_the_run_goes_on(inline, webhooks):
    first, second, _ = webhooks
    second.answer(422, lambda request: request.rows[0]["n"] == 3, body="three is not wanted")
    product = inline(
        sources={
            "incoming": {"type": "files", "path": "in/*.jsonl", "max_events_per_batch": 10},
            "asked": {"type": "http", "port": 0, "acknowledge_within": "5s"},
        },
        transforms={
            "rows": {"type": "parse_json", "input": "incoming", "schema": SCHEMA},
            "picked": {"type": "filter", "input": "rows", "where": "n <> 1"},
            "questions": {"type": "parse_json", "input": "asked", "schema": SCHEMA},
        },
        sinks={
            "first": {"type": "http", "input": "picked", "url": first.url},
            "second": {
                "type": "http",
                "input": "picked",
                "url": second.url,
                "on_failure": "refuse",
                "retry": {"initial_ms": 20, "max_ms": 100},
            },
            "slow": {"type": "http", "input": "questions", "url": first.url},
        },
    )
    product.put("1.jsonl", [{"n": 0}, {"n": 1}, "{no", {"n": 3}])
    running = product.start()
    running.wait_for(lambda: product.told_upto() == 4)
    first.hold(lambda request: request.rows[0]["event_id"].startswith("asked/"))
    failing = second.answer(503, lambda request: request.rows[0]["n"] >= 4, body="come back later")
    product.put("2.jsonl", [{"n": n} for n in range(4, 14)])
    product.put("3.jsonl", [{"n": 14}])
    question = product.post({"n": 0}, source="asked", headers=JSON)
    running.wait_for(lambda: _tried(product, 4, "second"))
    running.wait_for(lambda: product.received() == 15)
    assert question.result(60).status_code == 503

    delivered = product.explain("incoming/0")
    assert (delivered["state"], delivered["acknowledged"]) == ("delivered", True)
    assert json.loads(delivered["payload"]) == {"n": 0}
    dropped = product.explain("incoming/1")
    assert (dropped["state"], dropped["acknowledged"]) == ("dropped", True)
    dead = product.explain("incoming/2")
    assert (dead["state"], dead["acknowledged"]) == ("dead_lettered", True)
    assert (
        "not valid JSON" in dead["dead_letters"][0]["reason"] and dead["dead_letters"][0]["stage"] == "rows"
    )
    refused = product.explain("incoming/3")
    assert (refused["state"], refused["acknowledged"]) == ("refused", False)
    assert "422" in refused["why"] and "three is not wanted" in refused["why"]
    owed = product.explain("incoming/4")
    assert (owed["state"], owed["acknowledged"]) == ("in flight", False)
    assert "second owes it" in owed["why"] and "503" in owed["why"] and "come back later" in owed["why"]
    assert {s["stage"]: s["state"] for s in owed["stages"]} == {"first": "done", "second": "owed"}
    running.wait_for(lambda: product.explain("incoming/14")["state"] == "in flight")
    behind = product.explain("incoming/14")
    assert "second owes it" in behind["why"] and not behind["acknowledged"]
    expired = product.explain("asked/0")
    assert (expired["state"], expired["acknowledged"]) == ("expired", False)
    assert "acknowledge_within" in expired["why"]
    unknown = product.command("explain", str(product.file), "incoming/99")
    assert unknown.code == 1 and "has received 15 events" in unknown.output
    assert product.command("explain", str(product.file), "elsewhere/0").code == 1
    assert product.command("explain", str(product.file), "no id at all").code == 2

    shown = subprocess.run(
        [str(SIGNOFF), "explain", str(product.file), "incoming/4"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert shown.returncode == 0 and "in flight, not acknowledged" in shown.stdout
    failing.stop()
    running.wait_for(lambda: product.told_upto() == 15)
    assert product.explain("incoming/4")["state"] == product.explain("incoming/14")["state"] == "delivered"
    for webhook in webhooks:
        webhook.down()
    running.terminate()
    assert product.explain("incoming/0")["state"] == "delivered", "the same after the run"
    assert product.account()["refused"] == 1 and product.account("asked")["expired"] == 1


def _tried(product: Any, sequence: int, sink: str) -> bool:
    with product.ledger() as ledger:
        batch = ledger.batch_of("incoming", sequence)
    return batch is not None and sequence in batch.owed and batch.sinks[sink].attempts > 0
