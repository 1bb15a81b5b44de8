"""Tables of PostgreSQL: one exported snapshot, read by executors in ranges of the table's pages.

The driver keeps a transaction open for as long as the job computes; each task reads in one of its own that
sees exactly what that one sees. Rows come as CSV (`COPY`), which Arrow reads faster than Python could.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from signoff.jobs.spark_failures import SPARK_FAILURES
from signoff.jobs.tables import Table, TableUnreadable, Wanted, typed
from signoff.pipeline.job_settings import Value
from signoff.pipeline.secrets import SecretUrl, redact
from signoff.postgres_names import quoted_name

_TYPES: Mapping[int, DataType] = {
    16: BooleanType(), 17: BinaryType(), 20: LongType(), 21: ShortType(), 23: IntegerType(), 700: FloatType(),
    701: DoubleType(), 1082: DateType(), 1114: TimestampNTZType(), 1184: TimestampType(),
}  # fmt: skip
"""By their numbers; all others are texts, as PostgreSQL writes them."""
_NUMERIC = 1700
_MOST_DIGITS = 38
_TIMES = (1114, 1184)
SESSION = (
    "-c datestyle=ISO -c timezone=UTC -c extra_float_digits=3 -c bytea_output=hex "
    "-c idle_in_transaction_session_timeout=0"
)
"""The last, because the transaction whose snapshot the tasks share does nothing while they read."""
_BLOCK = 4 * 1024**2


@dataclass(frozen=True)
class _Column:
    name: str
    kind: DataType
    raw: pa.DataType
    sql: str
    may_not_fit: bool = False
    """A decimal number that may have more digits than its type."""


@dataclass(frozen=True)
class _Reader:
    """Reads the parts of one table, on executors."""

    url: SecretUrl
    snapshot: str
    columns: tuple[_Column, ...]
    parts: tuple[str, ...]
    """A query for each."""

    def __call__(self, numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from self._part(self.parts[number])

    def _part(self, query: str) -> Iterator[pa.RecordBatch]:
        import psycopg

        with psycopg.connect(self.url.get(), options=SESSION, autocommit=True) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(f"SET TRANSACTION SNAPSHOT '{self.snapshot}'")
            with connection.cursor().copy(f"COPY ({query}) TO STDOUT (FORMAT csv)") as copy:
                yield from self._rows(_Stream(iter(copy)))

    def _rows(self, stream: _Stream) -> Iterator[pa.RecordBatch]:
        first = stream.peek()
        if not first:
            return
        kinds = {column.name: _in_csv(column) for column in self.columns}
        reader = _opened(
            stream,
            read_options=pyarrow.csv.ReadOptions(column_names=list(kinds), block_size=_BLOCK),
            # Of a table with one column an empty line is a row, in which that is null.
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=kinds, null_values=[""], strings_can_be_null=True,
                quoted_strings_can_be_null=False, true_values=["t"], false_values=["f"],
            ),
        )  # fmt: skip
        schema = pa.schema([pa.field(column.name, column.raw) for column in self.columns])
        for batch in _batches(reader):
            arrays = [
                _decoded(array, column) for array, column in zip(batch.columns, self.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    try:
        yield from reader
    except pa.ArrowInvalid as error:
        raise _told(error) from error


def _opened(stream: _Stream, **options: Any) -> Any:
    try:
        return pyarrow.csv.open_csv(stream, **options)
    except pa.ArrowInvalid as error:
        raise _told(error) from error


def _told(error: pa.ArrowInvalid) -> ValueError:
    if "straddl" not in str(error):
        return ValueError(str(error))
    return ValueError(
        f"a row has more than {_BLOCK // 1024**2} MiB of text, or half as many bytes; leave such a column "
        "out with `columns`, or cut it in a view"
    )


class _Stream(io.RawIOBase):
    """What PostgreSQL sends, as a file."""

    def __init__(self, pieces: Iterator[Any]) -> None:
        self._pieces, self._rest = pieces, b""

    def readable(self) -> bool:
        return True

    def peek(self) -> bytes:
        self._fill(1)
        return self._rest[:1]

    def readinto(self, buffer: Any) -> int:
        self._fill(min(len(buffer), _BLOCK))
        taken = self._rest[: len(buffer)]
        self._rest = self._rest[len(taken) :]
        buffer[: len(taken)] = taken
        return len(taken)

    def _fill(self, size: int) -> None:
        pieces, length = [self._rest], len(self._rest)
        while length < size and (piece := next(self._pieces, None)) is not None:
            pieces.append(bytes(piece))
            length += len(piece)
        self._rest = b"".join(pieces)


@contextmanager
def snapshot(
    spark: SparkSession, url: SecretUrl, wanted: Sequence[Wanted], values: Mapping[str, Value]
) -> Iterator[dict[str, Table]]:
    """The tables as they are now, for as long as the context lasts."""
    try:
        import psycopg
    except ModuleNotFoundError:
        raise TableUnreadable('PostgreSQL needs psycopg: pip install "signoff[postgres]"') from None
    one = wanted[0]
    try:
        with psycopg.connect(url.get(), options=SESSION, autocommit=True, connect_timeout=10) as connection:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = connection.execute("SELECT pg_export_snapshot()").fetchone()
            assert row is not None
            found = {}
            for one in wanted:
                try:
                    found[one.name] = _table(spark, connection, url, row[0], one, values)
                except (ValueError, *SPARK_FAILURES) as error:
                    raise TableUnreadable(f'table "{one.name}": {error}') from None
            yield found
    except psycopg.Error as error:
        raise TableUnreadable(f'table "{one.name}": {redact(" ".join(str(error).split()))}') from None


def _table(
    spark: SparkSession,
    connection: Any,
    url: SecretUrl,
    snapshot_id: str,
    one: Wanted,
    values: Mapping[str, Value],
) -> Table:
    from psycopg import ClientCursor

    table = quoted_name(str(one.config.table))
    bind = ClientCursor(connection)

    def written(sql: str) -> str:
        return str(bind.mogrify(placeholders(sql), values))

    complete_to = None
    if one.config.complete_to:
        found = connection.execute(
            written(f"SELECT ({one.config.complete_to})::text FROM {table}")
        ).fetchone()
        complete_to = found[0] if found else None
    columns = _columns(connection, table, one)
    where = written(f"({one.config.where})") if one.config.where else "true"
    selected = ", ".join(column.sql for column in columns)
    parts = tuple(
        f"SELECT {selected} FROM {table} WHERE {where}{pages}"
        for pages in _pages(connection, table, one.parts)
    )
    reader = _Reader(url, snapshot_id, columns, parts)
    raw = from_arrow_schema(pa.schema([pa.field(column.name, column.raw) for column in columns]))
    schema = one.schema or StructType([StructField(column.name, column.kind) for column in columns])
    df = spark.range(0, len(parts), 1, len(parts)).mapInArrow(reader, raw)
    return Table(typed(df, schema), complete_to)


def _columns(connection: Any, table: str, one: Wanted) -> tuple[_Column, ...]:
    names = one.config.columns or tuple(one.schema.names if one.schema else ())
    found = {each.name: each for each in connection.execute(f"SELECT * FROM {table} LIMIT 0").description}
    if missing := [name for name in names if name not in found]:
        there = ", ".join(found)
        raise TableUnreadable(f'table "{one.name}" has no column "{missing[0]}"; there is: {there}')
    return tuple(_column(found[name]) for name in names or found)


def _column(each: Any) -> _Column:
    name, number = '"' + each.name.replace('"', '""') + '"', each.type_code
    if number in _TIMES:  # whole microseconds: a text would have to be parsed, in one of several forms
        raw = pa.timestamp("us", "UTC" if number == _TIMES[1] else None)
        return _Column(each.name, _TYPES[number], raw, f"(extract(epoch FROM {name}) * 1000000)::bigint")
    if number == _NUMERIC:
        kind = _decimal(each.precision, each.scale)
        raw = pa.decimal128(kind.precision, kind.scale)
        return _Column(
            each.name, kind, raw, name, may_not_fit=(each.precision or _MOST_DIGITS + 1) > _MOST_DIGITS
        )
    kind = _TYPES.get(number, StringType())
    if isinstance(kind, StringType):
        return _Column(each.name, kind, pa.string(), f"{name}::text")
    return _Column(each.name, kind, _ARROW[type(kind)], name)


def _decimal(precision: int | None, scale: int | None) -> DecimalType:
    """Spark's type for a `numeric`: of up to 38 digits, none of them left of those it keeps."""
    if not precision:
        return DecimalType(_MOST_DIGITS, 18)
    whole, scale = precision - (scale or 0), scale or 0
    if scale > _MOST_DIGITS:
        scale = max(_MOST_DIGITS - max(whole, 0), 0)
    scale = max(scale, 0)
    return DecimalType(min(max(whole, 0) + scale, _MOST_DIGITS), scale)


