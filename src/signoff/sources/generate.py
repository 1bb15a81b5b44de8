"""Made-up events: alarms of base stations, simple or as they come from a network, or plain numbers.

What it keeps: event number n depends on the seed and on n alone, so a restart goes on with exactly
the events that were still to come (`position` is how many there were), and two runs with one seed
give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, model_validator

from signoff.errors import SourceError
from signoff.pipeline.model import SourceConfig
from signoff.sources.contract import EndOfSource, Resume, Settlement, Source, SourceContext
from signoff.sources.events import Piece, event_batch
from signoff.sources.pace import Pace
from signoff.sources.seeded_random import GOLDEN, Hashes, Numbers, scramble, shares
from signoff.sources.stations import Simulation, SimulationConfig

BATCH = 20_000
"""Most events made at a time: they are Python strings for a moment."""
AHEAD = 10_000
"""How many simulated alarms are made at a time, at least."""
FIRST_EVENT = np.datetime64("2021-05-01T10:00:00", "ms")

DATA_POINTS = np.array([121, 121, 121, 121, 115, 115, 141, 141, 122, 123, 116, 117, 142, 143, 151, 161])
ALARMS = np.array([308, 308, 308, 309, 309, 303, 303, 310, 311, 305, 306, 307, 312, 313, 304, 302])
THRESHOLDS = np.array([240.0, 180.0, 54.5, 999999.0])

ALARM = (
    '{"stationId":%d,"dataPointId":%d,"alarmId":%d,"eventTime":"%s UTC",'
    '"value":%.2f,"valueThreshold":%.1f,"isActive":%s%s}'
)
MALFORMED = (
    lambda text: text[: len(text) // 2],
    lambda text: text.replace('"stationId":', '"stationId":"none","was":', 1),
    lambda text: text.replace('"eventTime":"', '"eventTime":"about ', 1),
    lambda text: "ALARM " + text.replace('"', "'"),
)
"""Cut off, wrong type, no time, not JSON."""

_OF_ALARMS = ("malformed", "readings", "stations", "interval_ms")


class GenerateConfig(SourceConfig):
    """Simulated events, the same for the same seed."""

    summary: ClassVar[str] = "Makes up events: base-station alarms or numbers, deterministic by seed."
    can_acknowledge: ClassVar[bool] = False
    type: Literal["generate"] = "generate"
    template: Literal["alarms", "stations", "sequence"] = "alarms"
    """`alarms`: JSON alarms of base stations. `stations`: as they arrive from a network, out of order, some
    twice, some broken. `sequence`: `{"n":0}`, `{"n":1}`, …"""
    count: int | None = Field(default=None, ge=0)
    """How many events in all, also across restarts; null never ends."""
    rate: float | None = Field(default=None, gt=0)
    """Events per second; null is as fast as possible."""
    seed: int = Field(default=0, ge=0, lt=2**32)
    """Another seed gives other events."""
    malformed: float = Field(default=0.0, ge=0, le=1)
    """alarms: share of events that are broken in one of four ways."""
    readings: int = Field(default=3, ge=0, le=100)
    """alarms: length of the array `readings` of each event; 0 leaves it out."""
    stations: int = Field(default=1000, ge=1)
    """alarms: how many stations there are."""
    interval_ms: int = Field(default=100, ge=0)
    """alarms: how far the event time moves from one event to the next."""
    simulation: SimulationConfig = SimulationConfig()
    """stations: the network and how its alarms arrive."""

    @model_validator(mode="after")
    def _goes_with_the_template(self) -> Self:
        given = [name for name in _OF_ALARMS if name in self.model_fields_set]
        if self.template == "stations" and given:
            raise ValueError(f"template stations has no {given[0]}; its fields are under simulation")
        if self.template != "stations" and "simulation" in self.model_fields_set:
            raise ValueError(f"simulation is of template stations; the template is {self.template}")
        return self

    def belongs_to_project(self, base: Path) -> bool:
        return True

    def build(self, base: Path) -> Source:
        return GenerateSource(self)


class GenerateSource(Source):
    """Counts; everything else is computed from the count."""

    def __init__(self, config: GenerateConfig) -> None:
        self._config = config
        self._next = 0
        self._pace = Pace(config.rate)
        self._make = self._maker()

    def open(self, context: SourceContext, resume: Resume) -> None:
        if context.once and self._config.count is None:
            raise SourceError("a run with `--once` needs an end: give the source a `count`")
        self._next = resume.position or 0
        self._pace = Pace(self._config.rate)

    def receive(self, max_events: int, timeout_s: float) -> pa.RecordBatch | None:
        count = min(max_events, BATCH)
        if self._config.count is not None:
            count = min(count, self._config.count - self._next)
        if count <= 0:
            raise EndOfSource
        count = self._pace.allowed(count, timeout_s)
        if not count:
            return None
        numbers = np.arange(self._next, self._next + count)
        self._next += count
        return event_batch(Piece(self._make(numbers), numbers + 1))

    def settle(self, settlement: Settlement) -> None:
        """Nobody is there to be told."""

    def close(self) -> None:
        """Nothing is held."""

    def _maker(self) -> Callable[[Numbers], pa.Array]:
        """What makes the payloads of some numbers in a row."""
        if self._config.template == "sequence":
            return _numbers
        if self._config.template == "alarms":
            self._readings = _readings(self._config)
            return self._alarms
        return _Ahead(Simulation(self._config.seed, self._config.simulation).payloads)

    def _alarms(self, numbers: Numbers) -> pa.Array:
        config = self._config
        one, two = _hash(numbers, config.seed, 1), _hash(numbers, config.seed, 2)
        times = FIRST_EVENT + (numbers * config.interval_ms).astype("timedelta64[ms]")
        text = np.char.replace(np.datetime_as_string(times, unit="s"), "T", " ")
        columns = (
            1161114000 + one % np.uint64(config.stations),
            DATA_POINTS[(one >> np.uint64(32)) % np.uint64(len(DATA_POINTS))],
            ALARMS[(one >> np.uint64(40)) % np.uint64(len(ALARMS))],
            text,
            (two % np.uint64(100_000)) / 100.0,
            THRESHOLDS[(two >> np.uint64(32)) % np.uint64(len(THRESHOLDS))],
            np.where((two >> np.uint64(40)) & np.uint64(1), "true", "false"),
        )
        chosen = ((two >> np.uint64(44)) % np.uint64(len(self._readings))).tolist()
        readings = [self._readings[place] for place in chosen]
        rows = zip(*(column.tolist() for column in columns), readings, strict=True)
        payloads: list[str | bytes] = list(map(ALARM.__mod__, rows))
        if config.malformed:
            self._break(payloads, _hash(numbers, config.seed, 3))
        return pa.array(payloads, pa.binary())

    def _break(self, payloads: list[str | bytes], hashes: Hashes) -> None:
        for index in np.flatnonzero(shares(hashes) < self._config.malformed).tolist():
            payloads[index] = MALFORMED[int(hashes[index]) % len(MALFORMED)](payloads[index])


class _Ahead:
    """Makes more than it is asked for, and keeps the rest: a slow rate asks for a few at a time, and the
    simulation computes the network around them each time."""

    def __init__(self, make: Callable[[int, int], pa.Array]) -> None:
        self._make = make
        self._start, self._made = 0, pa.array([], pa.binary())

    def __call__(self, numbers: Numbers) -> pa.Array:
        first, stop = int(numbers[0]), int(numbers[-1]) + 1
        if not self._start <= first <= stop <= self._start + len(self._made):
            self._start, self._made = first, self._make(first, max(stop, first + AHEAD))
        return self._made.slice(first - self._start, stop - first)


def _numbers(numbers: Numbers) -> pa.Array:
    return pa.array([f'{{"n":{number}}}' for number in numbers.tolist()], pa.binary())


def _readings(config: GenerateConfig) -> list[str]:
    """A choice of arrays, made once: writing one for each event would cost more than all the rest."""
    if not config.readings:
        return [""]
    hashes = _hash(np.arange(1024 * config.readings), config.seed, 4)
    values = (hashes % np.uint64(1000) / 10.0).tolist()
    rows = [values[start : start + config.readings] for start in range(0, len(values), config.readings)]
    return [
        ',"readings":[' + ",".join(f'{{"sensor":{n},"value":{value}}}' for n, value in enumerate(row)) + "]"
        for row in rows
    ]


def _hash(numbers: Numbers, seed: int, salt: int) -> Hashes:
    """Not `hashes.hashes`, whose streams are further apart, so that a seed still gives the same alarms."""
    start = np.uint64((seed << 20) + salt)
    with np.errstate(over="ignore"):
        return scramble((numbers.astype(np.uint64) + (start << np.uint64(12))) * GOLDEN)
