"""Notes that all processes of a user on one machine share, and that outlive each of them.

Spark gives the rows of a sink to whatever Python worker is free, and ends workers at will: how long the other
side asked us to wait, and who has a mail already, must not be forgotten with one. A sink sees no state
directory, so the notes are in the machine's directory for temporary files, in one that is the user's alone.

They save others trouble, and nothing rests on them: they are not fsynced, and where there can be none (a
directory of that name is somebody else's, or the disk is full) a process keeps to its own memory.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

_MOST = 10_000
"""Notes of a kind; the oldest go."""
_LOOK_S = 0.02


class Notes:
    """Notes of one kind, by a name of any length that is shown to nobody."""

    def __init__(self, kind: str, *, shared: bool = True) -> None:
        self._kind, self._shared = kind, shared
        self._own: dict[str, Any] = {}
        """Of this process, where there is no directory."""

    def read(self, name: str) -> Any:
        """None if there is none, or one that cannot be read."""
        path = self._path(name)
        if path is None:
            return self._own.get(name)
        with suppress(OSError, ValueError):
            return json.loads(path.read_bytes())
        return self._own.get(name)

    def write(self, name: str, note: Any) -> None:
        path = self._path(name)
        try:
            if path is None:
                raise OSError
            aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
            with open(aside, "w", opener=lambda file, flags: os.open(file, flags, 0o600)) as file:
                json.dump(note, file)
            aside.replace(path)
            self._own.pop(name, None)
            _keep_newest(path.parent)
        except OSError:
            self._own[name] = note
            if len(self._own) > _MOST:
                self._own.pop(next(iter(self._own)))

    def forget(self, name: str) -> None:
        self._own.pop(name, None)
        path = self._path(name)
        if path is not None:
            with suppress(OSError):
                path.unlink()

    @contextmanager
    def alone(self, name: str, patience_s: float) -> Iterator[bool]:
        """No other process or thread is between these lines for this name; false if one is for too long."""
        path = self._path(name)
        try:
            if path is None:
                raise OSError
            lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            yield True
            return
        try:
            yield _locked(lock, time.monotonic() + patience_s)
        finally:
            os.close(lock)

    def _path(self, name: str) -> Path | None:
        directory = _directory(tempfile.gettempdir()) if self._shared else None
        if directory is None:
            return None
        place = directory / self._kind
        try:
            place.mkdir(mode=0o700, exist_ok=True)
        except OSError:
            return None
        return place / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"


@cache
def boot() -> str:
    """Changes when the machine starts anew, and its monotonic clock with it; '' where that is not known."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _directory(temporary: str) -> Path | None:
    """The user's own directory. One that others could write to, or have put there, is not used."""
    path = Path(temporary) / f"signoff-notes-{os.getuid()}"
    with suppress(OSError):
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
        found = path.lstat()
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        return path if ours and not found.st_mode & 0o077 else None
    return None


def _locked(lock: int, until: float) -> bool:
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(_LOOK_S)


def _keep_newest(place: Path) -> None:
    notes = list(place.iterdir())
    if len(notes) <= _MOST:
        return
    aged = []
    for note in notes:
        with suppress(OSError):
            aged.append((note.stat().st_mtime, note))
    for _, note in sorted(aged)[: len(aged) - _MOST * 9 // 10]:
        with suppress(OSError):
            note.unlink()
