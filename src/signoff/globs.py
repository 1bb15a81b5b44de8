"""Globs of paths that are partly the user's pattern and partly the name of the directory it is relative to.

What it keeps: only what the user wrote is a pattern. A project in `proj[1]` reads its own files, and not
those of `proj1`.
"""

from __future__ import annotations

import glob
import re
from pathlib import Path

_ESCAPED = re.compile(r"\[([*?[])\]")
"""A sign that would be a wildcard, as `glob.escape` writes it."""


def pattern_of(base: Path, path: str) -> str:
    """The path or glob as an absolute pattern. A directory that is there is no glob, whatever its name is."""
    if (base / path).is_dir():
        return glob.escape(str(base / path))
    return str(Path(glob.escape(str(base))) / path)


def is_glob(pattern: str) -> bool:
    """Whether there is a wildcard in it that is not escaped."""
    return glob.has_magic(_ESCAPED.sub("", pattern))


def plain(pattern: str) -> str:
    """The path that a pattern without wildcards stands for."""
    return _ESCAPED.sub(r"\1", pattern)
