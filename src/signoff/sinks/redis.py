"""Sink `redis`: each row an entry of a stream, or the value of a key.

Invariants: a row is signed for when the server has answered to its command, and, where that is wanted, enough
replicas have it. A row that the server refuses is refused alone. What is sent again is a second entry of a
stream, with the same `event_id`; a key has the same value as before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

import orjson
import pyarrow as pa
from pydantic import Field, field_validator, model_validator

from signoff.errors import PermanentError, TransientError
from signoff.json_text import json_lines
from signoff.pipeline.durations import Duration
from signoff.pipeline.masking import brief
from signoff.pipeline.model import SinkConfig
from signoff.pipeline.secrets import SecretUrl, register_secrets_of
from signoff.sinks.contract import EVENT_ID, Part, Refusal, RunRef, Sink, Writer
from signoff.sinks.handed_contexts import TRACEPARENT, handed_contexts
from signoff.sinks.message_ids import MessageIds
from signoff.sinks.refusal import Fit, fit, refused

try:
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.exceptions import RedisError, ResponseError
    from redis.retry import Retry
except ModuleNotFoundError:  # an extra; building the sink says so
    if not TYPE_CHECKING:
        Redis = None

KEY = "_key"
"""Column the engine adds to the rows: the value of the expression `key`. Never written."""


class RedisSinkConfig(SinkConfig):
    """Entries of Redis streams, or values of keys."""

    summary: ClassVar[str] = "Redis: an entry of a stream per row, or the value of a key."
    example: ClassVar[str] = "url: redis://localhost:6379/0\nkey: \"'alarms'\""

    knows_ids: ClassVar[bool] = True
    type: Literal["redis"] = "redis"
    url: SecretUrl
    """`redis://user:password@host:port/database`, or `rediss://…` for TLS."""
    mode: Literal["stream", "string", "hash"] = "stream"
    """What `key` names: a stream, which gets an entry with the fields `event_id` and `data`, the row as JSON;
    a string, which is set to the row as JSON; or a hash, which is set to the row's columns, without those
    that are null."""
    key: str = Field(min_length=1)
    """Key of each row: a Spark SQL expression over its columns; a constant is written in quotes,
    `"'alarms'"`."""
    max_length: int | None = Field(default=None, ge=1)
    """About how many entries a stream keeps; older ones are removed, read or not."""
    expire_after: Annotated[Duration, Field(gt=0)] | None = None
    """How long a string or hash is kept after it was set; null is for ever."""
    wait_replicas: int = Field(default=0, ge=0)
    """How many replicas must have the rows before they are signed for."""
    window: int = Field(default=1_000, ge=1)
    """Most rows of a task that are under way without an answer."""
    answer_timeout_ms: int = Field(default=10_000, ge=1)
    """How long to wait for answers, and for replicas, before the rows are retried."""
    connect_timeout_s: int = Field(default=10, ge=1)
    """How long to wait for a connection."""
    ca_file: str | None = None
    """Certificates to trust with `rediss`, instead of the system's; relative to the pipeline file."""
    verify_tls: bool = True
    """Whether the server's certificate must be valid."""

    @field_validator("url")
    @classmethod
    def _redis(cls, url: SecretUrl) -> SecretUrl:
        parts = urlsplit(url.get())
        if parts.scheme not in ("redis", "rediss") or not parts.hostname or parts.query:
            raise ValueError("this is no address of a server; write redis://host:6379/0 or rediss://…")
        if not (parts.path.strip("/") or "0").isdigit():
            raise ValueError("behind the host comes the number of the database, as in redis://host:6379/0")
        return url

    @model_validator(mode="after")
    def _of_its_mode(self) -> Self:
        if self.mode == "stream" and self.expire_after is not None:
            raise ValueError("expire_after is for strings and hashes; a stream has max_length")
        if self.mode != "stream" and self.max_length is not None:
            raise ValueError("max_length is for streams; strings and hashes have expire_after")
        return self

    def expressions(self) -> Mapping[str, str]:
        return {KEY: self.key}

    def needed_files(self, base: Path) -> tuple[Path, ...]:
        return (base / self.ca_file,) if self.ca_file else ()

    def connects_to(self) -> tuple[str, int] | None:
        parts = urlsplit(self.url.get())
        return parts.hostname or "", parts.port or 6379

    def build(self, base: Path) -> RedisSink:
        if Redis is None:
            raise PermanentError('sink type redis needs the package redis: pip install "signoff[redis]"')
        return RedisSink(self, base)


class RedisSink(Sink):
    def __init__(self, config: RedisSinkConfig, base: Path) -> None:
        self.config, self.base = config, base
        self.ids = MessageIds()

    def begin(self, run: RunRef) -> None:
        self.ids = MessageIds(run)

    def prepare(self) -> None:
        register_secrets_of(self.config)
        with contextlib.closing(self.connect()) as client, self.translated():
            client.ping()

    def open(self, part: Part) -> Writer:
        register_secrets_of(self.config)  # this is another process than the one that read the file
        return _RedisWriter(self, part.contexts)

    def connect(self) -> Redis:
        """Raises TransientError, also for a refused login: until it is put right the rows are better kept."""
        config, tls = self.config, dict[str, Any]()
        if config.url.get().startswith("rediss:"):
            trusted = {"ssl_ca_certs": str(self.base / config.ca_file)} if config.ca_file else {}
            checked = "required" if config.verify_tls else "none"
            tls = {**trusted, "ssl_cert_reqs": checked, "ssl_check_hostname": config.verify_tls}
        with self.translated():
            return Redis.from_url(
                config.url.get(),
                protocol=2,
                client_name="signoff",
                single_connection_client=True,
                socket_connect_timeout=config.connect_timeout_s,
                socket_timeout=config.answer_timeout_ms / 1000 + 1.0,
                retry=Retry(NoBackoff(), 0),
                **tls,
            )

    @contextlib.contextmanager
    def translated(self) -> Any:
        try:
            yield
        except (RedisError, OSError, ValueError) as error:
            host, port = self.config.connects_to() or ("", 0)
            raise TransientError(brief(f"{host}:{port}: {error or type(error).__name__}")) from error


