"""The SQL of the sink `postgres`, as texts: what it asks of the catalogue, and the upserts of a batch.

Rows are in the temporary table `STAGE`, as text and with their places in the batch; those that were refused
are noted in the temporary table `REFUSED`.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as pt

from signoff.postgres_names import quoted
from signoff.sinks.contract import EVENT_ID
from signoff.sinks.postgres.errors import SINKS, UNCERTAIN, listed

STAGE = "signoff_stage"
REFUSED = "signoff_refused"
PLACE = "signoff_place"
"""Column of the temporary table: the row's place in the batch."""

COLUMNS_OF = """
SELECT attname, format_type(atttypid, -1) FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
"""
OTHER_COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
  AND (attgenerated <> '' OR attidentity = 'a')
"""
KIND_OF_EVENT_ID = """
SELECT format_type(CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END, -1),
       coalesce(c.collisdeterministic, true)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
     LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = to_regclass(%s) AND a.attname = %s AND NOT a.attisdropped
"""
IS_POLICY = """
SELECT row_security_active(to_regclass(%s)) AND has_any_column_privilege(to_regclass(%s), 'INSERT')
"""
SKIPPED = "the table skipped the row without an error; a trigger or a policy of it keeps the row out"
TEXT_TYPES = ("text", "character varying")
UNIQUE_EVENT_ID = """
SELECT EXISTS (
  SELECT FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
  WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL AND i.indnkeyatts = 1
    AND a.attname = %s)
"""


def upsert_sql(table: str, names: Sequence[str], types: dict[str, str]) -> str:
    columns = ", ".join(map(quoted, names))
    values = ", ".join(f"CAST({quoted(name)} AS {types.get(name, 'text')})" for name in names)
    updates = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in names if name != EVENT_ID)
    action = f"UPDATE SET {updates}" if updates else "NOTHING"
    return (
        f"INSERT INTO {table} ({columns}) SELECT {values} FROM pg_temp.{STAGE} "
        f"/*where*/ ON CONFLICT ({EVENT_ID}) DO {action}"
    )


def lacks_sql(table: str, types: dict[str, str]) -> str:
    """Whether the table lacks rows of the batch. One that is there was written, now or before."""
    key = f"CAST(s.{EVENT_ID} AS {types.get(EVENT_ID, 'text')})"
    return (
        f"SELECT EXISTS (SELECT FROM pg_temp.{STAGE} s WHERE NOT EXISTS "
        f"(SELECT FROM {table} t WHERE t.{EVENT_ID} = {key}) /*and*/)"
    )


def one_by_one_sql(upsert: str, lacks: str) -> str:
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
        INSERT INTO pg_temp.{REFUSED} VALUES (signoff_this, '{SKIPPED}', false);
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


def declaration(column: pa.Field) -> str:
    key = " PRIMARY KEY" if column.name == EVENT_ID else ""
    return f"{quoted(column.name)} {_type(column.type)}{key}"


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
        (is_binary, "bytea"),
        (pt.is_nested, "jsonb"),
    )
    if pt.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    if pt.is_timestamp(kind):
        return "timestamptz" if kind.tz else "timestamp"
    return next((name for test, name in tests if test(kind)), "text")


def is_binary(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))
