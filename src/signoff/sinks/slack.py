"""Sink `slack`: each row a message, posted to an incoming webhook of Slack, or of a like service.

Invariants: a row is signed for when its message was answered with 2xx. Messages to an address go one at a
time from a machine, `interval_ms` apart; after a 429 nothing is sent before the time that Slack has named,
whichever process has heard it. The address is the password: it is shown nowhere. What a row holds is text: it
mentions nobody and hides no link.

At least once: Slack has no ids by which it would know a message again. A message whose answer is lost, or
that was sent when the engine was killed, is posted again; batches are small so that these are few.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
from pydantic import AfterValidator, Field, JsonValue, field_validator

from signoff.bounded_http import NoAnswer, Reply, Unsendable, ask, client, host_and_port, retry_after
from signoff.errors import PermanentError
from signoff.json_text import json_lines
from signoff.pipeline.model import SinkConfig
from signoff.pipeline.secrets import Token, excerpt, register_secret, register_secrets_of
from signoff.sinks.contract import Part, Refusal, Sink, Writer
from signoff.sinks.machine_notes import Notes, boot
from signoff.sinks.refusal import brief, fit
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

_LONGEST_TEXT = 40_000
"""Slack cuts what is longer, without a word."""
_MOST_BLOCKS = 50
_ROWS_AT_A_TIME = 20
"""So many messages may come twice after a kill."""
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)
_WAIT_S = 30.0
"""A pause that Slack asks for is waited for here if it is not longer; else the rows come again later."""
_MOST_WAITS = 3
_SILENT_REQUESTS = 2
_BODY_READ = 16 * 1024
_SAID = 200

_LOCK_WAIT_S = 60.0
"""How long another process that posts to the address is waited for."""

_pauses = Notes("slack")
"""By address, when the next message may be sent, on the monotonic clock of the machine since its start."""


def _is_a_list(value: JsonValue) -> JsonValue:
    if value is not None and not isinstance(value, list):
        raise ValueError("blocks are a list")
    if isinstance(value, list) and len(value) > _MOST_BLOCKS:
        raise ValueError(f"Slack takes {_MOST_BLOCKS} blocks at most")
    return value


class SlackSinkConfig(SinkConfig):
    """Messages to a channel of Slack."""

    summary: ClassVar[str] = "Slack: a message per row, to an incoming webhook, at the pace it allows."
    example: ClassVar[str] = """\
