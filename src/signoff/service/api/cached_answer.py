"""An answer that everybody may ask for: found in a thread of its own, and kept for a moment, so that asking
for it again and again takes no thread from those who hold a token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

import anyio

T = TypeVar("T")


class Kept(Generic[T]):
    """Used by one event loop."""

    def __init__(self, find: Callable[[], T], for_s: float) -> None:
        self._find, self._for_s = find, for_s
        self._turn = asyncio.Lock()
        self._limiter: anyio.CapacityLimiter | None = None
        self._known: tuple[float, T] | None = None

    async def found(self) -> T:
        """What was found a moment ago, or is found now."""
        async with self._turn:
            if self._known is None or time.monotonic() - self._known[0] > self._for_s:
                self._limiter = self._limiter or anyio.CapacityLimiter(1)  # needs the loop it is used in
                value = await anyio.to_thread.run_sync(self._find, limiter=self._limiter)
                self._known = (time.monotonic(), value)
            return self._known[1]
