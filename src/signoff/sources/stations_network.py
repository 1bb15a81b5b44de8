"""The simulated network: which stations and sensors there are, what they report, when and how often.

Everything here is a function of the seed and of alarm numbers, in arrays. Alarm n+1 never has an
earlier time than alarm n: disorder comes later, when the alarms are sent (`stations.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from signoff.sources.seeded_random import Hashes, Numbers, hashes, remainders, shares

GRID_VOLTAGE, HUMIDITY, TOTAL_BATTERY_VOLTAGE = 121, 115, 141
FAILED_EQUIPMENT, HIGH_AC_VOLTAGE, LOW_AC_VOLTAGE = 303, 308, 309
DEFAULT_THRESHOLD = 999_999.0
"""Stands where nobody has set a threshold."""

DAY_S = 86_400
FIRST_STATION = 1_161_114_000
VALUE_UNIT = 10_000
"""Values are counted in ten-thousandths."""


class Profile(NamedTuple):
    """One alarm of one sensor."""

    sensor: int
    alarm: int
    weight: int
    """How many of 1,000 alarms are of this kind."""
    thresholds: tuple[float, ...]
    """One of them is set at a station; none: the alarm is of a state, and the threshold the default."""
    spread: float
    """How far the value is beyond the threshold at most; without threshold, the values go from 0 to this."""
    rises: bool
    """Whether the alarm is for values above the threshold."""


PROFILES = (
    Profile(GRID_VOLTAGE, LOW_AC_VOLTAGE, 200, (180.0, 187.0, 195.0), 60.0, False),
    Profile(GRID_VOLTAGE, HIGH_AC_VOLTAGE, 190, (240.0, 245.0, 253.0), 30.0, True),
    Profile(GRID_VOLTAGE, FAILED_EQUIPMENT, 60, (), 5.0, True),
    Profile(HUMIDITY, 306, 100, (75.0, 80.0, 85.0), 14.0, True),
    Profile(HUMIDITY, 307, 40, (20.0, 25.0, 30.0), 19.0, False),
    Profile(HUMIDITY, FAILED_EQUIPMENT, 20, (), 5.0, True),
    Profile(TOTAL_BATTERY_VOLTAGE, 311, 80, (46.0, 47.0, 48.0), 8.0, False),
    Profile(TOTAL_BATTERY_VOLTAGE, 310, 35, (56.0, 57.0, 58.0), 4.0, True),
    Profile(TOTAL_BATTERY_VOLTAGE, FAILED_EQUIPMENT, 15, (), 5.0, True),
    Profile(122, LOW_AC_VOLTAGE, 25, (180.0, 187.0, 195.0), 60.0, False),
    Profile(122, HIGH_AC_VOLTAGE, 25, (240.0, 245.0, 253.0), 30.0, True),
    Profile(122, FAILED_EQUIPMENT, 10, (), 5.0, True),
    Profile(123, 304, 60, (), 1.0, True),
    Profile(116, 312, 50, (35.0, 38.0, 40.0), 20.0, True),
    Profile(116, 313, 20, (5.0, 6.0, 8.0), 5.0, False),
    Profile(117, 312, 15, (45.0, 48.0, 50.0), 15.0, True),
    Profile(142, 310, 15, (14.4, 14.6, 14.8), 2.0, True),
    Profile(143, 311, 15, (10.8, 11.0, 11.2), 3.0, False),
    Profile(151, 305, 15, (10.0, 15.0, 20.0), 10.0, False),
    Profile(161, 302, 10, (), 1.0, True),
    Profile(TOTAL_BATTERY_VOLTAGE, LOW_AC_VOLTAGE, 0, (46.0, 47.0, 48.0), 8.0, False),
)
"""121 grid voltage, 115 humidity, 141 total battery voltage; the others are a rectifier's input (122), the
supply (123), temperatures (116, 117), battery strings (142, 143), fuel (151) and a controller (161). Alarms:
302 self-test, 303 failed equipment, 304 power outage, 305 low fuel, 306/307 high/low humidity, 308/309
high/low AC voltage, 310/311 high/low DC voltage, 312/313 high/low temperature."""

SENSORS = tuple(sorted({profile.sensor for profile in PROFILES}))

HOURLY = (5, 4, 4, 4, 5, 7, 10, 13, 14, 13, 12, 12, 13, 13, 12, 12, 13, 15, 16, 15, 12, 9, 7, 6)
"""How busy each hour of the day is (UTC): quiet nights, a peak in the morning and one in the evening."""

NOISIEST = 200
"""How many times as many alarms the noisiest stations send as the quietest."""
BURST_LANES = 4
BURST_CHANCE = 8
"""In each hour of each lane, one in so many, one sensor of one station fails again and again."""
BURST_ALARMS = 8
"""About how many times."""
_BURST_SHARE_MOST = 0.25


@dataclass(frozen=True, slots=True)
class Alarms:
    """Some alarms, column by column."""

    times: Numbers
    """Seconds since 1970."""
    stations: Numbers
    """Counted from 0."""
    profiles: Numbers
    """Places in PROFILES."""
    values: Numbers
    """In ten-thousandths."""
    thresholds: Numbers
    """Places in THRESHOLDS."""
    active: npt.NDArray[np.bool_]

    def take(self, places: Numbers) -> Alarms:
        return Alarms(
            self.times[places],
            self.stations[places],
            self.profiles[places],
            self.values[places],
            self.thresholds[places],
            self.active[places],
        )


LOW_BATTERY, LOW_BATTERY_AS_309 = (
    PROFILES.index(profile)
    for profile in PROFILES
    if profile.sensor == TOTAL_BATTERY_VOLTAGE and profile.alarm in (311, LOW_AC_VOLTAGE)
)
"""Low voltage of batteries, under the one number or the other. Otherwise they are the same."""
THRESHOLDS = np.array(
    sorted({DEFAULT_THRESHOLD, *(one for profile in PROFILES for one in profile.thresholds)})
)
PROFILE_SENSORS = np.array([profile.sensor for profile in PROFILES])
PROFILE_ALARMS = np.array([profile.alarm for profile in PROFILES])
_CHOICE = np.repeat(np.arange(len(PROFILES)), [profile.weight for profile in PROFILES])
_FAILURES = np.flatnonzero(PROFILE_ALARMS == FAILED_EQUIPMENT)
_SET = np.array([profile.thresholds or (0.0,) * 3 for profile in PROFILES])
_SPREAD = np.array([round(profile.spread * 10) for profile in PROFILES])
_RISES = np.array([profile.rises for profile in PROFILES])
_IS_STATE = np.array([not profile.thresholds for profile in PROFILES])
_DEFAULT = int(np.searchsorted(THRESHOLDS, DEFAULT_THRESHOLD))
_BUSY = np.concatenate([[0.0], np.cumsum(HOURLY) / sum(HOURLY)])
_HOURS = np.arange(25) * 3600.0


class Network:
    """The stations of one seed. `alarms` may be asked for any numbers, in any order."""

    def __init__(self, seed: int, stations: int, start_s: int, per_day: float) -> None:
        self._seed, self._start_s, self._per_day = seed, start_s, per_day
        self._of_first_day = float(np.interp(start_s % DAY_S, _HOURS, _BUSY))
        """Which share of a day's alarms happen before the time of day at which it starts."""
        ranks = 1 + remainders(hashes(np.arange(stations), seed, 1), 65_536)
        # Whole numbers only: a power computed with fractions may differ from one processor to the next.
        self._by_noise = np.repeat(np.arange(stations), np.minimum(65_536 // ranks, NOISIEST))
        self._burst_share = min(BURST_ALARMS * BURST_LANES * 24 / per_day, _BURST_SHARE_MOST)

    def alarms(self, numbers: Numbers) -> Alarms:
        """The alarms with these numbers; no two are equal, see `_values`."""
        hash_of_what, hash_of_value = self._hashes(numbers, 2), self._hashes(numbers, 3)
        times = self.times(numbers)
        stations = self._by_noise[remainders(hash_of_what, len(self._by_noise))]
        profiles = _CHOICE[remainders(hash_of_what >> np.uint64(40), len(_CHOICE))]
        self._burst(numbers, times, stations, profiles)
        tenths, thresholds = self._thresholds(stations, profiles, hash_of_value)
        return Alarms(
            times,
            stations,
            profiles,
            _values(numbers, profiles, tenths, hash_of_value),
            thresholds,
            remainders(hash_of_value >> np.uint64(50), 5) > 0,
        )

    def times(self, numbers: Numbers) -> Numbers:
        """When the alarms happened: never earlier than the ones before, more of them in busy hours."""
        days = self._of_first_day + (numbers + shares(self._hashes(numbers, 4))) / self._per_day
        whole = np.floor(days)
        seconds = np.minimum(np.interp(days - whole, _BUSY, _HOURS), DAY_S - 1).astype(np.int64)
        midnight = self._start_s // DAY_S * DAY_S
        times: Numbers = midnight + whole.astype(np.int64) * DAY_S + seconds
        return np.maximum(times, self._start_s)

    def _burst(self, numbers: Numbers, times: Numbers, stations: Numbers, profiles: Numbers) -> None:
        """Make some alarms those of equipment that fails again and again within an hour."""
        joins = self._hashes(numbers, 5)
        some = np.flatnonzero(shares(joins) < self._burst_share)
        lanes = remainders(joins[some], BURST_LANES)
        hours = (times[some] + lanes * (3600 // BURST_LANES)) // 3600
        bursts = self._hashes(hours * BURST_LANES + lanes, 6)
        burning = remainders(bursts, BURST_CHANCE) == 0
        some, bursts = some[burning], bursts[burning] >> np.uint64(8)
        stations[some] = self._by_noise[remainders(bursts, len(self._by_noise))]
        profiles[some] = _FAILURES[remainders(bursts >> np.uint64(32), len(_FAILURES))]

    def _thresholds(self, stations: Numbers, profiles: Numbers, by_value: Hashes) -> tuple[Numbers, Numbers]:
        """The thresholds the values go by, in tenths, and the places of those the alarms show."""
        at_station = remainders(self._hashes(stations, 7), 3)
        going_by = _SET[profiles, at_station]
        unset = _IS_STATE[profiles] | (remainders(by_value >> np.uint64(54), 8) == 0)
        shown = np.where(unset, _DEFAULT, np.searchsorted(THRESHOLDS, going_by))
        return np.rint(going_by * 10).astype(np.int64), shown

    def _hashes(self, numbers: Numbers, salt: int) -> Hashes:
        return hashes(numbers, self._seed, salt)


def _values(numbers: Numbers, profiles: Numbers, tenths: Numbers, by_value: Hashes) -> Numbers:
    """Beyond the threshold, never on it. The last three digits are those of the alarm's number: so no two
    alarms are equal while fewer than 1,000 fall into one second, the resolution of their time."""
    beyond = remainders(by_value, 1 << 40) % _SPREAD[profiles]
    whole = np.where(_RISES[profiles], tenths + beyond, tenths - 1 - beyond)
    last = numbers % 1000
    # On the threshold exactly only if all added digits are 0.
    values: Numbers = whole * 1000 + np.where(_RISES[profiles] & (beyond == 0) & (last == 0), 1000, last)
    return values
