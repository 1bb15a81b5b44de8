"""SQLite and PostgreSQL: existing tables, constraints, columns that come later, several writers."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pydantic import ValidationError

from signoff.errors import PermanentError, TransientError
from signoff.pipeline.secrets import SecretUrl
from signoff.sinks.contract import EVENT_ID, Part, Sink
from signoff.sinks.owners import OthersRows
from signoff.sinks.postgres import sink as postgres_module
from signoff.sinks.postgres.sink import PostgresSink, PostgresSinkConfig
from signoff.sinks.sqlite import SqliteSink, SqliteSinkConfig
from signoff.testing.conformance.rows import batch_ref, every_type, numbered, write_batch
from tests.servers import PostgresServer, free_port


class Database:
    """Either database: run SQL, build a sink for the table `events`."""

    def __init__(self, execute: Callable[[str], list[tuple[Any, ...]]], build: Callable[..., Sink]) -> None:
        self.execute = execute
        self.build = build


@pytest.fixture(params=["sqlite", "postgres"])
def database(
    request: pytest.FixtureRequest, tmp_path: Path, postgres_on_demand: Callable[[], PostgresServer]
) -> Iterator[Database]:
    if request.param == "sqlite":
        connection = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        yield Database(
            lambda query: connection.execute(query).fetchall(),
            lambda **fields: SqliteSinkConfig(path="x.db", table="events", **fields).build(tmp_path),
        )
        connection.close()
        return
    url = postgres_on_demand().url
    with psycopg.connect(url, autocommit=True) as session:
        session.execute("DROP TABLE IF EXISTS events CASCADE")

        def execute(query: str) -> list[tuple[Any, ...]]:
            cursor = session.execute(query)
            return cursor.fetchall() if cursor.description else []

        yield Database(
            execute,
            lambda **fields: PostgresSinkConfig(url=SecretUrl(url), table="events", **fields).build(tmp_path),
        )


def test_rows_of_a_query_are_of_one_job(database: Database) -> None:
    database.execute("DROP TABLE IF EXISTS signoff_owners")
    sink = database.build()
    sink.refuse_others("failures", {"by_station"})
    with pytest.raises((sqlite3.Error, psycopg.Error)):
        database.execute("SELECT * FROM signoff_owners")  # asking has made nothing
    for _ in range(2):
        sink.claim("failures", {"by_station", "other"})
    sink.claim("reports", {"third"})
    with pytest.raises(OthersRows, match='a query "by_station" of the job "failures"'):
        sink.claim("reports", {"by_station", "fourth"})
    sink.claim("more", {"fourth"})  # what was refused has noted nothing
    with pytest.raises(OthersRows) as caught:
        sink.refuse_others("reports", {"by_station", "fifth"})
    assert "give the place back: DELETE FROM signoff_owners WHERE " in str(caught.value)
    sink.refuse_others("failures", {"by_station", "fifth"})
    sink.refuse_others("reports", {"fifth"})  # asking has noted nothing
    database.execute(str(caught.value).partition("give the place back: ")[2])
    sink.claim("reports", {"by_station", "fifth"})
    sink.refuse_others("failures", {"other"})


def test_rows_that_break_a_constraint_are_refused_alone(database: Database) -> None:
    database.execute(
        "CREATE TABLE events (event_id TEXT PRIMARY KEY, number INTEGER CHECK (number % 4 <> 3), text TEXT)"
    )
    sink = database.build()
    sink.prepare()
    refusals = write_batch(sink, numbered(10))
    assert [(one.index, one.transient) for one in refusals] == [(3, False), (7, False)]
    assert "constraint" in refusals[0].reason.lower()
    written = database.execute("SELECT number FROM events ORDER BY number")
    assert written == [(0,), (1,), (2,), (4,), (5,), (6,), (8,), (9,)]


def test_batch_of_nothing_but_bad_rows_is_refused_row_by_row(database: Database) -> None:
    database.execute(
        "CREATE TABLE events (event_id TEXT PRIMARY KEY, number INTEGER CHECK (number < 0), text TEXT)"
    )
    refusals = write_batch(database.build(), numbered(200))
    assert [one.index for one in refusals] == list(range(200))


def test_writer_goes_on_after_a_refusal(database: Database) -> None:
    database.execute(
        "CREATE TABLE events (event_id TEXT PRIMARY KEY, number INTEGER CHECK (number <> 1), text TEXT)"
    )
    writer = database.build().open(Part(batch_ref(), 0, 0))
    assert [one.index for one in writer.write(numbered(3))] == [1]
    assert [one.index for one in writer.write(numbered(3, start=1))] == [0]
    assert list(writer.write(numbered(3, start=4))) == []
    writer.close()
    assert database.execute("SELECT count(*) FROM events") == [(7 - 1,)]


def test_columns_that_come_later_are_added(database: Database) -> None:
    sink = database.build()
    write_batch(sink, numbered(1))
    wider = numbered(1, start=1).append_column("extra", pa.array([True]))
    assert write_batch(sink, wider) == []
    assert database.execute("SELECT event_id, extra FROM events ORDER BY event_id") in (
        [("incoming/0", None), ("incoming/1", 1)],
        [("incoming/0", None), ("incoming/1", True)],
    )


def test_columns_the_rows_do_not_have_are_left_alone(database: Database) -> None:
    database.execute("CREATE TABLE events (event_id TEXT PRIMARY KEY, number INTEGER, text TEXT, note TEXT)")
    sink = database.build()
    write_batch(sink, numbered(1))
    database.execute("UPDATE events SET note = 'kept'")
    write_batch(sink, numbered(1, text="again"))
    assert database.execute("SELECT text, note FROM events") == [("again 0", "kept")]


def test_table_without_unique_event_id_is_refused_at_the_start(database: Database) -> None:
    database.execute("CREATE TABLE events (event_id TEXT, number INTEGER, PRIMARY KEY (event_id, number))")
    with pytest.raises(PermanentError, match="no PRIMARY KEY or UNIQUE constraint on event_id"):
        database.build().prepare()
    database.execute("CREATE UNIQUE INDEX events_by_id ON events (event_id)")
    database.build().prepare()


def test_missing_table_that_may_not_be_created_is_told_at_the_start(database: Database) -> None:
    with pytest.raises(PermanentError, match=r"no table .events.; create it or set create_table: true"):
        database.build(create_table=False).prepare()


def test_missing_column_that_may_not_be_added_is_a_permanent_error(database: Database) -> None:
    database.execute("CREATE TABLE events (event_id TEXT PRIMARY KEY, number INTEGER)")
    with pytest.raises(PermanentError, match=r"events.*text"):
        write_batch(database.build(create_table=False), numbered(1))


def test_event_id_alone_is_a_row_too(database: Database) -> None:
    rows = numbered(2).select([EVENT_ID])
    write_batch(database.build(), rows)
    write_batch(database.build(), rows)
    assert database.execute("SELECT count(*) FROM events") == [(2,)]


def test_id_twice_in_one_batch_leaves_the_last_row(database: Database) -> None:
    twice = pa.Table.from_batches([numbered(2, text="old"), numbered(2, text="new")]).combine_chunks()
    assert write_batch(database.build(), twice.to_batches()[0]) == []
    assert database.execute("SELECT text FROM events ORDER BY text") == [("new 0",), ("new 1",)]


def test_tasks_that_create_the_table_at_once_do_not_disturb_each_other(database: Database) -> None:
    sink = database.build()

    def task(number: int) -> int:
        return len(write_batch(sink, every_type().slice(number, 1)))

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(task, range(4))) == [0, 0, 0, 0]
    assert database.execute("SELECT count(*) FROM events") == [(4,)]


def test_database_file_that_is_none_is_a_permanent_error(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("this is a letter to my mother, and not a database at all" * 20)
    with pytest.raises(PermanentError, match="not a database"):
        SqliteSink(tmp_path / "x.db", "events").prepare()


def test_nan_is_null_in_sqlite(tmp_path: Path) -> None:
    sink = SqliteSink(tmp_path / "x.db", "events")
    write_batch(sink, pa.record_batch({EVENT_ID: ["incoming/0"], "x": [float("nan")]}))
    connection = sqlite3.connect(tmp_path / "x.db")
    assert connection.execute("SELECT x FROM events").fetchall() == [(None,)]
    connection.close()


def test_values_are_cast_to_the_types_a_postgres_table_has(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as session:
        session.execute("DROP TABLE IF EXISTS events CASCADE")
        session.execute(
            "CREATE TABLE events (event_id varchar(20) PRIMARY KEY, number text, text varchar(5))"
        )
        rows = numbered(1).append_column("nothing", pa.nulls(1))
        sink = PostgresSink(SecretUrl(postgres.url), "events")
        assert write_batch(sink, rows) == []
        (refusal,) = write_batch(sink, numbered(1, text="far too long"))
        assert "too long" in refusal.reason  # and not cut off in silence
        assert session.execute("SELECT number, text FROM events").fetchall() == [("0", "row 0")]


def test_trigger_and_deferred_constraint_refuse_single_rows_in_postgres(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as session:
        session.execute("DROP TABLE IF EXISTS events CASCADE")
        session.execute(
            "CREATE TABLE events (event_id text PRIMARY KEY, number bigint, text text,"
            " CONSTRAINT once UNIQUE (number) DEFERRABLE INITIALLY DEFERRED)"
        )
        session.execute("INSERT INTO events VALUES ('old', 2, '')")
        session.execute(
            "CREATE OR REPLACE FUNCTION pg_temp.no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF NEW.number = 4 THEN RAISE EXCEPTION 'no fours, please'; END IF; RETURN NEW; END $$"
        )
        session.execute(
            "CREATE TRIGGER no BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION pg_temp.no()"
        )
        refusals = write_batch(PostgresSink(SecretUrl(postgres.url), "events"), numbered(6))
        assert [one.index for one in refusals] == [2, 4]
        assert ("once" in refusals[0].reason, refusals[1].reason) == (True, "no fours, please")


def test_character_nul_is_refused_by_row_in_postgres(postgres: PostgresServer) -> None:
    with psycopg.connect(postgres.url, autocommit=True) as session:
        session.execute("DROP TABLE IF EXISTS events CASCADE")
    rows = pa.record_batch(
        {EVENT_ID: ["a/0", "a/1", "a/2"], "text": ["x", "a\0b", "y"], "list": [["x"], ["y"], ["\0"]]}
    )
    refusals = write_batch(PostgresSink(SecretUrl(postgres.url), "events"), rows)
    assert [one.index for one in refusals] == [1, 2]


def test_password_of_a_postgres_that_is_away_is_not_shown(tmp_path: Path) -> None:
    url = f"postgresql://user:hunter2hunter2@127.0.0.1:{free_port()}/db"
    sink = PostgresSinkConfig(url=SecretUrl(url), table="events").build(tmp_path)
    with pytest.raises(TransientError) as raised:
        sink.prepare()
    assert "hunter2" not in str(raised.value)
    assert "hunter2" not in repr(PostgresSinkConfig(url=SecretUrl(url), table="events"))


def test_postgres_without_psycopg_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_module, "psycopg", None)
    with pytest.raises(PermanentError, match=r'pip install "signoff\[postgres\]"'):
        PostgresSinkConfig(url=SecretUrl("postgresql://host/db"), table="events").build(tmp_path)
    assert "psycopg" in sys.modules


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("Events", ("events",)),
        ("alarms.events", ("alarms", "events")),
        ('"Alarms"."my.events"', ("Alarms", "my.events")),
        ('"a""b"', ('a"b',)),
    ],
)
def test_table_names_are_read_as_postgres_reads_them(name: str, parts: tuple[str, ...]) -> None:
    assert PostgresSink(SecretUrl("postgresql://host/db"), name).table == parts


@pytest.mark.parametrize("name", ["a.b.c", "a b", "a.", '"open', ".a", "a; DROP TABLE b"])
def test_what_is_no_table_name_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="not the name of a table"):
        PostgresSinkConfig(url=SecretUrl("postgresql://host/db"), table=name)
