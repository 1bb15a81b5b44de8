"""One connection to a NATS server, and a pull consumer on it. Made anew when it is lost.

The client is asynchronous; its loop runs only inside the calls made here, on the intake's one thread. So
nothing happens between two calls, and whoever holds a link pumps it often.

Invariants: at most `_ASKED` messages and about `_ASKED_BYTES` are asked for beyond those that were taken, so
that memory is bounded while the source is held back. Whatever goes wrong is LinkLost.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import api
from nats.js.errors import NotFoundError

from signoff.sources.nats.config import NatsConfig

_ASKED = 4_000
"""At most so many messages are asked for; asked for again when half have come."""
_ASKED_BYTES = 8 * 1024**2
_EXPIRES_S = 60.0
"""How long the server keeps what was asked for."""
_PATIENCE_S = 5.0
"""For one answer of the server."""
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
    def __init__(
        self, config: NatsConfig, base: Path, name: str, start: tuple[int, int] | None = None
    ) -> None:
        """`start`: number and time of the message at which a consumer that has to be made begins, if it is
        still the same stream."""
        self.buffer: deque[Delivery] = deque()
        """What has been delivered and was not taken."""
        self._config, self._base, self._name, self._start = config, base, name, start
        self._asked = 0
        """Messages that the server may still deliver without being asked again."""
        self._over = False
        self._broken = ""
        self._arrived = asyncio.Event()
        self._heard = time.monotonic()
        self._loop = asyncio.new_event_loop()
        self._client = Client()
        try:
            self._run(self._open(), 3 * _PATIENCE_S)
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
        info = self._run(self._stream.consumer_info(self._config.stream, self._config.consumer), _PATIENCE_S)
        return info.num_pending or 0, info.num_ack_pending or 0

    def stop(self) -> None:
        """Nothing more is asked for; what lies in the buffer goes back at once."""
        if self._over:
            return
        self._over = True
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
        config = self._config
        await self._client.connect(**self._options())
        self._stream = self._client.jetstream(timeout=_PATIENCE_S)
        info = await self._consumer()
        if info.config.deliver_subject or info.config.ack_policy != api.AckPolicy.EXPLICIT:
            raise LinkLost(
                f'consumer "{config.consumer}" pushes messages, or is not acknowledged one by one; '
                "name another one, or a pull consumer with explicit acknowledgements"
            )
        self.ack_wait_s = float(info.config.ack_wait or config.ack_wait)
        self.most_unacknowledged = int(info.config.max_ack_pending or config.max_ack_pending)
        self._subject = self._client.new_inbox()
        self._inbox = await self._client.subscribe(self._subject, cb=self._take)

    async def _consumer(self) -> api.ConsumerInfo:
        config = self._config
        try:
            return await self._stream.consumer_info(config.stream, config.consumer)
        except NotFoundError:
            wanted = api.ConsumerConfig(
                durable_name=config.consumer,
                ack_policy=api.AckPolicy.EXPLICIT,
                ack_wait=config.ack_wait,
                max_ack_pending=config.max_ack_pending,
                max_deliver=config.max_deliver,
                filter_subjects=list(config.subjects) or None,
            )
            if self._start is not None and await self._is_in_the_stream(*self._start):
                wanted.deliver_policy = api.DeliverPolicy.BY_START_SEQUENCE
                wanted.opt_start_seq = self._start[0]
            return await self._stream.add_consumer(config.stream, wanted)

    async def _is_in_the_stream(self, number: int, stored_ns: int) -> bool:
        """False for a stream that was deleted and made anew: its numbers begin again."""
        info = await self._stream.stream_info(self._config.stream)
        made = info.created.timestamp() if info.created else 0.0
        return made <= stored_ns / 1e9 and number <= info.state.last_seq + 1

    def _options(self) -> dict[str, Any]:
        config, url = self._config, self._config.url.get()
        options: dict[str, Any] = {
            "servers": [url],
            "name": f"signoff {self._name}",
            "allow_reconnect": False,
            "connect_timeout": _PATIENCE_S,
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
        await self._ask()
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
        self._broken = self._broken or f"{type(error).__name__}: {error}"

    async def _closed(self) -> None:
        self._broken = self._broken or "the connection was closed"
        self._arrived.set()

    def _run(self, work: Coroutine[Any, Any, _T], seconds: float) -> _T:
        try:
            result = self._loop.run_until_complete(asyncio.wait_for(work, seconds))
        except (NatsError, OSError, TimeoutError, ValueError) as error:
            said = self._broken or str(error) or type(error).__name__
            raise LinkLost(said.removeprefix("nats: ")) from error
        if self._broken and not self._over:
            raise LinkLost(self._broken)
        return result


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
