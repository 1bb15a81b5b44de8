"""Backpressure, reported: that a source is held back, why, and since when.

Used by an intake for its source, and by the engine for each of its queries. What lasts less than a moment is
not reported, and what comes and goes is one: the log of the run gets a line when it begins and one when it
ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

_BEGINS_S = 1.0
_ENDS_S = 2.0


@dataclass(frozen=True, slots=True)
class Held:
    """A source is held back."""

    reason: str
    since: float
    """Seconds since the epoch."""


class Holding:
    """Of one source, in one process. `look` is called often, by one thread."""

    def __init__(
        self,
        source: str,
        logger: logging.Logger,
        now: Callable[[], float] = time.monotonic,
        time_of_day: Callable[[], float] = time.time,
    ) -> None:
        self._source, self._logger, self._now, self._time_of_day = source, logger, now, time_of_day
        self._since: float | None = None
        """When it began by the monotonic clock, also before it is reported."""
        self._free_since: float | None = None
        self.held: Held | None = None

    def look(self, reason: str) -> None:
        """Say how it is: why the source is held back at the moment, or '' when it is not."""
        now = self._now()
        if reason:
            self._free_since = None
            self._since = now if self._since is None else self._since
            self._hold(reason, now)
        elif self.held is None:
            self._since = None
        else:
            self._free_since = now if self._free_since is None else self._free_since
            if now - self._free_since >= _ENDS_S:
                self.end()

    def _hold(self, reason: str, now: float) -> None:
        assert self._since is not None
        if self.held is None and now - self._since < _BEGINS_S:
            return
        if self.held is None:
            self._logger.warning('"%s" is held back: %s', self._source, reason)
        began = self._time_of_day() - (now - self._since) if self.held is None else self.held.since
        self.held = Held(reason, began)

    def end(self) -> None:
        """It is over, or is no longer watched."""
        if self.held is not None:
            assert self._since is not None
            lasted = (self._now() if self._free_since is None else self._free_since) - self._since
            self._logger.warning('"%s" is no longer held back, after %.0f s', self._source, lasted)
        self.held = self._since = self._free_since = None
