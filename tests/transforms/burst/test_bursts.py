"""Bursts: the same whatever the order of events and the size of batches; each raised once, and ended once."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest
from pydantic import ValidationError

from signoff.transforms.burst.bursts import BurstChange, Kept, Rules
from signoff.transforms.burst.step import BurstConfig

HOUR = 60
RULES = Rules(5, HOUR)
LATENESS = 15
FAR = 10**9
Found = list[tuple[int, int, int]]


def expected(times: Sequence[int]) -> Found:
    """First, last and number of the events of each burst; computed from all events at once."""
    ordered = sorted(times)
    groups = [
        (start, start + 4) for start in range(len(ordered) - 4) if ordered[start + 4] - ordered[start] < HOUR
    ]
    spans: list[list[int]] = []
    for start, end in groups:
        if spans and start <= spans[-1][1]:
            spans[-1][1] = end
        else:
            spans.append([start, end])
    return [(ordered[start], ordered[end], end - start + 1) for start, end in spans]


def found(changes: Sequence[BurstChange]) -> Found:
    return sorted((each.first, each.last, each.events) for each in changes if each.state == "ended")


def run(batches: Sequence[Sequence[int]]) -> list[BurstChange]:
    """Batches one after the other, at the watermark that those before have brought; then all is over."""
    kept, said, watermark = Kept(), list[BurstChange](), -FAR
    for batch in batches:
        assert all(time >= watermark for time in batch), "it would be late"
        said += kept.take(RULES, batch)
        said += kept.end(RULES, watermark)
        kept = Kept.from_json(json.loads(json.dumps(kept.as_json())))
        watermark = max(watermark, max(batch) - LATENESS)
    said += kept.end(RULES, FAR)
    assert kept.is_empty
    return said


def test_a_burst_is_raised_at_the_fifth_event_and_once() -> None:
    kept = Kept()
    assert [kept.take(RULES, [time]) for time in (0, 10, 20, 30)] == [[], [], [], []]
    assert kept.take(RULES, [40]) == [BurstChange("raised", 0, 0, 40, 5)]
    assert kept.take(RULES, [41, 50, 95]) == []  # 95 is one of five within an hour: 40, 41, 50 and so on
    assert kept.end(RULES, 109) == []
    assert kept.end(RULES, 110) == [BurstChange("ended", 0, 0, 50, 7)]


def test_four_within_an_hour_and_a_fifth_after_it_are_none() -> None:
    kept = Kept()
    assert kept.take(RULES, [0, 1, 2, 3, 60]) == []
    assert kept.take(RULES, [59]) == [BurstChange("raised", 0, 0, 60, 6)]


def test_what_comes_slowly_before_a_burst_is_not_in_it() -> None:
    kept = Kept()
    times = [0, 50, 111, 112, 113, 114, 115]
    assert kept.take(RULES, times) == [BurstChange("raised", 111, 111, 115, 5)]
    assert found(kept.end(RULES, FAR)) == [(111, 115, 5)] == expected(times)


def test_two_bursts_that_were_raised_stay_two_when_an_event_between_them_comes() -> None:
    kept = Kept()
    first = kept.take(RULES, [0, 1, 2, 3, 4])
    second = kept.take(RULES, [65, 66, 67, 68, 69])
    assert len(first) == len(second) == 1
    assert kept.take(RULES, [50]) == []
    ended = kept.end(RULES, FAR)
    assert [each.begin for each in ended] == [0, 65]
    assert sum(each.events for each in ended) == 11


def test_nothing_is_kept_of_what_can_be_in_no_burst_any_more() -> None:
    kept = Kept()
    kept.take(RULES, range(0, 10_000, 20))
    assert kept.end(RULES, 9_990) == []
    assert len(kept.times) <= 3
    assert kept.next_end(RULES) is not None


@pytest.mark.parametrize("seed", range(300))
def test_any_order_within_the_lateness_and_any_batches_give_the_same_bursts(seed: int) -> None:
    dice = random.Random(seed)
    times, now = [], 0
    for _ in range(dice.randrange(5, 80)):
        now += dice.choice([0, 1, 2, 5, 9, 14, 20, 45, 59, 60, 61, 90, 200])
        times.append(now)
    delayed = [time for _, time in sorted((time + dice.random() * (LATENESS - 1), time) for time in times)]
    batches, left = [], delayed
    while left:
        size = dice.randrange(1, 9)
        batches.append(left[:size])
        left = left[size:]
    said = run(batches)
    raised = [each for each in said if each.state == "raised"]
    ended = [each for each in said if each.state == "ended"]
    assert sorted(each.begin for each in raised) == sorted(each.begin for each in ended)
    assert len({each.begin for each in raised}) == len(raised)
    due = expected(times)
    assert sum(each.events for each in ended) == sum(number for *_, number in due)
    # What came between two that were raised already leaves them two.
    assert {first for first, *_ in due} <= {each.first for each in ended}
    if len(ended) == len(due):
        assert found(said) == due


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"keys": []}, "keys"),
        ({"keys": ["state"]}, "as a column of the result"),
        ({"count": 1}, "count"),
        ({"within": "0s"}, "within"),
        ({"acknowledge": "delivered"}, "acknowledge"),
    ],
)
def test_a_burst_that_could_tell_of_nothing_is_refused(fields: dict[str, object], said: str) -> None:
    given = {"input": "x", "keys": ["a"], "count": 5, "within": "1h", **fields}
    with pytest.raises(ValidationError, match=said):
        BurstConfig.model_validate(given)
