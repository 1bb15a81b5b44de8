"""The processes of a run: started with a job on their standard input, started again when they crash.

A child's standard input stays open for as long as the run lives; its end tells the child that the run
is gone, however that came about. So no process outlives a run that was killed.

What a child writes to standard error passes through the run, which may be drawing a table there.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import IO

from signoff.terminal import harmless

logger = logging.getLogger(__name__)

_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 15.0
_RELAY_GRACE_S = 2.0
_NOISE = b"WARNING: Using incubator modules"
"""Java says so whenever Spark starts; it is Spark's own choice, and nobody's problem."""
_STEADY_S = 30.0
"""A child that lived this long did not crash because of how it was started."""


@dataclass
class Child:
    """One process, and the patience with it."""

    name: str
    module: str
    job: bytes = b""
    pass_fds: Sequence[int] = ()
    crashes: int = 0
    """In a row, without a steady time in between."""
    _process: subprocess.Popen[bytes] | None = None
    _prepared: subprocess.Popen[bytes] | None = None
    _started: float = 0.0
    _again_at: float = field(default=0.0)
    _relay: threading.Thread | None = None

    def prepare(self) -> None:
        """Have it load its modules, and wait for its job; `start` goes on from there."""
        self._prepared = self._open()

    def start(self) -> None:
        self._started = time.monotonic()
        self._process, self._prepared = self._prepared or self._open(), None
        assert self._process.stdin is not None and self._process.stderr is not None
        self._relay = threading.Thread(target=_relay, args=(self._process.stderr,), daemon=True)
        self._relay.start()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(self.job)
            self._process.stdin.flush()

    def _open(self) -> subprocess.Popen[bytes]:
        """A new process, in a session of its own, with pipes to its input and from its errors."""
        return subprocess.Popen(
            [sys.executable, "-m", self.module],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=tuple(self.pass_fds),
            start_new_session=True,
        )

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll() if self._process else None

    def restart_when_due(self) -> bool:
        """Start it again after a crash, later and later; true when it was started."""
        now = time.monotonic()
        if not self._again_at:
            if now - self._started > _STEADY_S:
                self.crashes = 0
            self.crashes += 1
            wait = min(_FIRST_WAIT_S * 2 ** (self.crashes - 1), _LONGEST_WAIT_S)
            self._again_at = now + wait
            logger.warning(
                "%s ended with code %s; started again in %.1f s", self.name, self.exit_code(), wait
            )
        if now < self._again_at:
            return False
        self._again_at = 0.0
        self.release()
        self.start()
        return True

    def ask_to_stop(self) -> None:
        if self._process and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def release(self) -> None:
        """Close its standard input: the run is over for it."""
        if self._process and self._process.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()

    def wait(self, seconds: float) -> bool:
        """Wait for its end; false when it has not come."""
        if self._process is None:
            return True
        try:
            self._process.wait(max(seconds, 0.0))
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        if self._prepared:
            self._prepared.kill()
            self._prepared.communicate()
            self._prepared = None
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._relay:
            self._relay.join(_RELAY_GRACE_S)


def _relay(lines: IO[bytes]) -> None:
    """Pass on what a child writes, to wherever standard error leads at this moment."""
    with lines:
        for line in lines:
            if not line.startswith(_NOISE):
                sys.stderr.write(harmless(line.decode(errors="replace"), sys.stderr))
                sys.stderr.flush()
