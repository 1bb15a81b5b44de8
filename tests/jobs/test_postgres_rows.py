"""Rows of PostgreSQL, from the bytes that it sends: no row is left out, and nothing becomes null."""

from __future__ import annotations

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType

from signoff.jobs.postgres_table import SESSION, _Column, _Reader, _Stream
from signoff.pipeline.secrets import SecretUrl
from tests.servers import PostgresServer

TEXT = _Column("text", StringType(), pa.string(), "text")
NUMBER = _Column("n", LongType(), pa.int64(), "n")


@pytest.mark.parametrize(
    ("columns", "sent", "rows"),
    [
        ((TEXT,), b'a\n\n""\n\n', ["a", None, "", None]),
        ((NUMBER,), b"1\n\n\n2\n", [1, None, None, 2]),
        ((TEXT,), b"\n", [None]),
        ((TEXT, NUMBER), b'"x\n\ny",\n,1\n', ["x\n\ny", None]),
    ],
)
def test_a_row_in_which_the_only_column_is_null_is_a_row(
    columns: tuple[_Column, ...], sent: bytes, rows: list[object]
) -> None:
    """PostgreSQL sends an empty line for it."""
    reader = _Reader(SecretUrl("postgres://nowhere"), "", columns, ())
    for size in (1, 3, len(sent)):
        pieces = [sent[start : start + size] for start in range(0, len(sent), size)]
        found = [row for batch in reader._rows(_Stream(iter(pieces))) for row in batch.column(0).to_pylist()]
        assert found == rows


def test_a_value_that_is_too_long_is_said() -> None:
    reader = _Reader(SecretUrl("postgres://nowhere"), "", (TEXT,), ())
    pieces = [b"a\n", b'"' + b"x" * 9_000_000 + b'"\n']
    with pytest.raises(ValueError, match=r"more than 4 MiB of text.*leave such a column out"):
        list(reader._rows(_Stream(iter(pieces))))


@pytest.mark.servers
def test_the_server_does_not_end_the_transaction_while_the_job_computes(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        (name,) = admin.execute("SELECT current_database()").fetchone() or ("",)
        admin.execute(f"ALTER DATABASE \"{name}\" SET idle_in_transaction_session_timeout = '1s'")
        try:
            with psycopg.connect(postgres.url, options=SESSION) as connection:
                found = connection.execute("SHOW idle_in_transaction_session_timeout").fetchone()
        finally:
            admin.execute(f'ALTER DATABASE "{name}" RESET idle_in_transaction_session_timeout')
    assert found == ("0",)
