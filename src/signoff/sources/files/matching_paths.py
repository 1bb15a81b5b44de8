"""Which paths a pattern finds: each place once, however links and the pattern lead there.

What it keeps: a look comes to an end, also where links lead back to a directory above them (a plain glob
walks 40 levels deep along each of them, and reads every file as often). A directory that is reached through
a link, and is found under its own name as well, counts under its own name. A link to a file is a file of
its own. Nothing that the source itself has put away is found, however the way there is spelled. A place that
could not be looked into is named: nobody knows what is gone from there.
"""

from __future__ import annotations

import errno
import fnmatch
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from signoff.globs import fixed_part, is_glob, plain, steps_match
from signoff.sources.files.moves import ASIDE

Away = tuple[tuple[Path | None, str], ...]
Failed = dict[str, OSError]
OWN = re.compile(rf"\.[0-9a-f]+-[0-9]+{re.escape(ASIDE)}")
"""Names of files that a source has put aside; a user's own `*.settled` is a file like any other."""


class Places:
    """The files of one path or glob."""

    def __init__(self, pattern: str, whole: str, away: Away, state: Path | None = None) -> None:
        self._pattern, self._whole, self._away, self._state = pattern, whole, away, state
        self._root = whole
        self.failed: Failed = {}
        """What the last look could not look into, and why; not what is simply not there."""

    def trouble(self, *, walked: bool = True) -> dict[str, str]:
        """What is to be said of it, by path; if not `walked`, without what a walk found closed."""
        return {
            path: f"cannot look into {shown(path)}: {error.strerror}; it is tried again"
            for path, error in self.failed.items()
            if walked or path == self._root or not isinstance(error, PermissionError)
        }

    def find(self) -> Iterator[str]:
        """All of them as they are now, hidden ones only where the pattern names them."""
        self.failed = {}
        away = _PutAway(self._away, self._state, self._whole)
        for directory, name in self._directories():
            if not away.holds(directory):
                for path in _entries(directory, name, self.failed):
                    if not (path.endswith(ASIDE) and OWN.fullmatch(os.path.basename(path))):  # noqa: PTH119
                        yield path

    def lie_within(self, project: Path) -> bool:
        """Whether all that is found, and where it is put, is really below a directory, links followed."""
        looked_into = [directory for directory, _ in self._directories()]
        put = [str(to) for to, _ in self._away if to is not None]
        put += [str(Path(place, name)) for to, name in self._away if to is None for place in looked_into]
        links = filter(os.path.islink, self.find())
        real = os.path.realpath(project)
        return all(
            Path(os.path.realpath(place)).is_relative_to(real)
            for place in itertools.chain([fixed_part(self._pattern)], looked_into, put, links)
        )

    def _directories(self) -> Iterator[tuple[str, str | None]]:
        """Each directory to look into, and what its files must be called."""
        if _is_directory(self._whole, self.failed):
            yield self._whole, None
            return
        *parts, name = Path(self._pattern).parts
        static = []
        while parts and not is_glob(parts[0]):
            static.append(plain(parts.pop(0)))
        root = self._root = str(Path(*static)) if static else os.curdir
        if name == "**":
            parts, name = [*parts, "**"], "*"
        steps = tuple(
            step for n, step in enumerate(parts) if not (step == "**" and parts[n - 1 : n] == ["**"])
        )
        seen = set[str]()
        for directory in _Walk(os.path.realpath(root), steps, self.failed).below(root):
            if directory not in seen:  # several ** may lead there in several ways
                seen.add(directory)
                yield directory, name


