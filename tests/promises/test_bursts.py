"""Bursts: raised at the fifth event, once, in whatever order events come, whatever is killed; then ended."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from signoff.errors import StateError
from signoff.stateful.watermarks import Watermarks
from tests.promises.product import FILES, HTTP, Inline, Product, books
from tests.promises.test_settling import code
from tests.promises.test_windows import BEGIN, PARSED, at, written
from tests.transforms.burst.test_bursts import expected

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]

BURSTS = {
    "type": "burst",
    "input": "parsed",
    "time": "t",
    "keys": ["key"],
    "count": 5,
    "within": "60s",
    "allowed_lateness": "15s",
}
RESULTS = {"type": "sqlite", "input": "bursts", "path": "out.db", "table": "events"}
LATE = {"type": "sqlite", "input": "bursts.late", "path": "late.db", "table": "events"}


def pipeline(source: dict[str, Any] = FILES, **burst: Any) -> dict[str, Any]:
    return {
        "sources": {"incoming": source},
        "transforms": {"parsed": PARSED, "bursts": BURSTS | burst},
        "sinks": {"results": RESULTS, "late": LATE},
    }


def told(rows: list[dict[str, Any]], state: str) -> dict[str, list[tuple[int, int, int]]]:
    """By key the first, last and number of the events of each burst, in seconds since the beginning."""
    found: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for row in rows:
        if row["state"] == state:
            found[row["key"]].append((_second(row["burst_start"]), _second(row["burst_end"]), row["events"]))
    return {key: sorted(each) for key, each in found.items()}


def _second(text: str) -> int:
    return round((datetime.fromisoformat(text) - datetime.fromtimestamp(BEGIN, UTC)).total_seconds())


def check_ids(rows: list[dict[str, Any]]) -> None:
    """Each burst is raised once and ended once, under ids that belong together."""
    raised = {row["event_id"]: row for row in rows if row["state"] == "raised"}
    ended = {row["event_id"]: row for row in rows if row["state"] == "ended"}
    assert len(raised) + len(ended) == len(rows)
    assert all(row["burst"] == event_id for event_id, row in raised.items())
    assert set(ended) == {f"{event_id}/ended" for event_id in raised}
    assert all(row["burst"] in raised and row["key"] == raised[row["burst"]]["key"] for row in ended.values())


def test_a_burst_is_raised_at_the_fifth_event_long_before_the_watermark_and_ended_behind_it(
    inline: Make,
) -> None:
    product = inline(**pipeline(HTTP))
    running = product.start()
    assert code(product.post([at(second) for second in (0, 3, 2, 1)])) == 200
    assert code(product.post([at(second, "y") for second in (0, 10, 20, 30)])) == 200
    assert written(product) == []
    assert code(product.post([at(31)])) == 200
    running.wait_for(lambda: told(written(product), "raised") == {"x": [(0, 31, 5)]})
    assert code(product.post([at(32), at(33), at(105, "y")])) == 200  # the watermark is 90: 33 may go on
    assert code(product.post([at(108, "y")])) == 200  # and 93, where no event can be added any more
    running.wait_for(lambda: told(written(product), "ended") == {"x": [(0, 33, 7)]})
    check_ids(written(product))
    assert product.account() == books(delivered=13)


def test_random_events_give_the_bursts_that_are_computed_from_all_of_them(inline: Make) -> None:
    dice, events, times = random.Random(5), list[tuple[float, int, str]](), defaultdict[str, list[int]](list)
    for key in "abcdefgh":
        now = 0
        while now < 3_000:
            now += dice.choice([1, 3, 9, 14, 20, 30, 45, 90, 200])
            events.append((now + dice.random() * 14, now, key))
            times[key].append(now)
    product = inline(**pipeline(FILES | {"max_events_per_batch": 40}, idle_after="1s"))
    product.put("a.jsonl", [at(second, key) for _, second, key in sorted(events)])
    assert product.run_once(300).code == 0
    found = told(product.table(), "ended")
    due = {key: expected(each) for key, each in times.items()}
    assert sum(map(len, due.values())) > 20
    for key, bursts in due.items():
        assert sum(number for *_, number in bursts) == sum(number for *_, number in found[key])
        if len(found[key]) == len(bursts):  # else one came apart: what joins them came when both were raised
            assert found[key] == bursts
    assert sum(len(found[key]) == len(bursts) for key, bursts in due.items()) >= 6
    check_ids(product.table())
    assert {number for each in told(product.table(), "raised").values() for *_, number in each} == {5}
    assert product.account() == books(delivered=len(events))


def test_an_event_behind_the_watermark_is_late_and_counted(inline: Make) -> None:
    product = inline(**pipeline(FILES | {"max_events_per_batch": 1}, idle_after="1s"))
    product.put("a.jsonl", [at(second) for second in (0, 1, 2, 3, 100, 84, 85)])
    assert product.run_once().code == 0
    assert [row["t"] for row in product.table("events", "late.db")] == [at(84)["t"].replace("+00:00", "Z")]
    assert product.status()["windows"]["bursts"]["late"] == 1
    assert written(product) == []


@pytest.mark.case(25)
def test_a_batch_that_is_done_again_raises_the_same_bursts(
    inline: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    gave, refused = Watermarks.gave, set[int]()

    def gave_at_the_second_try(self: Watermarks, upto: int) -> None:
        if upto not in refused:  # results are handed on, and Spark's state is not committed
            refused.add(upto)
            raise StateError("no room")
        gave(self, upto)

    monkeypatch.setattr(Watermarks, "gave", gave_at_the_second_try)
    product = inline(**pipeline(FILES | {"max_events_per_batch": 3}, idle_after="1s"))
    product.put("a.jsonl", [at(second, key) for second in range(0, 20, 2) for key in "xy"])
    assert product.run_once(300).code == 0
    assert refused
    assert told(product.table(), "ended") == {"x": [(0, 18, 10)], "y": [(0, 18, 10)]}
    check_ids(product.table())
    assert product.received("bursts.results.buffer") == 4


@pytest.mark.case(24, 34)
def test_bursts_survive_kills_at_any_moment(real: Callable[..., Product]) -> None:
    dice = random.Random(11)
    product = real(**pipeline(FILES | {"max_events_per_batch": 30}, idle_after="1s"))
    times: Mapping[str, list[int]] = {key: [] for key in "uvwxyz"}
    events = []
    for second in range(0, 3_000, 3):
        key = dice.choice("uvwxyz")
        times[key].append(second)
        events.append(at(second, key))
    product.put("a.jsonl", events)
    for wanted in (1, 8):
        running = product.start("--once")
        running.wait_for(lambda: running.ended or len(written(product)) >= wanted, timeout=180)  # noqa: B023
        running.kill9()
    assert product.run_once(timeout=300).code == 0
    rows = product.table()
    check_ids(rows)
    assert told(rows, "ended") == {key: expected(each) for key, each in times.items() if expected(each)}
    assert product.received("bursts.results.buffer") == len(rows)
    assert product.account() == books(delivered=len(events))
