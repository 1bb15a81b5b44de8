"""Which files the source knows, and which sequence numbers their events have.

One row per file (`unit` is its number, in the order of reading), in SQLite below the state directory:

    found ──► reading ──► read ──► done
              first_seq    end_seq    every event settled; the row stays only if the file does

A file's `first_seq` is durable before its first event is handed out, and its `end_seq` before any
event of the next file is. Both are known then, because the intake appends what it is handed in
order. So after a crash the last event in the log (unit, position) settles every doubt: files before
that one are complete, the one itself goes on after its position, later ones begin anew.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from signoff.sources.contract import Resume

SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    unit      INTEGER PRIMARY KEY AUTOINCREMENT,
    path      TEXT NOT NULL,
    inode     INTEGER NOT NULL,
    begin     INTEGER NOT NULL DEFAULT 0,   -- where reading begins: after what an earlier unit read
    first_seq INTEGER,
    end_seq   INTEGER,
    size      INTEGER,                      -- bytes on disk when it was read to its end
    mtime_ns  INTEGER,
    head_crc  INTEGER,                      -- of the first and the last bytes of those
    tail_crc  INTEGER,
    refused   INTEGER NOT NULL DEFAULT 0,
    done      INTEGER NOT NULL DEFAULT 0
)
"""

SAVE = """
UPDATE files SET inode = :inode, first_seq = :first_seq, end_seq = :end_seq, size = :size,
    mtime_ns = :mtime_ns, head_crc = :head_crc, tail_crc = :tail_crc, refused = :refused, done = :done
WHERE unit = :unit
"""
NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


@dataclass(slots=True)
class Known:
    """One file."""

    unit: int
    path: str
    inode: int
    begin: int = 0
    first_seq: int | None = None
    end_seq: int | None = None
    size: int | None = None
    mtime_ns: int | None = None
    head_crc: int | None = None
    tail_crc: int | None = None
    refused: bool = False
    done: bool = False


class FileRegistry:
    """The table, and the same in memory. Every method that changes something is durable on return."""

    def __init__(self, database: Path) -> None:
        self._db = sqlite3.connect(database, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.execute(SCHEMA)
        self.files: dict[int, Known] = {}
        """By unit, in the order of reading."""
        self.newest: dict[str, Known] = {}
        """By path, the last unit of each."""
        for row in self._db.execute("SELECT * FROM files ORDER BY unit"):
            self._remember(Known(*row))

    def recover(self, resume: Resume) -> Known | None:
        """Undo what was noted ahead of the log, and return the file to be read on, if any.

        A file whose end was noted but not logged is open again: its end is noted anew.
        """
        last = -1 if resume.unit is None else resume.unit
        with self._transaction():
            self._db.execute("UPDATE files SET first_seq=NULL, end_seq=NULL WHERE unit > ?", (last,))
            self._db.execute(
                "UPDATE files SET end_seq=NULL WHERE unit = ? AND end_seq > ?", (last, resume.next_sequence)
            )
        for file in self.files.values():
            if file.unit > last:
                file.first_seq = file.end_seq = None
            elif file.unit == last and (file.end_seq or 0) > resume.next_sequence:
                file.end_seq = None
        current = self.files.get(last)
        return current if current and current.end_seq is None else None

    def add(self, found: Iterable[tuple[str, int, int, bool]]) -> list[Known]:
        """New files (path, inode, where reading begins, refused already), in the order of reading."""
        added = []
        with self._transaction():
            for path, inode, begin, refused in found:
                old = self.newest.get(path)
                if old is not None and old.done:
                    self._db.execute("DELETE FROM files WHERE unit = ?", (old.unit,))
                cursor = self._db.execute(
                    "INSERT INTO files (path, inode, begin, refused) VALUES (?, ?, ?, ?)",
                    (path, inode, begin, refused),
                )
                added.append(Known(int(cursor.lastrowid or 0), path, inode, begin, refused=refused))
        for file in added:
            old = self.newest.get(file.path)
            if old is not None and old.done:
                del self.files[old.unit]
            self._remember(file)
        return added

    def save(self, files: Iterable[Known]) -> None:
        """Note what is known of these files, in one transaction."""
        with self._transaction():
            self._db.executemany(SAVE, [asdict(file) for file in files])

    def forget(self, files: Iterable[Known]) -> None:
        """Remove files that are gone. Their numbers are not given again."""
        files = list(files)
        with self._transaction():
            self._db.executemany("DELETE FROM files WHERE unit=?", [(file.unit,) for file in files])
        for file in files:
            self.files.pop(file.unit, None)
            if self.newest.get(file.path) is file:
                del self.newest[file.path]

    def close(self) -> None:
        self._db.close()

    def _remember(self, file: Known) -> None:
        self.files[file.unit] = file
        self.newest[file.path] = file

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing. A full disk is an OSError, so that the intake waits for room."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF in NO_ROOM:
                raise OSError(errno.ENOSPC, f"no room to note files: {error}") from error
            raise
