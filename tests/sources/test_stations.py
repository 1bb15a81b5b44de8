"""The simulated network: what it says of its messages is what they are, and one seed gives one stream."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from pydantic import ValidationError

from signoff.sources.generate import GenerateConfig
from signoff.sources.stations import Simulation, SimulationConfig
from signoff.sources.stations_network import HOURLY, PROFILES
from signoff.sources.stations_text import ERRORS, Kind
from tests.sources.test_generate import generate

FIELDS = ["stationId", "dataPointId", "alarmId", "eventTime", "value", "valueThreshold", "isActive"]
WELL_BEHAVED: dict[str, object] = {"disorder": 0, "late": 0, "duplicates": 0, "errors": 0}
MESSY: dict[str, object] = {"late": 0.01, "duplicates": 0.1, "errors": 20}

Row = dict[str, Any]


def simulation(seed: int = 7, **fields: object) -> Simulation:
    return Simulation(seed, SimulationConfig.model_validate(fields))


def rows(count: int, seed: int = 7, **fields: object) -> list[Row]:
    """The messages with what is said of them."""
    return list(simulation(seed, **fields).messages(0, count).to_pylist())


def alarms(count: int, **fields: object) -> list[Row]:
    """The messages of a network in which nothing goes wrong, as their receiver reads them."""
    return [json.loads(row["payload"]) for row in rows(count, **{**WELL_BEHAVED, **fields})]


def seconds(text: str) -> int:
    return int(datetime.fromisoformat(text.replace(" UTC", "+00:00")).timestamp())


def lags(messages: list[Row]) -> Iterator[tuple[Row, int]]:
    """How far each sound message is behind the latest before it, found out from the texts alone."""
    latest = None
    for message in messages:
        if message["kind"] not in ERRORS:
            time = seconds(json.loads(message["payload"])["eventTime"])
            yield message, 0 if latest is None else max(0, latest - time)
            latest = time if latest is None else max(latest, time)


# One seed, one stream


def test_a_message_depends_on_seed_and_number_alone() -> None:
    everything = simulation(**MESSY).messages(0, 40_000)
    in_pieces = simulation(**MESSY)
    for first, stop in ((33_000, 40_000), (0, 1), (12_345, 33_000), (1, 12_345)):
        assert in_pieces.messages(first, stop).equals(everything.slice(first, stop - first))
    assert simulation(8, **MESSY).payloads(0, 100) != everything["payload"].combine_chunks()[:100]


def test_the_bytes_of_a_seed_do_not_change_from_version_to_version() -> None:
    payloads = simulation(7, **MESSY).payloads(0, 50_000)
    digest = hashlib.sha256(b"\n".join(payloads.to_pylist())).hexdigest()
    assert digest == "1541249d2c84d75c35fd425e7b6bf339d0c5cf1d593705eebd8eff733b0da912"


def test_the_source_generate_sends_the_same_messages_and_goes_on_exactly() -> None:
    fields = {"template": "stations", "seed": 7, "simulation": MESSY}
    everything = simulation(7, **MESSY).payloads(0, 20_000).to_pylist()
    assert generate(20_000, max_events=3000, **fields) == everything
    assert generate(20_000, start=16_000, max_events=3000, **fields) == everything[16_000:]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"template": "stations", "malformed": 0.1}, "template stations has no malformed"),
        ({"template": "alarms", "simulation": {}}, "simulation is of template stations"),
    ],
)
def test_fields_of_another_template_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        GenerateConfig.model_validate(fields).build(Path())


# What is said of a message


def test_what_is_said_of_a_message_is_what_it_holds() -> None:
    for row in rows(20_000, **MESSY):
        if row["kind"] not in ERRORS:
            alarm = json.loads(row["payload"])
            assert list(alarm) == FIELDS
            assert {**alarm, "eventTime": seconds(alarm["eventTime"])} == {
                **{field: row[field] for field in FIELDS},
                "eventTime": int(row["eventTime"].timestamp()),
            }


@pytest.mark.parametrize("per_day", [500, 10_000, 2_000_000])
def test_disorder_stays_within_its_bound(per_day: int) -> None:
    fields = {"late": 0, "duplicates": 0.1, "errors": 20, "per_day": per_day}
    measured = list(lags(rows(30_000, disorder="15m", **fields)))
    worst = max(lag for _, lag in measured)
    assert 600 < worst < 900
    assert sum(lag > 0 for _, lag in measured) > 0.3 * len(measured), "that is hardly disorder"
    assert not any(message["late"] for message, _ in measured)


def test_messages_named_late_are_beyond_the_bound_and_no_others() -> None:
    measured = list(lags(rows(60_000, disorder="10m", late_by="4h", **MESSY)))
    assert all(message["lag_s"] == lag for message, lag in measured)
    assert all(message["late"] == (lag > 600) for message, lag in measured)
    late = [lag for message, lag in measured if message["late"]]
    assert 0.007 < len(late) / len(measured) < 0.012
    assert min(late) > 1.9 * 3600
    assert max(late) <= 600 + 4 * 3600


def test_without_disorder_messages_come_in_order() -> None:
    assert all(lag == 0 for _, lag in lags(rows(20_000, **{**MESSY, "disorder": 0, "late": 0})))


def test_a_duplicate_is_a_message_again_and_no_other_two_are_equal() -> None:
    sent: dict[bytes, int] = {}
    duplicates = 0
    for row in rows(40_000, **MESSY):
        if row["kind"] in ERRORS:
            continue
        assert (row["payload"] in sent) == (row["kind"] == Kind.DUPLICATE)
        assert sent.setdefault(row["payload"], row["alarm"]) == row["alarm"]
        duplicates += row["kind"] == Kind.DUPLICATE
    assert 0.09 < duplicates / 40_000 < 0.11


def test_alarms_differ_also_when_very_many_happen_in_a_second() -> None:
    payloads = simulation(disorder=0, late=0, duplicates=0, per_day=20_000_000).payloads(0, 100_000)
    assert len(pc.unique(payloads)) == 100_000


def test_one_in_so_many_messages_is_erroneous_in_the_way_it_is_said_to_be() -> None:
    messages = rows(40_000, errors=20)
    kinds = Counter(row["kind"] for row in messages)
    assert 0.9 < sum(kinds[kind] for kind in ERRORS) / (len(messages) / 20) < 1.1
    assert all(kinds[kind] > 300 for kind in ERRORS)
    for row in messages:
        assert _fault(row["payload"]) == (row["kind"] if row["kind"] in ERRORS else None)
    assert not any(row["kind"] in ERRORS for row in rows(5000, errors=0))


def _fault(payload: bytes) -> Kind | None:
    """What is wrong with a message, judged by its receiver."""
    try:
        alarm = json.loads(payload)
    except ValueError:
        return Kind.MALFORMED
    if list(alarm) != FIELDS:
        return Kind.MISSING_FIELD
    if alarm["eventTime"] is None:
        return Kind.NULL_TIME
    types = [int, int, int, str, float, float, bool]
    if [type(value) for value in alarm.values()] != types:
        return Kind.WRONG_TYPE
    return None if alarm["eventTime"].startswith("2021-05") else Kind.ABSURD_TIME


# The network


def test_sensors_and_alarms_are_as_frequent_as_in_the_field() -> None:
    events = alarms(50_000)
    sensors = Counter(event["dataPointId"] for event in events)
    assert [sensor for sensor, _ in sensors.most_common(3)] == [121, 115, 141]
    assert sensors[121] > 0.4 * len(events)
    assert set(sensors) == {profile.sensor for profile in PROFILES}
    found = Counter(event["alarmId"] for event in events)
    assert {309, 308, 303} == {alarm for alarm, _ in found.most_common(3)}
    of_grid = {event["alarmId"] for event in events if event["dataPointId"] == 121}
    assert of_grid == {303, 308, 309}


def test_values_are_beyond_the_threshold_that_is_set_and_some_thresholds_are_the_default() -> None:
    events = alarms(20_000)
    for event in events:
        if event["valueThreshold"] != 999_999:
            if event["alarmId"] in (308, 310, 306, 312):
                assert event["value"] > event["valueThreshold"]
            else:
                assert 0 <= event["value"] < event["valueThreshold"]
    low = [event for event in events if (event["dataPointId"], event["alarmId"]) == (121, 309)]
    assert all(100 < event["value"] < 200 for event in low)
    unset = sum(event["valueThreshold"] == 999_999 for event in low)
    assert 0.08 < unset / len(low) < 0.17
    assert 0.7 < sum(event["isActive"] for event in events) / len(events) < 0.9


def test_some_stations_are_much_noisier_than_others() -> None:
    counts = Counter(event["stationId"] for event in alarms(50_000))
    assert 1900 < len(counts) <= 2000
    ordered = sorted(counts.values())
    assert ordered[-1] > 30 * ordered[len(ordered) // 2]


@pytest.mark.parametrize("time_of_day", ["00:00:00", "16:45:10"])
def test_event_time_goes_on_for_months_and_days_have_their_rhythm(time_of_day: str) -> None:
    start = f"2021-05-01T{time_of_day}"
    times = simulation(**WELL_BEHAVED, start=start).messages(0, 300_000)["eventTime"]
    seconds_ = np.asarray(times.cast("int64"))
    assert (np.diff(seconds_) >= 0).all()
    begin = datetime.fromisoformat(start + "+00:00")
    assert 0 <= (times[0].as_py() - begin).total_seconds() < 60
    assert 29.9 < (times[-1].as_py() - begin).total_seconds() / 86_400 < 30.1
    by_hour = np.bincount(seconds_ // 3600 % 24, minlength=24) / len(seconds_)
    assert np.abs(by_hour - np.array(HOURLY) / sum(HOURLY)).max() < 0.005


def test_five_failures_within_an_hour_happen_sometimes() -> None:
    failures: dict[tuple[int, int], list[int]] = {}
    for event in alarms(70_000):
        if event["alarmId"] == 303:
            key = event["stationId"], event["dataPointId"]
            failures.setdefault(key, []).append(seconds(event["eventTime"]))
    bursts = [key for key, times in failures.items() if _has_five_in_an_hour(times)]
    assert 20 < len(bursts) < 200, "in a week"
    assert len(bursts) < 0.2 * len(failures)


def _has_five_in_an_hour(times: list[int]) -> bool:
    return any(last - first < 3600 for first, last in zip(times, times[4:], strict=False))


def test_the_start_without_a_zone_is_utc() -> None:
    first = simulation(**WELL_BEHAVED, start="2017-02-19T04:40:00").messages(0, 1)["eventTime"][0].as_py()
    assert 0 <= (first - datetime(2017, 2, 19, 4, 40, tzinfo=UTC)).total_seconds() < 60


def test_a_disorder_that_cannot_be_simulated_is_refused_with_its_arithmetic() -> None:
    with pytest.raises(ValidationError, match=r"20,000,000 alarms a day, 5,208,333 happen .* lower per_day"):
        simulation(per_day=20_000_000)
    assert simulation(per_day=20_000_000, late=0).config.block == 2**20


def test_blocks_never_overlap_in_time() -> None:
    made = simulation(**MESSY)
    times = made.messages(0, 4 * made.config.block)["eventTime"]
    blocks = [times.slice(n * made.config.block, made.config.block) for n in range(4)]
    for before, after in pairwise(blocks):
        assert pc.max(before).as_py() <= pc.min(after).as_py()
