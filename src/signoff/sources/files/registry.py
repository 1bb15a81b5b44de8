"""Which files the source knows, and which sequence numbers their events have.

One row per file (`unit` is its number, in the order of reading), in SQLite below the state directory:

    found ──► reading ──► read ──► done
              first_seq    end_seq    every event settled; the row stays only if the file does

A file is known by its place relative to the pipeline file, and by its content: a project that is moved or
copied with its state reads nothing again. Of a registry that was copied or restored, inodes say nothing:
every file is compared by its content first.

A file's `first_seq` is durable before its first event is handed out, and its `end_seq` before any
event of the next file is. Both are known then, because the intake appends what it is handed in
order. So after a crash the last event in the log (unit, position) settles every doubt: files before
that one are complete, the one itself goes on after its position, later ones begin anew. Whether it is still
the file that was being read is told by its notes: how much of it was read when that event was handed out,
and the digest of that. Notes survive a kill, and may be lost with the power; then the stamp has to do.
"""

from __future__ import annotations

import errno
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from signoff.sources.contract import Resume
from signoff.sources.files.content import Stamp

SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    unit      INTEGER PRIMARY KEY AUTOINCREMENT,
    path      TEXT NOT NULL,                -- relative to the pipeline file, if its `path` is
    inode     INTEGER NOT NULL,
    begin     INTEGER NOT NULL DEFAULT 0,   -- where reading begins: after what an earlier unit read
    first_seq INTEGER,
    end_seq   INTEGER,
    size      INTEGER,                      -- bytes on disk when it was read to its end
    mtime_ns  INTEGER,
    head_crc  INTEGER,                      -- of the first and the last bytes of those
    tail_crc  INTEGER,
    refused   INTEGER NOT NULL DEFAULT 0,
    done      INTEGER NOT NULL DEFAULT 0,
    ctime_ns  INTEGER,
    digest    TEXT,                         -- of the bytes that were read
    sure      INTEGER NOT NULL DEFAULT 0,   -- as long as inode, size and times are these, so is the content
    expected  TEXT,                         -- digest of the bytes before `begin`
    earlier   INTEGER NOT NULL DEFAULT 0    -- events of the bytes before `begin`
);
CREATE TABLE IF NOT EXISTS notes (
    unit INTEGER NOT NULL, position INTEGER NOT NULL, hashed INTEGER NOT NULL, digest TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS owner (token TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS own_inode (inode INTEGER NOT NULL);  -- of this file, when it was used last
"""
ADDED = {
    "ctime_ns": "INTEGER", "digest": "TEXT", "sure": "INTEGER NOT NULL DEFAULT 0", "expected": "TEXT",
    "earlier": "INTEGER NOT NULL DEFAULT 0",
}  # fmt: skip
"""Columns that a registry of an earlier version does not have."""

SAVE = """
UPDATE files SET inode = :inode, begin = :begin, first_seq = :first_seq, end_seq = :end_seq, size = :size,
    mtime_ns = :mtime_ns, head_crc = :head_crc, tail_crc = :tail_crc, refused = :refused, done = :done,
    ctime_ns = :ctime_ns, digest = :digest, sure = :sure, expected = :expected,
    earlier = :earlier
WHERE unit = :unit
"""
DATABASE = "files.db"
"""Its name in the source's directory."""
NOTES = 16
"""How many notes are kept: more than there are batches between the source and the log."""
ANY_INODE = -1
"""Of a file that may have been copied with the registry: its content tells whether it is the same."""
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
    ctime_ns: int | None = None
    digest: str | None = None
    sure: bool = False
    expected: str | None = None
    earlier: int = 0

    @property
    def events(self) -> int:
        """How many events were taken from it so far, all its parts together."""
        read = 0 if self.first_seq is None or self.end_seq is None else self.end_seq - self.first_seq
        return self.earlier + read

    def has(self, stamp: Stamp) -> bool:
        """Whether the file with this stamp looks as this one did when it was read."""
        same = (self.inode, self.size, self.mtime_ns) == (stamp.inode, stamp.size, stamp.mtime_ns)
        return same and self.ctime_ns in (stamp.ctime_ns, None)

    def looks(self, stamp: Stamp) -> None:
        self.inode, self.mtime_ns, self.ctime_ns = stamp.inode, stamp.mtime_ns, stamp.ctime_ns


@dataclass(frozen=True, slots=True)
class Found:
    """A file that is to be read."""

    path: str
    inode: int
    begin: int = 0
    expected: str | None = None
    refused: bool = False
    earlier: int = 0
    size: int = 0
    """Bytes on disk when it was found; may be another when it is read."""


@dataclass(frozen=True, slots=True)
class Note:
    """The digest of as much as was read of a file when the event at `position` was handed out."""

    unit: int
    position: int
    hashed: int
    digest: str


class FileRegistry:
    """The table, and the same in memory. Every method that changes something is durable on return."""

    def __init__(self, database: Path, base: Path | None = None) -> None:
        self._db = sqlite3.connect(database, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(SCHEMA)
        present = {row[1] for row in self._db.execute("PRAGMA table_info(files)")}
        for column, kind in ADDED.items():
            if column not in present:
                self._db.execute(f"ALTER TABLE files ADD COLUMN {column} {kind}")
        self._distrust_inodes(database)
        self.token = self._owner()
        """Tells this registry's files from those of any other."""
        self.files: dict[int, Known] = {}
        """By unit, in the order of reading."""
        self.newest: dict[str, Known] = {}
        """By path, the last unit of each."""
        prefix = "" if base is None else f"{base}{os.sep}"
        for row in self._db.execute("SELECT * FROM files ORDER BY unit"):
            file = Known(*row)
            file.path = os.fsdecode(file.path).removeprefix(prefix)  # as an earlier version wrote it
            self._remember(file)

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

    def add(self, found: Iterable[Found]) -> list[Known]:
        """New files, in the order of reading."""
        added = []
        with self._transaction():
            for one in found:
                old = self.newest.get(one.path)
                if old is not None and old.done:
                    self._db.execute("DELETE FROM files WHERE unit = ?", (old.unit,))
                cursor = self._db.execute(
                    "INSERT INTO files (path, inode, begin, refused, expected, earlier) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    (_column(one.path), one.inode, one.begin, one.refused, one.expected, one.earlier),
                )
                unit = int(cursor.lastrowid or 0)
                added.append(
                    Known(unit, one.path, one.inode, one.begin, refused=one.refused,
                          expected=one.expected, earlier=one.earlier)
                )  # fmt: skip
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

    def rename(self, file: Known, path: str) -> None:
        """The file has another name from now on, and so have parts of it that were read before."""
        parts = [one for one in self.files.values() if one.path == file.path and one.unit <= file.unit]
        with self._transaction():
            self._db.executemany(
                "UPDATE files SET path = ? WHERE unit = ?", [(_column(path), one.unit) for one in parts]
            )
        if self.newest.get(file.path) is file:
            del self.newest[file.path]
        for one in parts:
            one.path = path
        self.newest[path] = file

    def note(self, note: Note) -> None:
        """Remember how far a file was read. Survives a kill; costs no fsync, so perhaps not a power cut."""
        self._db.execute("PRAGMA synchronous=NORMAL")
        try:
            with self._transaction():
                self._db.execute(
                    "INSERT INTO notes VALUES (?, ?, ?, ?)",
                    (note.unit, note.position, note.hashed, note.digest),
                )
                self._db.execute(
                    "DELETE FROM notes WHERE rowid <= (SELECT max(rowid) FROM notes) - ?", (NOTES,)
                )
        finally:
            self._db.execute("PRAGMA synchronous=FULL")

    def noted(self, unit: int, position: int) -> Note | None:
        """The note of exactly this event."""
        row = self._db.execute(
            "SELECT * FROM notes WHERE unit = ? AND position = ? ORDER BY rowid DESC", (unit, position)
        ).fetchone()
        return Note(*row) if row else None

    def close(self) -> None:
        self._db.close()

    def _distrust_inodes(self, database: Path) -> None:
        """If the registry itself has another inode than before, so have files that were copied with it."""
        inode = database.stat().st_ino
        row = self._db.execute("SELECT inode FROM own_inode").fetchone()
        if row is not None and row[0] == inode:
            return
        with self._transaction():
            if row is not None:
                self._db.execute("UPDATE files SET inode = ?, sure = 0", (ANY_INODE,))
            self._db.execute("DELETE FROM own_inode")
            self._db.execute("INSERT INTO own_inode VALUES (?)", (inode,))

    def _owner(self) -> str:
        row = self._db.execute("SELECT token FROM owner").fetchone()
        if row is None:
            row = (secrets.token_hex(4),)
            self._db.execute("INSERT INTO owner VALUES (?)", row)
        return str(row[0])

    def _remember(self, file: Known) -> None:
        self.files[file.unit] = file
        self.newest[file.path] = file

    def _transaction(self) -> AbstractContextManager[None]:
        return transaction(self._db)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. A full disk is an OSError, so that the intake waits for room."""
    try:
        db.execute("BEGIN IMMEDIATE")
        yield
        db.execute("COMMIT")
    except BaseException as error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF in NO_ROOM:
            raise OSError(errno.ENOSPC, f"no room to note files: {error}") from error
        raise


def _column(path: str) -> str | bytes:
    """A name of bytes that are no UTF-8 cannot be text in SQLite."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return os.fsencode(path)
    return path
