"""The process of a run, known by the lock it holds: found again by a service that did not start it.

`DIRECTORY/run` is locked (`flock`) by `signoff.service.launch` before it becomes `signoff run`, and stays
locked for as long as that process lives, whatever becomes of the service. The file says who it is. Its
content counts only while the lock is held, and a signal goes only to a process that has the pid and the
time of start that stand there: a pid alone may by now be anybody's.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "run"
PATIENCE_S = 0.5
"""Who looks takes the lock for microseconds; who wants to hold it tries again."""


@dataclass(frozen=True)
class RunProcess:
    """A run that is alive."""

    pid: int
    began: int
    """Ticks since the machine was started: with the pid, this names one process."""
    revision: int
    """Of the pipeline's text."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to this process, and to no other that has got its pid meanwhile."""
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(self.pid)
            try:
                # The descriptor stays with the process that this is true of.
                if began(self.pid) == self.began:
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


def find_run(directory: Path) -> RunProcess | None:
    """The run of a pipeline that is alive, also when it is only starting; None if there is none."""
    try:
        file = os.open(directory / FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if _lock(file, fcntl.LOCK_SH):
            return None
        deadline = time.monotonic() + PATIENCE_S
        while True:  # who has just locked it writes its name at once
            with suppress(ValueError, TypeError):
                return RunProcess(**json.loads(os.pread(file, 1000, 0)))
            if _lock(file, fcntl.LOCK_SH) or time.monotonic() > deadline:
                return None
            time.sleep(0.01)
    finally:
        os.close(file)


def hold(directory: Path) -> int | None:
    """Lock the file for this process and what it becomes; None if another has it. For the launcher."""
    file = os.open(directory / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + PATIENCE_S
    while not _lock(file, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            os.close(file)
            return None
        time.sleep(0.01)
    os.ftruncate(file, 0)
    return file


def write_name(file: int, revision: int) -> None:
    """Say who holds the lock."""
    me = RunProcess(os.getpid(), began(os.getpid()), revision)
    os.pwrite(file, json.dumps(asdict(me)).encode(), 0)


def began(pid: int) -> int:
    """When a process was started, in ticks; 0 if there is none."""
    return int(_fields(pid)[19])


def parent(pid: int) -> int:
    """The process that has started it; 0 if there is none."""
    return int(_fields(pid)[1])


def _fields(pid: int) -> list[str]:
    """What the system says of a process, behind its name (see proc(5)): its state is the first."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["0"] * 50


def _lock(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
