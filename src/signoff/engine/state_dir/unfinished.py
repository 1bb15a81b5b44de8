"""A directory that is being made beside its place, and what is left of those that were never finished.

Whoever makes one holds a lock in it (`flock`: it goes with the process, however that ends). Nobody removes
one that is locked: of two that are made for the same place at the same time, the first to be whole gets it.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from signoff.errors import StateError

MAKING = "making"
"""The file that is locked. It is gone when the directory is in its place."""
_TRIES = 10


@contextmanager
def unfinished(place: Path, mark: str) -> Iterator[Path]:
    """A new, private directory `place` + `mark` + something; the caller puts it in its place with `finish`.

    Those that somebody who was killed has left are removed, and this one if there is an error.
    """
    for left in place.parent.glob(f"{glob.escape(place.name)}{mark}*"):
        with suppress(OSError):
            held = _hold(left)
            if held is not None:
                shutil.rmtree(left, ignore_errors=True)
                os.close(held)
    directory, held = _new(place, mark)
    try:
        yield directory
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    finally:
        os.close(held)


def finish(directory: Path, place: Path) -> None:
    """Put it in its place, where there may be an empty directory."""
    try:
        with suppress(FileNotFoundError):
            place.rmdir()
        os.replace(directory, place)  # noqa: PTH105
    except OSError as error:
        raise StateError(f"{place} cannot be put there: {error.strerror}; nothing was changed") from error
    (place / MAKING).unlink(missing_ok=True)


def _new(place: Path, mark: str) -> tuple[Path, int]:
    for _ in range(_TRIES):
        directory = Path(tempfile.mkdtemp(prefix=place.name + mark, dir=place.parent))
        held = _hold(directory)
        if held is not None:
            return directory, held
    raise StateError(f"{place}: another process removes the directories made beside it")


def _hold(directory: Path) -> int | None:
    """Lock a directory; None if somebody else has, or it is gone. Both sides make the file if it is missing:
    one that is new and not locked yet is either its maker's or gone as a whole."""
    path = directory / MAKING
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file), path.stat()):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None
