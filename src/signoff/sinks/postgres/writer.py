"""What writes batches of rows to the table of a sink `postgres`, in one task.

When the one statement for all rows fails or writes less than it was given, the server goes through the rows
by itself and notes those that fail: halving from here would take a round trip per bad row.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow as pa

from signoff.errors import PermanentError
from signoff.postgres_names import NAME_BYTES, quoted
from signoff.sinks.contract import Refusal, Writer
from signoff.sinks.postgres.copy_text import as_csv, without_nul
from signoff.sinks.postgres.errors import DENIED, is_sinks
from signoff.sinks.postgres.statements import (
    COLUMNS_OF,
    IS_POLICY,
    OTHER_COLUMNS,
    PLACE,
    REFUSED,
    STAGE,
    declaration,
    lacks_sql,
    one_by_one_sql,
    upsert_sql,
)
from signoff.sinks.refusal import fit, refused

if TYPE_CHECKING:
    from signoff.sinks.postgres.sink import PostgresSink


class PostgresWriter(Writer):
    def __init__(self, sink: PostgresSink) -> None:
        self._sink = sink
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._ready_for: pa.Schema | None = None
        self._upsert = ""
        self._lacks = ""

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        sorted_out = without_nul(fit(rows))
        if not sorted_out.rows.num_rows:
            return sorted_out.refusals
        content = as_csv(sorted_out.rows)
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
            columns = ", ".join(declaration(one) for one in schema)
            if not connection.execute(COLUMNS_OF, [name]).fetchall():
                connection.execute(f"CREATE TABLE {name} ({columns})")
        types = dict(connection.execute(COLUMNS_OF, [name]).fetchall())
        made_there = {column for (column,) in connection.execute(OTHER_COLUMNS, [name]).fetchall()}
        if clash := [one.name for one in schema if one.name in made_there]:
            raise PermanentError(
                f"column {quoted(clash[0])} of table {name} is generated there, and cannot be written; "
                f"leave it out with a select, or rename it"
            )
        missing = [one for one in schema if one.name not in types]
        if missing and self._sink.create_table:
            added = ", ".join(f"ADD COLUMN {declaration(one)}" for one in missing)
            connection.execute(f"ALTER TABLE {name} {added}")
            types = dict(connection.execute(COLUMNS_OF, [name]).fetchall())
        self._upsert = upsert_sql(name, schema.names, types)
        self._lacks = lacks_sql(name, types)
        connection.commit()
        staged = ", ".join(f"{quoted(column)} text" for column in schema.names)
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
                cursor.execute(one_by_one_sql(self._upsert, self._lacks))
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
        return _is_true(cursor.execute(IS_POLICY, [name, name]))


class _Skipped(Exception):
    """The statement wrote less rows than it was given, and some of them are not in the table."""


def _is_true(cursor: psycopg.Cursor[tuple[Any, ...]]) -> bool:
    found = cursor.fetchone()
    return bool(found and found[0])


def _refuse_long_names(names: Sequence[str]) -> None:
    for name in names:
        if (length := len(name.encode())) > NAME_BYTES:
            raise PermanentError(
                f'the name of column "{name}" has {length} bytes, and PostgreSQL keeps {NAME_BYTES}: '
                f"rename it with a select before this sink"
            )
