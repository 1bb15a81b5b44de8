"""Reference tables of a real PostgreSQL: what comes of its types, its names, its limits and its failures."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pydantic import ValidationError

from signoff.transforms.lookup.step import LookupConfig
from signoff.transforms.lookup.tables import TABLES, TableError
from tests.servers import PostgresServer

STATIONS = """
CREATE SCHEMA IF NOT EXISTS plant;
DROP TABLE IF EXISTS plant.stations, plant."Odd.Name";
CREATE TABLE plant.stations (
    id bigint, code char(4), name text, price numeric(8,2), at timestamptz, day date, ok boolean,
    key uuid, more jsonb, host inet, opens time, every interval, tags text[], raw bytea, ratio float8
);
INSERT INTO plant.stations VALUES
    (1, 'a', 'north', 1.50, '2026-11-18 12:00+01', '2026-11-18', true, '6ecd8c99-4036-403d-bf84-cf8400f67836',
     '{"b": [1]}', '10.0.0.1', '08:30', '1 mon 2 days', '{x,y}', '\\x00ff', 'NaN'),
    (2, 'b', null, 20.25, null, null, null, null, null, null, null, null, null, null, null);
CREATE TABLE plant."Odd.Name" (id int, name text);
INSERT INTO plant."Odd.Name" VALUES (1, 'odd');
"""


@pytest.fixture
def url(postgres: PostgresServer) -> str:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(STATIONS)
    TABLES.forget()
    return postgres.url


def lookup(url: str, columns: list[str], key: str = "id", most: int = 1000, **where: str) -> LookupConfig:
    fields: dict[str, Any] = {"input": "x", "from": {"url": url, **where}, "keys": [key], "columns": columns}
    return LookupConfig.model_validate({**fields, "max_rows": most})


def table(config: LookupConfig) -> pa.Table:
    return config._loaded("named", Path()).table


def test_a_table_is_read_with_its_types_and_what_spark_does_not_have_is_text(url: str) -> None:
    names = [
        "code",
        "name",
        "price",
        "at",
        "day",
        "ok",
        "key",
        "more",
        "host",
        "opens",
        "every",
        "tags",
        "raw",
    ]
    first, second = table(lookup(url, names, table="plant.stations")).to_pylist()
    assert first == {
        "id": 1,
        "code": "a   ",
        "name": "north",
        "price": Decimal("1.50"),
        "at": datetime(2026, 11, 18, 11, tzinfo=UTC),
        "day": date(2026, 11, 18),
        "ok": True,
        "key": "6ecd8c99-4036-403d-bf84-cf8400f67836",
        "more": '{"b": [1]}',
        "host": "10.0.0.1",
        "opens": "08:30:00",
        "every": "1 mon 2 days",
        "tags": ["x", "y"],
        "raw": b"\x00\xff",
    }
    assert second["price"] == Decimal("20.25") and {second[name] for name in names[3:]} == {None}


def test_names_are_as_in_sql_and_the_options_of_the_address_hold(url: str) -> None:
    for name in ("plant.stations", "Plant.STATIONS", 'plant."stations"'):
        assert table(lookup(url, ["name"], table=name)).num_rows == 2
    assert table(lookup(url, ["name"], table='plant."Odd.Name"')).num_rows == 1
    in_plant = f"{url}?options=-csearch_path%3Dplant"
    assert table(lookup(in_plant, ["name"], table="stations")).num_rows == 2
    with pytest.raises(ValidationError, match="is not the name of a table"):
        lookup(url, ["name"], table="plant.stations; DROP TABLE x")


def test_a_query_may_be_any_that_only_reads(url: str) -> None:
    query = "WITH s AS (SELECT id, upper(name) AS name FROM plant.stations) SELECT * FROM s WHERE id = 1;"
    assert table(lookup(url, ["name"], query=query)).to_pylist() == [{"id": 1, "name": "NORTH"}]
    for wrong in (
        "SELECT plant.gone()",
        "DELETE FROM plant.stations RETURNING id, name",
        "SELECT 1; DELETE FROM plant.stations",
        "SELECT id, name, setval('q', 1) FROM plant.stations, (SELECT 1) AS o",
    ):
        with pytest.raises(TableError):
            table(lookup(url, ["name"], query=wrong))
    assert table(lookup(url, ["code"], table="plant.stations")).num_rows == 2, "nothing was changed"


def test_a_table_that_is_too_large_is_refused_before_all_of_it_is_brought_here(url: str) -> None:
    endless = "SELECT generate_series(1, 2000000000) AS id, repeat('x', 1000) AS name"
    with pytest.raises(TableError, match=re.escape("has 11 rows or more, more than max_rows (10)")):
        table(lookup(url, ["name"], most=10, query=endless))


def test_what_cannot_be_a_table_is_said_and_no_password_is(url: str) -> None:
    cases = {
        "SELECT id, NULL AS name FROM plant.stations": 'all values of "name" are null',
        "SELECT 1 AS id, 'NaN'::numeric AS name": "no column of one type",
        "SELECT 1 AS id, 'infinity'::date AS name": "date too large",
        "SELECT ratio AS id, name FROM plant.stations": "floating-point numbers are no keys",
        "SELECT 1 AS id, n AS name FROM generate_series(1, 2) AS n": "more than once",
        "SELECT 1 AS id": 'no column "name"',
        "SELECT 1 AS id, 2 AS name, 3 AS name": 'several columns "name"',
    }
    for query, said in cases.items():
        with pytest.raises(TableError, match=re.escape(said)):
            table(lookup(url, ["name"], query=query))
    wrong = re.sub(r":\d+/", ":1/", url.replace("not-checked", "hunter2-hunter2"))
    with pytest.raises(TableError) as raised:
        table(lookup(wrong, ["name"], table="stations"))
    assert "refused" in str(raised.value) and "hunter2" not in str(raised.value)


def test_a_server_that_goes_away_leaves_the_table_as_it_was(
    url: str, postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    config = lookup(url, ["name"], table="plant.stations").model_copy(update={"refresh": 0.0})
    assert table(config).num_rows == 2
    postgres.stop()
    try:
        assert table(config).num_rows == 2
        assert "was not read again" in caplog.text
    finally:
        postgres.start()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO plant.stations (id, name) VALUES (3, 'new')")
    assert table(config).num_rows == 3
