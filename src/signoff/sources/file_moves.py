"""Putting files away so that nothing is overwritten and the move survives a power cut."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from signoff.errors import SourceError


def move(path: Path, directory: Path) -> Path:
    """Move the file into the directory, under its name or the first free `name-1`, `name-2`, …"""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        target = _free_name(directory, path.name)
        try:
            path.rename(target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _move_across(path, target)
        _sync(directory)
        _sync(path.parent)
    except OSError as error:
        raise SourceError(
            f"cannot move {path} to {directory}: {error.strerror}; its events are settled and it will "
            "be moved when this is possible"
        ) from error
    return target


def delete(path: Path) -> None:
    """Remove the file for good."""
    try:
        path.unlink(missing_ok=True)
        _sync(path.parent)
    except OSError as error:
        raise SourceError(
            f"cannot delete {path}: {error.strerror}; its events are settled and it will be deleted "
            "when this is possible"
        ) from error


def _free_name(directory: Path, name: str) -> Path:
    target, number = directory / name, 0
    while target.exists():
        number += 1
        stem, dot, suffixes = name.partition(".")
        target = directory / f"{stem}-{number}{dot}{suffixes}"
    return target


def _move_across(path: Path, target: Path) -> None:
    """To another file system: the copy appears whole, and only then the original goes."""
    part = target.with_name(f".{target.name}.part")
    shutil.copy2(path, part)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    part.rename(target)
    path.unlink()


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
