"""What analyses must say, computed with pandas straight from alarms; and a results storage made of them.

Nothing of the application or of Spark is used here.
"""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from signoff.sources.stations import Simulation, SimulationConfig

Rows = list[dict[str, Any]]
KEYS = ["stationId", "dataPointId", "alarmId"]
_COUNTS = {
    "failed_equipment": ("10min", "numberOfEquipmentFailures"),
    "grid_voltage": ("1h", "numberOfPowerGridVoltageOutrage"),
    "battery_low_voltage": ("1h", "numberOfBatteryLowVoltage"),
}


def alarms(count: int, seed: int = 7, **simulation: Any) -> pd.DataFrame:
    """The alarms that a simulation sends and that can be read, in the order of sending."""
    config = SimulationConfig.model_validate({"low_battery": 309, **simulation})
    columns = ["kind", "late", *KEYS, "eventTime", "value", "valueThreshold", "isActive"]
    sent = Simulation(seed, config).messages(0, count).select(columns).to_pandas()
    return sent[sent["kind"].astype(str).isin(["alarm", "duplicate"])].drop(columns="kind")


def of_window(sent: pd.DataFrame, table: str) -> pd.DataFrame:
    """The alarms that a window counts."""
    if table == "failed_equipment":
        return sent[sent.alarmId == 303]
    if table == "grid_voltage":
        return sent[(sent.dataPointId == 121) & sent.alarmId.isin([308, 309])]
    return sent[(sent.dataPointId == 141) & (sent.alarmId == 309)]


def store(sent: pd.DataFrame, database: Path) -> None:
    """The results as the application stores them; alarms with `late` missed their windows."""
    with closing(sqlite3.connect(database)) as db:
        late = []
        for table, (size, number) in _COUNTS.items():
            counted = of_window(sent, table)
            windows = counted[~counted.late].assign(
                start=lambda rows, size=size: rows.eventTime.dt.floor(size)
            )
            found = windows.groupby(["start", *KEYS]).size().rename(number).reset_index()
            found["windowStart"] = found.start.dt.strftime("%Y-%m-%dT%H:%M:%SZ")
            found["windowEnd"] = (found.start + pd.Timedelta(size)).dt.strftime("%Y-%m-%dT%H:%M:%SZ")
            found["event_id"] = [f"{table}/{place}" for place in range(len(found))]
            found = found.rename(columns={"dataPointId": "datapointId"}).drop(columns="start")
            found.to_sql(table, db, index=False)
            late.append(counted[counted.late].assign(missedBy=table))
        missed = pd.concat(late).drop(columns="late")
        missed["eventTime"] = missed.eventTime.dt.strftime("%Y-%m-%dT%H:%M:%SZ")
        missed.insert(0, "event_id", [f"stations/{place}" for place in range(len(missed))])
        missed.to_sql("late_alarms", db, index=False)
        db.commit()


def rows(name: str, sent: pd.DataFrame, begin: str, end: str) -> Rows:
    """The rows of an analysis; `sent`: also alarms of other times."""
    sent = sent[(sent.eventTime >= pd.Timestamp(begin)) & (sent.eventTime < pd.Timestamp(end))]
    if name == "voltage_and_failures":
        return _correlations(sent, pd.Timestamp(begin), pd.Timestamp(end))
    found: pd.DataFrame = {
        "part_of_day": _parts,
        "repeated_failures": _days,
        "busy_windows": lambda all_: _windows(all_, "failed_equipment", "failures"),
        "battery_low_voltage": lambda all_: _windows(all_, "battery_low_voltage", "alarms"),
    }[name](sent)
    return [dict(row) for row in found.to_dict("records")]


def _parts(sent: pd.DataFrame) -> pd.DataFrame:
    breaches = of_window(sent, "grid_voltage")
    part = pd.cut(
        breaches.eventTime.dt.hour, [-1, 5, 11, 17, 23], labels=["night", "morning", "noon", "evening"]
    )
    found = breaches.assign(partOfDay=part.astype(str)).groupby(["partOfDay", "alarmId"]).size()
    return found.rename("breaches").reset_index()


def _days(sent: pd.DataFrame) -> pd.DataFrame:
    failures = of_window(sent, "failed_equipment")
    days = failures.assign(day=failures.eventTime.dt.strftime("%Y-%m-%d"))
    found = days.groupby(["day", "stationId", "dataPointId"]).size().rename("failures").reset_index()
    return found.rename(columns={"dataPointId": "datapointId"}).assign(moreThanThree=found.failures > 3)


def _windows(sent: pd.DataFrame, table: str, name: str) -> pd.DataFrame:
    counted, size = of_window(sent, table), pd.Timedelta(_COUNTS[table][0])
    start = counted.eventTime.dt.floor(size)
    found = counted.assign(start=start).groupby(["start", "stationId", "dataPointId"]).size().rename(name)
    found = found[found > 5].reset_index().rename(columns={"dataPointId": "datapointId"})
    form = "%Y-%m-%dT%H:%M:%SZ"
    found.insert(0, "windowStart", found.start.dt.strftime(form))
    found.insert(1, "windowEnd", (found.start + size).dt.strftime(form))
    return found.drop(columns="start")


def _correlations(sent: pd.DataFrame, begin: pd.Timestamp, end: pd.Timestamp) -> Rows:
    """From whole matrices of stations and hours, zeros and all."""
    hours = int((end - begin) // pd.Timedelta("1h"))
    breaches, failures = of_window(sent, "grid_voltage"), of_window(sent, "failed_equipment")
    stations = sorted({*breaches.stationId, *failures.stationId})
    place = {station: index for index, station in enumerate(stations)}

    def matrix(some: pd.DataFrame) -> Any:
        found = np.zeros((len(stations), hours))
        at = ((some.eventTime - begin) // pd.Timedelta("1h")).to_numpy()
        np.add.at(found, (some.stationId.map(place).to_numpy(int), at), 1)
        return found

    told: Rows = []
    for alarm in (308, 309) if stations else ():
        breach, failed = (matrix(breaches[breaches.alarmId == alarm]) > 0).astype(float), matrix(failures)
        for lag in range(7):
            x, y = breach[:, : max(hours - lag, 0)].ravel(), failed[:, lag:].ravel()
            spread = len(x) > 0 and x.std() > 0 and y.std() > 0
            r = float(np.corrcoef(x, y)[0, 1]) if spread else None
            lift = float(y[x > 0].mean() / y.mean()) if len(x) and x.any() and y.any() else None
            told.append(
                {"alarmId": alarm, "lagHours": lag, "stations": len(stations), "correlation": r, "lift": lift,
                 "pValue": None if r is None or len(x) < 3 else p_value(r, len(x))}
            )  # fmt: skip
    return told


def p_value(r: float, n: int) -> float:
    """Both tails of Student's distribution, by adding up its density (with t = sqrt(f) tan u, a power of a
    cosine)."""
    f = n - 2
    edge = math.atan(abs(r) / math.sqrt(1 - r * r))  # t = sqrt(f) tan(edge)
    u = np.linspace(edge, min(math.pi / 2, edge + 40 / math.sqrt(f)), 400_001)
    density = np.exp((f - 1) * np.log(np.maximum(np.cos(u), 1e-300)))
    area = float(np.sum((density[1:] + density[:-1]) / 2) * (u[1] - u[0]))
    return 2 * area * math.exp(math.lgamma((f + 1) / 2) - math.lgamma(f / 2)) / math.sqrt(math.pi)
