"""Putting files away so that only the file that was read goes, nothing is overwritten, and it survives a
power cut.

A file is first renamed aside, to a hidden name next to it. From then on nobody can put another file in its
place, so what is looked at is what goes: if it is not the file that was read, it is put back. A file that
a crash left aside is put back by the next run, which does it all again. If another file has its name by
then, it gets a free one, which whoever knows the file by its name must note first (see `settling`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from signoff.durable import make_directory, sync_directory
from signoff.private import for_the_user

ASIDE = ".settled"
AT_CWD, NO_REPLACE = -100, 1
"""Of Linux's renameat2."""
UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.ENOTSUP)


def aside_of(path: Path, token: str, unit: int) -> Path:
    """The hidden name of a file while it is looked at for the last time."""
    return path.with_name(f".{token}-{unit}{ASIDE}")


def put_back(aside: Path, path: Path) -> None:
    """Give the file its name again, if it is there. Raises FileExistsError if another file has that name."""
    try:
        os.link(aside, path, follow_symlinks=False)
    except FileExistsError:
        if os.path.samestat(aside.lstat(), path.lstat()):  # killed between the two steps
            aside.unlink()
            return
        raise
    except FileNotFoundError:
        return
    except OSError:  # no hard links here
        with suppress(FileNotFoundError):
            _rename_to_free(aside, path)
        return
    aside.unlink()


def move(aside: Path, name: str, directory: Path) -> Path:
    """Move the file into the directory, under `name` or a free `name-1`, `name-2`, …"""
    with for_the_user():
        make_directory(directory)
    try:
        return _rename(aside, directory, name)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return _move_across(aside, directory, name)


def sync(directories: Iterable[Path]) -> None:
    """Make what was renamed or removed in these directories durable: once for many files.

    Raises OSError if that is not certain for one of them; the others are synced all the same.
    """
    failed: OSError | None = None
    for directory in set(directories):
        try:
            sync_directory(directory)
        except (FileNotFoundError, NotADirectoryError):
            pass  # gone, and what was in it
        except PermissionError:
            pass  # whoever may write to a directory but not read it cannot sync it
        except OSError as error:
            failed = error
    if failed is not None:
        raise failed


def _rename(path: Path, directory: Path, name: str) -> Path:
    """Rename to a free name. What another process puts there in the meantime is not overwritten."""
    while True:
        target = free_name(directory, name)
        with suppress(FileExistsError):
            _rename_to_free(path, target)
            return target


def exists(path: Path) -> bool:
    return os.path.lexists(path)


def free_name(directory: Path, name: str, taken: Callable[[Path], bool] = exists) -> Path:
    """`name`, or a free `name-1`, `name-2`, … Found in few looks, however many of the name there are: the
    numbers up to the free one are doubled, then halved."""
    stem, dot, suffixes = name.partition(".")

    def numbered(number: int) -> Path:
        return directory / (f"{stem}-{number}{dot}{suffixes}" if number else name)

    last, free = -1, 0
    while taken(numbered(free)):
        last, free = free, free * 2 + 1
    while free - last > 1:
        middle = (last + free) // 2
        if taken(numbered(middle)):
            last = middle
        else:
            free = middle
    return numbered(free)


def _rename_to_free(path: Path, target: Path) -> None:
    """Raises FileExistsError if the target is there by now."""
    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is not None:
        if call(AT_CWD, os.fsencode(path), AT_CWD, os.fsencode(target), NO_REPLACE) == 0:
            return
        code = ctypes.get_errno()
        if code not in UNSUPPORTED:
            raise OSError(code, os.strerror(code), str(path), None, str(target))
    # The file system cannot do it at once: the name is taken first. A crash here leaves an empty file.
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    try:
        path.rename(target)
    except OSError:
        target.unlink(missing_ok=True)
        raise


def _move_across(path: Path, directory: Path, name: str) -> Path:
    """To another file system: the copy appears whole, and only then the original goes."""
    part = directory / f".{path.name}.part"
    shutil.copy2(path, part)
    with part.open("rb") as file:
        os.fsync(file.fileno())
    target = _rename(part, directory, name)
    sync_directory(directory)  # before the original goes
    path.unlink()
    return target
