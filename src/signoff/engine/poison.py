"""Finding the event a plan fails on.

A bad payload is one row's problem and never comes here. This is for a batch on which the plan itself
fails: an overflow in a user's expression, a Python worker that dies. The range is run again, without
any sink, in halves, until one event is left that fails alone, twice, while the range without it
passes. Anything that does not narrow down like that is not poison but an infrastructure failure, and is
raised as such: an event is never blamed for a full disk.

One culprit in a batch of n costs log2(n) + 3 runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from signoff.errors import EngineError
from signoff.pipeline.secrets import redact

logger = logging.getLogger(__name__)

Probe = Callable[[int, int, frozenset[int]], str | None]
"""Run the plan over [start, end) without some events; None when it passes, else why it fails."""


class PlanFailed(EngineError):
    """Spark failed on a batch, and not because of single events; the query is started again."""


def isolate(probe: Probe, start: int, end: int) -> Mapping[int, str]:
    """The events of [start, end) the plan fails on, with the reason.

    Empty when the range passes now: what failed was not the events. Raises PlanFailed when it fails
    without any event.
    """
    found: dict[int, str] = {}
    while (reason := probe(start, end, frozenset(found))) is not None:
        if (empty := probe(start, start, frozenset())) is not None:
            raise PlanFailed(f"the plan fails even without events: {empty}")
        culprit = _search(probe, start, end, frozenset(found))
        again = None if culprit is None else probe(culprit, culprit + 1, frozenset())
        if culprit is None or again is None:
            raise PlanFailed(f"the plan fails, but on no single event: {reason}")
        found[culprit] = again
        logger.error("the plan fails on event %d, it becomes a dead letter: %s", culprit, again)
    return found


def _search(probe: Probe, low: int, high: int, known: frozenset[int]) -> int | None:
    """Halve a range that fails until one event is left; None when it stops failing on the way."""
    while high - low > 1:
        middle = (low + high) // 2
        if probe(low, middle, known) is not None:
            high = middle
        else:
            low = middle
    return low if low not in known else None


def last_line(error: BaseException) -> str:
    """The line of a stack trace that says what happened; Spark wraps it in many others."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = [
        line
        for line in lines
        if not line.startswith(("at ", "...", "File ", "Traceback", "JVM stacktrace", "^"))
    ]
    chosen = next(
        (line for line in telling if line.startswith("[") and "]" in line),
        telling[0] if telling else type(error).__name__,
    )
    return redact(chosen.split(" SQLSTATE")[0][:500])
