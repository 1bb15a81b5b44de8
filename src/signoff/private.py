"""What a run keeps is nobody else's: directories 0700 and files 0600, whatever the umask. They hold payloads.

Our own files are made with these modes. Processes that write nothing else (an intake, Java) have a umask of
077 besides; the Python workers that Java starts write what sinks write, and get back the umask of the user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from signoff.durable import make_directory

FILE, DIRECTORY = 0o600, 0o700
_OTHERS = 0o077
_VARIABLE = "SIGNOFF_UMASK"


def opener(path: str, flags: int) -> int:
    """For `open`: a file that is made is private."""
    return os.open(path, flags, FILE)


def make_private(directory: Path, *, durable: bool = True) -> None:
    """Make a directory below the state directory, and those above it that are missing."""
    missing, place = list[Path](), directory
    while not place.is_dir():
        missing.append(place)
        place = place.parent
    for place in reversed(missing):
        place.mkdir(mode=DIRECTORY, exist_ok=True)
    if durable:
        make_directory(directory)


def make_file(path: Path) -> None:
    """Make an empty file where there is none. SQLite gives its others the modes of it."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE))


def make_state(state: Path) -> None:
    """Make a state directory, or make one private that was made by an earlier release or by hand."""
    make_directory(state.parent)
    make_private(state)
    _tighten(state, DIRECTORY)
    for directory, names, files in os.walk(state):
        for kind, wanted in ((names, DIRECTORY), (files, FILE)):
            for name in kind:
                _tighten(Path(directory) / name, wanted)


def _tighten(path: Path, wanted: int) -> None:
    """Take from others what they may do; what belongs to somebody else is his to change."""
    with suppress(FileNotFoundError, PermissionError):
        status = path.lstat()
        if status.st_mode & _OTHERS and not path.is_symlink():
            path.chmod(status.st_mode & wanted)


def keep_private() -> None:
    """This process writes nothing that others should read, nor do those it starts."""
    os.environ.setdefault(_VARIABLE, f"{os.umask(_OTHERS):o}")


@contextmanager
def privately() -> Iterator[None]:
    """Processes that are started meanwhile write nothing that others should read."""
    before = os.umask(_OTHERS)
    os.environ[_VARIABLE] = f"{before:o}"
    try:
        yield
    finally:
        os.umask(before)


def as_the_user() -> None:
    """Have the umask that the user has given the run."""
    with suppress(KeyError, ValueError):
        os.umask(int(os.environ[_VARIABLE], 8))


@contextmanager
def for_the_user() -> Iterator[None]:
    """What is made meanwhile is the user's, who may share it. Where one thread makes all files."""
    before = os.umask(_OTHERS)
    os.umask(before)
    as_the_user()
    try:
        yield
    finally:
        os.umask(before)
