"""Windows and merges behind, beside and in front of steps that unite events, know them again or are
functions on DataFrames; where one needs a log in between, and where not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.promises.product import FILES, HTTP, PARSE, SOON, Inline, books
from tests.promises.test_merge_of_several_sources import pipeline as two_sources_merged
from tests.promises.test_settling import assert_waits, code, webhook_sink
from tests.promises.test_windows import COUNTS, PARSED, RESULTS, at, disordered, expected, results, written
from tests.servers import WebhookServer

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]

ONCE = {"type": "dedupe", "input": "parsed", "keys": ["t", "key", "n"]}
LATE = {"type": "files", "input": "counts.late", "path": "late", "format": "jsonl"}


def pipeline(source: dict[str, Any] = FILES, once: str = "parsed", **window: Any) -> dict[str, Any]:
    """Windows behind a dedupe, or as the arguments say."""
    return {
        "sources": {"incoming": source},
        "transforms": {
            "parsed": PARSED,
            "once": ONCE | {"input": once},
            "counts": COUNTS | {"input": "once"} | window,
        },
        "sinks": {"results": RESULTS},
    }


@pytest.mark.case(36, 37)
def test_a_window_behind_a_dedupe_counts_each_event_once_and_knows_what_is_late(inline: Make) -> None:
    nodes = pipeline()
    nodes["sinks"]["late"] = LATE
    product = inline(**nodes)
    product.put("a.jsonl", [at(0), at(30), at(0), at(600)])
    running = product.start()
    running.wait_for(lambda: len(written(product)) == 1)
    product.put("b.jsonl", [at(1, "y"), at(601)])
    running.wait_for(lambda: product.account() == books(delivered=5, dropped=1))
    running.terminate()
    assert results(product.table()) == expected([(0, "x", 1), (30, "x", 1)])
    assert [row["event_id"] for row in product.rows("late")] == ["incoming/4"]


@pytest.mark.case(36)
@pytest.mark.parametrize("late", [True, False])
def test_a_window_beside_a_dedupe_knows_what_is_late(inline: Make, late: bool) -> None:
    nodes = pipeline(input="parsed", once="counts.late" if late else "parsed")
    if late:
        nodes["transforms"] = {name: nodes["transforms"][name] for name in ("parsed", "counts", "once")}
    nodes["sinks"] |= {"late": LATE, "firsts": LATE | {"input": "once", "path": "firsts"}}
    product = inline(**nodes)
    product.put("a.jsonl", [at(0), at(30), at(30), at(600)])
    running = product.start()
    running.wait_for(lambda: len(written(product)) == 1)
    product.put("b.jsonl", [at(1, "y"), at(1, "y"), at(601)])
    running.wait_for(lambda: product.account() == books(delivered=7))
    running.terminate()
    assert results(product.table()) == expected([(0, "x", 1), (30, "x", 1), (30, "x", 1)])
    assert [row["event_id"] for row in product.rows("late")] == ["incoming/4", "incoming/5"]
    firsts = [row["event_id"] for row in product.rows("firsts")]
    assert firsts == (["incoming/4"] if late else [f"incoming/{n}" for n in (0, 1, 3, 4, 6)]), "as it came"


@pytest.mark.case(36, 37)
def test_a_window_and_a_merge_behind_a_function_on_dataframes_are_in_the_sources_own_query(
    inline: Make,
) -> None:
    same = {"type": "python", "input": "parsed", "function": "tests.promises.functions:unchanged"}
    again = {"type": "dedupe", "input": "once", "keys": ["t", "key", "n"]}
    nodes = pipeline()
    nodes["transforms"] |= {
        "once": same,
        "firsts": again,
        "each": {"type": "merge", "input": "firsts", "keys": ["t"], "columns": {"events": "count(*)"}},
    }
    nodes["sinks"] |= {"late": LATE, "merged": LATE | {"input": "each", "path": "each"}}
    product = inline(**nodes)
    product.put("a.jsonl", [at(0), at(30), at(0), at(600)])
    running = product.start()
    running.wait_for(lambda: len(written(product)) == 1)
    product.put("b.jsonl", [at(1, "y"), at(601)])
    running.wait_for(lambda: product.account() == books(delivered=6))
    running.terminate()
    assert results(product.table()) == expected([(0, "x", 1), (30, "x", 1), (0, "x", 1)])
    assert [row["event_id"] for row in product.rows("late")] == ["incoming/4"]
    assert [row["events"] for row in product.rows("each")] == [1] * 5
    logs = {path.name for path in (product.state / "log").iterdir()}
    assert logs == {"incoming", "counts.buffer", "counts.results.buffer"}, "nothing is put in between"


@pytest.mark.case(8, 37)
def test_a_window_of_rows_that_unite_several_events(inline: Make) -> None:
    events = disordered(300, within=119)
    united = {"type": "merge", "input": "parsed", "keys": ["t", "key"], "columns": {"n": "sum(n)"}}
    nodes = pipeline(FILES | {"max_events_per_batch": 100}, input="united", idle_after="1s")
    nodes["transforms"] = {
        "parsed": PARSED,
        "united": united,
        "counts": nodes["transforms"]["counts"] | {"aggregates": {"total": "sum(n)"}},
    }
    product = inline(**nodes)
    product.put("a.jsonl", (at(*event) for event in events))
    assert product.run_once().code == 0
    assert product.account() == books(delivered=300)
    totals = {(row["window_start"], row["key"]): row["total"] for row in product.table()}
    assert sorted(totals.values()) == sorted(total for _, total, _ in expected(events).values())


@pytest.mark.case(8)
def test_a_merge_behind_a_dedupe_and_another_behind_it_settle_the_events_they_were_made_of(
    inline: Make, webhook: WebhookServer
) -> None:
    held = webhook.hold()
    united = {"type": "merge", "input": "once", "keys": ["n"], "columns": {"events": "count(*)"}}
    product = inline(
        sources={"incoming": HTTP},
        transforms={
            "parsed": PARSE,
            "once": {"type": "dedupe", "input": "parsed", "keys": ["n", "parts"]},
            "united": united,
            "again": {"type": "dedupe", "input": "united", "keys": ["n"]},
        },
        sinks={"all": webhook_sink(webhook, "again") | {"retry": SOON}},
    )
    running = product.start()
    answer = product.post([{"n": 1, "parts": [0]}, {"n": 1, "parts": [0]}, {"n": 1, "parts": [1]}])
    running.wait_for(lambda: held.held)
    assert_waits(answer)
    held.release()
    assert code(answer) == 200
    assert product.account() == books(delivered=2, dropped=1)
    assert [row["events"] for row in webhook.accepted] == [2]


@pytest.mark.case(8)
def test_events_wait_for_a_buffer_behind_the_log_they_met_in(inline: Make, webhook: WebhookServer) -> None:
    held = webhook.hold()
    product = inline(**two_sources_merged(webhook, buffer={"type": "disk"}))
    running = product.start()
    left, right = product.post([{"n": 1}, {"n": 2}], "left"), product.post({"n": 1}, "right")
    running.wait_for(lambda: held.held)
    assert_waits(left)
    assert_waits(right)
    refusing = webhook.answer(400)
    held.release()
    assert [code(left), code(right)] == [200, 200]
    refusing.stop()
    delivered = sum(row["events"] for row in webhook.accepted)
    found = [product.account("left"), product.account("right")]
    assert sum(account["delivered"] for account in found) == delivered
    assert sum(account["dead_lettered"] for account in found) == 3 - delivered


@pytest.mark.case(34)
def test_events_behind_a_dedupe_wait_for_the_result_they_went_into(
    inline: Make, webhook: WebhookServer
) -> None:
    held = webhook.hold()
    nodes = pipeline(HTTP, acknowledge="delivered", idle_after="1s", allowed_lateness="20s")
    nodes["sinks"] = {"results": webhook_sink(webhook, "counts") | {"retry": SOON}}
    product = inline(**nodes)
    running = product.start()
    answer = product.post([at(0), at(5), at(5), at(70)])
    running.wait_for(lambda: held.held)
    assert_waits(answer)
    held.release()
    assert code(answer) == 200
    assert product.account() == books(delivered=3, dropped=1)
