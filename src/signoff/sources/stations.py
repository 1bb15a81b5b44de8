"""Simulated alarms of mobile base stations as they arrive: out of order, some twice, some broken.

What it keeps:
- Message n depends on the seed, the settings and n alone: any part can be made by itself.
- The simulation can say of every message what it is: its kind, which alarm it carries, how late it is.
- An alarm is sent `disorder` after it happened at most, not counting the share `late`. So when a
  message arrives, no earlier one is of a time `disorder` or more after it; with `late: 0` there is none
  for which that does not hold.

How: messages come in blocks. The alarms of a block are put into the order in which they are sent (when
each happened, plus its delay); blocks are never mixed. As times never go back from one block to the
next, how late a message is can be told from its block alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from signoff.pipeline.durations import Duration
from signoff.pipeline.model import Config
from signoff.sources.seeded_random import Hashes, Numbers, hashes, remainders, shares
from signoff.sources.stations_network import (
    DAY_S,
    FIRST_STATION,
    LOW_AC_VOLTAGE,
    LOW_BATTERY,
    LOW_BATTERY_AS_309,
    PROFILE_ALARMS,
    PROFILE_SENSORS,
    THRESHOLDS,
    VALUE_UNIT,
    Alarms,
    Network,
)
from signoff.sources.stations_text import ERRORS, KINDS, Kind, Text, broken

SMALLEST_BLOCK, LARGEST_BLOCK = 2**14, 2**20
DELAYS_PER_BLOCK = 8
"""How many of the longest delays fit into a block, as its end allows no delay beyond it."""
RECALL = 16
"""How many alarms back a duplicate may reach."""
PIECE = 20_000

MESSAGES = pa.schema(
    [
        ("number", pa.int64()),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("alarm", pa.int64()),
        ("lag_s", pa.int64()),
        ("late", pa.bool_()),
        ("stationId", pa.int64()),
        ("dataPointId", pa.int32()),
        ("alarmId", pa.int32()),
        ("eventTime", pa.timestamp("s", "UTC")),
        ("value", pa.float64()),
        ("valueThreshold", pa.float64()),
        ("isActive", pa.bool_()),
        ("payload", pa.binary()),
    ]
)
"""What is known of a message. `number` is its place in the order of sending; `alarm` says which alarm it
carries, the same for a duplicate; `lag_s` is by how many seconds it is behind the latest time of the messages
before it that are not erroneous (0: not behind; null: it is itself erroneous); `late` is whether that is more
than `disorder`. The fields of the alarm are, for an erroneous message, those it had before it was broken.
`payload` is the message."""


class SimulationConfig(Config):
    """A network of base stations, and how its alarms arrive."""

    stations: int = Field(default=2000, ge=1, le=100_000)
    """How many stations there are. Some send many times as much as others."""
    start: datetime = datetime(2021, 5, 1, tzinfo=UTC)
    """Time of the first alarm."""
    per_day: float = Field(default=10_000, gt=0, le=20_000_000)
    """Alarms per day of event time, of all stations together."""
    disorder: Duration = Field(default=900.0, ge=0)
    """How long after it happened an alarm is sent at most (whole seconds); 0 sends in order."""
    late: float = Field(default=0.001, ge=0, le=0.5)
    """About which share of alarms is sent later than that. The simulation tells which ones."""
    late_by: Duration = Field(default=21_600.0, ge=1)
    """How much later they are at most; half as much is the least."""
    duplicates: float = Field(default=0.01, ge=0, le=0.5)
    """Share of messages that repeat one sent before."""
    errors: int = Field(default=1000, ge=0)
    """One in so many messages is erroneous, in one of five ways; 0: none."""
    low_battery: Literal[309, 311] = 311
    """The alarm by which total batteries (sensor 141) report low voltage."""

    @model_validator(mode="after")
    def _fits_a_block(self) -> Self:
        if self._delayed > LARGEST_BLOCK / 2:
            what = "disorder and late_by" if self.late else "disorder"
            raise ValueError(
                f"with {self.per_day:,.0f} alarms a day, {self._delayed:,.0f} happen while one is under way; "
                f"{LARGEST_BLOCK // 2:,} are the most: lower per_day, or {what}"
            )
        return self

    @property
    def block(self) -> int:
        """Messages per block: a power of two that holds the longest delay several times."""
        wanted = max(SMALLEST_BLOCK, min(LARGEST_BLOCK, int(self._delayed * DELAYS_PER_BLOCK)))
        return 1 << (wanted - 1).bit_length()

    @property
    def start_s(self) -> int:
        start = self.start if self.start.tzinfo else self.start.replace(tzinfo=UTC)
        return int(start.timestamp())

    @property
    def _delayed(self) -> float:
        """Alarms that happen during the longest delay."""
        return (self.disorder + (self.late_by if self.late else 0)) * self.per_day / DAY_S


class Simulation:
    """The messages of one seed. Used by one thread; it keeps the last block it made."""

    def __init__(self, seed: int = 0, config: SimulationConfig | None = None) -> None:
        self.seed, self.config = seed, config or SimulationConfig()
        self._network = Network(seed, self.config.stations, self.config.start_s, self.config.per_day)
        self._text = Text(self.config.stations)
        self._made: tuple[int, pa.RecordBatch] | None = None

    def messages(self, first: int, stop: int) -> pa.Table:
        """The messages from number `first` up to, not including, `stop`, with the schema MESSAGES."""
        return pa.Table.from_batches(self.pieces(first, stop, self.config.block), MESSAGES)

    def payloads(self, first: int, stop: int) -> pa.Array:
        """The messages themselves."""
        return self.messages(first, stop).column("payload").combine_chunks()

    def pieces(self, first: int, stop: int, most: int = PIECE) -> Iterator[pa.RecordBatch]:
        """The same, piece by piece."""
        while first < stop:
            piece = self.piece(first, min(stop - first, most))
            yield piece
            first += piece.num_rows

    def piece(self, first: int, most: int) -> pa.RecordBatch:
        """Messages from number `first` on: `most`, or fewer where a block ends."""
        block, place = divmod(first, self.config.block)
        if self._made is None or self._made[0] != block:
            self._made = block, self._block(block)
        return self._made[1].slice(place, most)

    def _block(self, block: int) -> pa.RecordBatch:
        numbers = np.arange(block * self.config.block, (block + 1) * self.config.block)
        errors = self._errors(numbers)
        carried = self._carried(numbers, errors >= 0)
        alarms = self._network.alarms(numbers)
        if self.config.low_battery == LOW_AC_VOLTAGE:
            alarms.profiles[alarms.profiles == LOW_BATTERY] = LOW_BATTERY_AS_309
        times = alarms.times[carried]
        sent = np.argsort(times + self._delays(numbers, times), kind="stable")
        carried, errors, alarms = carried[sent], errors[sent], alarms.take(carried[sent])
        kinds = _kinds(carried, errors)
        return self._batch(numbers, numbers[carried], kinds, alarms)

    def _errors(self, numbers: Numbers) -> Numbers:
        """For each number the place of its error in ERRORS, or -1."""
        if not self.config.errors:
            return np.full(len(numbers), -1)
        values = self._hashes(numbers, 101)
        which = remainders(values >> np.uint64(40), len(ERRORS))
        return np.where(remainders(values, self.config.errors) == 0, which, -1)

    def _carried(self, numbers: Numbers, erroneous: npt.NDArray[np.bool_]) -> Numbers:
        """For each number of a block the place of the alarm it carries: its own, or for a duplicate the last
        sound one some places before."""
        places = np.arange(len(numbers))
        values = self._hashes(numbers, 102)
        again = (shares(values) < self.config.duplicates) & ~erroneous
        latest = np.maximum.accumulate(np.where(again | erroneous, -1, places))
        before = places - 1 - remainders(values, RECALL)
        repeated = np.where(before >= 0, latest[np.maximum(before, 0)], -1)
        return np.where(again & (repeated >= 0), repeated, places)

    def _delays(self, numbers: Numbers, times: Numbers) -> Numbers:
        """Seconds from each alarm to its sending: short ones are the most frequent."""
        config = self.config
        usual = (np.square(shares(self._hashes(numbers, 103))) * int(config.disorder)).astype(np.int64)
        if not config.late:
            return usual
        more = (0.5 + shares(self._hashes(numbers, 104)) / 2) * config.late_by
        longer = int(config.disorder) + 1 + more.astype(np.int64)
        is_late = shares(self._hashes(numbers, 105)) < config.late
        # One that the end of its block would cut short might be hardly late, or not at all.
        delays: Numbers = np.where(is_late & (times + longer <= times.max()), longer, usual)
        return delays

    def _batch(self, numbers: Numbers, carried: Numbers, kinds: Numbers, alarms: Alarms) -> pa.RecordBatch:
        sound = kinds < KINDS.index(ERRORS[0])
        lags = _lags(alarms.times, sound)
        columns = (
            numbers,
            pa.DictionaryArray.from_arrays(kinds.astype(np.int8), [str(kind) for kind in KINDS]),
            carried,
            pa.array(lags, mask=~sound),
            sound & (lags > int(self.config.disorder)),
            FIRST_STATION + alarms.stations,
            PROFILE_SENSORS[alarms.profiles].astype(np.int32),
            PROFILE_ALARMS[alarms.profiles].astype(np.int32),
            alarms.times.astype("datetime64[s]"),
            alarms.values / VALUE_UNIT,
            THRESHOLDS[alarms.thresholds],
            alarms.active,
            self._payloads(carried, kinds, alarms),
        )
        arrays = [
            pa.array(column, field.type) if isinstance(column, np.ndarray) else column
            for field, column in zip(MESSAGES, columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=MESSAGES)

    def _payloads(self, carried: Numbers, kinds: Numbers, alarms: Alarms) -> pa.Array:
        payloads = self._text.of(alarms)
        erroneous = kinds >= KINDS.index(ERRORS[0])
        places = np.flatnonzero(erroneous)
        if len(places):
            choices = (self._hashes(carried[places], 106) >> np.uint64(32)).tolist()
            texts = payloads.take(pa.array(places)).to_pylist()
            worse = [
                broken(text, KINDS[kind], choice)
                for text, kind, choice in zip(texts, kinds[places].tolist(), choices, strict=True)
            ]
            payloads = pc.replace_with_mask(payloads, pa.array(erroneous), pa.array(worse))
        return payloads.cast(pa.binary())

    def _hashes(self, numbers: Numbers, salt: int) -> Hashes:
        return hashes(numbers, self.seed, salt)


def _kinds(carried: Numbers, errors: Numbers) -> Numbers:
    """Places in KINDS. Of the messages that carry an alarm, the first one sent is the alarm."""
    _, firsts = np.unique(carried, return_index=True)
    kinds = np.full(len(carried), KINDS.index(Kind.DUPLICATE))
    kinds[firsts] = KINDS.index(Kind.ALARM)
    return np.where(errors >= 0, KINDS.index(ERRORS[0]) + errors, kinds)


def _lags(times: Numbers, sound: npt.NDArray[np.bool_]) -> Numbers:
    """How far each message is behind the latest of the sound ones before it, which is never one of an earlier
    block."""
    latest = np.maximum.accumulate(np.where(sound, times, times.min()))
    return np.maximum(latest - times, 0)
