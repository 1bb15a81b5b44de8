"""One engine per state directory, even while the engine of a killed run is still going down."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from signoff.errors import StateError
from signoff.private import opener

_PATIENCE_S = 60.0


@contextmanager
def engine_lock(state: Path) -> Iterator[None]:
    """Hold the lock; waits for an engine that has lost its run and is about to end."""
    with open(state / "engine.lock", "w", opener=opener) as file:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StateError(f"another engine still works on {state}") from None
                time.sleep(0.1)
        yield
