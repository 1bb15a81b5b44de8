"""Sink `postgres`: rows upserted into a table, keyed by `event_id`.

    COPY rows as text ─► temporary table ─► INSERT … SELECT with casts … ON CONFLICT DO UPDATE ─► COMMIT

Invariants: `write` returns after the commit; the same row written again replaces itself; a row that
the table rejects (a cast, a constraint, a trigger, a policy) is refused alone, also if a trigger skips it
without an error: what the statement says it wrote is counted. Which errors are a row's and which the sink's
is said in `postgres_errors`. When the one statement fails or writes less, the server goes through the rows by
itself and notes those that fail: halving from here would take a round trip per bad row. No wait is without
end: for a lock, for a statement, for a server that is silent.

Values are copied as text and cast to the types the table has, so an existing table may be stricter
or wider than what `create_table` would make.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv
import pyarrow.types as pt
from pydantic import Field, field_validator

from signoff.errors import PermanentError, SinkError, TransientError
from signoff.pipeline.model import SinkConfig
from signoff.pipeline.secrets import SecretUrl
from signoff.sinks.contract import EVENT_ID, Part, Refusal, Sink, Writer
from signoff.sinks.jsontext import TEXT, iso_time, json_values
from signoff.sinks.postgres_errors import DENIED, SINKS, UNCERTAIN, can_pass, is_sinks, listed
from signoff.sinks.refusal import Fit, brief, fit, refused

try:
    import psycopg
except ModuleNotFoundError:  # an extra; building the sink says so
    if not TYPE_CHECKING:
        psycopg = None

STAGE = "signoff_stage"
REFUSED = "signoff_refused"
PLACE = "signoff_place"
"""Column of the temporary table: the row's place in the batch."""
_NAME = re.compile(r'\s*(?:"((?:[^"]|"")+)"|([^".\s]+))\s*')

_COLUMNS_OF = """
SELECT attname, format_type(atttypid, -1) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""
_OTHER_COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
  AND (attgenerated <> '' OR attidentity = 'a')
"""
_KIND_OF_EVENT_ID = """
SELECT format_type(CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END, -1),
       coalesce(c.collisdeterministic, true)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
     LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = to_regclass(%s) AND a.attname = %s AND NOT a.attisdropped
"""
_IS_POLICY = """
SELECT row_security_active(to_regclass(%s)) AND has_any_column_privilege(to_regclass(%s), 'INSERT')
"""
_NAME_BYTES = 63
"""What PostgreSQL keeps of a name; the rest it cuts off, and two names may become one."""
_SKIPPED = "the table skipped the row without an error; a trigger or a policy of it keeps the row out"
_TEXT_TYPES = ("text", "character varying")
_UNIQUE_EVENT_ID = """
SELECT EXISTS (
  SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
  WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL AND i.indnkeyatts = 1
    AND a.attname = %s)
"""


class PostgresSinkConfig(SinkConfig):
    """A table in a PostgreSQL database, one row per event."""

    summary: ClassVar[str] = "A table in PostgreSQL; rows are copied in bulk and upserted by event_id."

    type: Literal["postgres"] = "postgres"
    url: SecretUrl
    """`postgresql://user:password@host:port/database`; the password is never shown."""
    table: str = Field(min_length=1)
    """Table the rows go to, `name` or `schema.name`; a name with capitals or dots may be put in
    double quotes. It needs a PRIMARY KEY or UNIQUE constraint on `event_id`."""
    create_table: bool = True
    """Create the table if it is missing, and add columns it lacks."""
    connect_timeout_s: int = Field(default=10, ge=1)
    """How long to wait for a connection."""
    lock_timeout_s: int = Field(default=30, ge=1)
    """How long a write waits for a lock that somebody else holds before it counts as failed for now."""
    statement_timeout_s: int = Field(default=300, ge=1)
    """How long a statement may take before it counts as failed for now."""

    @field_validator("table")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        _name_parts(value)
        return value

    def target(self, base: Path) -> str | None:
        return f"{_server(self.url.get(), self.table)}#{'.'.join(_name_parts(self.table)[-2:])}"

    def build(self, base: Path) -> PostgresSink:
        if psycopg is None:
            raise PermanentError(
                'sink type postgres needs psycopg, which is not installed: pip install "signoff[postgres]"'
            )
        return PostgresSink(
            self.url,
            self.table,
            self.create_table,
            self.connect_timeout_s,
            self.lock_timeout_s,
            self.statement_timeout_s,
        )


