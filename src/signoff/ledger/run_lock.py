"""The lock of a run: one run per state directory, and everybody can see whether it is alive.

`flock` on `state/lock`: the kernel drops it with the process, however it dies, so the lock is never
stale. The file names the holder's pid for people; it counts only while the lock is held.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from signoff.errors import StateError
from signoff.private import make_state

PATIENCE_SECONDS = 0.5
"""A look by `held_by` takes the lock for microseconds; a run that starts just then tries again."""


class RunLock:
    """Held by `signoff run` for as long as it runs; asked by all other commands."""

    def __init__(self, state: Path) -> None:
        self.path = Path(state) / "lock"
        self._file: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock; False when another run has it. Creates the state directory."""
        if self._file is not None:
            return True
        try:
            make_state(self.path.parent)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StateError(
                f"the state directory {self.path.parent} cannot be made or written to: {_why(error)}; give "
                "the pipeline one that this user may write to, with `state:` or --set state=PATH"
            ) from error
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _lock(file, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                os.close(file)
                return False
            time.sleep(0.01)
        with suppress(OSError):  # a full disk; the pid is for people
            os.ftruncate(file, 0)
            os.pwrite(file, str(os.getpid()).encode(), 0)
        self._file = file
        return True

    def acquire(self) -> None:
        """Take the lock or raise StateError, naming the run that has it."""
        if not self.try_acquire():
            raise StateError(
                f"{self.path.parent} is in use by the run with pid {self.held_by()}; "
                "stop that one first, or give this pipeline a state directory of its own"
            )

    def held_by(self) -> int | None:
        """The pid of the run that is alive, or None. Works from any process; changes nothing."""
        if self._file is not None:
            return os.getpid()
        try:
            file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StateError(
                f"the state directory {self.path.parent} cannot be read: {_why(error)}; it is private: ask "
                "as the user of the run"
            ) from error
        try:
            if _lock(file, fcntl.LOCK_SH):
                return None
            return int(os.pread(file, 32, 0) or b"0")
        finally:
            os.close(file)

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _lock(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _why(error: OSError) -> str:
    """What the system says, and where, if that is a directory above."""
    return f"{error.strerror} ({error.filename})" if error.filename else str(error.strerror or error)
