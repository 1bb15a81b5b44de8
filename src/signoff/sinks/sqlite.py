"""Sink `sqlite`: rows upserted into a table, keyed by `event_id`.

Invariants: `write` returns after the commit is on disk (WAL, synchronous=FULL), in the file that has the
name; the same row written again replaces itself. Several tasks may write to one file: each write is one
immediate transaction, and waits for the others up to `busy_ms`.

Whose fault an error is: the statement is compiled first, so what fails then is the table's fault (a column
that is missing). What fails while rows are written, other than locks, files and memory, is a row's: a
constraint, a value, a trigger's RAISE, a generated column or an index over an expression. It is refused
alone. Locks, a full disk, a file that was taken away are the sink's: the rows wait.

A table can skip a row without an error (ON CONFLICT IGNORE, a trigger's RAISE(IGNORE)), or remove another
event's row for it (ON CONFLICT REPLACE). The first is noticed by the number of rows that were changed, and
the row that is not there is refused; the second is switched off by the statement, and breaks the constraint.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence, Set
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pydantic import Field

from signoff.durable import make_directory
from signoff.errors import PermanentError, SinkError, TransientError
from signoff.json_text import iso_time, json_values
from signoff.pipeline.model import SinkConfig
from signoff.sinks.contract import EVENT_ID, Part, Refusal, RunRef, Sink, Writer
from signoff.sinks.owners import TABLE, refuse_others, removing
from signoff.sinks.refusal import RowsRejected, brief, fit, isolate

_ROW_ERRORS = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, OverflowError)
_ROW_CODES = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISMATCH, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_RANGE)
"""Of the errors that may be anything, those that a row is to blame for once the statement was compiled."""
_NO_RETRY_HELPS = (
    sqlite3.SQLITE_ERROR,  # no such table or column, a trigger that does not compile
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_AUTH,
)
_WORDLESS = re.compile(r"""--[^\n]*|/\*.*?\*/|'[^']*'|"[^"]*"|`[^`]*`|\[[^]]*]""", re.DOTALL)
"""What is no keyword in a declaration: comments, texts, quoted names."""
_REPLACES = re.compile(r"(?<!\bNULL )\bON CONFLICT REPLACE\b")
"""For NOT NULL it only puts the default in the place of null."""
_SKIPPED = (
    "the table does not keep it, and says nothing "
    "(a constraint with ON CONFLICT IGNORE, or a trigger with RAISE(IGNORE))"
)


class SqliteSinkConfig(SinkConfig):
    """A table in a SQLite database, one row per event."""

    summary: ClassVar[str] = "A table in a SQLite file; rows are upserted by event_id."

    type: Literal["sqlite"] = "sqlite"
    path: str
    """Database file, relative to the pipeline file; created if missing."""
    table: str = Field(min_length=1)
    """Table the rows go to. It needs a PRIMARY KEY or UNIQUE constraint on `event_id`."""
    create_table: bool = True
    """Create the table if it is missing, and add columns it lacks."""
    busy_ms: int = Field(default=5_000, ge=0)
    """How long a write waits for another one to finish before it counts as failed."""

    def local_directories(self, base: Path) -> tuple[Path, ...]:
        return ((base / self.path).parent,)

    def writes(self, base: Path) -> tuple[tuple[Path, str], ...]:
        path = (base / self.path).resolve()
        return tuple((path.parent, path.name + more) for more in ("", "-wal", "-shm", "-journal"))

    def target(self, base: Path) -> str | None:
        return f"{(base / self.path).resolve()}#{self.table.lower()}"

    def build(self, base: Path) -> SqliteSink:
        return SqliteSink(base / self.path, self.table, self.create_table, self.busy_ms)


