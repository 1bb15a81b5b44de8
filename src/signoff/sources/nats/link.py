"""One connection to a NATS server, and a pull consumer on it. Made anew when it is lost.

The client is asynchronous; its loop runs only inside the calls made here, on the intake's one thread. So
nothing happens between two calls, and whoever holds a link pumps it often.

Invariants: at most `_ASKED` messages and about `_ASKED_BYTES` are asked for beyond those that were taken, so
that memory is bounded while the source is held back. The server is asked about the consumer again and again:
somebody may change it, or delete it and make it anew. Whatever goes wrong is LinkLost.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import api

from signoff.sources.nats.config import NatsConfig
from signoff.sources.nats.headers import headers_of

_ASKED = 4_000
"""At most so many messages are asked for; asked for again when half have come."""
_ASKED_BYTES = 8 * 1024**2
_EXPIRES_S = 60.0
"""How long the server keeps what was asked for."""
_PATIENCE_S = 5.0
"""For one answer of the server."""
_LOOK_S = 2.0
"""How often the server is asked about the consumer."""
_NO_CONSUMER = 10014
_NO_MESSAGES, _TIMED_OUT, _CONFLICT, _CONTROL = "404", "408", "409", "100"
_T = TypeVar("_T")


class LinkLost(Exception):
    """The connection is gone, or of no use, and why."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message, and where it is answered."""

    stream_sequence: int
    stored_ns: int
    """When the stream stored it. With its number this is the message, also if the stream was made anew."""
    delivered: int
    """How often it was delivered, this time included."""
    reply: str
    message: Msg


