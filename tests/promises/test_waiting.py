"""What a user's function may say of an event, and events that wait for a step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.promises.product import FILES, HTTP, SOON, Inline, Product, books
from tests.promises.test_settling import assert_waits, code, webhook_sink
from tests.servers import WebhookServer

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]
PARSE = {"type": "parse_json", "input": "incoming", "schema": "n INT, needs STRING"}
STEP: dict[str, Any] = {"type": "python", "input": "parsed", "mode": "rows", "schema": "n INT", "retry": SOON}
WAITING = {**STEP, "function": "tests.promises.functions:wait_for_a_file"}
ANSWERING = {**STEP, "function": "tests.promises.functions:every_answer"}
OUT = {"type": "files", "path": "out"}


def calls(needs: Path) -> list[str]:
    found = Path(f"{needs}.calls")
    return found.read_text().split() if found.exists() else []


def ids(product: Product) -> list[str]:
    return [row["event_id"] for row in product.rows()]


@pytest.mark.case(5)
def test_a_function_says_of_each_event_and_each_piece_what_became_of_it(inline: Make) -> None:
    product = inline(
        sources={"incoming": FILES},
        transforms={"parsed": PARSE, "step": {**ANSWERING, "retry": {**SOON, "attempts": 2}}},
        sinks={"out": {**OUT, "input": "step"}},
    )
    product.put("a.jsonl", [{"n": n} for n in range(7)])
    assert product.run_once().code == 0
    assert ids(product) == ["incoming/0", "incoming/5/0", "incoming/5/2"]
    letters = {letter["event_id"]: letter["reason"] for letter in product.dead_letters()}
    assert letters == {
        "incoming/3": "three is wrong",
        "incoming/4": "four is wrong",
        "incoming/5/3": "a part of five",
        "incoming/6": "gave up after 2 attempts: six never comes",
    }
    assert product.account() == books(delivered=1, dropped=2, dead_lettered=4)
    for number, reason in ((1, "one is not wanted"), (2, "two is not wanted")):
        story = product.explain(f"incoming/{number}")
        (line,) = [line for line in story["stages"] if line["stage"] == "step"]
        assert (story["state"], line["state"], line["text"]) == ("dropped", "dropped", reason)


def test_an_event_dropped_on_purpose_is_dropped_also_where_errors_refuse(inline: Make) -> None:
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "step": {**ANSWERING, "on_error": "refuse"}},
        sinks={"out": {**OUT, "input": "step"}},
    )
    product.start()
    assert code(product.post([{"n": 1}])) == 200
    assert code(product.post([{"n": 3}])) != 200
    assert product.account() == books(dropped=1, refused=1)


def test_an_event_that_waits_for_a_step_holds_up_no_other_and_is_delivered_once(
    inline: Make, webhook: WebhookServer, tmp_path: Path
) -> None:
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "step": WAITING},
        sinks={
            "out": {**OUT, "input": "step"},
            "hook": webhook_sink(webhook, "step"),
            "all": {"type": "files", "path": "all", "input": "parsed"},
        },
    )
    running = product.start()
    needs = tmp_path / "needed"
    answer = product.post([{"n": 0}, {"n": 1, "needs": str(needs)}, {"n": 2}])
    running.wait_for(lambda: len(calls(needs)) >= 3)
    assert_waits(answer)
    assert ids(product) == sorted(webhook.accepted_ids) == ["incoming/0", "incoming/2"]
    story = product.explain("incoming/1")
    assert story["state"] == "in flight" and "waits for step step since 20" in story["why"], story["why"]
    assert "times: it is not there yet" in story["why"]
    status = product.status()["sinks"]
    assert all(sink["failing_since"] is None and not sink["last_error"] for sink in status.values()), status
    assert code(product.post({"n": 3})) == 200, "later events do not wait"
    needs.touch()
    assert code(answer) == 200
    assert ids(product) == [f"incoming/{n}" for n in range(4)]
    assert sorted(webhook.accepted_ids) == [f"incoming/{n}" for n in range(4)]
    assert len(product.rows("all")) == 4
    assert product.account() == books(delivered=4)
    assert set(calls(needs)) == {"1"}, "the function is called again for the event that waits, and no other"


def test_a_sink_that_was_down_does_not_make_another_get_an_event_again_that_then_waits_for_a_step(
    inline: Make, webhook: WebhookServer, tmp_path: Path
) -> None:
    """The event was computed once, and taken by one sink; computed again for the other it fails for now."""
    failing = webhook.answer(503)
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "step": WAITING},
        sinks={"hook": webhook_sink(webhook, "step"), "out": {**OUT, "input": "step"}},
    )
    running = product.start()
    needs = tmp_path / "needed"
    needs.touch()
    answer = product.post([{"n": 0}, {"n": 1, "needs": str(needs)}])
    running.wait_for(lambda: ids(product) == ["incoming/0", "incoming/1"])
    needs.unlink()
    known = len(calls(needs))
    running.wait_for(lambda: len(calls(needs)) > known + 1)
    failing.stop()
    running.wait_for(lambda: webhook.accepted_ids == ["incoming/0"])
    assert_waits(answer)
    running.wait_for(lambda: "waits for step step" in product.explain("incoming/1")["why"])
    needs.touch()
    assert code(answer) == 200
    assert webhook.accepted_ids == ["incoming/0", "incoming/1"]
    assert ids(product) == ["incoming/0", "incoming/1"] and product.account() == books(delivered=2)


@pytest.mark.case(24)
def test_an_event_that_waits_for_a_step_is_not_forgotten_when_the_run_is_killed(
    real: Callable[..., Product], tmp_path: Path
) -> None:
    product = real(
        sources={"incoming": FILES},
        transforms={"parsed": PARSE, "step": WAITING},
        sinks={"out": {**OUT, "input": "step"}},
    )
    needs = tmp_path / "needed"
    product.put("a.jsonl", [{"n": 0}, {"n": 1, "needs": str(needs)}, {"n": 2}])
    running = product.start()
    running.wait_for(lambda: len(calls(needs)) >= 3)
    running.wait_for(lambda: ids(product) == ["incoming/0", "incoming/2"])
    running.kill9()
    assert product.account() == books(delivered=2, in_flight=1)
    before = len(calls(needs))
    again = product.start()
    again.wait_for(lambda: len(calls(needs)) > before)
    needs.touch()
    again.wait_for(lambda: product.account() == books(delivered=3))
    assert ids(product) == [f"incoming/{n}" for n in range(3)]


def test_a_dead_letter_whose_replay_meets_a_step_that_fails_for_now_stays(
    inline: Make, webhook: WebhookServer, tmp_path: Path
) -> None:
    webhook.answer(400, times=1)
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "step": WAITING},
        sinks={"hook": webhook_sink(webhook, "step")},
    )
    running = product.start()
    needs = tmp_path / "needed"
    needs.touch()
    assert code(product.post({"n": 1, "needs": str(needs)})) == 200
    needs.unlink()
    product.command("dead-letters", "replay", str(product.file), "--all")
    running.wait_for(lambda: product.dead_letters()[0]["attempts"] == 2)
    (letter,) = product.dead_letters()
    assert letter["reason"] == 'step "step" failed: it is not there yet' and letter["stage"] == "hook"
    needs.touch()
    product.command("dead-letters", "replay", str(product.file), "--all")
    running.wait_for(lambda: webhook.accepted_ids == ["incoming/0"])
    running.wait_for(lambda: product.account() == books(delivered=1))


def test_a_sink_that_is_behind_when_an_event_begins_to_wait_gets_it_as_well(
    inline: Make, webhook: WebhookServer, tmp_path: Path
) -> None:
    failing = webhook.answer(503)
    product = inline(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSE, "step": WAITING},
        sinks={"hook": webhook_sink(webhook, "step"), "out": {**OUT, "input": "step"}},
    )
    running = product.start()
    needs = tmp_path / "needed"
    first = product.post({"n": 0})
    running.wait_for(lambda: ids(product) == ["incoming/0"])
    second = product.post({"n": 1, "needs": str(needs)})
    running.wait_for(lambda: len(calls(needs)) >= 2)
    needs.touch()
    running.wait_for(lambda: ids(product) == ["incoming/0", "incoming/1"])
    assert_waits(second)
    failing.stop()
    assert code(first) == code(second) == 200
    assert webhook.accepted_ids == ["incoming/0", "incoming/1"]
    assert product.account() == books(delivered=2)


def test_an_event_waits_also_behind_a_step_that_keeps_state(inline: Make, tmp_path: Path) -> None:
    product = inline(
        sources={"incoming": FILES},
        transforms={
            "parsed": PARSE,
            "once": {"type": "dedupe", "input": "parsed", "keys": ["n"]},
            "step": {**WAITING, "input": "once"},
        },
        sinks={"out": {**OUT, "input": "step"}},
    )
    needs = tmp_path / "needed"
    product.put("a.jsonl", [{"n": 0}, {"n": 1, "needs": str(needs)}, {"n": 0}, {"n": 2}])
    running = product.start()
    running.wait_for(lambda: len(calls(needs)) >= 2)
    needs.touch()
    running.wait_for(lambda: product.account()["in_flight"] == 0)
    assert sorted(row["n"] for row in product.rows()) == [0, 1, 2]
    assert product.account() == books(delivered=3, dropped=1)


@pytest.mark.case(5)
def test_what_has_waited_for_a_step_and_fails_at_a_later_one_is_a_dead_letter(
    inline: Make, tmp_path: Path
) -> None:
    needs = tmp_path / "needed"
    product = inline(
        sources={"incoming": FILES},
        transforms={
            "parsed": PARSE,
            "step": WAITING,
            "sorted": {
                "type": "route",
                "input": "step",
                "routes": {"small": "n < 5"},
                "no_match": "dead_letter",
            },
        },
        sinks={"out": {**OUT, "input": "sorted.small"}},
    )
    product.put("a.jsonl", [{"n": 1, "needs": str(needs)}, {"n": 7, "needs": str(needs)}, {"n": 8}])
    running = product.start()
    running.wait_for(lambda: len(calls(needs)) >= 2)
    needs.touch()
    running.wait_for(lambda: product.account() == books(delivered=1, dead_lettered=2))
    assert ids(product) == ["incoming/0"]
    assert {(one["event_id"], one["stage"]) for one in product.dead_letters()} == {
        ("incoming/1", "sorted"),
        ("incoming/2", "sorted"),
    }