class _Walk:
    """The directories that match some steps, each a name, a pattern or `**`."""

    def __init__(self, root: str, steps: tuple[str, ...], failed: Failed) -> None:
        self._root, self._steps, self._failed = root, steps, failed

    def below(self, root: str) -> Iterator[str]:
        return self._go(root, self._root, 0, ())

    def _go(self, directory: str, real: str, step: int, above: tuple[tuple[str, int], ...]) -> Iterator[str]:
        """`step` is the next to be done; `above` are the real places and steps on the way here."""
        if step == len(self._steps):
            yield directory
            return
        pattern = self._steps[step]
        if not is_glob(pattern):
            path = os.path.join(directory, plain(pattern))  # noqa: PTH118
            if _is_directory(path, self._failed):
                yield from self._go(path, os.path.realpath(path), step + 1, above)
            return
        deep = pattern == "**"
        if deep:
            yield from self._go(directory, real, step + 1, above)
        above, following = (*above, (real, step)), step if deep else step + 1
        match = matcher("*" if deep else pattern)
        for name, linked in _subdirectories(directory, self._failed):
            if not match(name):
                continue
            path, place = os.path.join(directory, name), os.path.join(real, name)  # noqa: PTH118
            if linked:
                place = os.path.realpath(path)
                if self._finds(place, step + 1):
                    continue
            if (place, following) not in above:
                yield from self._go(path, place, following, above)

    def _finds(self, place: str, steps: int) -> bool:
        """Whether so many steps lead to this place under its own name."""
        inside = Path(place)
        return inside.is_relative_to(self._root) and steps_match(
            self._steps[:steps], inside.relative_to(self._root).parts
        )


class _PutAway:
    """Whether a directory is one that the source moves files to, or below it; asked once for each. A link
    into the state directory is not followed either: its own notes would be events without end."""

    def __init__(self, away: Away, state: Path | None, reads: str) -> None:
        self._names = {name for directory, name in away if directory is None}
        self._directories = [os.path.realpath(directory) for directory, _ in away if directory is not None]
        if state is not None and not Path(os.path.realpath(reads)).is_relative_to(os.path.realpath(state)):
            self._directories.append(os.path.realpath(state))

    def holds(self, directory: str) -> bool:
        if not self._names and not self._directories:
            return False
        real = os.path.realpath(directory)
        if self._names & {os.path.basename(directory), os.path.basename(real)}:  # noqa: PTH119
            return True
        return any(Path(real).is_relative_to(place) for place in self._directories)


def is_gone(error: OSError) -> bool:
    """Whether it says that there is no such file, not that it cannot be told."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)


def shown(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def _subdirectories(directory: str, failed: Failed) -> list[tuple[str, bool]]:
    """Names of the directories in it, and whether they are links."""
    entries = list(_scan(directory, failed))
    return [(entry.name, entry.is_symlink()) for entry in entries if _is_directory(entry, failed)]


def _is_directory(place: str | os.DirEntry[str], failed: Failed) -> bool:
    try:
        return stat.S_ISDIR(os.stat(place).st_mode) if isinstance(place, str) else place.is_dir()  # noqa: PTH116
    except OSError as error:
        _note(os.fspath(place), error, failed)
        return False


def _entries(directory: str, pattern: str | None, failed: Failed) -> Iterator[str]:
    """The files of one directory, as glob would find them; all but the hidden ones without a pattern."""
    if pattern is not None and not is_glob(pattern):
        path = os.path.join(directory, plain(pattern))  # noqa: PTH118
        try:
            os.lstat(path)
        except OSError as error:
            _note(path, error, failed)
        else:
            yield path
        return
    match = matcher(pattern or "*")
    for entry in _scan(directory, failed):
        if match(entry.name):
            yield os.path.join(directory, entry.name)  # noqa: PTH118


def _scan(directory: str, failed: Failed) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory or os.curdir) as entries:
            while (entry := next(entries, None)) is not None:
                yield entry
    except OSError as error:
        _note(directory, error, failed)


def _note(path: str, error: OSError, failed: Failed) -> None:
    if not is_gone(error):
        failed[path] = error


def matcher(pattern: str) -> Callable[[str], object]:
    """Tells which names match; hidden ones only if the pattern begins with a dot."""
    matches = re.compile(fnmatch.translate(pattern)).match
    if pattern.startswith("."):
        return matches
    return lambda name: not name.startswith(".") and matches(name)
