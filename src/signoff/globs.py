"""Globs of paths that are partly the user's pattern and partly the name of the directory it is relative to.

What it keeps: only what the user wrote is a pattern. A project in `proj[1]` reads its own files, and not
those of `proj1`.
"""

from __future__ import annotations

import fnmatch
import functools
import glob
import re
from collections.abc import Callable
from pathlib import Path

_ESCAPED = re.compile(r"\[([*?[])\]")
"""A sign that would be a wildcard, as `glob.escape` writes it."""
_TOKEN = re.compile(r"\[!?\]?[^]]*\]|.", re.DOTALL)
"""A set of signs, or one sign."""


def pattern_of(base: Path, path: str) -> str:
    """The path or glob as an absolute pattern. A directory that is there is no glob, whatever its name is."""
    if (base / path).is_dir():
        return glob.escape(str(base / path))
    return str(Path(glob.escape(str(base))) / path)


def is_glob(pattern: str) -> bool:
    """Whether there is a wildcard in it that is not escaped."""
    return glob.has_magic(_ESCAPED.sub("", pattern))


def fixed_part(pattern: str) -> str:
    """The path up to the first step with a wildcard."""
    place = Path(pattern)
    while is_glob(str(place)):
        place = place.parent
    return plain(str(place))


def plain(pattern: str) -> str:
    """The path that a pattern without wildcards stands for."""
    return _ESCAPED.sub(r"\1", pattern)


@functools.lru_cache(maxsize=65_536)  # or several ** would try every way to share the steps
def steps_match(patterns: tuple[str, ...], steps: tuple[str, ...]) -> bool:
    """Whether these directories, one after the other, are what the patterns say."""
    if not patterns:
        return not steps
    first, rest = patterns[0], patterns[1:]
    if first == "**":
        if steps_match(rest, steps):
            return True
        return bool(steps) and not steps[0].startswith(".") and steps_match(patterns, steps[1:])
    if not steps or (steps[0].startswith(".") and not first.startswith(".")):
        return False
    return fnmatch.fnmatchcase(steps[0], first) and steps_match(rest, steps[1:])


def steps_meet(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether a path may exist that matches both patterns, each a name or pattern for every step."""
    return _meet(one, other, "**", _names_meet)


def _names_meet(one: str, other: str) -> bool:
    if one == other:
        return True
    if any(a.startswith(".") and b[:1] in "*?[" for a, b in ((one, other), (other, one))):
        return False  # hidden
    return _meet(tuple(_TOKEN.findall(one)), tuple(_TOKEN.findall(other)), "*", _signs_meet)


def _signs_meet(one: str, other: str) -> bool:
    for sign, pattern in ((one, other), (other, one)):
        if len(sign) == 1 and sign != "?":
            return fnmatch.fnmatchcase(sign, pattern)
        if len(sign) == 3 and sign[0] == "[":  # an escaped one
            return fnmatch.fnmatchcase(sign[1], pattern)
    return True


def _meet(one: tuple[str, ...], other: tuple[str, ...], many: str, meet: Callable[[str, str], bool]) -> bool:
    """The same for steps and for signs: `many` stands for any number of them."""
    reached = {(0, 0)}
    waiting = [(0, 0)]
    while waiting:
        a, b = waiting.pop()
        if a == len(one) and b == len(other):
            return True
        following = []
        left, right = one[a : a + 1], other[b : b + 1]
        if left == (many,):
            following += [(a + 1, b)] + ([(a, b + 1)] if right else [])
        if right == (many,):
            following += [(a, b + 1)] + ([(a + 1, b)] if left else [])
        if left and right and many not in (*left, *right) and meet(left[0], right[0]):
            following.append((a + 1, b + 1))
        new = set(following) - reached
        reached |= new
        waiting += new
    return False
