"""How far each followed file was read, in step with the log.

The log knows the last durable event: its unit (a file's number) and position. Of all other files the place
is noted here: whenever events of another file follow, the place of the one before is durable first. A note
says up to which sequence number of the log it holds; those that are ahead of the log after a crash are
undone. So every line is handed out once, also across a SIGKILL or a loss of power at any moment.

A file is known by its inode and its first bytes, whatever it is called by now. Of notes that were copied with
their project inodes say nothing: then it is known by its bytes.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from signoff.sources.contract import Resume
from signoff.sources.files.registry import transaction

SCHEMA = """
CREATE TABLE IF NOT EXISTS tails (
    unit INTEGER PRIMARY KEY AUTOINCREMENT,
    path BLOB NOT NULL,        -- relative to the pipeline file, if the source's `path` is
    inode INTEGER NOT NULL,
    head TEXT NOT NULL,        -- digest of the first `head_bytes` bytes
    head_bytes INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS places (
    unit INTEGER NOT NULL, sequence INTEGER NOT NULL, position INTEGER NOT NULL, tail TEXT NOT NULL,
    PRIMARY KEY (unit, sequence)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS own_inode (inode INTEGER NOT NULL);
"""
FIRST_UNIT = 1 << 40
"""Numbers that no file has which was read as a whole, should a source be changed from one to the other."""


@dataclass(slots=True)
class Followed:
    """One file, as it was noted."""

    unit: int
    path: str
    inode: int
    head: str
    head_bytes: int
    position: int = 0
    tail: str | None = None
    """Digest of the bytes before the position, if it is known."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file was read up to `position` when the log had events up to `sequence`."""

    unit: int
    sequence: int
    position: int
    tail: str


class FollowNotes:
    """The notes of one source."""

    def __init__(self, database: Path) -> None:
        self._db = sqlite3.connect(database, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(SCHEMA)
        if not self._db.execute("SELECT 1 FROM sqlite_sequence WHERE name = 'tails'").fetchone():
            self._db.execute("INSERT INTO sqlite_sequence VALUES ('tails', ?)", (FIRST_UNIT,))
        inode = database.stat().st_ino
        row = self._db.execute("SELECT inode FROM own_inode").fetchone()
        self.copied = row is not None and row[0] != inode
        """Inodes may be those of the files that these were copied from."""
        if row is None or self.copied:
            self._db.execute("DELETE FROM own_inode")
            self._db.execute("INSERT INTO own_inode VALUES (?)", (inode,))

    def load(self, resume: Resume) -> list[Followed]:
        """The files, each with the place that belongs to the log's end."""
        with self._transaction():
            self._db.execute("DELETE FROM places WHERE sequence > ?", (resume.next_sequence,))
            self._db.execute("DELETE FROM places WHERE unit NOT IN (SELECT unit FROM tails)")
        found = []
        for unit, path, *rest in self._db.execute("SELECT * FROM tails ORDER BY unit").fetchall():
            file = Followed(unit, os.fsdecode(path), *rest)
            row = self._db.execute(
                "SELECT position, tail FROM places WHERE unit = ? ORDER BY sequence DESC", (unit,)
            ).fetchone()
            if row is not None:
                file.position, file.tail = row
            if unit == resume.unit and resume.position is not None and resume.position != file.position:
                file.position, file.tail = resume.position, None
            found.append(file)
        return found

    def add(self, path: str, inode: int, head: str, head_bytes: int) -> int:
        """A new file; its number is durable on return."""
        with self._transaction():
            cursor = self._db.execute(
                "INSERT INTO tails (path, inode, head, head_bytes) VALUES (?, ?, ?, ?)",
                (os.fsencode(path), inode, head, head_bytes),
            )
        return int(cursor.lastrowid or 0)

    def change(self, file: Followed) -> None:
        """It has another inode, or more of a beginning."""
        with self._transaction():
            self._db.execute(
                "UPDATE tails SET inode = ?, head = ?, head_bytes = ? WHERE unit = ?",
                (file.inode, file.head, file.head_bytes, file.unit),
            )

    def forget(self, unit: int) -> None:
        with self._transaction():
            self._db.execute("DELETE FROM tails WHERE unit = ?", (unit,))
            self._db.execute("DELETE FROM places WHERE unit = ?", (unit,))

    def note(self, places: Iterable[Place], *, durably: bool) -> None:
        """Survives a kill, and if `durably` a loss of power."""
        rows = [(place.unit, place.sequence, place.position, place.tail) for place in places]
        with self._transaction(durably):
            self._db.executemany("INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?)", rows)

    def logged(self, upto: int) -> None:
        """The log has these durably: of each file only the newest note up to there is needed."""
        with self._transaction(durably=False):
            self._db.execute(
                "DELETE FROM places WHERE sequence < (SELECT max(other.sequence) FROM places AS other "
                "WHERE other.unit = places.unit AND other.sequence <= ?)", (upto,),
            )  # fmt: skip

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _transaction(self, durably: bool = True) -> Iterator[None]:
        self._db.execute(f"PRAGMA synchronous={'FULL' if durably else 'NORMAL'}")
        with transaction(self._db):
            yield
