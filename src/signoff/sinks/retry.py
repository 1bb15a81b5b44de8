"""Asking a sink again: only for the rows it has not taken, with exponential backoff and jitter.

Who waits where: `deliver` runs in the sink's thread on an executor and waits there only for a
moment (`budget_s` in all), so that a sink that is down does not hold a task for minutes. What is
left then goes back to the engine, which comes again later, after `next_wait_s`, with the number of
attempts already made. Both use the same schedule, so it does not matter where a wait is spent.

Invariants: a row that was taken or refused for good is never written again by `deliver`; every
index is in exactly one of `taken`, `refused` and `left`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from tenacity import RetryCallState, Retrying, retry_if_result

from signoff.errors import PermanentError, TransientError
from signoff.pipeline.model import Retry
from signoff.sinks.contract import Refusal, Writer
from signoff.sinks.refusal import brief

BUDGET_S = 1.0

Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class Delivered:
    """What became of each row of a batch."""

    taken: Mask
    """True for each row the sink signed for."""
    refused: list[Refusal]
    """Rows that will never be taken, by their index in the batch given to `deliver`."""
    left: list[int]
    """Rows that failed, but may be taken later."""
    attempts: int
    """Tries made so far, those before this call included."""
    error: str = ""
    """Why `left` was not taken, at the last try."""
    exhausted: bool = False
    """The last try that `retry` allows is over: `on_failure` applies to `left`."""


def deliver(
    writer: Writer,
    rows: pa.RecordBatch,
    retry: Retry,
    *,
    attempts_before: int = 0,
    budget_s: float = BUDGET_S,
    sleep: Callable[[float], None] = time.sleep,
) -> Delivered:
    """Write rows, asking again for those that failed while the waits fit into `budget_s`.

    At least one try is made, whatever the number of attempts before. Never raises SinkError.
    """
    delivery = _PendingRows(writer, rows)

    def wait(state: RetryCallState) -> float:
        return next_wait_s(retry, attempts_before + state.attempt_number)

    def stop(state: RetryCallState) -> bool:
        if exhausted(retry, attempts_before + state.attempt_number):
            return True
        # Time spent in slow tries counts as well: five timeouts of 10 s are no moment.
        spent = max(state.idle_for, state.seconds_since_start or 0.0)
        return spent + state.upcoming_sleep > budget_s

    tries = Retrying(
        retry=retry_if_result(bool), wait=wait, stop=stop, sleep=sleep, retry_error_callback=lambda _: None
    )
    tries(delivery.attempt)
    attempts = attempts_before + delivery.attempts
    left = delivery.pending.tolist()
    return Delivered(
        taken=delivery.taken,
        refused=sorted(delivery.refused, key=lambda one: one.index),
        left=left,
        attempts=attempts,
        error=delivery.error if left else "",
        exhausted=bool(left) and exhausted(retry, attempts),
    )


def next_wait_s(retry: Retry, attempts: int, chance: Callable[[], float] = random.random) -> float:
    """Seconds to wait after `attempts` failed tries."""
    return retry.wait_s(attempts, chance)


def exhausted(retry: Retry, attempts: int) -> bool:
    """Whether no further try is allowed after this many."""
    return retry.attempts is not None and attempts >= retry.attempts


@dataclass(slots=True)
class _PendingRows:
    """The state of one `deliver` call between its tries."""

    writer: Writer
    rows: pa.RecordBatch
    attempts: int = 0
    error: str = ""
    refused: list[Refusal] = field(default_factory=list)
    taken: Mask = field(init=False)
    pending: np.ndarray[tuple[int], np.dtype[np.int64]] = field(init=False)

    def __post_init__(self) -> None:
        self.taken = np.zeros(self.rows.num_rows, dtype=np.bool_)
        self.pending = np.arange(self.rows.num_rows, dtype=np.int64)

    def attempt(self) -> bool:
        """Try once what is pending; true when something still is."""
        self.attempts += 1
        everything = len(self.pending) == self.rows.num_rows
        rows = self.rows if everything else self.rows.take(pa.array(self.pending))
        try:
            refusals = self.writer.write(rows)
        except TransientError as error:
            self.error = brief(error)
            return True
        except PermanentError as error:
            reason = brief(error)
            self.refused += [Refusal(place, reason, transient=False) for place in self.pending.tolist()]
            self.pending = self.pending[:0]
            return False
        self._sort(refusals)
        return len(self.pending) > 0

    def _sort(self, refusals: Sequence[Refusal]) -> None:
        places = self.pending
        self.taken[places] = True
        again: list[int] = []
        said = {reason: brief(reason) for reason in {one.reason for one in refusals}}
        for one in refusals:
            place = int(places[one.index])
            self.taken[place] = False
            if one.transient:
                again.append(place)
                self.error = said[one.reason]
            else:
                self.refused.append(Refusal(place, said[one.reason], transient=False))
        self.pending = np.array(sorted(again), dtype=np.int64)
