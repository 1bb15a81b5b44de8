"""Tables of a SQLite file: copied in one transaction, then read from the copy by executors.

A transaction of SQLite cannot be shared between processes, so the rows that are wanted (and no others) are
copied into a file of the run's own; writers go on meanwhile. In the copy they are numbered without gaps, and
each task reads a range of numbers.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegralType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from signoff.jobs.tables import Table, TableUnreadable, Wanted, typed
from signoff.pipeline.job_settings import Value, text_of

_ROWS = 20_000
_BUSY_S = 30.0


@dataclass(frozen=True)
class _Copy:
    """The rows of one table in the copy."""

    path: str
    table: str
    schema: pa.Schema
    """The types in which values leave Python: texts, whole numbers, floating-point numbers, bytes."""
    rows: int
    parts: int

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Executor: the rows of the parts with these numbers."""
        with closing(
            sqlite3.connect(f"{Path(self.path).as_uri()}?mode=ro&immutable=1", uri=True)
        ) as connection:
            connection.text_factory = _text
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from self._part(connection, number)

    def _part(self, connection: sqlite3.Connection, number: int) -> Iterator[pa.RecordBatch]:
        first, last = (self.rows * edge // self.parts for edge in (number, number + 1))
        names = ", ".join(f"c{place}" for place in range(len(self.schema)))
        query = f"SELECT {names} FROM {self.table} WHERE rowid > ? AND rowid <= ? ORDER BY rowid"
        cursor = connection.execute(query, (first, last))
        while rows := cursor.fetchmany(_ROWS):
            columns = [
                _column(field, values)
                for field, values in zip(self.schema, zip(*rows, strict=True), strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def snapshot(
    spark: SparkSession, path: Path, wanted: Sequence[Wanted], values: Mapping[str, Value], directory: Path
) -> dict[str, Table]:
    """Copy what is wanted of a file, as it is at one moment."""
    if not path.is_file():
        raise TableUnreadable(f'table "{wanted[0].name}": there is no file {path}')
    copy = directory / f"{wanted[0].name}.snapshot.db"
    copy.unlink(missing_ok=True)
    bound = {
        name: text_of(v) if v is not None and not isinstance(v, int | float) else v
        for name, v in values.items()
    }
    try:
        with closing(sqlite3.connect(copy, timeout=_BUSY_S, isolation_level=None, uri=True)) as connection:
            for setting in ("journal_mode = OFF", "synchronous = OFF"):
                connection.execute(f"PRAGMA {setting}")
            connection.execute("ATTACH ? AS source", (f"{path.resolve().as_uri()}?mode=ro",))
            connection.execute("BEGIN")
            found = {}
            for place, one in enumerate(wanted):
                found[one.name] = _copied(spark, connection, copy, f"t{place}", one, bound)
            connection.execute("COMMIT")
            return found
    except sqlite3.Error as error:
        raise TableUnreadable(f'table "{wanted[0].name}" in {path}: {error}') from None


def _copied(
    spark: SparkSession,
    connection: sqlite3.Connection,
    copy: Path,
    table: str,
    one: Wanted,
    bound: Mapping[str, Any],
) -> Table:
    config, source = one.config, f"source.{quoted(str(one.config.table))}"
    schema = one.schema or declared(connection, one)
    names = [field.name for field in schema]
    connection.execute(f"CREATE TABLE {table} ({', '.join(f'c{place}' for place in range(len(names)))})")
    where = f" WHERE {config.where}" if config.where else ""
    # With the table's name: what is no column of it would otherwise be a text to SQLite, its own name.
    selected = ", ".join(f"{quoted(str(config.table))}.{quoted(name)}" for name in names)
    rows = connection.execute(
        f"INSERT INTO {table} SELECT {selected} FROM {source}{where}", dict(bound)
    ).rowcount
    complete_to = None
    if config.complete_to:
        (found,) = connection.execute(f"SELECT {config.complete_to} FROM {source}", dict(bound)).fetchone()
        complete_to = None if found is None else str(found)
    return Table(_frame(spark, copy, table, schema, rows, one.parts), complete_to, rows)


def _frame(
    spark: SparkSession, copy: Path, table: str, schema: StructType, rows: int, parts: int
) -> DataFrame:
    raw = pa.schema([pa.field(field.name, _raw(field.dataType)) for field in schema])
    parts = max(1, min(parts, rows // _ROWS + 1))
    read = _Copy(str(copy.resolve()), table, raw, rows, parts)
    numbers = spark.range(0, parts, 1, parts)
    return typed(numbers.mapInArrow(read, from_arrow_schema(raw)), schema)


def declared(connection: sqlite3.Connection, one: Wanted) -> StructType:
    table = str(one.config.table)
    found = connection.execute("SELECT name, type FROM pragma_table_info(?, 'source')", (table,)).fetchall()
    if not found:
        raise TableUnreadable(f'table "{one.name}": there is no table "{table}" in {one.config.path}')
    kinds = {name: _affinity(declared) for name, declared in found}
    if missing := [name for name in one.config.columns if name not in kinds]:
        there = ", ".join(kinds)
        raise TableUnreadable(f'table "{one.name}" has no column "{missing[0]}"; there is: {there}')
    return StructType([StructField(name, kinds[name]) for name in one.config.columns or kinds])


def _affinity(declared: str) -> DataType:
    """What SQLite makes of the type a column was declared with."""
    text = declared.upper()
    if "INT" in text:
        return LongType()
    if "BLOB" in text:
        return BinaryType()
    if any(part in text for part in ("REAL", "FLOA", "DOUB")):
        return DoubleType()
    return BooleanType() if "BOOL" in text else StringType()


def _raw(kind: DataType) -> pa.DataType:
    if isinstance(kind, IntegralType | BooleanType):
        return pa.int64()
    if isinstance(kind, FloatType | DoubleType):
        return pa.float64()
    return pa.binary() if isinstance(kind, BinaryType) else pa.string()


def _column(field: pa.Field, values: Sequence[Any]) -> pa.Array:
    try:
        if pa.types.is_string(field.type):
            return pa.array(
                [v if v is None or isinstance(v, str) else _as_text(v) for v in values], field.type
            )
        return pa.array(values, field.type)
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise ValueError(
            f'column "{field.name}": a value is no {field.type}: {error}; give the table a schema'
        ) from None


def _as_text(value: Any) -> str:
    if isinstance(value, bytes):
        raise TypeError("bytes are no text")
    return str(value)


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"a text is not UTF-8: {error}; give the table a schema with BINARY") from None


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
