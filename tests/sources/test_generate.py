"""The generator: the same seed gives the same events, however they are fetched."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from signoff.errors import SourceError
from signoff.sources.contract import EndOfSource, Resume
from signoff.sources.generate import GenerateConfig
from signoff.testing.conformance.sources import context, drain, payloads

FIELDS = [
    "stationId",
    "dataPointId",
    "alarmId",
    "eventTime",
    "value",
    "valueThreshold",
    "isActive",
    "readings",
]


def generate(count: int, start: int = 0, max_events: int = 1000, **fields: object) -> list[bytes]:
    source = GenerateConfig.model_validate({"count": count, **fields}).build(Path())
    source.open(context(Path()), Resume(start, None, start))
    batches = []
    while True:
        try:
            batch = source.receive(max_events, 1)
        except EndOfSource:
            return payloads(batches)
        assert batch is not None
        batches.append(batch)


def test_events_depend_on_seed_and_number_alone() -> None:
    everything = generate(5000, seed=3, malformed=0.01)
    assert generate(5000, seed=3, malformed=0.01, max_events=7) == everything
    assert generate(5000, start=1234, seed=3, malformed=0.01) == everything[1234:]
    assert generate(5000, seed=4, malformed=0.01) != everything


def test_an_alarm_looks_like_one() -> None:
    events = [json.loads(event) for event in generate(2000)]
    assert list(events[0]) == FIELDS
    assert events[0]["eventTime"] == "2021-05-01 10:00:00 UTC"
    assert events[10]["eventTime"] == "2021-05-01 10:00:01 UTC"
    assert [reading["sensor"] for reading in events[0]["readings"]] == [0, 1, 2]
    for field in ("stationId", "dataPointId", "alarmId", "value", "valueThreshold", "isActive"):
        assert len({event[field] for event in events}) > 1, f"{field} is always the same"
    assert 0.05 < sum(event["alarmId"] == 303 for event in events) / len(events) < 0.25


def test_without_readings_an_alarm_has_about_150_bytes() -> None:
    events = generate(1000, readings=0)
    assert 140 < sum(map(len, events)) / len(events) < 160
    assert "readings" not in json.loads(events[0])


def test_the_asked_share_is_malformed() -> None:
    def is_fine(event: bytes) -> bool:
        try:
            alarm = json.loads(event)
        except ValueError:
            return False
        return isinstance(alarm["stationId"], int) and alarm["eventTime"].startswith("2021")

    events = generate(20_000, malformed=0.1, seed=1)
    assert 0.08 < sum(not is_fine(event) for event in events) / len(events) < 0.12
    assert all(map(is_fine, generate(2000)))


def test_the_rate_is_kept() -> None:
    source = GenerateConfig(template="sequence", rate=2000).build(Path())
    started, count = time.monotonic(), 0
    source.open(context(Path()), Resume(0))
    while count < 400:
        batch = source.receive(1000, 0.05)
        count += 0 if batch is None else len(batch)
    assert time.monotonic() - started > 0.19


@pytest.mark.parametrize("done", [5, 9])
def test_the_count_holds_across_restarts(done: int) -> None:
    source = GenerateConfig(template="sequence", count=5).build(Path())
    source.open(context(Path()), Resume(done, None, done))
    assert drain(source) == []


def test_a_run_that_takes_what_is_there_needs_a_count() -> None:
    source = GenerateConfig().build(Path())
    with pytest.raises(SourceError, match="count"):
        source.open(context(Path(), once=True), Resume(0))