class Link:
    def __init__(self, config: NatsConfig, base: Path, name: str, start: Callable[[int], int | None]) -> None:
        """`start`: by the time at which the stream was made, the number of the message at which a consumer
        that has to be made begins; None: at the first."""
        self.buffer: deque[Delivery] = deque()
        """What has been delivered and was not taken."""
        self.answered_upto = 0
        """The server waits for no answer to messages up to this number of the stream."""
        self._config, self._base, self._name, self._start = config, base, name, start
        self._asked = 0
        """Messages that the server may still deliver without being asked again."""
        self._ask_at_once = _ASKED
        self._over = False
        self._broken = ""
        self._arrived = asyncio.Event()
        self._heard = self._pumped = time.monotonic()
        self._look_at = self._heard + _LOOK_S
        self._loop = asyncio.new_event_loop()
        self._client = _Client()
        try:
            self._run(self._open(), 2 * _PATIENCE_S)
        except LinkLost:
            self.close()
            raise

    def pump(self, timeout_s: float = 0.0) -> None:
        """Let messages come: until there is one, or the time is over."""
        self._run(self._pump(timeout_s), timeout_s + _PATIENCE_S)

    def answer(self, replies: Iterable[tuple[str, bytes]]) -> None:
        """Send answers, and wait until the server has read them."""
        self._run(self._answer(replies), 4 * _PATIENCE_S)

    def waiting(self) -> tuple[int, int]:
        """How many messages the consumer has not delivered yet, and how many it waits to hear of."""
        info = self._run(self._ask_about("CONSUMER.INFO", self._config.consumer), _PATIENCE_S)
        self._learn(info)
        return info.get("num_pending", 0), info.get("num_ack_pending", 0)

    def stop(self) -> None:
        """Nothing more is asked for; what lies in the buffer goes back at once."""
        if self._over:
            return
        self._over, self._asked = True, 0
        back = [(each.reply, b"-NAK") for each in self.buffer]
        self.buffer.clear()
        self._run(self._inbox.unsubscribe(), _PATIENCE_S)
        if back:
            self.answer(back)

    def close(self) -> None:
        with contextlib.suppress(LinkLost):
            self._run(self._client.close(), _PATIENCE_S)
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with contextlib.suppress(Exception):
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _open(self) -> None:
        await self._connect(self._options())
        self._stream = self._client.jetstream(timeout=_PATIENCE_S)
        stream = await self._ask_about("STREAM.INFO")
        self.stream_made_ns = _nanoseconds(stream["created"])
        info = await self._consumer(stream)
        config = info["config"]
        if config.get("deliver_subject") or config.get("ack_policy") != "explicit":
            raise LinkLost(
                f'consumer "{self._config.consumer}" pushes messages, or is not acknowledged one by one; '
                "name another one, or a pull consumer with explicit acknowledgements"
            )
        self._made = info["created"]
        self._learn(info)
        self._subject, self._about = self._client.new_inbox(), self._client.new_inbox()
        self._inbox = await self._client.subscribe(self._subject, cb=self._take)
        await self._client.subscribe(self._about, cb=self._told)

    async def _connect(self, options: dict[str, Any]) -> None:
        try:
            await self._client.connect(**options)
        except (NatsError, OSError, TimeoutError):
            raise
        except Exception as error:  # whatever the client did not expect of the file, or of the other side
            file = self._config.credentials_file
            of_file = f"; is credentials_file {file} what NATS makes for a user?" if file else ""
            raise LinkLost(f"the client cannot log in: {type(error).__name__}: {error}{of_file}") from error

    async def _consumer(self, stream: dict[str, Any]) -> dict[str, Any]:
        config = self._config
        try:
            return await self._ask_about("CONSUMER.INFO", config.consumer)
        except _Refused as refused:
            if refused.code != _NO_CONSUMER:
                raise
        wanted = api.ConsumerConfig(
            durable_name=config.consumer,
            ack_policy=api.AckPolicy.EXPLICIT,
            ack_wait=config.ack_wait,
            max_ack_pending=config.max_ack_pending,
            max_deliver=config.max_deliver,
            filter_subjects=list(config.subjects) or None,
        )
        start = self._start(self.stream_made_ns)
        # A number beyond the end: the stream was put back to an earlier state, or emptied and numbered anew.
        if start is not None and start <= stream["state"]["last_seq"] + 1:
            wanted.deliver_policy = api.DeliverPolicy.BY_START_SEQUENCE
            wanted.opt_start_seq = start
        await self._stream.add_consumer(config.stream, wanted)
        return await self._ask_about("CONSUMER.INFO", config.consumer)

    async def _ask_about(self, what: str, *names: str) -> dict[str, Any]:
        """What JetStream says of our stream, or of something in it."""
        subject = ".".join(("$JS.API", what, self._config.stream, *names))
        answer = await self._client.request(subject, b"", timeout=_PATIENCE_S)
        return _said(answer.data)

    def _learn(self, info: dict[str, Any]) -> None:
        """Somebody else may have changed the consumer."""
        config = info["config"]
        if info["created"] != self._made:
            raise LinkLost(f'consumer "{self._config.consumer}" was made anew')
        waits = [config.get("ack_wait", 0), *(config.get("backoff") or [])]
        self.ack_wait_s = min(wait for wait in waits if wait) / 1e9 if any(waits) else self._config.ack_wait
        most = config.get("max_ack_pending", -1)
        self.most_unacknowledged = most if most > 0 else 1_000_000
        self._ask_at_once = min(config.get("max_batch") or _ASKED, _ASKED)
        self.answered_upto = info.get("ack_floor", {}).get("stream_seq", 0)

    def _look(self, now: float) -> str:
        """The subject at which the server says how the consumer is; '' while it was asked just before."""
        if now < self._look_at:
            return ""
        self._look_at = now + min(_LOOK_S, self.ack_wait_s / 3)
        return f"$JS.API.CONSUMER.INFO.{self._config.stream}.{self._config.consumer}"

    async def _told(self, message: Msg) -> None:
        try:
            self._learn(_said(message.data))
        except (LinkLost, NatsError, ValueError) as error:
            self._broken = self._broken or str(error)

    def _options(self) -> dict[str, Any]:
        config, url = self._config, self._config.url.get()
        options: dict[str, Any] = {
            "servers": [url],
            "name": f"signoff {self._name}",
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,  # else the client tries one minute long to make its first connection
            "reconnect_time_wait": 0,
            "connect_timeout": _PATIENCE_S / 2,
            "ping_interval": config.heartbeat,
            "max_outstanding_pings": 2,
            "error_cb": self._failed,
            "closed_cb": self._closed,
            "disconnected_cb": self._closed,
            "pending_size": 8 * 1024**2,
        }
        if config.token is not None:
            options["token"] = config.token.get_secret_value()
        if config.credentials_file:
            options["user_credentials"] = str(self._base / config.credentials_file)
        if urlsplit(url).scheme == "tls" or config.ca_file:
            options["tls"] = self._tls()
        return options

    def _tls(self) -> ssl.SSLContext:
        ca = str(self._base / self._config.ca_file) if self._config.ca_file else None
        context = ssl.create_default_context(cafile=ca)
        if not self._config.verify_tls:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    async def _pump(self, timeout_s: float) -> None:
        now = time.monotonic()
        if now - self._pumped > self._config.heartbeat:  # we were busy: what came meanwhile was not read
            self._heard = now
        self._pumped = now
        await self._ask()
        if about := self._look(now):
            await self._client.publish(about, b"", reply=self._about)
        if not self.buffer and timeout_s > 0:
            self._arrived.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), timeout_s)
        else:
            await asyncio.sleep(0)
        silent = time.monotonic() - self._heard
        if self._asked and silent > 3 * self._config.heartbeat:
            raise LinkLost(f"the server has been silent for {silent:.0f} s")

    async def _ask(self) -> None:
        room = _ASKED - self._asked - len(self.buffer)
        if self._over or room < _ASKED // 2:
            return
        room = min(room, self._ask_at_once)
        request = {
            "batch": room,
            "max_bytes": max(_ASKED_BYTES, 2 * self._client.max_payload),
            "expires": int(_EXPIRES_S * 1e9),
            "idle_heartbeat": int(self._config.heartbeat * 1e9),
        }
        if not self._asked:
            self._heard = time.monotonic()
        self._asked += room
        next_one = f"$JS.API.CONSUMER.MSG.NEXT.{self._config.stream}.{self._config.consumer}"
        await self._client.publish(next_one, orjson.dumps(request), reply=self._subject)

    async def _take(self, message: Msg) -> None:
        """A message of the stream, or what the server has to say of a request."""
        self._heard = time.monotonic()
        headers = message.headers or {}
        status = headers.get("Status")
        if status is not None and not message.reply.startswith("$JS.ACK."):
            self._hear(status, headers)
        elif (delivery := _delivery(message)) is not None:
            self._asked = max(self._asked - 1, 0)
            self.buffer.append(delivery)
        self._arrived.set()

    def _hear(self, status: str, headers: dict[str, str]) -> None:
        if status == _CONTROL:
            return
        said = headers.get("Description", "")
        left = headers.get("Nats-Pending-Messages")
        if status in (_NO_MESSAGES, _TIMED_OUT) or (status == _CONFLICT and left is not None):
            self._asked = max(self._asked - int(left or self._asked), 0)
        elif status == _CONFLICT and "leadership" in said.lower():
            self._asked = 0
        else:
            self._broken = f"the server answered {status} {said}".strip()

    async def _answer(self, replies: Iterable[tuple[str, bytes]]) -> None:
        for subject, text in replies:
            await self._client.publish(subject, text)
        await self._client.flush(timeout=int(_PATIENCE_S))

    async def _failed(self, error: Exception) -> None:
        self._broken = self._broken or str(error) or type(error).__name__

    async def _closed(self) -> None:
        self._broken = self._broken or "the connection was closed"
        self._arrived.set()

    def _run(self, work: Coroutine[Any, Any, _T], seconds: float) -> _T:
        try:
            result = self._loop.run_until_complete(asyncio.wait_for(work, seconds))
        except (NatsError, OSError, TimeoutError, ValueError, LookupError) as error:
            said = self._broken or str(error) or type(error).__name__
            raise LinkLost(said.removeprefix("nats: ")) from error
        if self._broken:
            raise LinkLost(self._broken)
        return result


