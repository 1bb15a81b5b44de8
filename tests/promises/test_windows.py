"""Windows of event time: what goes in comes out, once, whatever the order; what is late is seen."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import pytest

from signoff.catalog import default
from signoff.engine.spark_check import check
from signoff.pipeline.load import load
from signoff.stateful.watermarks import Watermarks
from signoff.transforms.window.watermark_rule import WatermarkRule
from tests.promises.product import FILES, HTTP, SOON, Inline, Product, books
from tests.promises.test_settling import assert_waits, code, webhook_sink
from tests.servers import WebhookServer

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]

PARSED = {"type": "parse_json", "input": "incoming", "schema": "t TIMESTAMP, key STRING, n INT"}
COUNTS = {
    "type": "window",
    "input": "parsed",
    "time": "t",
    "size": "1m",
    "keys": ["key"],
    "aggregates": {"events": "count(*)", "total": "sum(n)", "mean": "avg(n)"},
    "allowed_lateness": "2m",
}
BEGIN = 1_600_000_020  # a full minute
RESULTS = {"type": "sqlite", "input": "counts", "path": "out.db", "table": "events"}


def at(second: int, key: str = "x", n: int = 1) -> dict[str, Any]:
    """An event so many seconds after the beginning."""
    return {"t": datetime.fromtimestamp(BEGIN + second, UTC).isoformat(), "key": key, "n": n}


def pipeline(source: dict[str, Any] = FILES, **window: Any) -> dict[str, Any]:
    return {
        "sources": {"incoming": source},
        "transforms": {"parsed": PARSED, "counts": COUNTS | window},
        "sinks": {"results": RESULTS},
    }


def written(product: Product) -> list[dict[str, Any]]:
    """What the sink has, which makes its table with the first result."""
    try:
        return product.table()
    except sqlite3.OperationalError:
        return []


def results(rows: Iterable[dict[str, Any]]) -> dict[tuple[int, str], tuple[int, int, float]]:
    """By the window's first second and key: events, total and mean."""
    return {
        (round(datetime.fromisoformat(row["window_start"]).timestamp()) - BEGIN, row["key"]): (
            row["events"], row["total"], row["mean"],
        )
        for row in rows
    }  # fmt: skip


