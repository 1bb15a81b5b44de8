"""What was filtered is visible: rows that leave the pipeline undelivered are counted by stage and reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from signoff.errors import StateError
from signoff.ledger.ledger import Ledger
from tests.promises.product import FILES, PARSE, SOON, Inline, Product
from tests.servers import WebhookServer

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]


def left_at(product: Product) -> dict[tuple[str, str], int]:
    return {(left["stage"], left["outcome"]): left["rows"] for left in product.status()["left_at"]}


def step(kind: str, given: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "input": given, **fields}


@pytest.mark.case(4)
def test_rows_that_end_at_a_step_are_counted_by_step_and_reason(inline: Make) -> None:
    """Each number takes another way out; several batches of the same plan add up."""
    product = inline(
        sources={"incoming": {**FILES, "max_events_per_batch": 40}},
        transforms={
            "parsed": {**PARSE, "on_error": "drop", "schema": "n INT, items ARRAY<INT>"},
            "small": step("filter", "parsed", where="n < 80"),
            "some": step("sample", "small", fraction=0.0),
            "each": step("unfold", "small", column="items"),
            "ways": step("route", "each", routes={"even": "items % 2 = 0"}, no_match="drop"),
            "few": step("filter", "ways.even", where="items < 50"),
            "made": step(
                "python", "small", function="tests.promises.functions:three_ways", mode="rows", schema="n INT"
            ),
        },
        sinks={
            "out": step("files", "few", path="out"),
            "sampled": step("files", "some", path="sampled"),
            "made_out": step("files", "made", path="made"),
        },
    )
    events: list[Any] = [{"n": n, "items": [n] if n % 4 else []} for n in range(100)]
    product.put("a.jsonl", [*events[:50], "no JSON", *events[50:]])
    done = product.run_once()
    assert done.code == 0
    assert left_at(product) == {
        ("parsed", "dropped"): 1,
        ("small", "dropped"): 20,
        ("some", "dropped"): 80,
        ("each", "dropped"): 20,
        ("ways", "dropped"): 40,
        ("few", "dropped"): 8,
        ("made", "dropped"): 1,
    }
    assert product.account()["received"] == 101
    reasons = {left["stage"]: left["reason"] for left in product.status()["left_at"]}
    assert reasons["small"] == "the condition does not hold" and reasons["each"] == "nothing to unfold"
    text = product.command("status", str(product.file)).output
    assert "left the pipeline at" in text and "nothing to unfold" in text
    assert 'rows left out at "small" (the condition does not hold)' in done.output
    assert 'dropped at "parsed" (incoming/50: ' in done.output


def test_a_batch_that_is_tried_again_is_counted_once(
    inline: Make, webhook: WebhookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink that fails, and an event on which the plan fails: more passes over the same rows."""
    monkeypatch.setattr("signoff.transforms.frame.may_fail", lambda *_: False)
    webhook.answer(503, times=2)
    product = inline(
        sources={"incoming": FILES},
        transforms={
            "parsed": PARSE,
            "small": step("filter", "parsed", where="n < 15"),
            "safe": step("filter", "small", where="1 / (n - 7) IS NOT NULL AND n > 0"),
        },
        sinks={
            "out": step("files", "safe", path="out"),
            "hook": step("http", "safe", url=webhook.url, mode="ndjson", retry=SOON),
        },
    )
    product.put("a.jsonl", [{"n": n} for n in range(20)])
    assert product.run_once(300).code == 0
    assert left_at(product) == {
        ("small", "dropped"): 5,
        ("safe", "dropped"): 1,
        ("incoming", "dead_lettered"): 1,
    }
    assert len(product.rows()) == 13 and len(set(webhook.accepted_ids)) == 13


def test_a_batch_that_was_done_but_not_recorded_is_counted_once(
    inline: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill between the pass and the ledger: the same range is done again."""
    product = inline(
        sources={"incoming": FILES},
        transforms={"parsed": PARSE, "small": step("filter", "parsed", where="n < 15")},
        sinks={"out": step("files", "small", path="out")},
    )
    product.put("a.jsonl", [{"n": n} for n in range(20)])
    record, lost = Ledger.record, []

    def loses_the_first(self: Ledger, *args: Any, **fields: Any) -> Any:
        if not lost:
            lost.append(fields["filtered"])
            raise StateError("the disk is gone for a moment")
        return record(self, *args, **fields)

    monkeypatch.setattr(Ledger, "record", loses_the_first)
    assert product.run_once().code == 0
    assert lost == [{"small": (5, "the condition does not hold")}]
    assert left_at(product) == {("small", "dropped"): 5} and len(product.rows()) == 15
