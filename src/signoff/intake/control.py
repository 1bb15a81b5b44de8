"""How the run controls an intake: a pipe and a signal.

The end of the control pipe means: the run is over, or it died. SIGTERM means: receive no more, but
go on settling. There is no third way in, so an intake never outlives its run.
"""

from __future__ import annotations

import os
import select
import signal

from signoff.errors import SourceError

LONGEST_JOB = 16 * 1024**2


class IntakeControl:
    """The intake's end of the pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.stop_requested = False
        self._over = False

    def listen(self) -> None:
        """React to signals. An interrupt typed at the terminal is the run's to handle, not ours."""
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def read_instructions(self) -> bytes:
        """The first line. Nothing else is ever sent, so reading past it loses nothing."""
        line = b""
        while not line.endswith(b"\n"):
            data = os.read(self._descriptor, 65536)
            line += data
            if not data or len(line) > LONGEST_JOB:
                raise SourceError(
                    "an intake is started by `signoff run`: it expects its instructions as a line of JSON"
                )
        return line

    def over(self, wait_s: float = 0.0) -> bool:
        """Whether the run is over; waits for it at most this long."""
        if not self._over and select.select([self._descriptor], [], [], wait_s)[0]:
            self._over = os.read(self._descriptor, 4096) == b""
        return self._over

    def _on_stop(self, *_: object) -> None:
        self.stop_requested = True
