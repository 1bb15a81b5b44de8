"""What may interrupt a batch: a request to stop, the end of the drain, the end of patience."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field


class Interrupted(Exception):
    """The run is over; the batch stays owed and is done again by the next run."""


class GaveUp(Exception):
    """A run that is to end (`--once`) has waited long enough for a sink; the batch stays owed."""


@dataclass
class Interrupts:
    """Shared by all queries of an engine."""

    patience_s: float | None = None
    """How long a failing sink is waited for; None: for ever."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _deadline: float = float("inf")

    def stop(self, within_s: float) -> None:
        """Finish what is in flight within this time, then interrupt."""
        self._deadline = min(self._deadline, time.monotonic() + within_s)
        self._stop.set()

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def overdue(self) -> bool:
        return time.monotonic() >= self._deadline

    def wait(self, seconds: float) -> None:
        """Wait, but not beyond the deadline; raises Interrupted when it has passed."""
        until = time.monotonic() + seconds
        while (left := min(until, self._deadline) - time.monotonic()) > 0:
            # While draining, look again often: the deadline may have been moved.
            if self._stop.wait(min(left, 0.5)):
                time.sleep(min(max(min(until, self._deadline) - time.monotonic(), 0.0), 0.1))
        if self.overdue:
            raise Interrupted
