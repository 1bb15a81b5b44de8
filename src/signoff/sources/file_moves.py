"""Putting files away so that only the file that was read goes, nothing is overwritten, and it survives a
power cut.

A file is first renamed aside, to a hidden name next to it. From then on nobody can put another file in its
place, so what is looked at is what goes: if it is not the file that was read, it is put back. A file that
a crash left aside is put back by the next run, which does it all again.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from signoff.durable import make_directory, sync_directory
from signoff.private import for_the_user

ASIDE = ".settled"


def aside_of(path: Path, token: str, unit: int) -> Path:
    """The hidden name of a file while it is looked at for the last time."""
    return path.with_name(f".{token}-{unit}{ASIDE}")


def put_back(aside: Path, path: Path) -> Path | None:
    """Give the file its name again, or the next free one if that is taken by now; None if it is not there."""
    try:
        os.link(aside, path, follow_symlinks=False)
    except FileExistsError:
        target = _free_name(path.parent, path.name)
        aside.rename(target)
        return target
    except FileNotFoundError:
        return None
    except OSError:  # no hard links here
        target = _free_name(path.parent, path.name)
        with suppress(FileNotFoundError):
            aside.rename(target)
            return target
        return None
    aside.unlink()
    return path


def move(aside: Path, name: str, directory: Path) -> Path:
    """Move the file into the directory, under `name` or the first free `name-1`, `name-2`, …"""
    with for_the_user():
        make_directory(directory)
    target = _free_name(directory, name)
    try:
        aside.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _move_across(aside, target)
    return target


def sync(directories: Iterable[Path]) -> None:
    """Make what was renamed or removed in these directories durable: once for many files."""
    for directory in set(directories):
        with suppress(FileNotFoundError):  # gone as well; the others are not
            sync_directory(directory)


def _free_name(directory: Path, name: str) -> Path:
    target, number = directory / name, 0
    while os.path.lexists(target):
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
    sync_directory(target.parent)  # before the original goes
    path.unlink()
