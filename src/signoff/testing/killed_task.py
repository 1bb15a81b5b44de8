"""A task of a sink in processes of its own, each of which ends by SIGKILL right after one of its steps.

One process is started, and forks for each step: to start is what costs, and there is only one thread in it.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from typing import Any

from signoff.sinks.contract import Part, Sink

STEPS = ("write", "close", "commit")


def main() -> int:
    """0 when each of them was killed where it should be."""
    sink, rows, batch = pickle.load(sys.stdin.buffer)
    for attempt, step in enumerate(STEPS):
        child = os.fork()
        if not child:
            _work(sink, rows, Part(batch, 0, attempt), step)
            os._exit(1)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            return 1
    return 0


def _work(sink: Sink, rows: Any, part: Part, last: str) -> None:
    writer = sink.open(part)
    writer.write(rows)
    _killed(last == "write")
    closed = writer.close()
    _killed(last == "close")
    sink.commit(part.batch, [closed] if closed is not None else [])
    _killed(last == "commit")


def _killed(now: bool) -> None:
    if now:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
