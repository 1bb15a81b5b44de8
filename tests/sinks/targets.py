"""One `Target` per sink: the sink, a way to read what it holds, and a way to take it down."""

from __future__ import annotations

import csv
import gzip
import io
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt
import pytest
from psycopg.types.json import set_json_loads

from signoff.pipeline.secrets import SecretUrl
from signoff.sinks.console import ConsoleSink
from signoff.sinks.contract import BatchRef, Part, Refusal, Sink, Writer
from signoff.sinks.csv_text import CsvShape
from signoff.sinks.files.partitions import PREFIX
from signoff.sinks.files.parts import Compression, Limits
from signoff.sinks.files.sink import FilesSink, Format
from signoff.sinks.http import HttpSink, HttpSinkConfig
from signoff.sinks.nats import SUBJECT, NatsSinkConfig
from signoff.sinks.opensearch.actions import INDEX
from signoff.sinks.opensearch.sink import OpensearchSinkConfig, SearchSink
from signoff.sinks.postgres.sink import PostgresSink
from signoff.sinks.rabbitmq.sink import ROUTING_KEY, RabbitmqSink, RabbitmqSinkConfig
from signoff.sinks.redis import KEY, RedisSinkConfig
from signoff.sinks.sqlite import SqliteSink
from signoff.testing.conformance.rows import from_json, from_text, parse
from signoff.testing.conformance.sinks import Row, SinkTarget
from tests.brokers import RabbitMQ
from tests.nats_server import NatsServer
from tests.redis_server import RedisServer
from tests.search_server import OpenSearch
from tests.servers import PostgresServer, WebhookServer


class Target(SinkTarget):
    """One that may have to be closed."""

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


class CsvTarget(FilesTarget):
    def __init__(self, directory: Path, compression: Compression = "none") -> None:
        super().__init__(directory)
        self.sink = FilesSink(directory, "csv", compression, CsvShape(null_value="\\N"))

    def read(self, schema: pa.Schema) -> list[Row]:
        found: list[Row] = []
        for file in sorted(self.directory.glob("*.csv*")):
            text = file.read_bytes()
            if file.suffix == ".zst":
                text = pa.CompressedInputStream(pa.BufferReader(text), "zstd").read()
            names, *rows = csv.reader(io.StringIO(text.decode(), newline=""))
            assert names == schema.names
            found += [
                {one.name: _from_field(value, one.type) for one, value in zip(schema, row, strict=True)}
                for row in rows
            ]
        return found


class DividedTarget(FilesTarget):
    """Files by value and size: rows come back in no order, so they are sorted."""

    def __init__(self, directory: Path, format_: Format, rows: int | None = None, parts: int = 3) -> None:
        super().__init__(directory)
        limits, self.parts, self.format = Limits(rows), parts, format_
        names = ("kind",) if parts else ()
        self.sink = _Divided(FilesSink(directory, format_, limits=limits, partitions=names), parts)

    def read(self, schema: pa.Schema) -> list[Row]:
        files = sorted(self.directory.glob(f"{'kind=*/' if self.parts else ''}*.{self.format}"))
        if self.format == "jsonl":
            found = [_from_line(line, schema) for file in files for line in self._lines(file)]
        else:
            found = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
        return sorted(found, key=lambda row: int(str(row["event_id"]).rpartition("/")[2]))


@dataclass
class _Divided(Sink):
    sink: FilesSink
    parts: int
    atomic = True

    def prepare(self) -> None:
        self.sink.prepare()

    def open(self, part: Part) -> Writer:
        return _DividedWriter(self.sink.open(part), self.parts)

    def commit(self, batch: BatchRef, parts: Sequence[bytes]) -> None:
        self.sink.commit(batch, parts)


@dataclass
class _DividedWriter(Writer):
    writer: Writer
    parts: int

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        numbers = [int(str(one).rpartition("/")[2]) for one in rows.column("event_id")]
        kinds = pa.array(
            [f"k/{number % self.parts}" if self.parts else "" for number in numbers], pa.string()
        )
        return self.writer.write(rows.append_column(f"{PREFIX}0", kinds) if self.parts else rows)

    def close(self) -> bytes | None:
        return self.writer.close()

    def abort(self) -> None:
        self.writer.abort()


def _from_field(text: str, kind: pa.DataType) -> Any:
    if text == "\\N":
        return None
    if pt.is_nested(kind):
        return from_json(parse(text), kind)
    if pt.is_boolean(kind) or pt.is_integer(kind):
        return parse(text)
    if pt.is_floating(kind) or pt.is_decimal(kind):
        return from_json(text, kind)
    return from_text(text, kind)


