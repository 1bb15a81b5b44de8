"""A clock for what is timed across restarts of the service: nobody can set it, and it goes on while the
machine sleeps. It begins anew with the machine, as all runs do."""

from __future__ import annotations

import time


def uptime() -> float:
    """Seconds since the machine was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def since(moment: float) -> float:
    """Seconds from a moment until now; 0 for one that is not of this start of the machine."""
    return max(uptime() - moment, 0.0)
