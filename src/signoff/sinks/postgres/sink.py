"""Sink `postgres`: rows upserted into a table, keyed by `event_id`.

    COPY rows as text ─► temporary table ─► INSERT … SELECT with casts … ON CONFLICT DO UPDATE ─► COMMIT

Invariants: `write` returns after the commit; the same row written again replaces itself; a row that
the table rejects (a cast, a constraint, a trigger, a policy) is refused alone, also if a trigger skips it
without an error: what the statement says it wrote is counted (`writer`). Which errors are a row's and which
the sink's is said in `errors`. No wait is without end: for a lock, for a statement, for a server that is
silent.

Values are copied as text and cast to the types the table has, so an existing table may be stricter
or wider than what `create_table` would make.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal
from urllib.parse import unquote, urlsplit

from pydantic import Field, field_validator

from signoff.errors import PermanentError, SinkError, TransientError
from signoff.pipeline.model import SinkConfig
from signoff.pipeline.secrets import SecretUrl
from signoff.postgres_names import name_parts
from signoff.sinks.contract import EVENT_ID, Part, RunRef, Sink, Writer
from signoff.sinks.owners import TABLE, refuse_others, removing
from signoff.sinks.postgres.errors import can_pass
from signoff.sinks.postgres.statements import COLUMNS_OF, KIND_OF_EVENT_ID, TEXT_TYPES, UNIQUE_EVENT_ID
from signoff.sinks.refusal import brief

try:
    import psycopg
except ModuleNotFoundError:  # an extra; building the sink says so
    if not TYPE_CHECKING:
        psycopg = None


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
    """How long a write waits for a lock that another session holds before it counts as a transient
    failure."""
    statement_timeout_s: int = Field(default=300, ge=1)
    """How long a statement may take before it counts as a transient failure."""

    @field_validator("table")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        name_parts(value)
        return value

    def target(self, base: Path) -> str | None:
        return f"{_server(self.url.get(), self.table)}#{'.'.join(name_parts(self.table)[-2:])}"

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
        self.table = name_parts(table)
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
        from signoff.sinks.postgres.writer import PostgresWriter  # which needs the driver

        return PostgresWriter(self)

    def refuse_others(self, owner: str, sources: Set[str]) -> None:
        try:
            with self.connect() as connection:
                there = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (TABLE,)).fetchone()
                if there is not None and there[0]:
                    self._refuse_others(connection, owner, sources)
        except psycopg.Error as error:
            raise self.failure(error) from error

    def claim(self, owner: str, sources: Set[str]) -> None:
        try:
            with self.connect() as connection, connection.transaction():
                # Two that make it at once would collide; the lock is that of the transaction.
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (TABLE,))
                connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {TABLE} (place text, source text, owner text, "
                    "PRIMARY KEY (place, source))"
                )
                self._refuse_others(connection, owner, sources)
                for source in sources:
                    connection.execute(
                        f"INSERT INTO {TABLE} VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
                        (self.name, source, owner),
                    )
        except psycopg.Error as error:
            raise self.failure(error) from error

    def _refuse_others(
        self, connection: psycopg.Connection[tuple[Any, ...]], owner: str, sources: Set[str]
    ) -> None:
        said = f"SELECT source, owner FROM {TABLE} WHERE place = %s"
        known = {row[0]: row[1] for row in connection.execute(said, (self.name,)).fetchall()}
        give_back = partial(removing, self.name)
        refuse_others(f"table {self.name}", owner, sources, known, give_back)

    def finish(self, run: RunRef) -> None:
        """Remove the rows of earlier runs with the same key, in one transaction."""
        if not run.earlier:
            return
        try:
            with self.connect() as connection, connection.transaction():
                there = connection.execute("SELECT to_regclass(%s) IS NOT NULL", (self.name,)).fetchone()
                if there is None or not there[0]:
                    return
                for ranges in run.earlier:
                    for source, (first, end) in ranges.items():
                        connection.execute(
                            f"DELETE FROM {self.name} WHERE event_id LIKE %s "
                            "AND split_part(event_id, '/', 2)::bigint >= %s "
                            "AND split_part(event_id, '/', 2)::bigint < %s",
                            (source.replace("_", r"\_") + "/%", first, end),
                        )
        except psycopg.Error as error:
            raise self.failure(error) from error

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
        if not connection.execute(COLUMNS_OF, [self.name]).fetchall():
            if self.create_table:
                return
            raise PermanentError(f"there is no table {self.name}; create it or set create_table: true")
        found = connection.execute(UNIQUE_EVENT_ID, [self.name, EVENT_ID]).fetchone()
        if not found or not found[0]:
            raise PermanentError(
                f"table {self.name} has no PRIMARY KEY or UNIQUE constraint on {EVENT_ID} alone, "
                f"so a replay would write rows twice; add one or choose another table"
            )
        kind, exact = connection.execute(KIND_OF_EVENT_ID, [self.name, EVENT_ID]).fetchall()[0]
        if kind not in TEXT_TYPES:
            raise PermanentError(
                f"column {EVENT_ID} of table {self.name} is of type {kind}, which cannot hold every id as it "
                f"is; make it text or choose another table"
            )
        if not exact:
            raise PermanentError(
                f"column {EVENT_ID} of table {self.name} has a collation that takes different ids for the "
                f"same (it is not deterministic): rows would replace each other; give it another collation"
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
    whose = "" if len(name_parts(table)) > 1 else f"{user}@"
    return f"{whose}{host}:{port}/{database}?{parts.query}"
