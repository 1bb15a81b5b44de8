"""What of a checkpoint survives a loss of power. Spark syncs nothing that it writes; this does.

    <checkpoint>.synced  a line per sync: checksum {"done": 7, "files": ["offsets/7", "state/0/0/7.delta"]}

Invariants:

- A file that is listed is on disk, and so is its name. Spark does not change a file that others rely on: it
  writes a new one aside and renames it.
- Batches below `done` are committed, and the state they have led to is on disk. Until then their rows stay in
  the log, and what they have handed on is recognised.
- The range and the time of a batch (`offsets/N`) are listed before its results are handed on and before it is
  recorded. So a batch of which anybody has seen anything is done again as it was.
- An engine that starts removes every file that is not listed, and every trace of batches from `done` on but
  for the range of that one. So it does not matter which of the unlisted files have survived, nor how torn
  they are; and a kill is treated as a loss of power is.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import threading
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from signoff.durable import sync_directory, sync_file, write_whole

logger = logging.getLogger(__name__)

_AT_ONCE = 4
"""Syncs under way at a time: a file system makes several of them durable with one write to its journal."""
_COMPACT_BYTES = 1024**2
_ASIDE = re.compile(r"\.tmp|\.part$|^\.fuse_hidden")
_VERSION = re.compile(r"^\.?(\d+)(_[^.]*)?\.(delta|snapshot|zip|changelog)(\.crc)?$")
_BATCH = re.compile(r"^\.?(\d+)(\.crc)?$")

Seen = tuple[int, int, int]
"""inode, size, time of change: another one is another file."""


class SyncedFiles:
    """Which files of one checkpoint are on disk. May be used by several threads."""

    def __init__(self, checkpoint: Path) -> None:
        self._root = checkpoint
        self._list = checkpoint.with_name(f"{checkpoint.name}.synced")
        self._lock = threading.Lock()
        self._clean: dict[str, Seen] = {}
        self._directories: set[Path] = set()
        self._done: int | None = None
        self._restored = False

    @property
    def done(self) -> int | None:
        """Batches below will never be done again; None if nobody has noted it."""
        if self._done is None:
            self._done = self._read()[0]
        return self._done

    def begin(self) -> None:
        """Nothing is there yet."""
        with self._lock:
            write_whole(self._list, _line(0, ()))
            self._done, self._restored = 0, True
            self._clean.clear()
            self._directories.clear()

    def restore(self, committed: int) -> None:
        """Remove what may not have survived, before Spark sees it; once. `committed`: batches, if none are
        listed at all, for then an earlier version has written the checkpoint."""
        if self._restored:
            return
        self._restored = True
        done, listed = self._read()
        if done is None:
            if self._root.exists():
                self.sync(committed)
            return
        self._done = done
        if self._root.exists():
            self._remove_unlisted(done, listed)
            self._compact(done)

    def sync(self, done: int) -> None:
        """Make all that is there durable, and note that batches below are done. Raises OSError."""
        with self._lock:
            found = dict(self._walk())
            new = {name: seen for name, seen in found.items() if self._clean.get(name) != seen}
            if not new and self._done is not None and done <= self._done:
                return
            with ThreadPoolExecutor(_AT_ONCE, "sync") as pool:
                there = [name for name, kept in zip(new, pool.map(self._sync_file, new), strict=True) if kept]
                list(pool.map(sync_directory, self._changed_directories(there)))
            self._append(_line(max(done, self._done or 0), there))
            self._clean = {name: seen for name, seen in found.items() if name in self._clean or name in new}
            self._done = max(done, self._done or 0)

    def _sync_file(self, name: str) -> bool:
        try:
            sync_file(self._root / name)
        except FileNotFoundError:  # Spark removes what it needs no more
            return False
        return True

    def _changed_directories(self, names: Iterable[str]) -> list[Path]:
        """Those that hold the files, and those above a directory that was not there before."""
        changed: set[Path] = set()
        for name in names:
            directory = (self._root / name).parent
            changed.add(directory)
            while directory not in self._directories and directory != self._root.parent:
                self._directories.add(directory)
                changed.add(directory.parent)
                directory = directory.parent
        return [directory for directory in changed if directory.is_dir()]

    def _walk(self) -> Iterator[tuple[str, Seen]]:
        """All files that are under their final names."""
        for folder, _, names in os.walk(self._root):
            for name in names:
                path = Path(folder, name)
                if _ASIDE.search(name):
                    continue
                with suppress(FileNotFoundError):
                    status = path.stat()
                    seen = (status.st_ino, status.st_size, status.st_mtime_ns)
                    yield str(path.relative_to(self._root)), seen

    def _remove_unlisted(self, done: int, listed: set[str]) -> None:
        removed = 0
        for name, seen in list(self._walk()):
            if name in listed and not _of_later_batch(name, done):
                self._clean[name] = seen
            else:
                (self._root / name).unlink(missing_ok=True)
                removed += 1
        if not done:  # no state that anybody relies on
            shutil.rmtree(self._root / "state", ignore_errors=True)
        if removed:
            logger.info("%s goes on with batch %d; %d later files are removed", self._root, done, removed)

    # -- the list

    def _read(self) -> tuple[int | None, set[str]]:
        try:
            lines = self._list.read_bytes().splitlines()
        except FileNotFoundError:
            return None, set()
        done: int | None = None
        listed: set[str] = set()
        for line in lines:
            checksum, _, text = line.partition(b" ")
            if checksum != b"%08x" % zlib.crc32(text):
                break  # torn: what it says was never relied on
            said = json.loads(text)
            done = said["done"]
            listed.update(said["files"])
        return done, listed

    def _append(self, line: bytes) -> None:
        if not self._list.exists():
            write_whole(self._list, line)
            return
        with self._list.open("ab") as file:
            before = file.tell()
            try:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                os.ftruncate(file.fileno(), before)
                raise
        if before > _COMPACT_BYTES:
            done, _ = self._read()
            self._compact(done or 0)

    def _compact(self, done: int) -> None:
        """Without the names of files that are gone, and without a torn end."""
        listed = self._read()[1]
        there = sorted(name for name in listed if (self._root / name).exists())
        write_whole(self._list, _line(done, there))


def _of_later_batch(name: str, done: int) -> bool:
    """Whether a file is of a batch that is not done; the range of the next one is kept."""
    folder, _, file = name.rpartition("/")
    if folder in ("offsets", "commits") and (match := _BATCH.match(file)):
        return int(match[1]) > done if folder == "offsets" else int(match[1]) >= done
    if folder.startswith("state/") and (match := _VERSION.match(file)):
        return int(match[1]) > done
    return False


def _line(done: int, files: Iterable[str]) -> bytes:
    text = json.dumps({"done": done, "files": list(files)}).encode()
    return b"%08x %s\n" % (zlib.crc32(text), text)
