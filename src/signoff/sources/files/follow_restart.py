"""Where a followed file may be after a restart: under its name, next to it, or elsewhere in the glob.

What it keeps: a file counts as gone only if every place could be looked into; else reading does not go on,
for it would be read anew when it is found again. Its inode tells which it is. Of notes that were copied
inodes say nothing: then every file is a candidate, and its bytes tell.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from signoff.errors import SourceError
from signoff.sources.files.compressed import is_packed
from signoff.sources.files.follow_notes import Followed
from signoff.sources.files.matching_paths import Places, is_gone

TELLING_BYTES = 64
"""With fewer at its beginning than these, a file may look like any other."""


class Whereabouts:
    """Looks once into each directory, for all files that are looked for."""

    def __init__(self, base: Path, places: Places, *, copied: bool) -> None:
        self._base, self._places, self._copied = base, places, copied
        self._listed: dict[Path, list[tuple[Path, int]]] = {}
        self._found: list[tuple[Path, int]] | None = None
        self.taken: set[tuple[int, int]] = set()
        """Devices and inodes of files that are found again."""

    def of(self, known: Followed) -> Iterator[Path]:
        """The likeliest place first."""
        own = self._base / known.path
        if self._copied or _inode(own) == known.inode:
            yield own
        if self._copied and known.head_bytes < TELLING_BYTES:
            return
        for candidates in (self._next_to, self._globbed):
            for path, inode in candidates(own.parent):
                if path == own or is_packed(path):
                    continue
                if self._copied or inode == known.inode:
                    yield path

    def _next_to(self, directory: Path) -> list[tuple[Path, int]]:
        if directory not in self._listed:
            found = []
            try:
                with os.scandir(directory) as entries:
                    found = [(directory / entry.name, entry.inode()) for entry in entries]
            except OSError as error:
                if not is_gone(error) and not isinstance(error, PermissionError):
                    raise cannot_go_on(directory, error) from error
            self._listed[directory] = sorted(found)
        return self._listed[directory]

    def _globbed(self, _: Path) -> list[tuple[Path, int]]:
        if self._found is None:
            found = [(Path(path), _inode(Path(path))) for path in self._places.find()]
            for path, error in self._places.failed.items():
                if not isinstance(error, PermissionError):
                    raise cannot_go_on(path, error) from error
            self._found = [(path, inode) for path, inode in found if inode is not None]
        return self._found


def cannot_go_on(path: Path | str, error: OSError) -> SourceError:
    return SourceError(
        f"cannot read {path}: {error.strerror or error}; no file is followed before its position is known: "
        "make it readable, and reading continues"
    )


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError as error:
        if is_gone(error) or isinstance(error, PermissionError):
            return None
        raise cannot_go_on(path, error) from error
