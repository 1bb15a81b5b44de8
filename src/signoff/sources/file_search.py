"""Finding the files to read: which are new, which have grown, which are still being written.

What it keeps: a file that was read is found again only when it holds something else. A file that
still begins and ends with what was read has grown, and is read on from there; any other is new.
Content is compared, because a time of change says little: `touch` changes it, a fast writer may not.
"""

from __future__ import annotations

import glob
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from signoff.errors import SourceError
from signoff.sources.contract import Resume
from signoff.sources.file_registry import FileRegistry, Known

CHECKED_BYTES = 4096
"""How much of a file's beginning and end is compared."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What of the source's config matters here."""

    path: str
    settle_ms: int
    away: tuple[tuple[Path | None, str], ...]
    """Where files are moved to: a directory, or one of this name next to the file."""


class FileSearch:
    """Looks for files below a path or glob."""

    def __init__(self, base: Path, rules: Rules, appendable: Callable[[Path], bool]) -> None:
        self._pattern = str(base / rules.path)
        self._rules = rules
        self._appendable = appendable
        self._changing: dict[str, tuple[int, int, float]] = {}
        """Files that may still be written to: size, time of change, and since when both are so."""

    def require_path(self, resume: Resume) -> None:
        """Raise SourceError when there is not even a directory to look into."""
        place = Path(self._pattern)
        if glob.has_magic(self._pattern):
            while glob.has_magic(str(place)):
                place = place.parent
        elif resume.next_sequence > 0:
            place = place.parent  # a single file may have been read and moved away
        if not place.exists():
            raise SourceError(
                f"{place} does not exist (from `path: {self._rules.path}`); create it or correct `path`"
            )

    def look(self, registry: FileRegistry) -> list[Known]:
        """Register the files that are to be read, oldest first."""
        found = []
        before, self._changing = self._changing, {}
        now = time.time()  # one for all, or a newer file might be complete before an older one
        for path in self._candidates():
            known = registry.newest.get(str(path))
            try:
                status = path.stat()
                begin = self._where_to_begin(path, status, known)
                if begin is None or not self._is_complete(path, status, before, now):
                    continue
            except FileNotFoundError:
                continue
            refused = known is not None and known.refused and begin > 0
            found.append((status.st_mtime_ns, str(path), status.st_ino, begin, refused))
        return registry.add(row[1:] for row in sorted(found)) if found else []

    def _candidates(self) -> Iterator[Path]:
        root = Path(self._pattern)
        names: Iterator[Path]
        if root.is_dir():
            names = (path for path in root.iterdir() if not path.name.startswith("."))
        else:
            names = (Path(name) for name in glob.iglob(self._pattern, recursive=True))  # noqa: PTH207
        return (path for path in names if not self._is_put_away(path))

    def _is_put_away(self, path: Path) -> bool:
        """Whether the file is where this source moves files to; a recursive glob finds those too."""
        return any(
            path.parent.name == name if directory is None else path.is_relative_to(directory)
            for directory, name in self._rules.away
        )

    def _where_to_begin(self, path: Path, status: os.stat_result, known: Known | None) -> int | None:
        """0 for a new file, the old end for a grown one, None for one that is known as it is."""
        if not stat.S_ISREG(status.st_mode):
            return None
        if known is None:
            return 0
        if known.end_seq is None or known.size is None:
            return None  # waiting or being read
        if (known.inode, known.size, known.mtime_ns) == (status.st_ino, status.st_size, status.st_mtime_ns):
            return None
        if not 0 <= known.size <= status.st_size:
            return 0
        if checksums(path, known.size) != (known.head_crc, known.tail_crc):
            return 0
        if known.size < status.st_size:
            return known.size if self._appendable(path) else 0
        known.inode, known.mtime_ns = status.st_ino, status.st_mtime_ns  # only touched
        return None

    def _is_complete(
        self, path: Path, status: os.stat_result, before: dict[str, tuple[int, int, float]], now: float
    ) -> bool:
        """Whether the file has been as it is for long enough."""
        wait = self._rules.settle_ms / 1000
        if not wait or wait <= now - status.st_mtime:
            return True
        # A clock that is ahead (a network file system) must not hide the file for ever.
        size, changed, since = before.get(str(path), (status.st_size, status.st_mtime_ns, now))
        if (size, changed) != (status.st_size, status.st_mtime_ns):
            since = now
        self._changing[str(path)] = status.st_size, status.st_mtime_ns, since
        return now - since >= wait


def checksums(path: Path, size: int) -> tuple[int, int]:
    """Of the first and the last bytes of the file's first `size` bytes."""
    checked = min(CHECKED_BYTES, max(0, size))
    with path.open("rb") as file:
        head = zlib.crc32(file.read(checked))
        file.seek(max(0, size - checked))
        return head, zlib.crc32(file.read(checked))
