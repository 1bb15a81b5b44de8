"""The reference tables of `lookup`: read as a whole, checked, and replaced as a whole. Runs on the driver.

A table is read when a plan is first made, and again when it is older than `refresh`. It is in use only once
it has been read to its end and every key in it is there once; until then, and if it cannot be read, the one
before stays, and the run says so.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from signoff.pipeline.secrets import redact

logger = logging.getLogger(__name__)

_AS_TEXT = ("uuid", "json", "jsonb", "inet", "cidr", "time", "timetz", "interval")
Read = Callable[[], pa.Table]


class TableError(Exception):
    """A table cannot be used; the text says why, without secrets."""


@dataclass(frozen=True)
class Loaded:
    table: pa.Table
    version: int
    """Another one when the table was read again."""
    at: float


class Tables:
    """The tables of this process, by what they are read from."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loaded: dict[str, Loaded] = {}
        self._tried: dict[str, float] = {}
        self._alone = threading.Lock()

    def forget(self) -> None:
        """Read all tables anew when they are next needed."""
        with self._alone:
            self._loaded.clear()

    def get(self, name: str, key: str, read: Read, refresh_s: float | None) -> Loaded:
        """The table, read again if it is due. Raises TableError if it was never read."""
        with self._alone:
            known, now = self._loaded.get(key), self._clock()
            if known is not None and (refresh_s is None or now - self._tried[key] < refresh_s):
                return known
            self._tried[key] = now
            try:
                table = read()
                if known is not None:
                    _must_be_alike(known.table, table)
                made = Loaded(table, known.version + 1 if known else 1, now)
            except Exception as error:  # whatever a file or a driver brings: the table before it stays
                if not isinstance(error, TableError):
                    error = TableError(f"{type(error).__name__}: {_said(error)}")
                if known is None:
                    raise error from None
                logger.warning(
                    'the table of "%s" was not read again, the one of %d s ago is used: %s',
                    name,
                    now - known.at,
                    error,
                )
                return known
            if known is not None and made.table.equals(known.table):
                made = Loaded(known.table, known.version, now)
            self._loaded[key] = made
            return made


TABLES = Tables()


def _must_be_alike(before: pa.Table, now: pa.Table) -> None:
    """Raises TableError if a column has another type: the plan was made, and checked, with the types there
    were."""
    for was, field in zip(before.schema, now.schema, strict=True):
        if field.type != was.type:
            raise TableError(f'"{field.name}" is {field.type} now and was {was.type}: give it a schema')


def checked(
    table: pa.Table, keys: Sequence[str], columns: Iterable[str], most_rows: int, types: pa.Schema | None
) -> pa.Table:
    """The columns that are needed. Raises TableError for a column that is not there, too many rows, a value
    that does not fit its type, a key that is there twice, or one of a type that is none."""
    wanted = list(dict.fromkeys([*keys, *columns]))
    for name in wanted:
        if name not in table.column_names:
            raise TableError(f'the table has no column "{name}"; it has {", ".join(table.column_names)}')
        if table.column_names.count(name) > 1:
            raise TableError(f'the table has several columns "{name}"')
    if table.num_rows > most_rows:
        raise TableError(f"the table has {table.num_rows} rows or more, more than max_rows ({most_rows})")
    table = _typed(table.select(wanted), types)
    for key in keys:
        _must_be_a_key(key, table[key].type)
        table = table.filter(pc.is_valid(table[key]))  # nothing is equal to null
    counted = table.group_by(list(keys)).aggregate([([], "count_all")])
    twice = counted.filter(pc.greater(counted["count_all"], 1))
    if twice.num_rows:
        first = ", ".join(f"{key} {twice[key][0].as_py()!r}" for key in keys)
        raise TableError(f"{twice.num_rows} keys are there more than once, the first is {first}")
    return table


def _must_be_a_key(name: str, kind: pa.DataType) -> None:
    """Raises TableError for a type of which Spark takes values as equal that are not the same here: 0.0 and
    -0.0, all NaN, times that differ by less than a microsecond. A row would then find two."""
    if pa.types.is_floating(kind):
        raise TableError(
            f'key "{name}" is {kind}, and floating-point numbers are no keys: give the table a schema with a '
            "DECIMAL, a whole number or a STRING"
        )
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        raise TableError(f'key "{name}" has nanoseconds, which Spark cuts: give the table a schema')


def _typed(table: pa.Table, types: pa.Schema | None) -> pa.Table:
    for place, name in enumerate(table.column_names):
        if types is None:
            if pa.types.is_null(table[name].type):
                raise TableError(f'all values of "{name}" are null: give the table a schema')
            continue
        if name not in types.names:
            raise TableError(f'column "{name}" is not in the schema')
        kind = types.field(name).type
        try:
            table = table.set_column(place, name, table[name].cast(kind))
        except pa.ArrowException as error:
            raise TableError(f'a value of "{name}" does not fit into {kind}: {_said(error)}') from None
    return table


def read_csv(path: Path, delimiter: str) -> pa.Table:
    """All columns as texts: what looks like a number may be a code with zeros in front."""
    parse = pyarrow.csv.ParseOptions(delimiter=delimiter)
    try:
        names = pyarrow.csv.open_csv(path, parse_options=parse).schema.names
        convert = pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
        )
        return pyarrow.csv.read_csv(path, parse_options=parse, convert_options=convert)
    except (OSError, pa.ArrowException) as error:
        raise TableError(_said(error)) from None


def read_parquet(path: Path) -> pa.Table:
    try:
        return pyarrow.parquet.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise TableError(_said(error)) from None


def read_sqlite(path: Path, query: str, most_rows: int) -> pa.Table:
    """At most one row more than there may be: that is enough to refuse it, and all that is held."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as connection:
            cursor = connection.execute(query)
            return _table([one[0] for one in cursor.description or ()], cursor.fetchmany(most_rows + 1))
    except sqlite3.Error as error:
        raise TableError(f"{path}: {_said(error)}") from None


def read_postgres(url: str, query: str, most_rows: int) -> pa.Table:
    """As `read_sqlite`; nothing is changed there, whatever the query says. Values of types that Spark does
    not have, or Python has others of, are texts as PostgreSQL writes them: uuid, json, inet, time, interval.
    """
    try:
        import psycopg
        from psycopg.types.string import TextLoader
    except ModuleNotFoundError:
        raise TableError('PostgreSQL needs psycopg: pip install "signoff[postgres]"') from None
    try:
        with psycopg.connect(url, connect_timeout=10) as connection:
            connection.read_only = True
            connection.execute("SET LOCAL statement_timeout = 60000")
            for kind in _AS_TEXT:
                connection.adapters.register_loader(kind, TextLoader)
            # One of the server's: a plain one would bring all rows here before the first is looked at.
            with connection.cursor(name="signoff") as cursor:
                cursor.execute(query.encode())
                return _table([one.name for one in cursor.description or ()], cursor.fetchmany(most_rows + 1))
    except psycopg.Error as error:
        raise TableError(_said(error)) from None


def _table(names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(names)
    try:
        return pa.Table.from_arrays([pa.array(column) for column in columns], list(names))
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError) as error:
        raise TableError(f"its values are no column of one type: {_said(error)}") from None


def _said(error: Exception) -> str:
    return redact(" ".join(str(error).split())) or type(error).__name__
