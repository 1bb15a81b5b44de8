"""Rows of PostgreSQL, from the bytes that it sends: no row is left out, and nothing becomes null."""

from __future__ import annotations

from decimal import Decimal
from types import SimpleNamespace

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.types import DecimalType, LongType, StringType

from signoff.jobs.postgres_table import SESSION, _Column, _column, _Reader, _Stream
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


@pytest.mark.parametrize("least", [b"", b"-"])
def test_a_number_of_too_many_digits_is_no_other_number(least: bytes) -> None:
    """Of a `numeric` without a precision: Arrow would make 46509284486016680345.83625084194521088 of it."""
    column = _column(SimpleNamespace(name="n", type_code=1700, precision=None, scale=None))
    reader = _Reader(SecretUrl("postgres://nowhere"), "", (column,), ())
    most = b"99999999999999999999.999999999999999999"
    (batch,) = reader._rows(_Stream(iter([b"\n0.5\n00\n" + least + most + b"\n"])))
    assert batch.column(0).to_pylist() == [None, Decimal("0.5"), Decimal(0), Decimal((least + most).decode())]
    for number in (b"123456789012345678901234567890", b"100000000000000000000", b"9" * 60 + b".5"):
        with pytest.raises(ValueError, match=r'column "n": a number has \d+ digits before the point, and 20'):
            list(reader._rows(_Stream(iter([b"1.5\n" + least + number + b"\n"]))))
    with pytest.raises(ValueError, match=r'column "n": .*; cast it in a view'):
        list(reader._rows(_Stream(iter([b"NaN\n"]))))


def test_a_number_is_read_without_the_zeros_at_its_end() -> None:
    column = _column(SimpleNamespace(name="n", type_code=1700, precision=50, scale=40))
    reader = _Reader(SecretUrl("postgres://nowhere"), "", (column,), ())
    sent = b"1.5" + b"0" * 39 + b"\n20." + b"0" * 40 + b"\n100\n"
    (batch,) = reader._rows(_Stream(iter([sent])))
    assert batch.column(0).to_pylist() == [Decimal("1.5"), Decimal(20), Decimal(100)]


@pytest.mark.parametrize(
    ("precision", "scale", "kind"),
    [
        (12, 3, (12, 3)), (3, 5, (5, 5)), (5, -2, (7, 0)), (38, 0, (38, 0)), (60, 2, (38, 2)),
        (50, 40, (38, 28)), (1000, 1000, (38, 38)), (1, 1000, (38, 38)), (None, None, (38, 18)),
    ],
)  # fmt: skip
def test_every_numeric_has_a_type(precision: int | None, scale: int | None, kind: tuple[int, int]) -> None:
    column = _column(SimpleNamespace(name="n", type_code=1700, precision=precision, scale=scale))
    assert column.kind == DecimalType(*kind) and column.raw == pa.decimal128(*kind)


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