url: ${SLACK_WEBHOOK}
text: "*{{ stationId }}* failed {{ failures }} times"
"""

    type: Literal["slack"] = "slack"
    url: Token
    """Address of the incoming webhook; who knows it can post, so it is never shown."""
    text: Template
    """The message, in Slack's markup; values are escaped. With `blocks`: what notifications show."""
    blocks: Annotated[JsonTemplate, AfterValidator(_is_a_list)] = None
    """Blocks of Slack's Block Kit, in which each text is a template."""
    interval_ms: int = Field(default=1_000, ge=0)
    """Time from one message to the next: Slack takes one a second."""
    timeout_ms: int = Field(default=30_000, ge=1)
    """How long a request may take, from the connection to the end of the answer."""
    verify_tls: bool = True
    """Whether the server's certificate must be valid."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, value: Token) -> Token:
        _register(value.get_secret_value())
        if not value.get_secret_value().lower().startswith(("https://", "http://")):
            raise ValueError("it is not an https:// address")
        return value

    @property
    def rows_at_a_time(self) -> int | None:
        return _ROWS_AT_A_TIME

    def named_columns(self) -> Mapping[str, str]:
        return columns_in(text=self.text, blocks=self.blocks)

    def connects_to(self) -> tuple[str, int] | None:
        return host_and_port(self.url.get_secret_value())

    def build(self, base: Path) -> SlackSink:
        return SlackSink(self)


class SlackSink(Sink):
    def __init__(self, config: SlackSinkConfig) -> None:
        self.config = config

    def prepare(self) -> None:
        register_secrets_of(self.config)
        _register(self.config.url.get_secret_value())

    def open(self, part: Part) -> Writer:
        self.prepare()  # this is another process than the one that read the file
        return _SlackWriter(self.config)


class _SlackWriter(Writer):
    def __init__(self, config: SlackSinkConfig) -> None:
        self._config = config
        self._url = config.url.get_secret_value()
        self._name = f"{urlsplit(self._url).hostname}"
        self._client: httpx.Client | None = None
        self._silent = 0
        self._paused = ""
        """Why the rest of a write is not sent."""

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        sorted_out = fit(rows)
        lines = json_lines(sorted_out.rows).view(pa.large_binary()).to_pylist()
        self._silent, self._paused = 0, ""
        refusals: list[Refusal] = []
        for index, line in enumerate(lines):
            try:
                message = _message(self._config, of_row(read_values(line)))
            except TemplateFailed as error:
                refusals.append(Refusal(index, brief(error), transient=False))
                continue
            if (failed := self._post(message)) is not None:
                refusals.append(Refusal(index, brief(failed[0]), failed[1]))
        return sorted_out.original(refusals)

    def close(self) -> bytes | None:
        self.abort()
        return None

    def abort(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _post(self, message: bytes) -> tuple[str, bool] | None:
        """Why a message was not taken, and whether it may be later."""
        for _ in range(_MOST_WAITS):
            try:
                reply = None if self._paused else self._in_turn(message)
            except Unsendable as error:
                raise PermanentError(f"{self._name}: {error}") from error
            except NoAnswer as error:
                self._silent += 1
                if self._silent >= _SILENT_REQUESTS:
                    self._paused = f"not sent: {self._name} does not answer"
                return f"{self._name}: {error}", True
            if reply is None:
                return self._paused, True
            self._silent = 0
            if reply.is_success:
                return None
            if reply.status != 429:
                break
        assert reply is not None
        said = excerpt(reply.text.strip(), _SAID) or "(no text)"
        return f"{self._name} answered {reply.status} {reply.phrase}: {said}", reply.status in _TRANSIENT

    def _in_turn(self, message: bytes) -> Reply | None:
        """The answer; None if the message cannot be sent yet."""
        with _pauses.alone(self._url, _LOCK_WAIT_S) as alone:
            if not alone:
                self._paused = f"not sent: another process posts to {self._name}"
            return self._ask(message) if alone and self._waited() else None

    def _ask(self, message: bytes) -> Reply:
        if self._client is None:
            secure = self._url.lower().startswith("https:") and self._config.verify_tls
            self._client = client({"Content-Type": "application/json"}, verify_tls=secure, connections=1)
        try:
            reply = ask(
                self._client,
                "POST",
                self._url,
                content=message,
                seconds=self._config.timeout_ms / 1000,
                most_bytes=_BODY_READ,
            )
        finally:
            self._rest(self._config.interval_ms / 1000)
        if reply.status == 429:
            asked = retry_after(reply)
            self._rest(max(self._config.interval_ms / 1000, 1.0) if asked is None else asked)
        return reply

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + max(seconds, self._left_s())
        _pauses.write(self._url, {"until": until, "boot": boot()})

    def _left_s(self) -> float:
        """How long nothing may be sent yet."""
        note = _pauses.read(self._url)
        if note is None or note["boot"] != boot():
            return 0.0
        return max(float(note["until"]) - time.monotonic(), 0.0)

    def _waited(self) -> bool:
        """Wait until the next message may be sent; false if that is too long to wait here."""
        left = self._left_s()
        if left > max(_WAIT_S, self._config.interval_ms / 1000):
            self._paused = f"not sent: {self._name} asks for a pause of another {left:.0f} s"
            return False
        time.sleep(left)
        return True


def _message(config: SlackSinkConfig, values: Mapping[str, Any]) -> bytes:
    """Raises TemplateFailed."""
    message: dict[str, Any] = {"unfurl_links": False, "unfurl_media": False}
    for field in ("text", "blocks"):
        try:
            if field == "text":
                message[field] = render(config.text, values, "slack")
            elif config.blocks is not None:
                message[field] = fill(config.blocks, values, "slack")
        except TemplateFailed as error:
            raise TemplateFailed(f"{field}: {error}") from error
    if len(message["text"]) > _LONGEST_TEXT:
        raise TemplateFailed(
            f"text: it has more than {_LONGEST_TEXT} characters; the filter truncate cuts it"
        )
    if not message["text"].strip() and not message.get("blocks"):
        raise TemplateFailed("text: it is empty")
    return json_text(message).encode()


def _register(url: str) -> None:
    """What stands behind the host is the secret, and errors of clients may show it without the host."""
    register_secret(url)
    register_secret(urlsplit(url).path.strip("/"))
