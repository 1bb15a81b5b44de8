"""Runs in processes of their own, with `signoff jobs run`: they end with the invoker, and go on when asked
again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from signoff.pipeline.overlays import VARIABLE

_GRACE_S = 8.0
_LOOK_S = 0.05


class Process(Protocol):
    """A run that goes on."""

    def code(self) -> int | None:
        """None while it does; negative if a signal has ended it."""

    def stop(self) -> None:
        """Have it finish what is in flight, and end."""

    def kill(self) -> None: ...


class JobProcess:
    """`signoff jobs run`, whose standard input ends when the invoker does, however that comes about."""

    def __init__(self, file: Path, given: Mapping[str, str], asked_by: str) -> None:
        command = [sys.executable, "-m", "signoff.cli", "jobs", "run", str(file), "--quiet", "--while-asked"]
        command += ["--asked-by", asked_by]
        for name, text in given.items():
            command += ["-p", f"{name}={text}"]
        # What is laid over the pipeline is not meant for the job.
        environ = {name: value for name, value in os.environ.items() if name != VARIABLE}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environ, start_new_session=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def code(self) -> int | None:
        return self._process.poll()

    def stop(self) -> None:
        with suppress(ProcessLookupError):
            self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def end_all(processes: list[Process], grace_s: float = _GRACE_S) -> None:
    """End runs that go on: they are done again, or go on, when the invoker is there again."""
    for process in processes:
        process.stop()
    deadline = time.monotonic() + grace_s
    while any(process.code() is None for process in processes) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    for process in processes:
        if process.code() is None:
            process.kill()
