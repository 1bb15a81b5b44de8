"""The file behind `${file:PATH}`: read whole, and never waited for without end.

A named pipe may have no writer, and a device no end: neither is read. A descriptor of this process
(`/dev/fd/63`, which is how a shell hands over the output of a command) has a writer, and some seconds.
"""

from __future__ import annotations

import os
import select
import stat
import time
from pathlib import Path

_MOST_BYTES = 1024 * 1024
_DESCRIPTOR_S = 10.0


class Unreadable(Exception):
    """Why the file cannot be used, in words."""


def read_secret(path: Path) -> str:
    """The text of a file, without line ends after it. Raises Unreadable."""
    try:
        text = _read(path).decode().rstrip("\r\n")
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise Unreadable("it is not UTF-8 text") from None
        raise Unreadable(str(getattr(error, "strerror", None) or error)) from None
    if "\0" in text:
        raise Unreadable("the character U+0000 is in it, which may not be in a value")
    return text


def _read(path: Path) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # does not wait for a writer
    try:
        mode = os.fstat(file).st_mode
        if stat.S_ISREG(mode):
            return _bounded(file, None)
        if stat.S_ISDIR(mode):
            raise Unreadable("it is a directory")
        if not _is_descriptor(path):
            kind = "a named pipe" if stat.S_ISFIFO(mode) else "a device"
            raise Unreadable(f"it is {kind}, and not a file")
        return _bounded(file, time.monotonic() + _DESCRIPTOR_S)
    finally:
        os.close(file)


def _is_descriptor(path: Path) -> bool:
    return os.path.normpath(path).startswith(("/dev/fd/", "/proc/self/fd/", f"/proc/{os.getpid()}/fd/"))


def _bounded(file: int, deadline: float | None) -> bytes:
    found = b""
    while True:
        if deadline is not None:
            ready, _, _ = select.select([file], [], [], max(deadline - time.monotonic(), 0.0))
            if not ready:
                raise Unreadable(f"it did not come to its end within {_DESCRIPTOR_S:g} s")
        more = os.read(file, 65_536)
        if not more:
            return found
        found += more
        if len(found) > _MOST_BYTES:
            raise Unreadable("it is larger than 1 MiB")
