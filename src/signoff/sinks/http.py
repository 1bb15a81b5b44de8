"""Sink `http`: rows posted as JSON to an address (a webhook), or in the form that a service asks for.

Invariants: a row is signed for when the status of a 2xx answer to the request that held it was read; every
other answer is transient or permanent by its status alone, and both lists are in the config. A request
with several rows that is rejected is sent again in halves until the rows at fault stand alone. A request is
over after `timeout_ms`, however slowly the other side answers. A row that a template fails for is refused
alone, before anything is sent.

At least once: a request whose answer is lost is sent again, with the same `Idempotency-Key`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Self
from urllib.parse import urlencode

import httpx
import pyarrow as pa
from pydantic import Field, SecretStr, model_validator

from signoff.bounded_http import (
    NoAnswer,
    Reply,
    Unsendable,
    ask,
    client,
    host_and_port,
    require_sendable,
)
from signoff.errors import PermanentError
from signoff.json_text import json_lines
from signoff.pipeline.model import SinkConfig
from signoff.pipeline.secrets import SecretUrl, Token, excerpt, register_secrets_of
from signoff.sinks.contract import EVENT_ID, Part, Refusal, RunRef, Sink, Writer
from signoff.sinks.handed_contexts import TRACEPARENT, handed_contexts
from signoff.sinks.message_ids import MessageIds
from signoff.sinks.refusal import Fit, RowsRejected, brief, fit, isolate
from signoff.templating import (
    JsonTemplate,
    Template,
    TemplateFailed,
    columns_in,
    fill,
    json_text,
    of_row,
    read_values,
    render,
)

_BODY_SHOWN = 200
_BODY_READ = 64 * 1024
_SILENT_REQUESTS = 3
"""Requests in a row without any answer after which the rest of a write is not sent (at least as many
as run at once): a sink that is down costs a few timeouts, not one per row."""


class HttpSinkConfig(SinkConfig):
    """JSON posted to an HTTP address."""

    summary: ClassVar[str] = "A webhook: rows as JSON, one or several a request."
    knows_ids: ClassVar[bool] = True

    type: Literal["http"] = "http"
    url: SecretUrl
    """Address the rows are sent to; a password in it is never shown."""
    method: Literal["POST", "PUT"] = "POST"
    """The HTTP method of each request."""
    mode: Literal["each", "array", "ndjson"] = "each"
    """What a request holds: `each` one row, `array` rows as a JSON array, `ndjson` rows, one a line."""
    max_rows: int = Field(default=500, ge=1)
    """Most rows of one request, in the modes `array` and `ndjson`."""
    body: JsonTemplate | None = None
    """What is sent for each row instead of the row itself: anything JSON can hold, in which each text is a
    template with `{{ column }}`. A text that is nothing but one `{{ … }}` keeps the type of its value."""
    form: dict[str, Template] | None = None
    """The same as an HTML form (`application/x-www-form-urlencoded`), as many services for SMS want it."""
    concurrency: int = Field(default=4, ge=1, le=64)
    """Requests at once in each task; with 1, rows arrive in the order of their events."""
    headers: dict[str, SecretStr] = Field(default={})
    """Further headers of each request; the values are never shown."""
    token: Token | None = None
    """Sent as `Authorization: Bearer …`."""
    timeout_ms: int = Field(default=30_000, ge=1)
    """How long a request may take, from the connection to the end of the answer."""
    transient_statuses: tuple[int, ...] = (408, 425, 429, 500, 502, 503, 504)
    """Statuses after which the rows are sent again. Every other one that is not 2xx refuses them
    permanently."""
    split_statuses: tuple[int, ...] = (400, 413, 422)
    """Permanent statuses that may be the fault of one row of several: the request is repeated in halves."""
    verify_tls: bool = True
    """Whether the server's certificate must be valid."""

    @model_validator(mode="after")
    def _can_be_sent(self) -> Self:
        require_sendable(self.headers, self.token)
        if self.form is not None and (self.body is not None or self.mode != "each"):
            raise ValueError("a form is the whole of a request: it goes with mode: each and without a body")
        return self

    def named_columns(self) -> Mapping[str, str]:
        return columns_in(body=self.body, form=dict(self.form or {}))

    def connects_to(self) -> tuple[str, int] | None:
        return host_and_port(self.url.get())

    def build(self, base: Path) -> HttpSink:
        return HttpSink(self)


class HttpSink(Sink):
    def __init__(self, config: HttpSinkConfig) -> None:
        self.config = config
        self.ids = MessageIds()

    def begin(self, run: RunRef) -> None:
        self.ids = MessageIds(run)

    def prepare(self) -> None:
        register_secrets_of(self.config)
        try:
            url = httpx.URL(self.config.url.get())
        except httpx.InvalidURL as error:
            raise PermanentError(f"{self.config.url} is not a valid address: {error}") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise PermanentError(f"{self.config.url} is not an http:// or https:// address")

    def open(self, part: Part) -> Writer:
        register_secrets_of(self.config)  # this is another process than the one that read the file
        return _HttpWriter(self.config, self.ids, part.contexts)


@dataclass(slots=True)
class _Request:
    """The rows of one write, as they go over the wire."""

    ids: list[str]
    lines: list[bytes]
    contexts: list[str | None]
    """What the rows hand on of traces; empty where none does."""
    silent: int = 0
    """Requests since the last answer of any kind."""
    failed: list[Refusal] = field(default_factory=list)


