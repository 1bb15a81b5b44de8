"""How long ago a run began. By the monotonic clock, which survives restarts of the invoker and does not
depend on the time of day; after a restart of the machine by the time of day, as well as that can be known.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from signoff.clock import Clock, boot
from signoff.invoker.notes import Began


@dataclass
class RunClock:
    """Used by one invoker."""

    steady: Clock = time.monotonic
    time_of_day: Clock = time.time
    boot: str = field(default_factory=boot)

    def now(self) -> Began:
        return Began(self.boot, self.steady(), self.time_of_day())

    def beginning(self, began: Began) -> float:
        """When it began, by the monotonic clock of now; never later than now."""
        if began.boot == self.boot:
            return min(began.steady, self.steady())
        return self.steady() - max(self.time_of_day() - began.at, 0.0)