def expected(events: Iterable[tuple[int, str, int]]) -> dict[tuple[int, str], tuple[int, int, float]]:
    found: dict[tuple[int, str], list[int]] = {}
    for second, key, n in events:
        found.setdefault((second // 60 * 60, key), []).append(n)
    return {key: (len(all_), sum(all_), sum(all_) / len(all_)) for key, all_ in found.items()}


def in_the_state(product: Product) -> int:
    """Up to where rows have been taken into the state of the window."""
    with product.ledger() as ledger:
        return ledger.books("counts.buffer").next


def disordered(number: int, within: int, seed: int = 1) -> list[tuple[int, str, int]]:
    """Events in an order in which none is more seconds behind the latest one before it."""
    chance = random.Random(seed)
    events = [(chance.randrange(1200), chance.choice("xyz"), chance.randrange(100)) for _ in range(number)]
    return sorted(events, key=lambda event: event[0] + chance.random() * within)


@pytest.mark.case(37)
def test_disorder_within_the_allowed_lateness_gives_the_windows_of_sorted_input(inline: Make) -> None:
    events = disordered(600, within=119)
    product = inline(**pipeline(FILES | {"max_events_per_batch": 100}, idle_after="1s"))
    product.put("a.jsonl", (at(*event) for event in events))
    assert product.run_once().code == 0
    assert results(product.table()) == expected(events)
    assert product.account() == books(delivered=600)


@pytest.mark.case(36)
def test_late_events_leave_through_their_own_output_and_are_counted_by_key(inline: Make) -> None:
    nodes = pipeline(FILES | {"max_events_per_batch": 4})
    nodes["sinks"]["late"] = {"type": "files", "input": "counts.late", "path": "late", "format": "jsonl"}
    product = inline(**nodes)
    # Batches of four: with the second, time has come to second 600 less two minutes.
    first = [at(0), at(10), at(30), at(200)]
    second = [at(600), at(190), at(61), at(70)]
    late = [at(0, "y"), at(419), at(420, "z"), at(400, "y")]  # closed is what ends at second 480 or before
    product.put("a.jsonl", [*first, *second, *late])
    running = product.start()
    running.wait_for(lambda: product.settled_upto() == 12)
    running.wait_for(lambda: len(written(product)) == 3)
    running.terminate()
    assert [row["event_id"] for row in product.rows("late")] == [f"incoming/{n}" for n in (8, 9, 10, 11)]
    assert product.account() == books(delivered=12)
    assert results(product.table()) == {
        (0, "x"): (3, 3, 1.0),
        (60, "x"): (2, 2, 1.0),
        (180, "x"): (2, 2, 1.0),
    }


@pytest.mark.case(36)
@pytest.mark.parametrize(("watermark", "late"), [("bounded", 3), ({"last_events": 3}, 0)])
def test_one_event_from_later_closes_nothing_where_the_last_events_say_how_far_time_has_come(
    inline: Make, watermark: Any, late: int
) -> None:
    nodes = pipeline(FILES | {"max_events_per_batch": 4}, watermark=watermark, idle_after="2s")
    nodes["sinks"]["late"] = {"type": "files", "input": "counts.late", "path": "late", "format": "jsonl"}
    product = inline(**nodes)
    product.put("a.jsonl", [at(0), at(10), at(30), at(7200), at(20), at(40), at(50), at(7201)])
    assert product.run_once().code == 0
    assert len(product.rows("late")) == late
    found = {key: events for key, (events, *_) in results(product.table()).items()}
    assert found == {(0, "x"): 6 - late, (7200, "x"): 2}
    assert product.account() == books(delivered=8)


@pytest.mark.case(32)
def test_windows_on_the_time_of_receipt_hold_what_came_in_them_whatever_time_events_have(
    inline: Make,
) -> None:
    product = inline(**pipeline(time=None, idle_after="1s"))
    begun = datetime.now(UTC).timestamp() // 60 * 60
    product.put("a.jsonl", [at(0), at(9_999_999), {"t": None, "key": "x", "n": 1}])
    product.put("b.jsonl", [at(1), at(2)])  # in a run of its own it might come when its minute was closed
    assert product.run_once().code == 0
    rows = product.table()
    assert sum(row["events"] for row in rows) == 5
    starts = [datetime.fromisoformat(row["window_start"]).timestamp() for row in rows]
    assert all(begun <= start <= datetime.now(UTC).timestamp() for start in starts)
    assert product.account() == books(delivered=5)


@pytest.mark.case(36)
def test_late_events_that_nobody_reads_are_dropped_and_counted(inline: Make) -> None:
    product = inline(**pipeline(FILES | {"max_events_per_batch": 2}))
    product.put("a.jsonl", [at(0), at(600), at(1, "y"), at(2, "y"), at(601), at(3, "x")])
    running = product.start()
    running.wait_for(lambda: product.settled_upto() == 6)
    assert product.account() == books(delivered=3, dropped=3)
    marks = Watermarks(
        product.state / "links" / "counts.buffer" / "marks.db", WatermarkRule(0), (), readonly=True
    )
    assert marks.late() == {'{"key":"y"}': 2, '{"key":"x"}': 1}
    marks.close_store()


@pytest.mark.case(32)
def test_null_and_absurd_times_are_dead_letters_and_move_no_watermark(inline: Make) -> None:
    product = inline(**pipeline(FILES | {"max_events_per_batch": 2}, idle_after="1s"))
    wrong: list[Any] = [
        {"key": "x"},
        {"t": None, "key": "x"},
        {"t": "0001-01-01T00:00:00Z", "key": "x"},
        {"t": "1970-01-01T00:00:00Z", "key": "x"},
        {"t": "2999-01-01T00:00:00Z", "key": "x"},
        {"t": "9999-12-31T23:59:59Z", "key": "x"},
    ]
    product.put("a.jsonl", [at(0), *wrong, at(30), at(61)])
    assert product.run_once().code == 0
    assert product.account() == books(delivered=3, dead_lettered=6)
    assert results(product.table()) == expected([(0, "x", 1), (30, "x", 1), (61, "x", 1)])
    reasons = [letter["reason"] for letter in product.dead_letters()]
    assert sum("is null" in reason for reason in reasons) == 2
    assert sum("before 1971-01-01" in reason for reason in reasons) == 2
    assert sum("too far after the receipt" in reason for reason in reasons) == 2
    assert {letter["stage"] for letter in product.dead_letters()} == {"counts"}


def test_sliding_windows_hold_each_event_several_times(inline: Make) -> None:
    events = disordered(300, within=119, seed=3)
    product = inline(
        **pipeline(FILES | {"max_events_per_batch": 100}, every="20s", idle_after="1s", aggregates={
            "events": "count(*)", "total": "sum(n)", "mean": "sum(n) / count(*)"})
    )  # fmt: skip
    product.put("a.jsonl", (at(*event) for event in events))
    assert product.run_once().code == 0
    found: dict[tuple[int, str], list[int]] = {}
    for second, key, n in events:
        for start in range(second // 20 * 20, second - 60, -20):
            found.setdefault((start, key), []).append(n)
    wanted = {key: (len(all_), sum(all_), sum(all_) / len(all_)) for key, all_ in found.items()}
    assert results(product.table()) == wanted


@pytest.mark.parametrize("ordered", [False, True])
def test_every_update_has_the_same_id_and_the_last_one_stands(inline: Make, ordered: bool) -> None:
    described = pipeline(HTTP, emit="updates")
    if ordered:  # rows wait in a buffer behind the results, and events for what becomes of them there
        waits = {"acknowledge": "delivered", "allowed_lateness": "0s", "idle_after": "50s"}
        described = pipeline(HTTP, emit="updates", **waits)
        described["sinks"] = {"results": RESULTS | {"ordered_by": ["window_start", "key"]}}
    product = inline(**described)
    running = product.start()
    for number in range(1, 4):
        assert code(product.post(at(5))) == 200
        running.wait_for(lambda n=number: [row["events"] for row in written(product)] == [n])


@pytest.mark.case(34)
def test_with_a_save_point_an_event_is_settled_before_its_window_is_closed(inline: Make) -> None:
    product = inline(**pipeline(HTTP))
    product.start()
    assert code(product.post(at(0))) == 200
    assert product.account() == books(delivered=1)


@pytest.mark.case(8, 34)
def test_events_of_two_sources_wait_for_the_result_they_went_into(
    inline: Make, webhook: WebhookServer
) -> None:
    held = webhook.hold()
    nodes = pipeline(
        HTTP, acknowledge="delivered", idle_after="1s", allowed_lateness="20s", inputs=["parsed", "other"]
    )
    del nodes["transforms"]["counts"]["input"]
    nodes["sources"]["second"] = HTTP
    nodes["transforms"] = {"other": PARSED | {"input": "second"}, **nodes["transforms"]}
    nodes["sinks"] = {"results": webhook_sink(webhook, "counts") | {"retry": SOON}}
    product = inline(**nodes)
    running = product.start(engine_when=lambda: product.received() == 3 and product.received("second") == 1)
    answers = [product.post([at(0), at(5), at(70)]), product.post([at(7)], "second")]
    running.wait_for(lambda: held.held)
    for answer in answers:
        assert_waits(answer)
    held.release()
    assert [code(answer) for answer in answers] == [200, 200]
    assert product.account() == books(delivered=3)
    assert product.account("second") == books(delivered=1)
    found = Counter({(row["window_start"], row["key"]): row["events"] for row in webhook.accepted})
    assert sorted(found.values()) == [1, 3]


@pytest.mark.case(34, 3)
def test_a_result_that_is_refused_refuses_the_events_it_was_made_of(
    inline: Make, webhook: WebhookServer
) -> None:
    webhook.answer(400)
    nodes = pipeline(HTTP, acknowledge="delivered", idle_after="1s", allowed_lateness="20s")
    nodes["sinks"] = {"results": webhook_sink(webhook, "counts") | {"on_failure": "refuse"}}
    product = inline(**nodes)
    product.start()
    assert code(product.post([at(0), at(5)])) >= 400
    assert product.account() == books(refused=2)


def test_a_result_that_a_sink_refuses_is_a_dead_letter_of_its_own(
    inline: Make, webhook: WebhookServer
) -> None:
    webhook.answer(400)
    nodes = pipeline(FILES, idle_after="1s")
    nodes["sinks"] = {"results": webhook_sink(webhook, "counts")}
    product = inline(**nodes)
    product.put("a.jsonl", [at(0), at(1, "y")])
    product.run_once()
    assert product.account() == books(delivered=2)
    assert product.audit()["buffers"]["counts.results.buffer"]["dead_lettered"] == 2
    assert {letter["stage"] for letter in product.dead_letters()} == {"results"}


@pytest.mark.case(34, 39)
@pytest.mark.parametrize("buffered", [False, True])
def test_the_letter_of_a_result_stands_for_the_events_that_waited_for_it(
    inline: Make, webhook: WebhookServer, buffered: bool
) -> None:
    refusing = webhook.answer(400)
    nodes = pipeline(FILES, acknowledge="delivered", idle_after="1s", allowed_lateness="20s")
    nodes["sinks"] = {"results": webhook_sink(webhook, "counts") | ({"buffer": {}} if buffered else {})}
    product = inline(**nodes)
    product.put("a.jsonl", [at(0), at(1, "y"), at(2)])
    assert product.run_once().code == 0
    assert product.account() == books(dead_lettered=3)
    first, second = product.dead_letters()
    (letter,) = product.explain("incoming/2")["dead_letters"]
    x, y = (first, second) if '"x"' in first["payload"] else (second, first)
    assert letter["event_id"] == x["event_id"]
    refusing.stop()
    assert product.command("dead-letters", "drop", str(product.file), y["event_id"]).code == 0
    assert product.account() == books(dead_lettered=2, dropped=1)
    running = product.start()
    assert product.command("dead-letters", "replay", str(product.file), x["event_id"]).code == 0
    running.wait_for(lambda: product.account() == books(delivered=2, dropped=1))
    assert [row["events"] for row in webhook.accepted] == [2]


def test_state_is_carried_over_a_change_that_leaves_it_as_it_is_and_refused_otherwise(
    inline: Make, spark: Any
) -> None:
    product = inline(**pipeline(FILES))
    product.put("a.jsonl", [at(0), at(1)])
    product.run_once()
    assert written(product) == []
    product.write(pipeline(FILES, keys=["key", "n"]))
    (problem,) = check(load(product.file, default()), spark)
    assert problem.code == "state-changed" and "idle_after" in problem.hint
    product.write(pipeline(FILES, allowed_lateness="5m", idle_after="1s"))
    product.put("b.jsonl", [at(2)])
    running = product.start("--once", engine_when=lambda: product.received() == 3)
    assert running.wait().code == 0
    assert results(product.table())[(0, "x")][0] == 3


@pytest.mark.case(34)
@pytest.mark.parametrize("acknowledge", ["save_point", "delivered"])
def test_a_state_that_was_lost_is_begun_anew_only_when_somebody_says_so(
    inline: Make, acknowledge: str
) -> None:
    nodes = pipeline(FILES, acknowledge=acknowledge, idle_after="1h", allowed_lateness="20s")
    product = inline(**nodes)
    product.put("a.jsonl", [at(0), at(1)])
    running = product.start(drain_s=1.0)
    running.wait_for(lambda: in_the_state(product) == product.received("counts.buffer") > 0)
    running.terminate()
    (state,) = (path for path in (product.state / "checkpoints").glob("counts*") if path.is_dir())
    shutil.rmtree(state)
    product.put("b.jsonl", [at(2), at(70)])
    failed = product.run_once()
    assert failed.code == 2 and "[state-lost]" in failed.output
    assert "signoff buffers drop FILE counts" in failed.output
    done = product.command("buffers", "drop", str(product.file), "counts", "--yes")
    assert done.code == 0 and "the step starts with an empty state" in done.output
    product.write(pipeline(FILES, acknowledge=acknowledge, idle_after="1s", allowed_lateness="20s"))
    assert product.run_once().code == 0
    assert results(product.table()) == expected([(2, "x", 1), (70, "x", 1)])
    lost = {"delivered": 4} if acknowledge == "save_point" else {"delivered": 2, "dropped": 2}
    assert product.account() == books(**lost)


@pytest.mark.case(34)
def test_windows_that_a_run_left_open_are_closed_by_the_next_also_without_events(inline: Make) -> None:
    product = inline(**pipeline(FILES))
    product.put("a.jsonl", [at(0), at(1), at(70)])
    assert product.run_once().code == 0
    assert written(product) == []
    product.write(pipeline(FILES, idle_after="1s"))
    assert product.run_once().code == 0
    assert results(product.table()) == expected([(0, "x", 1), (1, "x", 1), (70, "x", 1)])


@pytest.mark.case(24, 34, 37)
def test_windows_survive_kills_at_any_moment_also_behind_a_dedupe(real: Callable[..., Product]) -> None:
    events = list(dict.fromkeys(disordered(2400, within=119, seed=5)))
    nodes = pipeline(FILES | {"max_events_per_batch": 300}, idle_after="3s")
    nodes["transforms"] |= {
        "once": {"type": "dedupe", "input": "parsed", "keys": ["t", "key", "n"]},
        "again": COUNTS | {"input": "once", "idle_after": "3s"},
    }
    nodes["sinks"]["others"] = RESULTS | {"input": "again", "table": "others"}
    product = real(**nodes)
    for number in range(8):
        product.put(f"{number}.jsonl", (at(*event) for event in events[number * 300 : number * 300 + 300]))
    for kill in (0, 1):
        running = product.start("--once")
        target = 1 + kill * 1200
        running.wait_for(lambda: running.ended or product.settled_upto() >= target)  # noqa: B023
        running.kill9()
    assert product.run_once(timeout=400).code == 0
    assert product.account() == books(delivered=len(events))
    for table in ("events", "others"):
        assert results(product.table(table)) == expected(events)
