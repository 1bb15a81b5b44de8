"""The time of day may be set, the time since the machine was started may not: which is used for what.

*Durations* are measured by the monotonic clock (`time.monotonic`), always. The *time of day* is for people
and for data: times of receipt (which the log keeps from going backwards), and since when something is so.

After a restart of the process the monotonic clock goes on, after one of the machine it does not: `boot` says
which. How much the time of day was set in between can be told in the first case only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

Clock = Callable[[], float]

STEP_S = 0.5
"""By less than this the clocks drift apart between two looks, or a look was interrupted."""


def boot() -> str:
    """Names the time since the machine was started; '' where that cannot be known."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class ClockWatch:
    """Notices that the time of day was set. Asked again and again, by one thread."""

    def __init__(self, time_of_day: Clock = time.time, steady: Clock = time.monotonic) -> None:
        self._time_of_day, self._steady = time_of_day, steady
        self._offset = self.offset()

    def offset(self) -> float:
        """The time of day of the moment at which the machine was started, as the clock has it now."""
        return self._time_of_day() - self._steady()

    def stepped(self) -> float:
        """By how much the time of day was set since this was last asked: negative when it was set back."""
        now = self.offset()
        step, self._offset = now - self._offset, now
        return step if abs(step) > STEP_S else 0.0


def when(seconds: float | None) -> str | None:
    """A time for people and JSON: ISO 8601 in UTC."""
    return None if seconds is None else f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
