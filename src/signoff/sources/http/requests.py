"""Requests on their way from the server's thread to the intake's, and their answers on the way back.

    server: reserve ─► put ──► intake: take ─► logged ─► settled ──► answer ─► server

What it keeps: bytes that are not in the log yet, and events that are not settled yet, are bounded; a
request that finds no room is turned away, not queued. Each request is answered exactly once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

WAITING_BYTES = 64 * 1024**2
"""Most bytes of requests that are not in the log yet, unless one request alone is larger."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the client gets."""

    status: int
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


def turned_away(reason: str, retry_after_s: int = 1) -> Reply:
    """Not now: nothing was taken, or the outcome is not known yet; the client should retry."""
    return Reply(503, {"error": reason}, {"Retry-After": str(retry_after_s)})


@dataclass(slots=True, eq=False)
class PendingRequest:
    """One request's events; they get sequence numbers in a row."""

    payloads: Sequence[bytes]
    headers: Mapping[str, str]
    message_id: str | None
    size: int
    deadline: float
    loop: asyncio.AbstractEventLoop
    answered: asyncio.Future[Reply]
    count: int = 0
    unit: int = 0
    taken: int = 0
    logged: int = 0
    first: int = -1
    """Sequence number of the first event, once it is in the log."""
    given_up: bool = False
    """Answered before it was in the log, because that took too long."""
    refused: dict[int, str] = field(default_factory=dict)
    expired: dict[int, str] = field(default_factory=dict)
    for_now: int = 0
    """How many of the refused may be taken another time."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """How many of the events were delivered, dropped, dead-lettered."""

    def __post_init__(self) -> None:
        self.count = len(self.payloads)

    def answer(self, answer: Reply) -> None:
        """Let the server's thread send it. Also when the client is gone, or the server is."""
        try:
            self.loop.call_soon_threadsafe(self._set, answer)
        except RuntimeError:  # the loop is closed
            return

    def _set(self, answer: Reply) -> None:
        if not self.answered.done():
            self.answered.set_result(answer)


class Inbox:
    """The queue between the two threads."""

    def __init__(self, max_pending: int, first_unit: int) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[PendingRequest] = deque()
        self._max_pending = max_pending
        self._pending = 0
        self._bytes = 0
        self._next_unit = first_unit
        self.closed_because = ""
        self.held_because = ""
        """Why nothing is taken from it for now; said by the intake's thread."""

    # The server's thread

    def reserve(self, size: int) -> bool:
        """Whether there is room for so many more bytes; they are then held until `release`."""
        with self._changed:
            if self._bytes and self._bytes + size > WAITING_BYTES:
                return False
            self._bytes += size
            return True

    def release(self, size: int) -> None:
        with self._changed:
            self._bytes -= size

    def put(self, delivery: PendingRequest) -> str:
        """Queue a request whose bytes are reserved; returns why not, or ''."""
        with self._changed:
            if self.closed_because:
                return self.closed_because
            if self._pending and self._pending + delivery.count > self._max_pending:
                return f"{self._pending} events are not settled yet (max_pending is {self._max_pending})"
            self._pending += delivery.count
            delivery.unit = self._next_unit
            self._next_unit += 1
            self._waiting.append(delivery)
            self._changed.notify()
            return ""

    @property
    def pending(self) -> int:
        """Events received and not settled."""
        return self._pending

    # The intake's thread

    def take(self, max_events: int, timeout_s: float) -> list[tuple[PendingRequest, int, int]]:
        """Parts of requests (from, to), at most so many events; waits for the first."""
        parts = []
        with self._changed:
            if not self._waiting and timeout_s > 0:
                self._changed.wait(timeout_s)
            while self._waiting and max_events > 0:
                delivery = self._waiting[0]
                start = delivery.taken
                delivery.taken = min(delivery.count, start + max_events)
                max_events -= delivery.taken - start
                parts.append((delivery, start, delivery.taken))
                if delivery.taken == delivery.count:
                    self._waiting.popleft()
        return parts

    def in_log(self, delivery: PendingRequest) -> None:
        """All of the request is durable: its bytes need not be held."""
        delivery.payloads = ()
        self.release(delivery.size)

    def settled(self, delivery: PendingRequest) -> None:
        with self._changed:
            self._pending -= delivery.count

    def give_back(self, reason: str, now: float | None = None) -> None:
        """Turn away the requests of which nothing was taken; with `now` only those whose time is up."""
        with self._changed:
            back = [d for d in self._waiting if not d.taken and (now is None or d.deadline <= now)]
            for delivery in back:
                self._waiting.remove(delivery)
                self._pending -= delivery.count
                self._bytes -= delivery.size
        for delivery in back:
            delivery.answer(turned_away(reason))

    def close(self, reason: str) -> None:
        """From now on every request is turned away."""
        with self._changed:
            self.closed_because = reason
        self.give_back(reason)


def deadline_after(seconds: float) -> float:
    return time.monotonic() + seconds