class _HttpWriter(Writer):
    def __init__(self, config: HttpSinkConfig, ids: MessageIds, contexts: Mapping[str, str]) -> None:
        self._config, self._ids, self._contexts = config, ids, contexts
        self._client: httpx.Client | None = None
        self._pool: ThreadPoolExecutor | None = None

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        sorted_out, lines = _bodies(fit(self._ids.applied(rows)), self._config)
        ids = sorted_out.rows.column(EVENT_ID)
        request = _Request(ids.to_pylist(), lines, handed_contexts(self._contexts, ids))
        size = 1 if self._config.mode == "each" else self._config.max_rows
        ranges = [(start, min(start + size, len(lines))) for start in range(0, len(lines), size)]
        by, pool = self._ready()

        def send(bounds: tuple[int, int]) -> list[Refusal]:
            return isolate(*bounds, lambda start, end: self._send(by, request, start, end))

        permanent = [one for refusals in pool.map(send, ranges) for one in refusals]
        return sorted_out.original([*permanent, *request.failed])

    def close(self) -> bytes | None:
        self.abort()
        return None

    def abort(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
        if self._client is not None:
            self._client.close()
            self._client = None

    def _ready(self) -> tuple[httpx.Client, ThreadPoolExecutor]:
        if self._client is None or self._pool is None:
            self._client = _client(self._config)
            self._pool = ThreadPoolExecutor(self._config.concurrency, "signoff-http")
        return self._client, self._pool

    def _send(self, by: httpx.Client, request: _Request, start: int, end: int) -> None:
        """Send some rows in one request. Raises RowsRejected when they may be accepted in halves,
        or, for a single row, never; notes transient failures in the request."""
        config = self._config
        if request.silent >= max(_SILENT_REQUESTS, config.concurrency):
            return _fail(request, start, end, f"not sent: {config.url} does not answer")
        ids, lines = request.ids[start:end], request.lines[start:end]
        headers = {"Idempotency-Key": _key(ids)}
        # A request has one context: of several rows that of the first which has any.
        if context := next(filter(None, request.contexts[start:end]), None):
            headers[TRACEPARENT] = context
        try:
            answer = ask(
                by,
                config.method,
                config.url.get(),
                content=_body(lines, config.mode),
                headers=headers,
                seconds=config.timeout_ms / 1000,
                most_bytes=_BODY_READ,
            )
        except Unsendable as error:
            raise PermanentError(f"{config.url}: {error}") from error
        except NoAnswer as error:
            request.silent += 1
            return _fail(request, start, end, f"{config.url}: {error}")
        request.silent = 0
        if answer.is_success:
            return None
        reason = f"{config.url} answered {answer.status} {answer.phrase}: {_excerpt(answer)}"
        if answer.status in config.transient_statuses:
            return _fail(request, start, end, reason)
        if end - start == 1 or answer.status in config.split_statuses:
            raise RowsRejected(reason)
        said = brief(reason)
        request.failed += [Refusal(index, said, transient=False) for index in range(start, end)]
        return None


def _client(config: HttpSinkConfig) -> httpx.Client:
    headers = {name: value.get_secret_value() for name, value in config.headers.items()}
    headers.setdefault("Content-Type", _content_type(config))
    if config.token is not None:
        headers["Authorization"] = f"Bearer {config.token.get_secret_value()}"
    secure = config.url.get().lower().startswith("https:") and config.verify_tls
    return client(headers, verify_tls=secure, connections=config.concurrency)


def _content_type(config: HttpSinkConfig) -> str:
    if config.form is not None:
        return "application/x-www-form-urlencoded"
    return "application/x-ndjson" if config.mode == "ndjson" else "application/json"


def _bodies(sorted_out: Fit, config: HttpSinkConfig) -> tuple[Fit, list[bytes]]:
    """What is sent for each row, a line each; and the rows less those that a template fails for."""
    lines: list[bytes] = json_lines(sorted_out.rows).view(pa.large_binary()).to_pylist()
    if config.body is None and config.form is None:
        return sorted_out, lines
    made: list[bytes] = []
    failed: dict[int, str] = {}
    for index, line in enumerate(lines):
        try:
            made.append(_filled(config, of_row(read_values(line))).encode() + b"\n")
        except TemplateFailed as error:
            failed[index] = f"{'form' if config.body is None else 'body'}: {error}"
    return sorted_out.without(failed), made


def _filled(config: HttpSinkConfig, values: Mapping[str, Any]) -> str:
    if config.form is not None:
        return urlencode({name: render(template, values) for name, template in config.form.items()})
    return json_text(fill(config.body, values))


def _body(lines: Sequence[bytes], mode: str) -> bytes:
    if mode == "ndjson":
        return b"".join(lines)
    objects = b",".join(line[:-1] for line in lines)
    return objects if mode == "each" else b"[" + objects + b"]"


def _key(ids: Sequence[str]) -> str:
    """The same for the same rows, on every replay; and what a header may hold."""
    if len(ids) == 1 and ids[0].isascii() and ids[0].isprintable():
        return ids[0]
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()


def _fail(request: _Request, start: int, end: int, reason: str) -> None:
    said = brief(reason)
    request.failed += [Refusal(index, said, transient=True) for index in range(start, end)]


def _excerpt(answer: Reply) -> str:
    return excerpt(answer.text.strip(), _BODY_SHOWN) or "(no text)"
