"""Simulated alarms as JSON, and the ways in which some of them are broken.

An alarm is a join of few pieces of text that were made once, done for a whole column by Arrow: a
Python statement per alarm would be the slowest part of the simulation.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import StrEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from signoff.sources.stations_network import (
    DAY_S,
    FIRST_STATION,
    PROFILES,
    THRESHOLDS,
    VALUE_UNIT,
    Alarms,
)


class Kind(StrEnum):
    """What a message is."""

    ALARM = "alarm"
    """An alarm, for the first time."""
    DUPLICATE = "duplicate"
    """An alarm that was sent before, byte for byte."""
    NULL_TIME = "null_time"
    """`eventTime` is null."""
    ABSURD_TIME = "absurd_time"
    """`eventTime` is a time, but of another age."""
    MALFORMED = "malformed"
    """No JSON."""
    WRONG_TYPE = "wrong_type"
    """A field holds what cannot be read as what it should be."""
    MISSING_FIELD = "missing_field"
    """A field is not there."""


KINDS = tuple(Kind)
ERRORS = KINDS[2:]
_TIME = re.compile(r'"eventTime":"[^"]*"')
ABSURD_TIMES = ("0001-01-01 00:00:00", "1970-01-01 00:00:00", "2099-12-31 23:59:59", "9999-12-31 23:59:59")

Break = Callable[[str], str]


def _with_time(value: str) -> Break:
    return lambda text: _TIME.sub(f'"eventTime":{value}', text)


def _with(field: str, value: str) -> Break:
    found = re.compile(f'"{field}":[^,}}]*')
    return lambda text: found.sub(f'"{field}":{value}', text)


def _without(field: str) -> Break:
    found = re.compile(f'"{field}":[^,}}]*,')
    return lambda text: found.sub("", text)


BREAKS: dict[Kind, tuple[Break, ...]] = {
    Kind.NULL_TIME: (_with_time("null"),),
    Kind.ABSURD_TIME: tuple(_with_time(f'"{time} UTC"') for time in ABSURD_TIMES),
    Kind.MALFORMED: (
        lambda text: text[: len(text) // 2],
        lambda text: text[:-1],
        lambda text: "ALARM " + text,
    ),
    Kind.WRONG_TYPE: (
        _with("stationId", '"unknown"'),
        _with("dataPointId", '{"sensor":121}'),
        _with("value", '"high"'),
        _with("isActive", '"perhaps"'),
    ),
    Kind.MISSING_FIELD: (_without("stationId"), _without("alarmId"), _without("value")),
}

_PROFILES = [f',"dataPointId":{one.sensor},"alarmId":{one.alarm},"eventTime":"' for one in PROFILES]
_RESTS = [
    f',"valueThreshold":{threshold:.1f},"isActive":{active}}}'
    for threshold in THRESHOLDS.tolist()
    for active in ("false", "true")
]


class Text:
    """Writes alarms of a network with so many stations."""

    def __init__(self, stations: int) -> None:
        # Not when the module is loaded: with its first array, Arrow loads pandas.
        self._profiles, self._rests = pa.array(_PROFILES), pa.array(_RESTS)
        self._stations = pa.array([f'{{"stationId":{FIRST_STATION + one}' for one in range(stations)])
        self._seconds = pa.array([_second(second) for second in range(DAY_S)])
        self._fractions = pa.array([f".{fraction:04}" for fraction in range(VALUE_UNIT)])

    def of(self, alarms: Alarms) -> pa.Array:
        """The alarms as JSON (STRING)."""
        days = alarms.times // DAY_S
        first, last = (int(days.min()), int(days.max())) if len(days) else (0, 0)
        dates = np.datetime_as_string(np.arange(first, last + 1).astype("datetime64[D]"))
        parts = (
            self._stations.take(pa.array(alarms.stations)),
            self._profiles.take(pa.array(alarms.profiles)),
            pa.array(dates).take(pa.array(days - first)),
            self._seconds.take(pa.array(alarms.times % DAY_S)),
            pa.array(alarms.values // VALUE_UNIT).cast(pa.string()),
            self._fractions.take(pa.array(alarms.values % VALUE_UNIT)),
            self._rests.take(pa.array(alarms.thresholds * 2 + alarms.active)),
        )
        return pc.binary_join_element_wise(*parts, "")


def broken(text: str, kind: Kind, choice: int) -> str:
    """An alarm's text with an error of this kind, in one of its forms."""
    forms = BREAKS[kind]
    return forms[choice % len(forms)](text)


def _second(second: int) -> str:
    return f' {second // 3600:02}:{second // 60 % 60:02}:{second % 60:02} UTC","value":'