_ARROW: Mapping[type[DataType], pa.DataType] = {
    BooleanType: pa.bool_(), BinaryType: pa.binary(), LongType: pa.int64(), ShortType: pa.int16(),
    IntegerType: pa.int32(), FloatType: pa.float32(), DoubleType: pa.float64(), DateType: pa.date32(),
}  # fmt: skip


def _in_csv(column: _Column) -> pa.DataType:
    if pa.types.is_timestamp(column.raw):
        return pa.int64()
    return pa.string() if pa.types.is_binary(column.raw) or column.may_not_fit else column.raw


def _decoded(array: pa.Array, column: _Column) -> pa.Array:
    raw = column.raw
    if pa.types.is_binary(raw):
        return pa.array(
            [None if text is None else bytes.fromhex(text[2:]) for text in array.to_pylist()], raw
        )
    if column.may_not_fit:
        return _fitting(array, column)
    return array.cast(raw) if array.type != raw else array


def _fitting(texts: pa.Array, column: _Column) -> pa.Array:
    """The numbers that these are. Raises ValueError: Arrow reads one of too many digits as another one."""
    most = column.raw.precision - column.raw.scale
    whole = pc.list_element(pc.split_pattern(pc.utf8_ltrim(texts, "-0"), "."), 0)
    longest = pc.max(pc.utf8_length(whole)).as_py()
    if longest is not None and longest > most:
        raise ValueError(
            f'column "{column.name}": a number has {longest} digits before the point, and {most} are read; '
            "cast it in a view"
        )
    try:
        return pc.replace_substring_regex(texts, r"(\.\d*?)0+$", r"\1").cast(column.raw)
    except pa.ArrowInvalid as error:
        raise ValueError(f'column "{column.name}": {error}; cast it in a view') from None


def _pages(connection: Any, table: str, parts: int) -> list[str]:
    """Conditions that divide a table by where its rows are; none for a view, which has no pages."""
    row = connection.execute(
        "SELECT c.relkind, pg_relation_size(c.oid) / current_setting('block_size')::int FROM pg_class c "
        "WHERE c.oid = to_regclass(%s)", (table,)
    ).fetchone()  # fmt: skip
    if row is None or row[0] not in ("r", "m") or row[1] < parts:
        return [""]
    edges = [row[1] * number // parts for number in range(parts)]
    upper = [f" AND ctid < '({edge},0)'::tid" for edge in edges[1:]] + [
        ""
    ]  # the last takes what is new as well
    return [f" AND ctid >= '({edge},0)'::tid{end}" for edge, end in zip(edges, upper, strict=True)]


def placeholders(sql: str) -> str:
    """`:name` as psycopg writes it; not in texts, names and comments, and not in `::type`."""
    import re

    pattern = r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|::|:(?P<name>[A-Za-z_][A-Za-z0-9_]*)"""

    def replaced(match: re.Match[str]) -> str:
        return f"%({match['name']})s" if match["name"] else match[0]

    return re.sub(pattern, replaced, sql.replace("%", "%%"), flags=re.DOTALL)
