"""A rate that is kept, also by a source that is sometimes held back."""

from __future__ import annotations

import time

LONGEST_PAUSE_S = 1.0
"""How much of its rate a source that was held back may catch up on at once."""


class Pace:
    """Says how many events may go now. `rate` is events per second; None is as fast as possible."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._due, self._asked_at = 0.0, time.monotonic()

    def allowed(self, most: int, timeout_s: float) -> int:
        """How many of `most` events may go now; waits for the first, 0 when it is not in time."""
        if self._rate is None:
            return most
        self._earn(self._rate)
        if self._due < 1:
            time.sleep(min(timeout_s, (1 - self._due) / self._rate))
            self._earn(self._rate)
        allowed = min(most, int(self._due))
        self._due -= allowed
        return allowed

    def _earn(self, rate: float) -> None:
        now = time.monotonic()
        self._due += min(now - self._asked_at, LONGEST_PAUSE_S) * rate
        self._asked_at = now