class ConsoleTarget(Target):
    upserts: ClassVar[bool] = False
    can_be_down: ClassVar[bool] = False
    outlives_processes: ClassVar[bool] = False

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.sink = ConsoleSink(max_rows=1_000)
        self.capsys = capsys

    def read(self, schema: pa.Schema) -> list[Row]:
        return [_from_line(line, schema) for line in self.capsys.readouterr().out.split("\n")[:-1]]


class SqliteTarget(Target):
    row_by_row: ClassVar[bool] = True

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
    row_by_row: ClassVar[bool] = True

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
    upserts: ClassVar[bool] = False
    row_by_row: ClassVar[bool] = True

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


class RabbitmqTarget(Target):
    upserts: ClassVar[bool] = False
    row_by_row: ClassVar[bool] = True

    def __init__(self, broker: RabbitMQ) -> None:
        self.broker = broker
        broker.declare_queue("target", "classic")  # a quorum queue rejects for a moment after a restart
        self.sink = routed(sink_to(broker), "target")
        self.sink.prepare()

    def read(self, schema: pa.Schema) -> list[Row]:
        rows = [_from_line(message.body.decode(), schema) for message in self.broker.take("target")]
        return sorted(rows, key=lambda row: int(row["event_id"].split("/")[1]))

    def down(self) -> None:
        self.broker.kill()

    def up(self) -> None:
        self.broker.start()


class OpensearchTarget(Target):
    row_by_row: ClassVar[bool] = True

    def __init__(self, server: OpenSearch) -> None:
        self.server = server
        # Nothing is indexed but the id: what is asked about is the document, and no float field holds NaN.
        server.ask("DELETE", "/target?ignore_unavailable=true")
        server.ask(
            "PUT",
            "/target",
            {"settings": {"number_of_replicas": 0, "number_of_shards": 1}, "mappings": {"dynamic": False}},
        )
        self.sink = routed(search_sink(server, index="'target'"), "target", INDEX)
        self.sink.prepare()

    def read(self, schema: pa.Schema) -> list[Row]:
        sources = [hit["_source"] for hit in parse(self.server.hits_text("target"))["hits"]["hits"]]
        assert all(list(source) == schema.names for source in sources)
        rows = [{one.name: from_json(source[one.name], one.type) for one in schema} for source in sources]
        return sorted(rows, key=lambda row: int(row["event_id"].split("/")[1]))

    def down(self) -> None:
        self.server.kill()

    def up(self) -> None:
        self.server.start()


class NatsTarget(Target):
    """A row that comes again is stored once, as it was, within the stream's window for duplicates."""

    upserts: ClassVar[bool] = False
    row_by_row: ClassVar[bool] = True

    def __init__(self, directory: Path) -> None:
        self.server = NatsServer(directory)
        self.server.start()
        self.server.make_stream("TARGET", "target.>")
        config = NatsSinkConfig.model_validate({"url": self.server.url, "subject": "not asked here"})
        self.sink = routed(config.build(Path()), "target.rows", SUBJECT)
        self.sink.prepare()

    def read(self, schema: pa.Schema) -> list[Row]:
        rows = [_from_line((one.data or b"").decode(), schema) for one in self.server.stored("TARGET")]
        return sorted(rows, key=lambda row: int(row["event_id"].split("/")[1]))

    def down(self) -> None:
        self.server.kill()

    def up(self) -> None:
        self.server.start()

    def close(self) -> None:
        self.server.kill()


class RedisTarget(Target):
    """Entries of a stream; with mode string or hash, a key for each event."""

    upserts: ClassVar[bool] = False
    row_by_row: ClassVar[bool] = True

    def __init__(self, directory: Path, **fields: Any) -> None:
        self.server = RedisServer(directory)
        self.server.start()
        config = RedisSinkConfig.model_validate({"url": self.server.url, "key": "not asked here", **fields})
        self.sink = routed(config.build(Path()), "target", KEY)
        self.sink.prepare()

    def read(self, schema: pa.Schema) -> list[Row]:
        rows = [_from_line(entry[b"data"].decode(), schema) for entry in self.server.stored("target")]
        return sorted(rows, key=lambda row: int(row["event_id"].split("/")[1]))

    def down(self) -> None:
        self.server.kill()

    def up(self) -> None:
        self.server.start()

    def close(self) -> None:
        self.server.kill()


class RedisKeysTarget(RedisTarget):
    """A key for each event: what is sent again overwrites itself."""

    upserts: ClassVar[bool] = True

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, mode="string")
        self.sink = routed(self.sink.sink, None, KEY)

    def read(self, schema: pa.Schema) -> list[Row]:
        lines = [self.server.do("GET", key) for key in self.server.do("KEYS", "*")]
        rows = [_from_line(line.decode(), schema) for line in lines]
        return sorted(rows, key=lambda row: int(row["event_id"].split("/")[1]))


def search_sink(server: OpenSearch | str, **fields: Any) -> SearchSink:
    hosts = server if isinstance(server, str) else server.url
    config = OpensearchSinkConfig.model_validate({"hosts": hosts, "index": "'not asked here'", **fields})
    return config.build(Path())


