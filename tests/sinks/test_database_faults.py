"""SQLite and PostgreSQL: one row's fault is no other row's, and the sink's fault is no row's."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pydantic import ValidationError

from signoff.errors import PermanentError, SinkError, TransientError
from signoff.pipeline.secrets import SecretUrl
from signoff.sinks.contract import EVENT_ID, Part
from signoff.sinks.postgres.sink import PostgresSink, PostgresSinkConfig
from signoff.sinks.sqlite import SqliteSink
from signoff.testing.conformance.rows import batch_ref, numbered, write_batch
from tests.servers import PostgresServer, private_postgres, wait_until

OTHERS = [0, 1, 2, 4, 5, 6, 7, 8, 9]


# -- SQLite


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "x.db"


def on_sqlite(file: Path, *statements: str) -> list[Any]:
    connection = sqlite3.connect(file, isolation_level=None)
    try:
        return [connection.execute(one).fetchall() for one in statements][-1]
    finally:
        connection.close()


TABLE = "CREATE TABLE events (event_id TEXT PRIMARY KEY, number INTEGER, text TEXT)"


@pytest.mark.parametrize(
    "statements",
    [
        [
            TABLE,
            f"CREATE TRIGGER no BEFORE INSERT ON events WHEN NEW.number = 3 "
            f"BEGIN SELECT RAISE({how}, 'no threes'); END",
        ]
        for how in ("ROLLBACK", "ABORT", "FAIL")
    ]
    + [
        [
            TABLE.replace(
                "text TEXT", "text TEXT, j AS (json_extract(iif(number = 3, '{', '{}'), '$.a')) STORED"
            )
        ],
        [TABLE, "CREATE INDEX j ON events (json_extract(iif(number = 3, '{', '{}'), '$.a'))"],
        [
            TABLE.replace(
                "text TEXT", "text TEXT, j AS (abs(iif(number = 3, -9223372036854775808, 1))) STORED"
            )
        ],
    ],
)
def test_sqlite_refuses_the_one_row_and_writes_the_others(file: Path, statements: list[str]) -> None:
    on_sqlite(file, *statements)
    refusals = write_batch(SqliteSink(file, "events"), numbered(10))
    assert [(one.index, one.transient) for one in refusals] == [(3, False)], refusals
    assert [n for (n,) in on_sqlite(file, "SELECT number FROM events ORDER BY 1")] == OTHERS


@pytest.mark.parametrize("rowid", ["", " WITHOUT ROWID"])
@pytest.mark.parametrize(
    "statements",
    [
        [TABLE.replace("text TEXT", "text TEXT, three AS (nullif(number, 3)) NOT NULL ON CONFLICT IGNORE")],
        [TABLE.replace("number INTEGER", "number INTEGER UNIQUE ON CONFLICT IGNORE"), "number"],
        [TABLE.replace("number INTEGER", "number INTEGER UNIQUE on /* x */ conflict\n replace"), "number"],
        [
            TABLE,
            "CREATE TRIGGER no BEFORE INSERT ON events WHEN NEW.number = 3 BEGIN SELECT RAISE(IGNORE); END",
        ],
    ],
    ids=["not null", "unique", "replace", "trigger"],
)
def test_sqlite_refuses_the_row_that_the_table_skips_without_a_word(
    file: Path, statements: list[str], rowid: str
) -> None:
    taken = statements[-1] == "number"
    on_sqlite(file, statements[0] + rowid, *([] if taken else statements[1:]))
    if taken:
        on_sqlite(file, "INSERT INTO events (event_id, number) VALUES ('another', 3)")
    for _ in range(2):  # a replay says the same
        refusals = write_batch(SqliteSink(file, "events", create_table=False), numbered(10))
        assert [(one.index, one.transient) for one in refusals] == [(3, False)], refusals
    there = on_sqlite(file, "SELECT number FROM events WHERE event_id <> 'another' ORDER BY 1")
    assert [n for (n,) in there] == OTHERS
    assert on_sqlite(file, "SELECT count(*) FROM events WHERE event_id = 'another'") == [(int(taken),)]


def test_a_sqlite_row_that_is_there_is_no_refusal_though_the_table_keeps_updates_out(file: Path) -> None:
    keep = "CREATE TRIGGER keep BEFORE UPDATE ON events BEGIN SELECT RAISE(IGNORE); END"
    on_sqlite(file, TABLE, keep)
    sink = SqliteSink(file, "events")
    assert write_batch(sink, numbered(3)) == []
    assert write_batch(sink, numbered(3)) == []
    on_sqlite(file, "DROP TRIGGER keep", "UPDATE events SET text = 'old' WHERE number = 1", keep)
    assert [one.index for one in write_batch(sink, numbered(3))] == [1]


def test_a_default_that_sqlite_puts_in_the_place_of_null_is_kept(file: Path) -> None:
    on_sqlite(
        file,
        "CREATE TABLE events (event_id TEXT PRIMARY KEY, "
        "number INTEGER NOT NULL ON CONFLICT REPLACE DEFAULT 7)",
    )
    rows = pa.RecordBatch.from_pydict({"event_id": ["a", "b"], "number": pa.array([1, None], pa.int64())})
    assert write_batch(SqliteSink(file, "events"), rows) == []
    assert on_sqlite(file, "SELECT number FROM events ORDER BY 1") == [(1,), (7,)]


@pytest.mark.parametrize(
    "key", ["event_id TEXT COLLATE NOCASE PRIMARY KEY", "event_id TEXT, UNIQUE (event_id COLLATE NOCASE)"]
)
def test_sqlite_refuses_a_key_that_merges_ids_at_the_start(file: Path, key: str) -> None:
    on_sqlite(file, f"CREATE TABLE events ({key})" if "," in key else f"CREATE TABLE events ({key}, x)")
    with pytest.raises(PermanentError, match="COLLATE BINARY"):
        SqliteSink(file, "events").prepare()


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_rows_are_not_signed_for_by_a_sqlite_file_that_is_gone(file: Path, how: str) -> None:
    writer = SqliteSink(file, "events").open(Part(batch_ref(), 0, 0))
    writer.write(numbered(1))
    for one in file.parent.glob("x.db*"):
        one.unlink()
    if how == "replaced":
        on_sqlite(file, "CREATE TABLE other (x)")
    with pytest.raises(TransientError):
        writer.write(numbered(1, start=1))
    assert list(writer.write(numbered(1, start=1))) == [], "in the file that is there now"
    writer.close()
    assert on_sqlite(file, "SELECT number FROM events") == [(1,)]


def test_a_table_that_is_dropped_from_sqlite_while_it_is_written_is_made_again(file: Path) -> None:
    writer = SqliteSink(file, "events").open(Part(batch_ref(), 0, 0))
    writer.write(numbered(1))
    on_sqlite(file, "DROP TABLE events")
    assert list(writer.write(numbered(3))) == []
    writer.close()
    assert on_sqlite(file, "SELECT count(*) FROM events") == [(3,)]


def test_a_sqlite_file_that_is_locked_is_waited_for(file: Path) -> None:
    on_sqlite(file, TABLE)
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    writer = SqliteSink(file, "events", busy_ms=1).open(Part(batch_ref(), 0, 0))
    with pytest.raises(TransientError, match="locked"):
        writer.write(numbered(1))
    other.close()
    assert list(writer.write(numbered(1))) == []
    writer.close()


# -- PostgreSQL


@pytest.fixture
def session(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS faults CASCADE; CREATE SCHEMA faults")
        yield connection


PG_TABLE = "CREATE TABLE faults.events (event_id text PRIMARY KEY, number bigint, text text)"
TRIGGER = """
CREATE FUNCTION faults.no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
IF NEW.number = 3 THEN {body} END IF; RETURN NEW; END $$;
CREATE TRIGGER no BEFORE INSERT ON faults.events FOR EACH ROW EXECUTE FUNCTION faults.no()
"""


def pg_sink(server: PostgresServer, user: str = "", **fields: Any) -> PostgresSink:
    url = server.url
    if user:
        connection = psycopg.conninfo.conninfo_to_dict(url) | {"user": user}
        host = f"{connection['host']}:{connection['port']}"
        url = f"postgresql://{user}@{host}/{connection['dbname']}"
    return PostgresSink(SecretUrl(url), "faults.events", **fields)


@pytest.mark.parametrize(
    "body",
    [
        "RAISE EXCEPTION 'no' USING ERRCODE = 'A0001';",
        "RAISE EXCEPTION 'no' USING ERRCODE = '45000';",
        "ASSERT false, 'no';",
        "RAISE no_data_found;",
        "RAISE SQLSTATE '44000';",
        "EXECUTE 'SELECT no_such_column';",
        "EXECUTE 'SELECT 1 FROM no_such_table';",
        "PERFORM 1 / (NEW.number - 3);",
        "RAISE EXCEPTION 'no' USING ERRCODE = 'XX000';",
    ],
)
def test_postgres_refuses_the_row_a_trigger_fails_on_and_no_other(
    postgres: PostgresServer, session: psycopg.Connection[Any], body: str
) -> None:
    session.execute(PG_TABLE)
    session.execute(TRIGGER.format(body=body))
    refusals = write_batch(pg_sink(postgres), numbered(10))
    assert [(one.index, one.transient) for one in refusals] == [(3, False)], refusals
    found = session.execute("SELECT number FROM faults.events ORDER BY 1").fetchall()
    assert [n for (n,) in found] == OTHERS


def test_postgres_refuses_rows_that_a_trigger_skips_without_a_word(
    postgres: PostgresServer, session: psycopg.Connection[Any]
) -> None:
    session.execute(PG_TABLE)
    session.execute(TRIGGER.format(body="RETURN NULL;"))
    sink = pg_sink(postgres)
    for _ in range(2):  # those that are there already are no refusal
        (refusal,) = write_batch(sink, numbered(10))
        assert (refusal.index, refusal.transient) == (3, False) and "skipped the row" in refusal.reason
        found = session.execute("SELECT number FROM faults.events ORDER BY 1").fetchall()
        assert [n for (n,) in found] == OTHERS
    (refusal,) = write_batch(sink, numbered(1, start=3))
    assert not refusal.transient


@pytest.mark.parametrize("when", ["BEFORE UPDATE", "BEFORE INSERT OR UPDATE"])
def test_a_postgres_row_that_is_there_is_no_refusal_though_the_table_keeps_updates_out(
    postgres: PostgresServer, session: psycopg.Connection[Any], when: str
) -> None:
    session.execute(PG_TABLE)
    assert not write_batch(pg_sink(postgres), numbered(10))
    skips = TRIGGER.format(body="NULL;").replace("RETURN NEW", "RETURN NULL").replace("BEFORE INSERT", when)
    session.execute(skips)
    assert not write_batch(pg_sink(postgres), numbered(10))
    assert len(write_batch(pg_sink(postgres), numbered(12))) == (2 if "INSERT" in when else 0)


def test_a_policy_that_hides_rows_is_no_refusal_of_those_that_were_written(
    postgres: PostgresServer, session: psycopg.Connection[Any], guest: str
) -> None:
    session.execute(PG_TABLE)
    session.execute(TRIGGER.format(body="RETURN NULL;"))
    session.execute("GRANT ALL ON faults.events TO guest")
    session.execute("ALTER TABLE faults.events ENABLE ROW LEVEL SECURITY")
    session.execute("CREATE POLICY i ON faults.events FOR INSERT WITH CHECK (true)")
    session.execute("CREATE POLICY u ON faults.events FOR UPDATE USING (true)")
    session.execute("CREATE POLICY s ON faults.events FOR SELECT USING (true)")
    assert [one.index for one in write_batch(pg_sink(postgres, guest), numbered(10))] == [3]
    found = session.execute("SELECT number FROM faults.events ORDER BY 1").fetchall()
    assert [n for (n,) in found] == OTHERS


@pytest.mark.parametrize("rule", ["DO INSTEAD NOTHING", "WHERE NEW.number = 3 DO INSTEAD NOTHING"])
def test_a_rule_in_the_way_is_said_and_nothing_counts_as_written(
    postgres: PostgresServer, session: psycopg.Connection[Any], rule: str
) -> None:
    session.execute(PG_TABLE)
    session.execute(f"CREATE RULE r AS ON INSERT TO faults.events {rule}")
    sink = pg_sink(postgres)
    try:
        refusals = [one.index for one in write_batch(sink, numbered(10))]
    except PermanentError as error:
        assert "rule" in str(error).lower()
        refusals = list(range(10))
    found = session.execute("SELECT number FROM faults.events ORDER BY 1").fetchall()
    assert sorted([*refusals, *(n for (n,) in found)]) == list(range(10))


@pytest.fixture
def guest(session: psycopg.Connection[Any]) -> Iterator[str]:
    session.execute(
        "DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN; GRANT USAGE ON SCHEMA faults TO guest"
    )
    yield "guest"
    session.execute("DROP OWNED BY guest; DROP ROLE guest")


def test_row_level_security_refuses_its_row_also_alone_and_revoked_rights_are_waited_for(
    postgres: PostgresServer, session: psycopg.Connection[Any], guest: str
) -> None:
    session.execute(PG_TABLE)
    session.execute("GRANT ALL ON faults.events TO guest")
    session.execute("ALTER TABLE faults.events ENABLE ROW LEVEL SECURITY")
    session.execute("CREATE POLICY p ON faults.events USING (true) WITH CHECK (number <> 3)")
    sink = pg_sink(postgres, guest)
    assert [one.index for one in write_batch(sink, numbered(10))] == [3]
    (refusal,) = write_batch(sink, numbered(1, start=3))
    assert not refusal.transient and "policy" in refusal.reason
    session.execute("REVOKE ALL ON faults.events FROM guest")
    with pytest.raises(TransientError, match="denied"):
        write_batch(sink, numbered(1))


def test_a_column_that_postgres_makes_itself_is_named(
    postgres: PostgresServer, session: psycopg.Connection[Any]
) -> None:
    session.execute(
        "CREATE TABLE faults.events (event_id text PRIMARY KEY, number bigint,"
        " text text GENERATED ALWAYS AS ('x') STORED)"
    )
    with pytest.raises(PermanentError, match=r'column "text" of table .* is generated there'):
        write_batch(pg_sink(postgres), numbered(1))


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("event_id text COLLATE faults.ci", "not deterministic"),
        ("event_id name", "type name"),
        ("event_id char(40)", "type bpchar"),
    ],
)
def test_postgres_refuses_a_key_that_merges_ids_at_the_start(
    postgres: PostgresServer, session: psycopg.Connection[Any], column: str, said: str
) -> None:
    session.execute(
        "CREATE COLLATION faults.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
    )
    session.execute(f"CREATE TABLE faults.events ({column} PRIMARY KEY, number bigint, text text)")
    with pytest.raises(PermanentError, match=said):
        pg_sink(postgres).prepare()


def test_names_that_postgres_would_cut_are_refused(
    postgres: PostgresServer, session: psycopg.Connection[Any]
) -> None:
    with pytest.raises(ValidationError, match="longer than the 63 bytes"):
        PostgresSinkConfig(url=SecretUrl("postgresql://host/db"), table="ü" * 32)
    rows = pa.record_batch({EVENT_ID: ["a/0"], "x" * 64: [1], "x" * 63: [2]})
    with pytest.raises(PermanentError, match="has 64 bytes"):
        write_batch(pg_sink(postgres), rows)


@pytest.mark.parametrize(
    ("body", "said"),
    [("PERFORM pg_sleep(60);", "statement timeout"), ("LOCK TABLE faults.taken;", "lock timeout")],
)
def test_timeouts_of_postgres_are_waited_for_and_blame_no_row(
    postgres: PostgresServer, session: psycopg.Connection[Any], body: str, said: str
) -> None:
    session.execute(PG_TABLE)
    session.execute("CREATE TABLE faults.taken (x int)")
    session.execute(TRIGGER.format(body=body))
    sink = pg_sink(postgres, lock_timeout_s=1, statement_timeout_s=2)
    with psycopg.connect(postgres.url) as other:
        other.execute("LOCK TABLE faults.taken")
        with pytest.raises(TransientError, match=said):
            write_batch(sink, numbered(10))
    assert session.execute("SELECT count(*) FROM faults.events").fetchone() == (0,)


@pytest.mark.parametrize("state", ["40001", "40P01", "53100", "25006", "57P01", "55P03"])
def test_what_is_the_servers_fault_is_waited_for_even_if_a_trigger_says_it(
    postgres: PostgresServer, session: psycopg.Connection[Any], state: str
) -> None:
    session.execute(PG_TABLE)
    session.execute(TRIGGER.format(body=f"RAISE EXCEPTION 'now' USING ERRCODE = '{state}';"))
    with pytest.raises(TransientError, match="now"):
        write_batch(pg_sink(postgres), numbered(10))


def test_a_table_that_is_dropped_or_altered_under_a_writer_is_mended_or_waited_for(
    postgres: PostgresServer, session: psycopg.Connection[Any]
) -> None:
    session.execute(PG_TABLE)
    writer = pg_sink(postgres).open(Part(batch_ref(), 0, 0))
    kept = pg_sink(postgres, create_table=False).open(Part(batch_ref(), 0, 0))
    assert [*writer.write(numbered(1)), *kept.write(numbered(1))] == []
    session.execute("DROP TABLE faults.events")
    for one in (writer, kept):
        with pytest.raises(TransientError, match="does not exist"):
            one.write(numbered(3))
    assert list(writer.write(numbered(3))) == [], "the second time it is made"
    assert list(kept.write(numbered(3))) == []
    session.execute("ALTER TABLE faults.events DROP COLUMN text")
    with pytest.raises(SinkError):
        writer.write(numbered(3))
    assert list(writer.write(numbered(3))) == []
    writer.close()
    kept.close()


def test_a_deadlock_of_two_writers_is_waited_for_by_one_of_them(
    postgres: PostgresServer, session: psycopg.Connection[Any]
) -> None:
    session.execute(PG_TABLE)
    write_batch(pg_sink(postgres), numbered(2))
    failed: list[Exception] = []
    with psycopg.connect(postgres.url) as other:
        other.execute("UPDATE faults.events SET text = 'x' WHERE number = 1")

        def write() -> None:
            try:
                write_batch(pg_sink(postgres), numbered(2))
            except SinkError as error:
                failed.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        wait_until(lambda: session.execute(waits).fetchone() == (1,), what="the writer waits for a row")
        try:
            other.execute("UPDATE faults.events SET text = 'x' WHERE number = 0")
            other.commit()
        except psycopg.errors.DeadlockDetected:
            other.rollback()
        thread.join(60)
    assert all(isinstance(error, TransientError) for error in failed)


@pytest.mark.servers
def test_a_postgres_that_is_restarted_or_read_only_is_waited_for() -> None:
    with private_postgres() as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE SCHEMA faults")
        writer = pg_sink(server).open(Part(batch_ref(), 0, 0))
        assert list(writer.write(numbered(1))) == []
        server.kill()
        with pytest.raises(TransientError):
            writer.write(numbered(2))
        server.start()
        assert list(writer.write(numbered(2))) == []
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
            connection.execute("SELECT pg_reload_conf()")
            wait_until(lambda: connection.execute("SHOW default_transaction_read_only").fetchone() == ("on",))
        writer.abort()
        with pytest.raises(TransientError, match="read-only"):
            writer.write(numbered(3))
        writer.close()