class PostgresSink(Sink):
    def __init__(
        self,
        url: SecretUrl,
        table: str,
        create_table: bool = True,
        connect_timeout_s: int = 10,
        lock_timeout_s: int = 30,
        statement_timeout_s: int = 300,
    ) -> None:
        self.url = url
        self.table = _name_parts(table)
        self.create_table = create_table
        self.connect_timeout_s = connect_timeout_s
        self.lock_timeout_s = lock_timeout_s
        self.statement_timeout_s = statement_timeout_s

    @property
    def name(self) -> str:
        """The table's name, quoted for SQL."""
        return ".".join('"' + part.replace('"', '""') + '"' for part in self.table)

    def prepare(self) -> None:
        try:
            with self.connect() as connection:
                self._refuse_unusable_table(connection)
        except psycopg.Error as error:
            raise self.failure(error) from error

    def open(self, part: Part) -> Writer:
        return _PostgresWriter(self)

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        given = psycopg.conninfo.conninfo_to_dict(self.url.get())
        # A server that is gone without a word is noticed by the kernel, within half a minute.
        settings: dict[str, Any] = {
            "connect_timeout": self.connect_timeout_s,
            "application_name": "signoff",
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": 30_000,
        }
        options = (
            f"-c timezone=UTC -c datestyle=ISO -c client_encoding=UTF8 "
            f"-c lock_timeout={self.lock_timeout_s}s -c statement_timeout={self.statement_timeout_s}s "
            f"{given.get('options') or ''}"
        )
        ours = {name: value for name, value in settings.items() if name not in given}
        return psycopg.connect(self.url.get(), options=options.strip(), **ours)

    def failure(self, error: psycopg.Error) -> SinkError:
        """What an error of the whole statement means for the rows."""
        text = f"table {self.name}: {brief(error)}"
        return TransientError(text) if can_pass(error) else PermanentError(text)

    def _refuse_unusable_table(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        if not connection.execute(_COLUMNS_OF, [self.name]).fetchall():
            if self.create_table:
                return
            raise PermanentError(f"there is no table {self.name}; create it or set create_table: true")
        found = connection.execute(_UNIQUE_EVENT_ID, [self.name, EVENT_ID]).fetchone()
        if not found or not found[0]:
            raise PermanentError(
                f"table {self.name} has no PRIMARY KEY or UNIQUE constraint on {EVENT_ID} alone, "
                f"so a replay would write rows twice; add one or choose another table"
            )
        kind, exact = connection.execute(_KIND_OF_EVENT_ID, [self.name, EVENT_ID]).fetchall()[0]
        if kind not in _TEXT_TYPES:
            raise PermanentError(
                f"column {EVENT_ID} of table {self.name} is of type {kind}, which cannot hold every id as it "
                f"is; make it text or choose another table"
            )
        if not exact:
            raise PermanentError(
                f"column {EVENT_ID} of table {self.name} has a collation that takes different ids for the "
                f"same (it is not deterministic): rows would replace each other; give it another collation"
            )


class _PostgresWriter(Writer):
    def __init__(self, sink: PostgresSink) -> None:
        self._sink = sink
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._ready_for: pa.Schema | None = None
        self._upsert = ""
        self._lacks = ""

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        sorted_out = _without_nul(fit(rows))
        if not sorted_out.rows.num_rows:
            return sorted_out.refusals
        content = _as_csv(sorted_out.rows)
        try:
            connection = self._connected()
            self._make_ready(connection, sorted_out.rows.schema)
            refusals = self._copy_and_upsert(connection, content, sorted_out.rows.num_rows)
            connection.commit()
        except psycopg.Error as error:
            self.abort()  # also forgets the temporary table, which a rollback may have taken
            raise self._sink.failure(error) from error
        except BaseException:
            self.abort()
            raise
        return sorted_out.original(refusals)

    def close(self) -> bytes | None:
        self.abort()
        return None

    def abort(self) -> None:
        self._ready_for = None
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None:
            self._connection = self._sink.connect()
        return self._connection

    def _make_ready(self, connection: psycopg.Connection[tuple[Any, ...]], schema: pa.Schema) -> None:
        if self._ready_for == schema:
            return
        name = self._sink.name
        _refuse_long_names(schema.names)
        if self._sink.create_table:
            # Two tasks that create the same table at once would fail on the catalogue.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [name])
            columns = ", ".join(_declaration(one) for one in schema)
            if not connection.execute(_COLUMNS_OF, [name]).fetchall():
                connection.execute(f"CREATE TABLE {name} ({columns})")
        types = dict(connection.execute(_COLUMNS_OF, [name]).fetchall())
        made_there = {column for (column,) in connection.execute(_OTHER_COLUMNS, [name]).fetchall()}
        if clash := [one.name for one in schema if one.name in made_there]:
            raise PermanentError(
                f"column {_quoted(clash[0])} of table {name} is generated there, and cannot be written; "
                f"leave it out with a select, or rename it"
            )
        missing = [one for one in schema if one.name not in types]
        if missing and self._sink.create_table:
            added = ", ".join(f"ADD COLUMN {_declaration(one)}" for one in missing)
            connection.execute(f"ALTER TABLE {name} {added}")
            types = dict(connection.execute(_COLUMNS_OF, [name]).fetchall())
        self._upsert = _upsert_sql(name, schema.names, types)
        self._lacks = _lacks_sql(name, types)
        connection.commit()
        staged = ", ".join(f"{_quoted(column)} text" for column in schema.names)
        connection.execute(f"DROP TABLE IF EXISTS pg_temp.{STAGE}, pg_temp.{REFUSED}")
        connection.execute(f"CREATE TEMP TABLE {STAGE} ({PLACE} integer, {staged}) ON COMMIT DELETE ROWS")
        connection.execute(
            f"CREATE TEMP TABLE {REFUSED} (place integer, reason text, uncertain boolean) "
            f"ON COMMIT DELETE ROWS"
        )
        connection.commit()
        self._ready_for = schema

    def _copy_and_upsert(
        self, connection: psycopg.Connection[tuple[Any, ...]], content: pa.Buffer, count: int
    ) -> list[Refusal]:
        with connection.cursor() as cursor:
            with cursor.copy(f"COPY {STAGE} FROM STDIN (FORMAT csv)") as copy:
                copy.write(memoryview(content))
            cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # or COMMIT would blame no row
            try:
                with connection.transaction():
                    cursor.execute(self._upsert)
                    if cursor.rowcount != count and _is_true(cursor.execute(self._lacks)):
                        raise _Skipped
            except (psycopg.Error, _Skipped) as error:
                if isinstance(error, psycopg.Error) and (connection.broken or is_sinks(error.sqlstate)):
                    raise
                # Also for an event_id twice in one batch: one by one, the last row stays.
                cursor.execute(_one_by_one_sql(self._upsert, self._lacks))
                found = cursor.execute(
                    f"SELECT place, reason, uncertain FROM {REFUSED} ORDER BY place"
                ).fetchall()
                if (
                    len(found) == count
                    and all(row[2] for row in found)
                    and not self._is_policy(cursor, error)
                ):
                    raise  # no row was taken, and none of them is known to be at fault
                return [refused(int(place), str(reason)) for place, reason, _ in found]
        return []

    def _is_policy(self, cursor: psycopg.Cursor[tuple[Any, ...]], error: Exception) -> bool:
        """Whether permission was denied to the rows and not to us: by row-level security."""
        name = self._sink.name
        if getattr(error, "sqlstate", None) != DENIED:
            return False
        return _is_true(cursor.execute(_IS_POLICY, [name, name]))


class _Skipped(Exception):
    """The statement wrote less rows than it was given, and some of them are not in the table."""


def _is_true(cursor: psycopg.Cursor[tuple[Any, ...]]) -> bool:
    found = cursor.fetchone()
    return bool(found and found[0])


def _refuse_long_names(names: Sequence[str]) -> None:
    for name in names:
        if (length := len(name.encode())) > _NAME_BYTES:
            raise PermanentError(
                f'the name of column "{name}" has {length} bytes, and PostgreSQL keeps {_NAME_BYTES}: '
                f"rename it with a select before this sink"
            )


def _server(url: str, table: str) -> str:
    """The database a URL leads to, however it is spelled; with the user where the schema may depend on it."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "localhost").lower()
        port = parts.port or 5432
    except ValueError:
        return url
    host = "127.0.0.1" if host in ("localhost", "::1") else host
    user = parts.username or ""
    database = unquote(parts.path.strip("/")) or user
    whose = "" if len(_name_parts(table)) > 1 else f"{user}@"
    return f"{whose}{host}:{port}/{database}?{parts.query}"


def _name_parts(name: str) -> tuple[str, ...]:
    """The one or two names in `name`, as PostgreSQL reads them: without quotes in lower case."""
    parts: list[str] = []
    place = 0
    while match := _NAME.match(name, place):
        parts.append(match[1].replace('""', '"') if match[1] else match[2].lower())
        place = match.end() + 1
        if name[match.end() :][:1] != ".":
            break
    if match is None or match.end() < len(name) or len(parts) > 2:
        raise ValueError(
            f'"{name}" is not the name of a table; write name, schema.name or "Name"."With.Dots"'
        )
    if any(len(part.encode()) > _NAME_BYTES for part in parts):
        raise ValueError(f'"{name}" is longer than the {_NAME_BYTES} bytes PostgreSQL keeps of a name')
    return tuple(parts)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _upsert_sql(table: str, names: Sequence[str], types: dict[str, str]) -> str:
    columns = ", ".join(map(_quoted, names))
    values = ", ".join(f"CAST({_quoted(name)} AS {types.get(name, 'text')})" for name in names)
    updates = ", ".join(f"{_quoted(name)} = excluded.{_quoted(name)}" for name in names if name != EVENT_ID)
    action = f"UPDATE SET {updates}" if updates else "NOTHING"
    return (
        f"INSERT INTO {table} ({columns}) SELECT {values} FROM pg_temp.{STAGE} "
        f"/*where*/ ON CONFLICT ({EVENT_ID}) DO {action}"
    )


def _lacks_sql(table: str, types: dict[str, str]) -> str:
    """Whether the table lacks rows of the batch. One that is there was written, now or before."""
    key = f"CAST(s.{EVENT_ID} AS {types.get(EVENT_ID, 'text')})"
    return (
        f"SELECT EXISTS (SELECT FROM pg_temp.{STAGE} s WHERE NOT EXISTS "
        f"(SELECT FROM {table} t WHERE t.{EVENT_ID} = {key}) /*and*/)"
    )


def _one_by_one_sql(upsert: str, lacks: str) -> str:
    """The same upsert, row by row on the server, noting the rows that fail, or that are skipped."""
    single = upsert.replace("/*where*/", f"WHERE {PLACE} = signoff_this")
    lacks_it = lacks.replace("/*and*/", f"AND s.{PLACE} = signoff_this")
    return f"""
CREATE INDEX ON pg_temp.{STAGE} ({PLACE});
DO $signoff$
DECLARE signoff_this integer; signoff_count bigint;
BEGIN
  FOR signoff_this IN SELECT {PLACE} FROM pg_temp.{STAGE} ORDER BY {PLACE} LOOP
    BEGIN
      {single};
      GET DIAGNOSTICS signoff_count = ROW_COUNT;
      IF signoff_count = 0 AND ({lacks_it}) THEN
        INSERT INTO pg_temp.{REFUSED} VALUES (signoff_this, '{_SKIPPED}', false);
      END IF;
    EXCEPTION
      WHEN assert_failure OR OTHERS THEN
        IF left(SQLSTATE, 2) IN ({listed(SINKS)}) THEN
          RAISE;
        END IF;
        INSERT INTO pg_temp.{REFUSED}
        VALUES (signoff_this, SQLERRM, left(SQLSTATE, 2) IN ({listed(UNCERTAIN)}));
    END;
  END LOOP;
END $signoff$;
DROP INDEX pg_temp.{STAGE}_{PLACE}_idx;
"""


def _declaration(column: pa.Field) -> str:
    key = " PRIMARY KEY" if column.name == EVENT_ID else ""
    return f"{_quoted(column.name)} {_type(column.type)}{key}"


def _type(kind: pa.DataType) -> str:
    tests = (
        (pt.is_boolean, "boolean"),
        (pt.is_int8, "smallint"),
        (pt.is_int16, "smallint"),
        (pt.is_int32, "integer"),
        (pt.is_int64, "bigint"),
        (pt.is_float32, "real"),
        (pt.is_float64, "double precision"),
        (pt.is_date, "date"),
        (pt.is_time, "time"),
        (pt.is_duration, "interval"),
        (_is_binary, "bytea"),
        (pt.is_nested, "jsonb"),
    )
    if pt.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    if pt.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    return next((name for test, name in tests if test(kind)), "text")


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


def _as_csv(rows: pa.RecordBatch) -> pa.Buffer:
    """All rows as CSV with their places; null is nothing, an empty string is two quotes."""
    columns = [pa.array(range(rows.num_rows), pa.int32()), *map(_as_text, rows.columns)]
    table = pa.table(columns, names=[PLACE, *rows.schema.names])
    out = pa.BufferOutputStream()
    pv.write_csv(table, out, pv.WriteOptions(include_header=False, quoting_style="all_valid"))
    return out.getvalue()


def _as_text(column: pa.Array) -> pa.Array:
    """A column in a form that PostgreSQL reads as each of the types it may be cast to."""
    kind = column.type
    if pt.is_timestamp(kind):
        return iso_time(column)
    if _is_binary(kind):
        values = (None if v is None else b"\\x" + binascii.hexlify(v) for v in column.to_pylist())
        return pa.array(values, pa.large_binary()).view(TEXT)
    if pt.is_nested(kind):
        return json_values(column)
    if pt.is_duration(kind):
        return pc.utf8_trim(json_values(column), '"')
    if pt.is_null(kind):
        return pa.nulls(len(column), TEXT)
    try:
        return column.cast(TEXT)
    except pa.ArrowNotImplementedError as error:
        raise PermanentError(
            f"PostgreSQL has no type for {kind}; cast it to STRING before this sink"
        ) from error


def _without_nul(sorted_out: Fit) -> Fit:
    """Refuse rows with text PostgreSQL cannot hold: it has no character U+0000."""
    refusals: dict[int, Refusal] = {}
    for name, column in zip(sorted_out.rows.schema.names, sorted_out.rows.columns, strict=True):
        if not (pt.is_string(column.type) or pt.is_large_string(column.type)):
            continue
        hits = pc.match_substring(column, "\0").fill_null(False)
        if hits.true_count:
            reason = f'column "{name}": PostgreSQL text cannot hold the character U+0000'
            for index in pc.indices_nonzero(hits).to_pylist():
                refusals.setdefault(index, refused(index, reason))
    if not refusals:
        return sorted_out
    keep = [index for index in range(sorted_out.rows.num_rows) if index not in refusals]
    return Fit(
        sorted_out.rows.take(pa.array(keep, pa.int64())),
        sorted_out.places[keep],
        sorted_out.original(refusals.values()),
    )
