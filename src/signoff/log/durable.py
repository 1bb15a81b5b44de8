"""Files that appear whole or not at all, and directory entries that survive a loss of power."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TEMPORARY = ".tmp"


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Create a directory and those above it that are missing, durably."""
    if not directory.is_dir():
        make_directory(directory.parent)
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)


def write_whole(path: Path, content: bytes) -> None:
    """Write `path` durably: written aside, fsynced, renamed over. On an error nothing has changed."""
    aside = path.with_name(path.name + TEMPORARY)
    try:
        with open(aside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)  # noqa: PTH105  (one call, one meaning)
    except OSError:
        with suppress(OSError):
            aside.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)
