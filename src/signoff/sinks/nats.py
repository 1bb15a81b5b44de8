"""Sink `nats`: each row a message in a JetStream stream.

Invariants: a row is signed for when the stream has said that it stored the message. Its id, and whose row it
is, make the message's `Nats-Msg-Id`: one that is sent again within the stream's `duplicate_window` is stored
once. A row that no stream takes, or that is too large, is refused alone.

A stream compares the ids of all its messages, whatever their subjects. By the event's id alone it would keep
quiet about rows of another sink of this pipeline, of another pipeline, or of this one after its state was
deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Coroutine, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
from pydantic import Field, field_validator

from signoff.errors import PermanentError, TransientError
from signoff.json_text import json_lines
from signoff.pipeline.masking import brief
from signoff.pipeline.model import SinkConfig
from signoff.pipeline.secrets import SecretUrl, Token, register_secrets_of
from signoff.sinks.contract import EVENT_ID, Part, Refusal, RunRef, Sink, Writer
from signoff.sinks.handed_contexts import TRACEPARENT, handed_contexts
from signoff.sinks.message_ids import MessageIds
from signoff.sinks.refusal import Fit, fit, refused

SUBJECT = "_subject"
_T = TypeVar("_T")


class NatsSinkConfig(SinkConfig):
    """Messages to a JetStream stream."""

    summary: ClassVar[str] = "NATS JetStream: a message per row, stored once by its id."
    example: ClassVar[str] = "url: nats://localhost:4222\nsubject: concat('alarms.', stationId)"

    knows_ids: ClassVar[bool] = True
    type: Literal["nats"] = "nats"
    url: SecretUrl
    """`nats://user:password@host:port`, or `tls://…` for TLS."""
    subject: str = Field(min_length=1)
    """Subject of each row: a Spark SQL expression over its columns; a constant is written in quotes,
    `"'alarms.new'"`. A stream must take it."""
    stream: str | None = None
    """The stream that is to take the messages; null takes whichever listens to the subject."""
    headers: dict[str, str] = Field(default={})
    """Headers of every message."""
    window: int = Field(default=1_000, ge=1)
    """Most messages of a task that are under way without an answer."""
    answer_timeout_ms: int = Field(default=10_000, ge=1)
    """How long to wait for the stream's answer to a message before its row is retried."""
    connect_timeout_s: int = Field(default=10, ge=1)
    """How long to wait for a connection."""
    token: Token | None = None
    """Token of the server, instead of a user in `url`."""
    credentials_file: str | None = None
    """File with JWT and key of a user (`.creds`); relative to the pipeline file."""
    ca_file: str | None = None
    """Certificates to trust with `tls`, instead of the system's; relative to the pipeline file."""
    verify_tls: bool = True
    """Whether the server's certificate must be valid."""

    @field_validator("url")
    @classmethod
    def _nats(cls, url: SecretUrl) -> SecretUrl:
        parts = urlsplit(url.get())
        if parts.scheme not in ("nats", "tls") or not parts.hostname:
            raise ValueError("this is no address of a server; write nats://host:4222 or tls://host:4222")
        return url

    @field_validator("headers")
    @classmethod
    def _are_ours(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not name or any(sign in name + text for sign in "\r\n") or ":" in name or name != name.strip():
                raise ValueError(f"{name!r} is no header that a message can have")
            if name.lower().startswith("nats-"):
                raise ValueError(f"{name} is one of the headers that NATS gives a meaning to")
        return value

    def expressions(self) -> Mapping[str, str]:
        return {SUBJECT: self.subject}

    def needed_files(self, base: Path) -> tuple[Path, ...]:
        return tuple(base / file for file in (self.ca_file, self.credentials_file) if file)

    def connects_to(self) -> tuple[str, int] | None:
        parts = urlsplit(self.url.get())
        return parts.hostname or "", parts.port or 4222

    def build(self, base: Path) -> NatsSink:
        try:
            import nats  # noqa: F401  (whoever only reads a pipeline needs no client)
        except ModuleNotFoundError as error:
            if error.name != "nats":
                raise
            raise PermanentError(
                'sink type nats needs nats-py, which is not installed: pip install "signoff[nats]"'
            ) from None
        return NatsSink(self, base)


class NatsSink(Sink):
    def __init__(self, config: NatsSinkConfig, base: Path) -> None:
        self.config, self.base = config, base
        self.ids, self._whose = MessageIds(), ""

    def begin(self, run: RunRef) -> None:
        # The next try of a job has another id, and sends the same rows again.
        self.ids, self._whose = MessageIds(run), run.key or run.id

    @property
    def mark(self) -> str:
        """What the ids of this sink's messages end with, and no other's."""
        config = self.config
        whose = [self._whose, config.subject, config.stream, *config.all_inputs, *config.headers.items()]
        return blake2b(repr(whose).encode(), digest_size=8).hexdigest()

    def prepare(self) -> None:
        register_secrets_of(self.config)
        publisher = _Publisher(self.config, self.base)
        try:
            publisher.check()
        finally:
            publisher.close()

    def open(self, part: Part) -> Writer:
        register_secrets_of(self.config)  # this is another process than the one that read the file
        return _NatsWriter(self, part.contexts)


class _NatsWriter(Writer):
    def __init__(self, sink: NatsSink, contexts: Mapping[str, str]) -> None:
        self._sink, self._contexts = sink, contexts
        self._publisher: _Publisher | None = None

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        sorted_out = _publishable(fit(self._sink.ids.applied(rows)))
        if not sorted_out.rows.num_rows:
            return sorted_out.refusals
        if self._publisher is None:
            self._publisher = _Publisher(self._sink.config, self._sink.base)
        given = sorted_out.rows
        place = given.num_columns - 1
        lines = json_lines(given.select(given.schema.names[:place])).view(pa.large_binary()).to_pylist()
        ids, subjects = given.column(EVENT_ID).to_pylist(), given.column(place).to_pylist()
        mark = self._sink.mark
        handed = handed_contexts(self._contexts, given.column(EVENT_ID)) or [None] * len(ids)
        messages = [
            (subject, line[:-1], f"{event_id}/{mark}", context)
            for subject, line, event_id, context in zip(subjects, lines, ids, handed, strict=True)
        ]
        try:
            refusals = self._publisher.publish(messages)
        except BaseException:
            self.abort()
            raise
        if self._publisher.is_lost():
            self.abort()
        return sorted_out.original(refusals)

    def close(self) -> bytes | None:
        self.abort()
        return None

    def abort(self) -> None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None


_Message = tuple[str, bytes, str, str | None]
"""Subject, body, id, and the trace it belongs to."""


class _Publisher:
    """A connection. Its loop runs only inside the calls."""

    def __init__(self, config: NatsSinkConfig, base: Path) -> None:
        from nats.aio.client import Client

        self._config, self._lost = config, ""
        self._loop = asyncio.new_event_loop()
        self._client = Client()
        try:
            self._run(self._connect(self._options(base)), config.connect_timeout_s + 1.0)
            self._stream = self._client.jetstream(timeout=config.answer_timeout_ms / 1000)
        except TransientError:
            self.close()
            raise

    def check(self) -> None:
        """Raises TransientError if there is no JetStream, or not the stream that was named."""
        if self._config.stream is not None:
            self._run(self._stream.stream_info(self._config.stream), self._config.connect_timeout_s + 1.0)
        else:
            self._run(self._stream.account_info(), self._config.connect_timeout_s + 1.0)

    def publish(self, messages: Sequence[_Message]) -> list[Refusal]:
        """The messages that were not stored."""
        whole = self._config.answer_timeout_ms / 1000 * (2 + len(messages) / self._config.window)
        return self._run(self._publish(messages), whole + 5.0)

    def is_lost(self) -> bool:
        return bool(self._lost) or not self._client.is_connected

    def close(self) -> None:
        with contextlib.suppress(TransientError):
            self._run(self._client.close(), 5.0)
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with contextlib.suppress(Exception):
            self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _connect(self, options: dict[str, Any]) -> None:
        from nats.errors import Error

        try:
            await self._client.connect(**options)
        except (Error, OSError, TimeoutError):
            raise
        except Exception as error:  # whatever the client did not expect of the file, or of the other side
            file = self._config.credentials_file
            of_file = f"; is credentials_file {file} what NATS makes for a user?" if file else ""
            said = f"the client cannot log in: {type(error).__name__}: {error}{of_file}"
            raise TransientError(brief(f"{self._host()}: {said}")) from error

    async def _publish(self, messages: Sequence[_Message]) -> list[Refusal]:
        free = asyncio.Semaphore(self._config.window)

        async def one(index: int, message: _Message) -> Refusal | None:
            async with free:
                return await self._publish_one(index, message)

        return [each for each in await asyncio.gather(*(one(*pair) for pair in enumerate(messages))) if each]

    async def _publish_one(self, index: int, message: _Message) -> Refusal | None:
        from nats.errors import Error, MaxPayloadError
        from nats.js.errors import APIError, NoStreamResponseError

        subject, body, message_id, context = message
        headers = {**self._config.headers, "Nats-Msg-Id": message_id}
        if context is not None:
            headers[TRACEPARENT] = context
        if self._lost:
            return Refusal(index, brief(f"not sent: {self._lost}"), transient=True)
        try:
            if len(body) > self._client.max_payload:
                raise MaxPayloadError
            await self._stream.publish(subject, body, stream=self._config.stream, headers=headers)
        except MaxPayloadError:
            return refused(index, f"{len(body)} bytes; the server takes {self._client.max_payload} at most")
        except NoStreamResponseError:  # the stream may be made later: better kept than a dead letter
            return Refusal(index, f'no stream takes the subject "{subject}"', transient=True)
        except APIError as error:
            said = brief(f"{error.description or error} (error {error.err_code})")
            return Refusal(index, said, transient=error.err_code not in _FINAL)
        except (Error, OSError, TimeoutError) as error:
            said = brief(f"{self._host()}: {error}")
            if not self._client.is_connected:
                self._lost = said
            return Refusal(index, said, transient=True)
        return None

    def _options(self, base: Path) -> dict[str, Any]:
        config, url = self._config, self._config.url.get()
        options: dict[str, Any] = {
            "servers": [url],
            "name": "signoff",
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,  # else the client tries until the time is over
            "reconnect_time_wait": 0,
            "connect_timeout": config.connect_timeout_s,
            "error_cb": self._failed,
            "disconnected_cb": self._disconnected,
        }
        if config.token is not None:
            options["token"] = config.token.get_secret_value()
        if config.credentials_file:
            options["user_credentials"] = str(base / config.credentials_file)
        if urlsplit(url).scheme == "tls" or config.ca_file:
            try:
                context = ssl.create_default_context(
                    cafile=str(base / config.ca_file) if config.ca_file else None
                )
            except OSError as error:
                raise TransientError(f"ca_file {config.ca_file} cannot be read: {error.strerror}") from error
            if not config.verify_tls:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            options["tls"] = context
        return options

    async def _failed(self, error: Exception) -> None:
        """Whoever waits for an answer hears of it; nothing is printed."""

    async def _disconnected(self) -> None:
        self._lost = self._lost or f"{self._host()}: the connection was lost"

    def _host(self) -> str:
        parts = urlsplit(self._config.url.get())
        return f"{parts.hostname}:{parts.port or 4222}"

    def _run(self, work: Coroutine[Any, Any, _T], seconds: float) -> _T:
        from nats.errors import Error

        try:
            return self._loop.run_until_complete(asyncio.wait_for(work, seconds))
        except (Error, OSError, TimeoutError) as error:
            raise TransientError(brief(f"{self._host()}: {error or 'no answer in time'}")) from error


_FINAL = frozenset({10054})
"""Of JetStream's error codes: the message is larger than the stream takes."""


def _publishable(sorted_out: Fit) -> Fit:
    """Refuse rows whose subject no message can have."""
    rows = sorted_out.rows
    faults = dict[int, str]()
    for index, subject in enumerate(rows.column(rows.num_columns - 1).to_pylist()):
        if subject is None:
            faults[index] = "the subject is null"
        elif not _is_subject(subject):
            faults[index] = f'"{subject[:100]}" is no subject: words without blanks, with dots between them'
    if not faults:
        return sorted_out
    keep = [index for index in range(rows.num_rows) if index not in faults]
    refusals = [refused(index, reason) for index, reason in faults.items()]
    return Fit(rows.take(pa.array(keep, pa.int64())), sorted_out.places[keep], sorted_out.original(refusals))


def _is_subject(text: str) -> bool:
    words = text.split(".")
    return (
        all(words)
        and len(text.encode()) <= 1_000
        and not any(sign.isspace() or sign in "*>" or not sign.isprintable() for sign in text)
    )
