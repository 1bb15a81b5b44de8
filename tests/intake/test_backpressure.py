"""When it is said that a source is held back, and when that it is over."""

from __future__ import annotations

import logging

import pytest

from signoff.intake.backpressure import Held, Holding
from tests.clock import Clock

FULL = "the log is full"


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def holding(clock: Clock, caplog: pytest.LogCaptureFixture) -> Holding:
    caplog.set_level(logging.INFO)
    return Holding("incoming", logging.getLogger("signoff.test"), clock, clock)


def look(holding: Holding, clock: Clock, reason: str, seconds: float) -> None:
    for _ in range(round(seconds * 10)):
        holding.look(reason)
        clock.now += 0.1


def test_it_is_said_once_when_it_begins_and_once_when_it_ends(holding, clock, caplog):
    look(holding, clock, FULL, 60)
    assert holding.held == Held(FULL, 1000.0), "since it began, not since it was said"
    look(holding, clock, "", 5)
    assert holding.held is None
    assert caplog.messages == [
        f'"incoming" is held back: {FULL}',
        '"incoming" is no longer held back, after 60 s',
    ]


def test_a_moment_is_not_said(holding, clock, caplog):
    for _ in range(20):
        look(holding, clock, FULL, 0.5)
        look(holding, clock, "", 0.5)
    assert holding.held is None and caplog.messages == []


def test_what_comes_and_goes_is_one(holding, clock, caplog):
    look(holding, clock, FULL, 3)
    for _ in range(20):
        look(holding, clock, "", 1)
        look(holding, clock, FULL, 1)
    assert holding.held == Held(FULL, 1000.0)
    assert len(caplog.messages) == 1


def test_another_reason_takes_its_place_without_a_line(holding, clock, caplog):
    look(holding, clock, FULL, 3)
    look(holding, clock, "the disk is full", 3)
    assert holding.held == Held("the disk is full", 1000.0)
    assert len(caplog.messages) == 1


def test_whoever_ends_while_it_is_held_says_so(holding, clock, caplog):
    look(holding, clock, FULL, 3)
    holding.end()
    assert holding.held is None and len(caplog.messages) == 2