class SqliteSink(Sink):
    def __init__(self, path: Path, table: str, create_table: bool = True, busy_ms: int = 5_000) -> None:
        self.path = path
        self.table = table
        self.create_table = create_table
        self.busy_ms = busy_ms

    def prepare(self) -> None:
        try:
            make_directory(self.path.parent)
        except OSError as error:
            raise PermanentError(f"cannot create directory {self.path.parent}: {error.strerror}") from error
        try:
            connection = self.connect()
            try:
                known = _columns(connection, self.table)
                self._refuse_unusable_table(connection, known)
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise self.failure(error) from error

    def open(self, part: Part) -> Writer:
        return _SqliteWriter(self)

    def refuse_others(self, owner: str, sources: Set[str]) -> None:
        if not self.path.exists():
            return
        try:
            where = f"{self.path.resolve().as_uri()}?mode=ro"
            with closing(sqlite3.connect(where, uri=True, timeout=self.busy_ms / 1000)) as connection:
                self._refuse_others(connection, owner, sources)
        except sqlite3.Error as error:
            raise self.failure(error) from error

    def claim(self, owner: str, sources: Set[str]) -> None:
        place = self.table.lower()
        try:
            make_directory(self.path.parent)
            with closing(self.connect()) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {TABLE} (place TEXT NOT NULL, source TEXT NOT NULL, "
                    "owner TEXT NOT NULL, PRIMARY KEY (place, source))"
                )
                self._refuse_others(connection, owner, sources)
                connection.executemany(
                    f"INSERT OR IGNORE INTO {TABLE} VALUES (?, ?, ?)",
                    [(place, source, owner) for source in sources],
                )
                connection.execute("COMMIT")
        except OSError as error:
            raise TransientError(f"cannot create directory {self.path.parent}: {error.strerror}") from error
        except sqlite3.Error as error:
            raise self.failure(error) from error

    def _refuse_others(self, connection: sqlite3.Connection, owner: str, sources: Set[str]) -> None:
        if not _columns(connection, TABLE):
            return
        place = self.table.lower()
        rows = connection.execute(f"SELECT source, owner FROM {TABLE} WHERE place = ?", (place,)).fetchall()
        said = f'table "{self.table}" in {self.path}'
        refuse_others(said, owner, sources, dict(rows), lambda source: removing(place, source))

    def finish(self, run: RunRef) -> None:
        """Remove the rows of earlier runs with the same key, in one transaction."""
        if not run.earlier:
            return
        try:
            with closing(self.connect()) as connection:
                if not _columns(connection, self.table):
                    return
                connection.execute("BEGIN IMMEDIATE")
                for ranges in run.earlier:
                    for source, (first, end) in ranges.items():
                        connection.execute(
                            f"DELETE FROM {_quoted(self.table)} WHERE event_id >= ? AND event_id < ? "
                            "AND CAST(substr(event_id, ?) AS INTEGER) >= ? "
                            "AND CAST(substr(event_id, ?) AS INTEGER) < ?",
                            (f"{source}/", f"{source}0", len(source) + 2, first, len(source) + 2, end),
                        )
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self.failure(error) from error

    def connect(self) -> sqlite3.Connection:
        """A connection in autocommit mode: transactions are begun by hand."""
        connection = sqlite3.connect(
            self.path, timeout=self.busy_ms / 1000, isolation_level=None, check_same_thread=False
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def failure(self, error: sqlite3.Error) -> SinkError:
        """What an error of the whole database means for the rows."""
        code = getattr(error, "sqlite_errorcode", None)
        permanent = code is not None and code & 0xFF in _NO_RETRY_HELPS
        text = f'table "{self.table}" in {self.path}: {brief(error)}'
        return PermanentError(text) if permanent else TransientError(text)

    def _refuse_unusable_table(self, connection: sqlite3.Connection, known: dict[str, bool]) -> None:
        if not known:
            if self.create_table:
                return
            raise PermanentError(
                f'{self.path} has no table "{self.table}"; create it or set create_table: true'
            )
        if not _unique_event_id(connection, self.table):
            raise PermanentError(
                f'table "{self.table}" in {self.path} has no PRIMARY KEY or UNIQUE constraint on {EVENT_ID} '
                f"alone that compares ids as they are (COLLATE BINARY), so a replay would write rows twice, "
                f"or one row over another; add one or choose another table"
            )


class _SqliteWriter(Writer):
    def __init__(self, sink: SqliteSink) -> None:
        self._sink = sink
        self._connection: sqlite3.Connection | None = None
        self._ready_for: pa.Schema | None = None
        self._file = (0, 0)
        """Device and number of the file that is open."""
        self._version = -1
        """Of the file's schema, when it was found to fit."""
        self._sql = ""
        """Writes a row."""

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        sorted_out = fit(rows)
        schema = sorted_out.rows.schema
        values = list(zip(*(_values(column) for column in sorted_out.rows.columns), strict=True))
        if not values:
            return sorted_out.refusals
        try:
            connection = self._connected()
            try:
                with self._transaction(connection, schema) as sql:
                    refusals = self._upsert(connection, sql, schema, values)
            except _TransactionEnded:
                refusals = self._upsert_apart(connection, schema, values)
        except sqlite3.Error as error:
            self.abort()
            raise self._sink.failure(error) from error
        self._refuse_other_file()
        return sorted_out.original(refusals)

    @contextmanager
    def _transaction(self, connection: sqlite3.Connection, schema: pa.Schema) -> Iterator[str]:
        """A transaction in which the table is there; with the statement that writes a row."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            if _version(connection) != self._version:
                self._ready_for = None  # dropped or altered while we run: it is made anew if it may be
            if self._ready_for != schema:
                self._make_ready(connection, schema)
                self._version = _version(connection)
                replaces = _replaces_others(connection, self._sink.table)
                self._sql = _upsert_sql(self._sink.table, schema.names, replaces)
                _compile(connection, f"{self._sql} /* {self._version} */", len(schema))
                self._ready_for = schema
            yield self._sql
            connection.execute("COMMIT")
        except BaseException:
            self._ready_for = None
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def _upsert_apart(
        self, connection: sqlite3.Connection, schema: pa.Schema, values: Sequence[tuple[Any, ...]]
    ) -> list[Refusal]:
        """A row that ends the transaction of all (RAISE(ROLLBACK)) is searched for with one for each part."""

        def write(start: int, end: int) -> None:
            try:
                with self._transaction(connection, schema) as sql:
                    self._write(connection, sql, schema, values[start:end])
            except (sqlite3.Error, OverflowError) as error:
                if not _is_a_rows(error):
                    raise
                raise RowsRejected(brief(error)) from error

        return isolate(0, len(values), write)

    def _refuse_other_file(self) -> None:
        """What was written to a file that somebody has deleted or replaced is nowhere."""
        if self._named() != self._file:
            self.abort()
            raise TransientError(f"{self._sink.path} was deleted or replaced while rows were written to it")

    def _named(self) -> tuple[int, int]:
        """Device and number of the file that has the name now."""
        try:
            found = self._sink.path.stat()
        except OSError:
            return -1, -1
        return found.st_dev, found.st_ino

    def close(self) -> bytes | None:
        self.abort()
        return None

    def abort(self) -> None:
        self._ready_for = None
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._sink.connect()
            self._file = self._named()
        return self._connection

    def _make_ready(self, connection: sqlite3.Connection, schema: pa.Schema) -> None:
        table = _quoted(self._sink.table)
        known = _columns(connection, self._sink.table)
        if not self._sink.create_table:
            if not known:
                raise TransientError(f'{self._sink.path} has no table "{self._sink.table}" any more')
            return
        if not known:
            columns = ", ".join(_declaration(one) for one in schema)
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        else:
            for one in schema:
                if one.name.lower() not in known:
                    connection.execute(f"ALTER TABLE {table} ADD COLUMN {_declaration(one)}")

    def _write(
        self, connection: sqlite3.Connection, sql: str, schema: pa.Schema, values: Sequence[tuple[Any, ...]]
    ) -> None:
        """Write rows, and raise RowsRejected if one of them is not in the table then."""
        if connection.executemany(sql, values).rowcount == len(values):
            return
        # Also where an update was skipped: a row that is as it should be is there, whoever wrote it.
        look = _look_sql(self._sink.table, schema.names)
        if not all(connection.execute(look, row).fetchone() for row in values):
            raise RowsRejected(f'table "{self._sink.table}": {_SKIPPED}')

    def _upsert(
        self, connection: sqlite3.Connection, sql: str, schema: pa.Schema, values: Sequence[tuple[Any, ...]]
    ) -> list[Refusal]:
        def write(start: int, end: int) -> None:
            connection.execute("SAVEPOINT rows")
            try:
                self._write(connection, sql, schema, values[start:end])
            except RowsRejected:
                connection.execute("ROLLBACK TO rows")
                raise
            except (sqlite3.Error, OverflowError) as error:
                if not _is_a_rows(error):
                    raise
                # A trigger's RAISE(ROLLBACK) or ON CONFLICT ROLLBACK has ended the transaction itself.
                if not connection.in_transaction:
                    raise _TransactionEnded from error
                connection.execute("ROLLBACK TO rows")
                raise RowsRejected(brief(error)) from error
            finally:
                if connection.in_transaction:
                    connection.execute("RELEASE rows")

        return isolate(0, len(values), write)


class _TransactionEnded(Exception):
    """A row has ended the transaction: what was written before it is undone."""


def _is_a_rows(error: Exception) -> bool:
    if isinstance(error, _ROW_ERRORS):
        return True
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _ROW_CODES


def _version(connection: sqlite3.Connection) -> int:
    """Changes with each change of a table, whoever makes it."""
    return int(connection.execute("PRAGMA schema_version").fetchone()[0])


def _compile(connection: sqlite3.Connection, sql: str, columns: int) -> None:
    """Fails where the statement does not fit the table, whatever the rows are."""
    connection.execute(f"EXPLAIN {sql}", [None] * columns).close()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _columns(connection: sqlite3.Connection, table: str) -> dict[str, bool]:
    """Names of the table's columns in lower case, as SQLite compares them; empty: no such table."""
    found = connection.execute(f"PRAGMA table_info({_quoted(table)})").fetchall()
    return {str(row[1]).lower(): bool(row[5]) for row in found}


def _unique_event_id(connection: sqlite3.Connection, table: str) -> bool:
    """Whether ids are unique as they are: two that differ in case must not be one."""
    for row in connection.execute(f"PRAGMA index_list({_quoted(table)})").fetchall():
        name, unique, partial = row[1], row[2], row[4]
        if unique and not partial:
            columns = connection.execute(f"PRAGMA index_xinfo({_quoted(name)})").fetchall()
            keys = [(str(column[2]).lower(), str(column[4]).upper()) for column in columns if column[5]]
            if keys == [(EVENT_ID, "BINARY")]:
                return True
    return False


def _replaces_others(connection: sqlite3.Connection, table: str) -> bool:
    """Whether a constraint of the table removes other rows for a new one."""
    found = connection.execute(
        "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE", [table]
    ).fetchone()
    words = " ".join(_WORDLESS.sub(" ", str(found[0]) if found else "").split())
    return _REPLACES.search(words.upper()) is not None


def _look_sql(table: str, names: Sequence[str]) -> str:
    same = " AND ".join(f"{_quoted(name)} {'=' if name == EVENT_ID else 'IS'} ?" for name in names)
    return f"SELECT 1 FROM {_quoted(table)} WHERE {same}"


def _upsert_sql(table: str, names: Sequence[str], abort: bool = False) -> str:
    """With `abort`, no constraint of the table decides itself what becomes of a row that breaks it. (Only
    where it must be: it is then so for the statements of triggers as well.)"""
    columns = ", ".join(map(_quoted, names))
    marks = ", ".join("?" * len(names))
    updates = ", ".join(f"{_quoted(name)} = excluded.{_quoted(name)}" for name in names if name != EVENT_ID)
    action = f"UPDATE SET {updates}" if updates else "NOTHING"
    insert = f"INSERT{' OR ABORT' if abort else ''} INTO {_quoted(table)} ({columns}) VALUES ({marks})"
    return f"{insert} ON CONFLICT ({EVENT_ID}) DO {action}"


def _declaration(column: pa.Field) -> str:
    if column.name == EVENT_ID:
        return f"{_quoted(column.name)} TEXT NOT NULL PRIMARY KEY"
    return f"{_quoted(column.name)} {_type(column.type)}"


def _type(kind: pa.DataType) -> str:
    if pt.is_boolean(kind) or pt.is_integer(kind):
        return "INTEGER"
    if pt.is_floating(kind):
        return "REAL"
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
        return "BLOB"
    return "TEXT"  # also decimals: a number in SQLite has 15 digits


def _values(column: pa.Array) -> list[Any]:
    """A column as values SQLite can bind; times are ISO 8601 text, nested values JSON text."""
    kind = column.type
    if pt.is_timestamp(kind):
        return list(iso_time(column).to_pylist())
    if pt.is_date(kind) or pt.is_time(kind) or pt.is_decimal(kind):
        return list(column.cast(pa.large_string()).to_pylist())
    if _bindable(kind):
        return list(column.to_pylist())
    text = json_values(column)
    return list((text if pt.is_nested(kind) else pc.utf8_trim(text, '"')).to_pylist())


def _bindable(kind: pa.DataType) -> bool:
    return (
        pt.is_null(kind)
        or pt.is_string(kind)
        or pt.is_large_string(kind)
        or _type(kind) in ("INTEGER", "REAL", "BLOB")
    )
