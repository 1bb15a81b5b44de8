"""Case 31: a run that is asked to stop finishes what is in flight, up to a deadline."""

from __future__ import annotations

import json
import time

import httpx
import pytest

from tests.promises.product import HTTP, LATER

pytestmark = pytest.mark.spark

ROWS = {"type": "parse_json", "input": "incoming", "schema": "n BIGINT"}
JSON = {"Content-Type": "application/json"}


def nodes(webhook, **source):
    return {
        "sources": {"incoming": {**HTTP, **source}},
        "transforms": {"rows": ROWS},
        "sinks": {
            "archive": {"type": "files", "input": "rows", "path": "out"},
            "hook": {"type": "http", "input": "rows", "url": webhook.url, "retry": LATER},
        },
    }


@pytest.mark.case(31)
def test_what_is_in_flight_is_finished_before_a_run_ends(inline, webhook):
    hold = webhook.hold()
    product = inline(**nodes(webhook))
    running = product.start(drain_s=30.0)
    answer = product.post({"n": 1}, headers=JSON)
    hold.wait_for(1)
    address = product._address("incoming")
    running.run.stop_requested = True
    running.wait_for(lambda: product.intake_status().state == "stopped")
    turned_away = httpx.post(address, json={"n": 2}, trust_env=False, timeout=60)
    assert turned_away.status_code == 503 and "stopping" in turned_away.text
    assert not answer.done(), "it waits for what is in flight"
    hold.release()
    assert answer.result(30).status_code == 200
    assert running.wait().code == 0
    account = product.account()
    assert (account["received"], account["delivered"]) == (1, 1)


@pytest.mark.case(31)
def test_what_is_not_finished_by_the_deadline_goes_back_to_the_source_and_is_finished_by_the_next_run(
    inline, webhook
):
    down = webhook.answer(503)
    product = inline(**nodes(webhook))
    running = product.start(drain_s=1.0)
    answer = product.post({"n": 1}, headers=JSON)
    webhook.wait_for(lambda server: server.requests)
    begun = time.monotonic()
    assert running.terminate().code == 0
    assert time.monotonic() - begun < 60, "the deadline holds"
    assert answer.result(30).status_code == 503 and "send them again" in answer.result().text
    assert product.account()["in_flight"] == 1

    down.stop()
    assert product.run_once().code == 0
    assert product.account()["delivered"] == 1
    assert webhook.accepted_ids == ["incoming/0"]
    (file,) = (product.directory / "out").glob("*.jsonl")
    assert [json.loads(line)["n"] for line in file.read_text().splitlines()] == [1]
