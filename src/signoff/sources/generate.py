"""Made-up events: simulated base-station alarms, or plain numbers.

What it keeps: event number n depends on the seed and on n alone, so a restart goes on with exactly
the events that were still to come (`position` is how many there were), and two runs with one seed
give the same bytes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from signoff.errors import SourceError
from signoff.pipeline.model import SourceConfig
from signoff.sources.contract import EndOfSource, Resume, Settlement, Source, SourceContext
from signoff.sources.events import Piece, event_batch

BATCH = 20_000
"""Most events made at a time: they are Python strings for a moment."""
LONGEST_PAUSE_S = 1.0
"""How much of its rate a source that was held back may catch up on at once."""
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

Hashes = npt.NDArray[np.uint64]


class GenerateConfig(SourceConfig):
    """Simulated events, the same for the same seed."""

    summary: ClassVar[str] = "Makes up events: base-station alarms or numbers, deterministic by seed."
    can_acknowledge: ClassVar[bool] = False
    type: Literal["generate"] = "generate"
    template: Literal["alarms", "sequence"] = "alarms"
    """`alarms`: JSON alarms of base stations. `sequence`: `{"n":0}`, `{"n":1}`, …"""
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

    def build(self, base: Path) -> Source:
        return GenerateSource(self)


class GenerateSource(Source):
    """Counts; everything else is computed from the count."""

    def __init__(self, config: GenerateConfig) -> None:
        self._config = config
        self._next = 0
        self._readings = _readings(config)

    def open(self, context: SourceContext, resume: Resume) -> None:
        if context.once and self._config.count is None:
            raise SourceError("a run with `--once` needs an end: give the source a `count`")
        self._next = resume.position or 0
        self._due, self._asked_at = 0.0, time.monotonic()

    def receive(self, max_events: int, timeout_s: float) -> pa.RecordBatch | None:
        count = min(max_events, BATCH)
        if self._config.count is not None:
            count = min(count, self._config.count - self._next)
        if count <= 0:
            raise EndOfSource
        count = min(count, self._allowed(timeout_s))
        if not count:
            return None
        numbers = np.arange(self._next, self._next + count)
        self._next += count
        payloads = self._alarms(numbers) if self._config.template == "alarms" else _numbers(numbers)
        return event_batch(Piece(pa.array(payloads, pa.binary()), numbers + 1))

    def settle(self, settlement: Settlement) -> None:
        """Nobody is there to be told."""

    def close(self) -> None:
        """Nothing is held."""

    def _allowed(self, timeout_s: float) -> int:
        """How many events the rate allows now; waits for the first."""
        rate = self._config.rate
        if rate is None:
            return BATCH
        self._earn(rate)
        if self._due < 1:
            time.sleep(min(timeout_s, (1 - self._due) / rate))
            self._earn(rate)
        allowed = min(BATCH, int(self._due))
        self._due -= allowed
        return allowed

    def _earn(self, rate: float) -> None:
        now = time.monotonic()
        self._due += min(now - self._asked_at, LONGEST_PAUSE_S) * rate
        self._asked_at = now

    def _alarms(self, numbers: npt.NDArray[np.int64]) -> list[str | bytes]:
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
        return payloads

    def _break(self, payloads: list[str | bytes], hashes: Hashes) -> None:
        share = (hashes >> np.uint64(11)).astype(np.float64) / 2**53
        for index in np.flatnonzero(share < self._config.malformed).tolist():
            payloads[index] = MALFORMED[int(hashes[index]) % len(MALFORMED)](payloads[index])


def _numbers(numbers: npt.NDArray[np.int64]) -> list[str]:
    return [f'{{"n":{number}}}' for number in numbers.tolist()]


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


def _hash(numbers: npt.NDArray[np.int64], seed: int, salt: int) -> Hashes:
    """SplitMix64 of the number: as random as needed here, and computed for any number by itself."""
    start = np.uint64((seed << 20) + salt)
    with np.errstate(over="ignore"):
        mixed = (numbers.astype(np.uint64) + (start << np.uint64(12))) * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
