"""Simulated alarms straight into a pipeline: every message ends as what the simulation says it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from signoff.sources.stations import Simulation, SimulationConfig
from signoff.sources.stations_text import Kind
from tests.promises.product import Inline, books

pytestmark = pytest.mark.spark

COUNT = 20_000
PARSED = {
    "type": "parse_json",
    "input": "incoming",
    "schema": "stationId BIGINT, dataPointId INT, alarmId INT, eventTime TIMESTAMP, value DOUBLE, "
    "valueThreshold DOUBLE, isActive BOOLEAN",
    "timestamp_format": "yyyy-MM-dd HH:mm:ss z",
}
UNREADABLE = (Kind.MALFORMED, Kind.WRONG_TYPE)


def test_what_cannot_be_read_is_a_dead_letter_and_the_rest_arrives_as_it_was_made(
    inline: Callable[..., Inline],
) -> None:
    product = inline(
        sources={
            "incoming": {
                "type": "generate",
                "template": "stations",
                "count": COUNT,
                "seed": 7,
                "simulation": {"start": "2017-02-19", "errors": 40, "disorder": "10m"},
            }
        },
        transforms={"parsed": PARSED},
        sinks={"out": {"type": "files", "input": "parsed", "path": "out"}},
    )
    assert product.run_once().code == 0
    config = SimulationConfig.model_validate({"start": "2017-02-19", "errors": 40, "disorder": 600})
    sent = Simulation(7, config).messages(0, COUNT).to_pylist()
    unreadable = {f"incoming/{row['number']}" for row in sent if row["kind"] in UNREADABLE}
    assert len(unreadable) > 150
    assert {letter["event_id"] for letter in product.dead_letters()} == unreadable
    assert product.account() == books(delivered=COUNT - len(unreadable), dead_lettered=len(unreadable))
    rows = {int(row["event_id"].split("/")[1]): row for row in product.rows()}
    sound = [row for row in sent if row["kind"] in (Kind.ALARM, Kind.DUPLICATE)]
    for row in sound:
        arrived = rows[row["number"]]
        assert arrived["eventTime"][:19] == f"{row['eventTime']:%Y-%m-%dT%H:%M:%S}"
        for field in ("stationId", "dataPointId", "alarmId", "value", "valueThreshold", "isActive"):
            assert arrived[field] == row[field]
    null_times = [row["number"] for row in sent if row["kind"] == Kind.NULL_TIME]
    assert null_times
    assert all(rows[number].get("eventTime") is None for number in null_times)
