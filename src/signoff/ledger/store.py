"""SQLite as the ledger and the dead letters use it: durable, shared by processes, short transactions.

Kept here: every commit is on disk when it returns (WAL, synchronous=FULL); a reader never waits for
a writer; a writer waits up to `BUSY_SECONDS` for another one; one `Store` may be used from several
threads. A read-only store of a file that does not exist (yet) is empty, and looks again each time.
"""

from __future__ import annotations

import errno
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from signoff.errors import LogNoSpace, StateError
from signoff.private import make_file, make_private

BUSY_SECONDS = 30.0
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_ROOM_SQLITE = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN})
"""A full disk is any of these, depending on which file SQLite needed room for."""


class Store:
    """One SQLite file with one schema."""

    def __init__(
        self,
        path: Path,
        *,
        schema: str,
        version: int,
        upgrades: Mapping[int, str] | None = None,
        readonly: bool = False,
    ) -> None:
        self.path = Path(path)
        self.readonly = readonly
        self._schema = schema
        self._version = version
        self._upgrades = upgrades or {}
        self._lock = threading.RLock()
        self._commits = 0
        self._empty = False
        self._connection = self._open()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """One transaction that takes the write lock at once; durable when the block ends without error."""
        if self.readonly:
            raise StateError(f"{self.path} was opened for reading only")
        with self._lock, self._translated():
            connection = self._connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            self._commits += 1

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A consistent view of the moment of its first query."""
        with self._lock, self._translated():
            if self._connection.in_transaction:
                yield self._connection
                return
            if self._empty and self.path.exists():
                self._connection.close()
                self._connection = self._open()
            connection = self._connection
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:  # SQLite ends it by itself after some errors, as of a full disk
                    connection.execute("ROLLBACK")

    def version(self) -> int:
        """A number that changes whenever anyone has changed the file; a few microseconds."""
        with self._lock, self._translated():
            if self._empty:
                return -1 if not self.path.exists() else 0
            (seen,) = self._connection.execute("PRAGMA data_version").fetchone()
            return int(seen) + (self._commits << 32)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _open(self) -> sqlite3.Connection:
        with self._translated():
            self._empty = self.readonly and not self.path.exists()
            if self._empty:
                connection = _connect(":memory:")
                connection.executescript(self._schema)
                return connection
            if self.readonly:
                return self._open_readonly()
            make_private(self.path.parent)
            make_file(self.path)
            connection = _connect(str(self.path))
            _use_wal(connection)
            connection.execute("PRAGMA synchronous=FULL")
            self._migrate(connection)
            return connection

    def _open_readonly(self) -> sqlite3.Connection:
        connection = _connect(str(self.path))
        # Not `mode=ro`: that cannot read a WAL that no writer has open. `query_only` forbids changes as well.
        connection.execute("PRAGMA query_only=ON")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:  # created, but its first transaction is still to come
            connection.close()
            self._empty = True
            connection = _connect(":memory:")
            connection.executescript(self._schema)
            return connection
        self._check_version(version)
        return connection

    def _migrate(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        version = found
        if version == 0:
            for statement in self._schema.split(";"):
                connection.execute(statement)
            version = self._version
        while version in self._upgrades:
            connection.execute(self._upgrades[version])
            version += 1
        if version != found:
            connection.execute(f"PRAGMA user_version={version}")
        connection.execute("COMMIT")
        self._check_version(version)

    def _check_version(self, version: int) -> None:
        if version != self._version:
            raise StateError(
                f"{self.path} has format {version}, this Signoff reads format {self._version}; "
                "use the version that wrote it, or start with another state directory"
            )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StateError(
                f"{self.path}: {error}; nothing was changed, what was recorded is kept"
            ) from error
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
                raise
            raise StateError(f"{self.path} cannot be read: {error}; is it a Signoff file?") from error


def _connect(target: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        target, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    connection.row_factory = sqlite3.Row
    return connection


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch a new file to WAL. Where two processes do that at the same time, SQLite refuses one of them at
    once, whatever its timeout: if both waited, they would wait for each other."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
            if not busy or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def no_room(error: BaseException | None) -> bool:
    """Whether an error, or the one it came from, is that of a full disk, a quota or a file size limit."""
    while error is not None:
        if isinstance(error, LogNoSpace) or (isinstance(error, OSError) and error.errno in NO_ROOM):
            return True
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in _NO_ROOM_SQLITE:
            return True
        error = error.__cause__
    return False
