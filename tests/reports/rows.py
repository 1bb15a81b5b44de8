"""Rows and a template that use everything a report has."""

from __future__ import annotations

import datetime as dt
import random
from typing import Any

import pyarrow as pa

from signoff.reports import Report, Template, compose

CREATED = dt.datetime(2021, 5, 15, 6, 0, tzinfo=dt.UTC)
_FIRST = dt.datetime(2021, 5, 1, tzinfo=dt.UTC)

TEMPLATE: dict[str, Any] = {
    "title": "Failed equipment",
    "about": {"From": "2021-05-01", "Failures": "{sum(failures.failures)}"},
    "timezone": "Europe/Helsinki",
    "content": [
        {"heading": "In short", "text": "{count(failures)} rows.\n\nAt most {max(failures.failures)} a day."},
        {
            "chart": "bar",
            "of": "failures",
            "title": "Ten stations have most failures",
            "x": "stationId",
            "y": "failures",
            "largest_first": True,
            "most": 10,
            "unit": "in 14 days",
        },
        {
            "chart": "line",
            "of": "voltages",
            "title": "Voltage over two days",
            "x": "at",
            "y": "voltage",
            "by": "kind",
            "unit": "V",
            "combine": "mean",
        },
        {
            "table": "failures",
            "title": "Failures: by station/day",
            "order_by": "-failures",
            "rows": 20,
            "columns": ["day", "stationId", {"column": "failures", "unit": "per day"}, "note"],
        },
        {"table": "voltages", "rows": 5},
        {"table": "nothing", "title": "Nothing at all"},
    ],
}


def failures(stations: int = 30) -> list[dict[str, Any]]:
    chance = random.Random(3)
    return [
        {
            "day": dt.date(2021, 5, day),
            "stationId": 1161114485 + station,
            "failures": chance.randint(0, 9 + station // 4),
            "note": "=1+1 <b>&</b>" if day == 7 else None,
        }
        for station in range(stations)
        for day in range(1, 15)
    ]


def voltages() -> list[dict[str, Any]]:
    chance = random.Random(4)
    return [
        {"at": _FIRST + dt.timedelta(hours=hour), "kind": kind, "voltage": 230 + 10 * chance.random()}
        for hour in range(36)
        for kind in ("high", "low")
    ]


def rows(seed: int = 0) -> dict[str, pa.Table]:
    """The same rows for every seed, in another order."""
    found = {"failures": failures(), "voltages": voltages()}
    for some in found.values():
        random.Random(seed).shuffle(some)
    tables = {name: pa.Table.from_pylist(some) for name, some in found.items()}
    return {**tables, "nothing": pa.table({})}


def report(created: dt.datetime | None = CREATED, seed: int = 0) -> Report:
    return compose(Template.model_validate(TEMPLATE), rows(seed), created)
