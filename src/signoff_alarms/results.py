"""The results of a demo, read back from the files and the database they are in."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from signoff.sources.stations_network import (
    FAILED_EQUIPMENT,
    GRID_VOLTAGE,
    HIGH_AC_VOLTAGE,
    LOW_AC_VOLTAGE,
    TOTAL_BATTERY_VOLTAGE,
)
from signoff_alarms.topology import OTHER_QUEUE, QUEUES

COUNTED = {
    "failed_equipment": "failed equipment (303)",
    "grid_voltage": "grid voltage (308, 309)",
    "battery_low_voltage": "batteries (309)",
}
"""The windows that count each alarm once, and what they count."""
_NUMBERS = {
    "failed_equipment": "numberOfEquipmentFailures",
    "grid_voltage": "numberOfPowerGridVoltageOutrage",
    "battery_low_voltage": "numberOfBatteryLowVoltage",
}
_WANTED: dict[str, tuple[int | None, tuple[int, ...]]] = {
    "failed_equipment": (None, (FAILED_EQUIPMENT,)),
    "grid_voltage": (GRID_VOLTAGE, (HIGH_AC_VOLTAGE, LOW_AC_VOLTAGE)),
    "battery_low_voltage": (TOTAL_BATTERY_VOLTAGE, (LOW_AC_VOLTAGE,)),
}
"""Sensor (None: any) and alarms that a window counts."""
_FILES = {
    "notifications": "notifications",
    "critical_alerts": "desk.jsonl",
    **{queue.replace(".", "_"): queue for queue in (*QUEUES.values(), OTHER_QUEUE)},
}
"""Sinks that write files, and where. The book of the demo's desk is one."""
_TABLES = {
    "failed_equipment_table": "failed_equipment",
    "grid_voltage_table": "grid_voltage",
    "battery_low_voltage_table": "battery_low_voltage",
    "alerts_table": "alerts",
    "bursts_table": "bursts",
    "late_table": "late_alarms",
}
_MOST = 3


class Results:
    """What is in a directory `out`."""

    def __init__(self, out: Path) -> None:
        self._out = out
        self._database = out / "results.db"

    def told(self) -> Iterator[str]:
        """What the windows say, in lines for people."""
        yield "failed equipment"
        for station, sensor, number, windows in self._rows(
            "SELECT stationId, datapointId, sum(numberOfEquipmentFailures) AS n, count(*) "
            "FROM failed_equipment GROUP BY 1, 2 ORDER BY n DESC, 1, 2 LIMIT ?",
            _MOST,
        ):
            yield f"  station {station}, sensor {sensor}: {number} times, in {windows} windows of 10 minutes"
        yield "grid voltage"
        for alarm, word in ((308, "high"), (309, "low")):
            for number, stations, deviation in self._rows(
                "SELECT sum(numberOfPowerGridVoltageOutrage), count(DISTINCT stationId), avg(meanDeviation) "
                "FROM grid_voltage WHERE alarmId = ?",
                alarm,
            ):
                off = "" if deviation is None else f", by {deviation:+.1f} V on average"
                yield f"  too {word} {number or 0:,} times at {stations:,} stations{off}"
        ((alerts, sensors),) = self._rows(
            "SELECT count(*), count(DISTINCT stationId || '/' || datapointId) FROM alerts"
        )
        yield f"alerts: {alerts:,} bursts of five failures within an hour, of {sensors:,} sensors"
        for station, sensor, number, start, end in self._rows(
            "SELECT stationId, datapointId, numberOfEquipmentFailures AS n, windowStart, windowEnd "
            "FROM bursts ORDER BY n DESC, 1, 2 LIMIT ?",
            _MOST,
        ):
            yield f"  station {station}, sensor {sensor}: {number} from {start[11:16]} to {end[11:16]}"

    def charted(self) -> dict[str, pa.Table]:
        """What charts of a report show, by name."""
        queries = {
            "voltage": (
                "SELECT windowStart AS hour, CASE alarmId WHEN 308 THEN 'too high' ELSE 'too low' END "
                "AS voltage, sum(numberOfPowerGridVoltageOutrage) AS times FROM grid_voltage GROUP BY 1, 2"
            ),
            "equipment": (
                "SELECT stationId || ' / ' || datapointId AS sensor, "
                "sum(numberOfEquipmentFailures) AS failures "
                "FROM failed_equipment GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 10"
            ),
            "alerts": "SELECT stationId, datapointId, windowStart FROM alerts",
        }
        found = {}
        with closing(sqlite3.connect(self._database)) as database:
            database.row_factory = sqlite3.Row
            for name, query in queries.items():
                found[name] = pa.Table.from_pylist([dict(row) for row in database.execute(query)])
        hours = found["voltage"]
        if hours.num_rows:
            times = pc.strptime(hours["hour"], "%Y-%m-%dT%H:%M:%SZ", "us").cast(pa.timestamp("us", "UTC"))
            found["voltage"] = hours.set_column(0, "hour", times)
        return found

    def ids(self, sink: str) -> tuple[Counter[str], Path]:
        """The ids that a sink holds, and where they stand."""
        if table := _TABLES.get(sink):
            rows = self._rows(f"SELECT event_id FROM {table}")
            return Counter(event_id for (event_id,) in rows), self._database
        place = self._out / _FILES[sink]
        return Counter(row["event_id"] for row in _json_rows(place)), place

    def alarms(self, window: str) -> int:
        """How many alarms came that a window is to count, whatever their times are."""
        sensor, kinds = _WANTED[window]
        return sum(
            row["alarmId"] in kinds and sensor in (None, row["dataPointId"])
            for queue in (*QUEUES.values(), OTHER_QUEUE)
            for row in _json_rows(self._out / queue)
        )

    def counted(self, window: str) -> int:
        """How many are in the results of a window."""
        ((number,),) = self._rows(f"SELECT sum({_NUMBERS[window]}) FROM {window}")
        return int(number or 0)

    def _rows(self, query: str, *values: object) -> list[Any]:
        with closing(sqlite3.connect(self._database)) as database:
            return database.execute(query, values).fetchall()


def _json_rows(place: Path) -> Iterator[dict[str, Any]]:
    """Of a file, or of all files of a directory."""
    for file in [place] if place.is_file() else sorted(place.glob("*.jsonl")):
        with file.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)
