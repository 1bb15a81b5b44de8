"""`python -m tests.page.idle_engine`: in the place of the engine, for a run that has nothing to do."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def stop(number: int, frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    sys.stdin.read()
