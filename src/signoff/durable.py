"""Files that appear whole or not at all, and directory entries that survive a loss of power.

An fsync of a file says nothing about the directory that names it: each of these functions also syncs the
directories it has changed. Nothing here relies on a file system that does more than it must.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

TEMPORARY = ".tmp"


def sync_directory(directory: Path) -> None:
    """Make durable which names a directory holds."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make durable what a file holds, whoever has written it; its name is the directory's affair."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Create a directory and those above it that are missing; on return their names are durable.

    Also of those that were there: whoever has made them may not have synced them, or was killed before.
    """
    directory = Path(directory).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    while not os.path.ismount(directory):
        try:
            sync_directory(directory.parent)
        except PermissionError:  # not ours, so it was there before us
            return
        directory = directory.parent


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def write_whole(path: Path, content: bytes) -> None:
    """Write `path` durably: written aside, fsynced, renamed over. On an error nothing has changed.

    Nobody but the user can read it.
    """
    aside = path.with_name(path.name + TEMPORARY)
    try:
        with open(aside, "wb", opener=_private) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)  # noqa: PTH105  (one call, one meaning)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """A text file to write to that is there, durably, when the block ends without an error.

    Else all is as it was. Nobody but the user can read it.
    """
    aside = path.with_name(path.name + TEMPORARY)
    try:
        with open(aside, "w", encoding="utf-8", opener=_private) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)  # noqa: PTH105
    except BaseException:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    sync_directory(path.absolute().parent)