def sink_to(broker: RabbitMQ | str, **fields: Any) -> RabbitmqSink:
    url = broker if isinstance(broker, str) else broker.url
    config = RabbitmqSinkConfig.model_validate({"url": url, "routing_key": "not asked here", **fields})
    return config.build(Path())


def keyed(rows: pa.RecordBatch, *keys: str | None, column: str = ROUTING_KEY) -> pa.RecordBatch:
    """The rows with the column the engine adds: one key for all, or one for each."""
    every = pa.array(keys * rows.num_rows if len(keys) == 1 else keys, pa.string())
    return rows.append_column(column, every)


def routed(sink: Sink, key: str | None, column: str = ROUTING_KEY) -> _Routed:
    """A sink for rows that lack a column which the engine adds: one value for all; None: the event's id."""
    return _Routed(sink, key, column)


@dataclass
class _Routed(Sink):
    sink: Sink
    key: str | None
    column: str

    def prepare(self) -> None:
        self.sink.prepare()

    def open(self, part: Part) -> Writer:
        return _RoutedWriter(self.sink.open(part), self.key, self.column)


@dataclass
class _RoutedWriter(Writer):
    writer: Writer
    key: str | None
    column: str

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        keys = rows.column("event_id").to_pylist() if self.key is None else [self.key]
        return self.writer.write(keyed(rows, *keys, column=self.column))

    def close(self) -> bytes | None:
        return self.writer.close()

    def abort(self) -> None:
        self.writer.abort()


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _from_line(line: str, schema: pa.Schema) -> Row:
    value = parse(line)
    assert list(value) == schema.names
    return {one.name: from_json(value[one.name], one.type) for one in schema}


@dataclass(frozen=True)
class Place:
    """What a target may be made in."""

    path: Path
    capsys: pytest.CaptureFixture[str]
    postgres: Callable[[], PostgresServer]
    rabbitmq: Callable[[], RabbitMQ]
    opensearch: Callable[[], OpenSearch]


TARGETS: dict[str, Callable[[Place], Target]] = {
    "files-jsonl": lambda place: FilesTarget(place.path / "out"),
    "files-jsonl-gzip": lambda place: FilesTarget(place.path / "out", "gzip"),
    "files-jsonl-zstd": lambda place: FilesTarget(place.path / "out", "zstd"),
    "files-parquet": lambda place: ParquetTarget(place.path / "out"),
    "files-csv": lambda place: CsvTarget(place.path / "out"),
    "files-csv-zstd": lambda place: CsvTarget(place.path / "out", "zstd"),
    "files-jsonl-partitioned": lambda place: DividedTarget(place.path / "out", "jsonl"),
    "files-jsonl-small": lambda place: DividedTarget(place.path / "out", "jsonl", rows=2, parts=0),
    "files-parquet-partitioned": lambda place: DividedTarget(place.path / "out", "parquet", rows=1),
    "console": lambda place: ConsoleTarget(place.capsys),
    "sqlite": lambda place: SqliteTarget(place.path / "database" / "x.db"),
    "postgres": lambda place: PostgresTarget(place.postgres()),
    "http-each": lambda _: HttpTarget(),
    "http-array": lambda _: HttpTarget(mode="array", max_rows=3),
    "http-ndjson": lambda _: HttpTarget(mode="ndjson"),
    "nats": lambda place: NatsTarget(place.path / "nats"),
    "rabbitmq": lambda place: RabbitmqTarget(place.rabbitmq()),
    "redis": lambda place: RedisTarget(place.path / "redis"),
    "rediskeys": lambda place: RedisKeysTarget(place.path / "redis"),
    "opensearch": lambda place: OpensearchTarget(place.opensearch()),
}

KILLED = (
    "files-jsonl",
    "files-parquet-partitioned",
    "sqlite",
    "postgres",
    "http-each",
    "nats",
    "rabbitmq",
    "redis",
    "opensearch",
)
"""One of each way to write: a process takes its time to start."""

KINDS: dict[str, type[Target]] = {
    "files": FilesTarget,
    "console": ConsoleTarget,
    "sqlite": SqliteTarget,
    "postgres": PostgresTarget,
    "http": HttpTarget,
    "nats": NatsTarget,
    "rabbitmq": RabbitmqTarget,
    "redis": RedisTarget,
    "rediskeys": RedisKeysTarget,
    "opensearch": OpensearchTarget,
}
"""By the first part of a target's name: enough to know what it may be asked before it is made."""


def may_be_asked(name: str, need: str) -> bool:
    """Whether a question that needs this is one for the target."""
    kind = name.partition("-")[0]
    return kind in ("files", "console") if need == "atomic" else bool(getattr(KINDS[kind], need))