class _RedisWriter(Writer):
    def __init__(self, sink: RedisSink, contexts: Mapping[str, str]) -> None:
        self._sink, self._contexts = sink, contexts
        self._client: Redis | None = None

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        sorted_out = _with_keys(fit(self._sink.ids.applied(rows)))
        if not sorted_out.rows.num_rows:
            return sorted_out.refusals
        commands = _commands(self._sink.config, sorted_out.rows, self._contexts)
        try:
            if self._client is None:
                self._client = self._sink.connect()
            with self._sink.translated():
                refusals = self._send(self._client, commands)
        except BaseException:
            self.abort()
            raise
        return sorted_out.original(refusals)

    def close(self) -> bytes | None:
        self.abort()
        return None

    def abort(self) -> None:
        if self._client is not None:
            with contextlib.suppress(RedisError, OSError):
                self._client.close()
            self._client = None

    def _send(self, client: Redis, commands: Sequence[Sequence[_Command]]) -> list[Refusal]:
        config, refusals = self._sink.config, list[Refusal]()
        for first in range(0, len(commands), config.window):
            pipe = client.pipeline(transaction=False)
            some = commands[first : first + config.window]
            for row in some:
                for command in row:
                    pipe.execute_command(*command)
            answers = iter(pipe.execute(raise_on_error=False))
            for index, row in enumerate(some, first):
                failed = [answer for answer in [next(answers) for _ in row] if isinstance(answer, Exception)]
                if failed:
                    refusals.append(_refusal(index, failed))
        if config.wait_replicas and len(refusals) < len(commands):
            have = client.wait(config.wait_replicas, config.answer_timeout_ms)
            if have < config.wait_replicas:
                raise TransientError(
                    f"{have} of {config.wait_replicas} replicas have the rows (wait_replicas)"
                )
        return refusals


_Command = tuple[Any, ...]


def _commands(
    config: RedisSinkConfig, given: pa.RecordBatch, contexts: Mapping[str, str]
) -> list[list[_Command]]:
    """Of each row what is to be sent for it."""
    place = given.num_columns - 1
    keys, plain = given.column(place).to_pylist(), given.select(given.schema.names[:place])
    lines = [line[:-1] for line in json_lines(plain).view(pa.large_binary()).to_pylist()]
    if config.mode == "stream":
        limit = ("MAXLEN", "~", config.max_length) if config.max_length else ()
        ids = given.column(EVENT_ID).to_pylist()
        handed = handed_contexts(contexts, given.column(EVENT_ID)) or [None] * len(ids)
        return [
            [("XADD", key, *limit, "*", "event_id", event_id, "data", line, *_context(context))]
            for key, event_id, line, context in zip(keys, ids, lines, handed, strict=True)
        ]
    kept_ms = int(config.expire_after * 1000) if config.expire_after else 0
    if config.mode == "string":
        until = ("PX", max(kept_ms, 1)) if config.expire_after else ()
        return [[("SET", key, line, *until)] for key, line in zip(keys, lines, strict=True)]
    return [_hash(key, row, kept_ms) for key, row in zip(keys, _fields(plain), strict=True)]


def _hash(key: str, fields: Sequence[str | bytes], kept_ms: int) -> list[_Command]:
    """The hash has these fields and no others, at once."""
    commands: list[_Command] = [("MULTI",), ("DEL", key), ("HSET", key, *fields)]
    if kept_ms:
        commands.append(("PEXPIRE", key, kept_ms))
    return [*commands, ("EXEC",)]


def _context(context: str | None) -> tuple[str, ...]:
    return () if context is None else (TRACEPARENT, context)


def _fields(rows: pa.RecordBatch) -> list[list[str | bytes]]:
    """Names and values of each row, as JSON has them but without quotes; nothing for what is null."""
    found: list[list[str | bytes]] = [[] for _ in range(rows.num_rows)]
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        one = json_lines(pa.record_batch({"v": column})).view(pa.large_binary()).to_pylist()
        for fields, line in zip(found, one, strict=True):
            text = line[len(b'{"v":') : -len(b"}\n")]
            if text != b"null":
                fields += (name, orjson.loads(text).encode() if text.startswith(b'"') else text)
    return found


def _with_keys(sorted_out: Fit) -> Fit:
    """Refuse rows without a key."""
    rows = sorted_out.rows
    keys = rows.column(rows.num_columns - 1).to_pylist()
    return sorted_out.without({index: f"the key is {key!r}" for index, key in enumerate(keys) if not key})


def _refusal(index: int, errors: Sequence[Exception]) -> Refusal:
    """Only what the key holds is the row's own affair: memory, rights and replicas may be put right."""
    for error in errors:
        if isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE"):
            return refused(index, str(error))
    return Refusal(index, brief(str(errors[0])), transient=True)
