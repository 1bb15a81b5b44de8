"""What the log of a run says of rows that leave the pipeline: seldom, with a count and a sample."""

from __future__ import annotations

import logging

import pytest

from signoff.engine.batch.stage_counts import StageCounts, of_counts
from signoff.ledger.outcome import Outcome, RowOutcome, RowRef
from tests.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def counts(clock: Clock, caplog: pytest.LogCaptureFixture) -> StageCounts:
    caplog.set_level(logging.INFO)
    return StageCounts("incoming", {"chosen": "the condition does not hold"}, clock)


def dropped(sequence: int) -> RowOutcome:
    return RowOutcome(RowRef(sequence), "parsed", Outcome.DROPPED, "no JSON")


def test_the_first_is_said_at_once_with_its_id(counts, caplog):
    counts.add([dropped(17)], {})
    assert caplog.messages == ['incoming: 1 row dropped at "parsed" (incoming/17: no JSON)']


def test_the_next_ten_seconds_are_one_line(counts, clock, caplog):
    for number in range(100):
        counts.add([dropped(number)], {"chosen": (5, "the condition does not hold")})
        clock.now += 0.0625
    assert len(caplog.messages) == 2, "one of each step"
    clock.now += 10
    counts.log()
    assert len(caplog.messages) == 4
    assert 'incoming: 99 rows dropped at "parsed" (incoming/1: no JSON)' in caplog.messages
    assert 'incoming: 495 rows left out at "chosen" (the condition does not hold)' in caplog.messages
    clock.now += 100
    counts.log()
    assert len(caplog.messages) == 4, "nothing new, nothing said"


def test_at_the_end_everything_is_said(counts, caplog):
    counts.add([dropped(1)], {})
    counts.add([dropped(2)], {})
    counts.log(everything=True)
    assert caplog.messages[-1] == 'incoming: 1 row dropped at "parsed" (incoming/2: no JSON)'


def test_a_filter_is_no_warning_and_a_dead_letter_is(counts, caplog):
    counts.add([RowOutcome(RowRef(1), "parsed", Outcome.DEAD_LETTERED, "x")], {"chosen": (1, "y")})
    assert {record.levelname for record in caplog.records} == {"INFO", "WARNING"}


def test_rows_that_failed_and_are_tried_again_are_not_named(counts, caplog):
    counts.add([RowOutcome(RowRef(1), "table", Outcome.FAILED, "down")], {})
    assert caplog.messages == []


def test_what_spark_counted_is_told_to_the_ledger_with_the_reason_of_the_step(counts):
    found = counts.filtered(of_counts({"chosen": 7}))
    assert found == {"chosen": (7, "the condition does not hold")}
