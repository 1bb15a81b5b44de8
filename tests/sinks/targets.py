"""One `Target` per sink: the sink, a way to read what it holds, and a way to take it down."""

from __future__ import annotations

import gzip
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
import pytest
from psycopg.types.json import set_json_loads

from signoff.pipeline.secrets import SecretUrl
from signoff.sinks.console import ConsoleSink
from signoff.sinks.contract import Sink
from signoff.sinks.files import Compression, FilesSink
from signoff.sinks.http import HttpSink, HttpSinkConfig
from signoff.sinks.postgres import PostgresSink
from signoff.sinks.sqlite import SqliteSink
from tests.servers import PostgresServer, WebhookServer
from tests.sinks.rows import from_json, from_text, parse

Row = dict[str, Any]


class Target(ABC):
    sink: Sink

    @abstractmethod
    def read(self, schema: pa.Schema) -> list[Row]:
        """All visible rows, as the Python values Arrow gives for them."""

    @abstractmethod
    def down(self) -> None:
        """Make every write fail for a reason that may go away."""

    @abstractmethod
    def up(self) -> None: ...

    def close(self) -> None:
        pass


class FilesTarget(Target):
    def __init__(self, directory: Path, compression: Compression = "none") -> None:
        self.directory = directory
        self.sink = FilesSink(directory, "jsonl", compression)
        self.sink.prepare()

    def read(self, schema: pa.Schema) -> list[Row]:
        lines = [line for file in sorted(self.directory.glob("*.jsonl*")) for line in self._lines(file)]
        return [_from_line(line, schema) for line in lines]

    def _lines(self, file: Path) -> list[str]:
        content = file.read_bytes()
        if file.suffix == ".gz":
            content = gzip.decompress(content)
        if file.suffix == ".zst":
            content = pa.CompressedInputStream(pa.BufferReader(content), "zstd").read()
        assert content.endswith(b"\n")
        return content.decode().split("\n")[:-1]

    def down(self) -> None:
        (self.directory / ".parts").rename(self.directory / ".aside")
        (self.directory / ".parts").touch()  # permissions would not stop root

    def up(self) -> None:
        (self.directory / ".parts").unlink()
        (self.directory / ".aside").rename(self.directory / ".parts")


class ParquetTarget(FilesTarget):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.sink = FilesSink(directory, "parquet", "zstd")

    def read(self, schema: pa.Schema) -> list[Row]:
        tables = [pq.read_table(file) for file in sorted(self.directory.glob("*.parquet"))]
        assert all(table.schema.equals(schema) for table in tables)
        return [row for table in tables for row in table.to_pylist()]


class ConsoleTarget(Target):
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.sink = ConsoleSink(max_rows=1_000)
        self.capsys = capsys

    def read(self, schema: pa.Schema) -> list[Row]:
        return [_from_line(line, schema) for line in self.capsys.readouterr().out.split("\n")[:-1]]

    def down(self) -> None:
        raise NotImplementedError("a console is never down")

    def up(self) -> None: ...


class SqliteTarget(Target):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.sink = SqliteSink(path, "the table", busy_ms=1)
        self.sink.prepare()
        self._blocker: sqlite3.Connection | None = None

    def read(self, schema: pa.Schema) -> list[Row]:
        connection = sqlite3.connect(self.path)
        try:
            connection.row_factory = sqlite3.Row
            if not connection.execute("SELECT name FROM sqlite_schema").fetchall():
                return []
            rows = connection.execute('SELECT * FROM "the table" ORDER BY event_id').fetchall()
        finally:
            connection.close()
        return [{one.name: self._value(row[one.name], one.type) for one in schema} for row in rows]

    def _value(self, value: Any, kind: pa.DataType) -> Any:
        if value is None or pt.is_binary(kind) or pt.is_integer(kind) or pt.is_floating(kind):
            return value
        if pt.is_boolean(kind):
            return bool(value)
        if pt.is_nested(kind):
            return from_json(parse(value), kind)
        return from_json(value, kind) if pt.is_decimal(kind) else from_text(value, kind)

    def down(self) -> None:
        self._blocker = sqlite3.connect(self.path, isolation_level=None)
        self._blocker.execute("BEGIN IMMEDIATE")

    def up(self) -> None:
        self.close()

    def close(self) -> None:
        if self._blocker is not None:
            self._blocker.close()
            self._blocker = None


class PostgresTarget(Target):
    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        with psycopg.connect(server.url) as connection:
            connection.execute('DROP SCHEMA IF EXISTS "The.Schema" CASCADE')
            connection.execute('CREATE SCHEMA "The.Schema"')
        self.sink = PostgresSink(SecretUrl(server.url), '"The.Schema"."table ""x"""')
        self.sink.prepare()

    def read(self, schema: pa.Schema) -> list[Row]:
        with psycopg.connect(self.server.url, options="-c timezone=UTC") as connection:
            set_json_loads(parse, connection)
            if not connection.execute("SELECT FROM pg_tables WHERE schemaname = 'The.Schema'").fetchall():
                return []
            cursor = connection.execute('SELECT * FROM "The.Schema"."table ""x""" ORDER BY event_id')
            names = [column.name for column in cursor.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        return [{one.name: self._value(row[one.name], one.type) for one in schema} for row in rows]

    def _value(self, value: Any, kind: pa.DataType) -> Any:
        return from_json(value, kind) if pt.is_nested(kind) else value

    def down(self) -> None:
        self.server.stop()

    def up(self) -> None:
        self.server.start()


class HttpTarget(Target):
    def __init__(self, **fields: Any) -> None:
        self.server = WebhookServer()
        self.server.up()
        self.sink = HttpSink(HttpSinkConfig.model_validate({"url": self.server.url, **fields}))
        self.sink.prepare()

    def read(self, schema: pa.Schema) -> list[Row]:
        taken = [one for one in self.server.requests if one.status == 200]
        lines = [line for one in taken for line in one.body.decode().splitlines()]
        values = [item for line in lines for item in _as_list(parse(line))]
        rows = [{one.name: from_json(value[one.name], one.type) for one in schema} for value in values]
        return sorted(rows, key=lambda row: int(row["event_id"].split("/")[1]))

    def down(self) -> None:
        self.server.down()

    def up(self) -> None:
        self.server.up()

    def close(self) -> None:
        self.server.down()


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _from_line(line: str, schema: pa.Schema) -> Row:
    value = parse(line)
    assert list(value) == schema.names
    return {one.name: from_json(value[one.name], one.type) for one in schema}


TARGETS: dict[str, Callable[[Path, pytest.CaptureFixture[str], Callable[[], PostgresServer]], Target]] = {
    "files-jsonl": lambda path, _, __: FilesTarget(path / "out"),
    "files-jsonl-gzip": lambda path, _, __: FilesTarget(path / "out", "gzip"),
    "files-jsonl-zstd": lambda path, _, __: FilesTarget(path / "out", "zstd"),
    "files-parquet": lambda path, _, __: ParquetTarget(path / "out"),
    "console": lambda _, capsys, __: ConsoleTarget(capsys),
    "sqlite": lambda path, _, __: SqliteTarget(path / "database" / "x.db"),
    "postgres": lambda _, __, postgres: PostgresTarget(postgres()),
    "http-each": lambda _, __, ___: HttpTarget(),
    "http-array": lambda _, __, ___: HttpTarget(mode="array", max_rows=3),
    "http-ndjson": lambda _, __, ___: HttpTarget(mode="ndjson"),
}

FILES = [name for name in TARGETS if name.startswith("files")]
DATABASES = ["sqlite", "postgres"]
HTTP = [name for name in TARGETS if name.startswith("http")]