class _Client(Client):  # type: ignore[misc]
    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        """The client's own raises on bytes that are no headers, and ends the connection at each delivery."""
        return headers_of(headers)


class _Refused(LinkLost):
    """JetStream answered with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(f"{error.get('description') or 'JetStream refuses'} (error {error.get('err_code')})")
        self.code = error.get("err_code")


def _said(answer: bytes) -> dict[str, Any]:
    said: dict[str, Any] = orjson.loads(answer)
    if error := said.get("error"):
        raise _Refused(error)
    return said


def _nanoseconds(time_of_day: str) -> int:
    """RFC 3339 with up to nine digits, which Python cuts after six."""
    return int(datetime.fromisoformat(time_of_day).timestamp() * 1e6) * 1_000


def _delivery(message: Msg) -> Delivery | None:
    """What the address of the answer says; None for what is no message of a stream."""
    tokens = message.reply.split(".")
    if tokens[:2] != ["$JS", "ACK"] or len(tokens) not in (9, 11, 12):
        return None
    delivered, stream_sequence, stored = (4, 5, 7) if len(tokens) == 9 else (6, 7, 9)
    try:
        return Delivery(
            int(tokens[stream_sequence]),
            int(tokens[stored]),
            int(tokens[delivered]),
            message.reply,
            message,
        )
    except ValueError:
        return None
