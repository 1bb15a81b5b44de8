"""One connection to RabbitMQ that publishes messages and waits for the broker's word on each.

Invariants: a message is `taken` only when the broker confirmed it and did not return it; what is
not known when the connection is lost counts as `lost`, never as taken; a publisher whose last
`publish` lost anything is closed, so a confirm can never be taken for one of a later message.

pika's blocking connection waits for each confirm on its own (1,000 messages/s); here its loop runs
in the caller's thread, with up to `window` messages under way (10 to 30 times as many).
"""

from __future__ import annotations

import logging
import re
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pika
from pika import exceptions, spec
from pika.adapters.select_connection import IOLoop, SelectConnection

from signoff.errors import TransientError
from signoff.sinks.handed_contexts import TRACEPARENT
from signoff.sinks.refusal import brief

_BURST = 250
"""Messages that are handed to pika before its loop may send and receive."""
_WINDOW_BYTES = 16 * 1024**2
"""Bytes under way at most, so that large messages do not pile up in memory (one is always let through)."""
_CLOSE_S = 2.0
_TOO_LARGE = re.compile(r"message size \d+ is larger than configured max size (\d+)")


@dataclass(frozen=True, slots=True)
class Messages:
    """What `publish` sends; the lists are parallel."""

    ids: Sequence[str]
    routing_keys: Sequence[str]
    bodies: Sequence[bytes]
    contexts: Sequence[str | None] = ()
    """What they hand on as the header `traceparent`; empty where none does."""


@dataclass(slots=True)
class Published:
    """What became of the messages that were not taken, by their place, with the reason."""

    returned: dict[int, str] = field(default_factory=dict)
    """No queue for the message; it never was in the broker's hands."""
    rejected: dict[int, str] = field(default_factory=dict)
    """The broker said no to this message; later it may say yes."""
    impossible: dict[int, str] = field(default_factory=dict)
    """The broker says no to a message like this, always."""
    lost: dict[int, str] = field(default_factory=dict)
    """Not confirmed when the connection was lost or the wait was over: taken or not, nobody knows."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where and how to publish."""

    parameters: Any
    """pika's ConnectionParameters."""
    shown: str
    """The address without the password."""
    exchange: str
    connect_timeout_s: float
    confirm_timeout_s: float
    mandatory: bool
    window: int
    declare: Mapping[str, Any] | None = None
    """Arguments of `exchange_declare`; None leaves the exchange alone."""


class _Connection(SelectConnection):  # type: ignore[misc]
    """pika's, but a burst of messages goes to the socket as one piece.

    pika makes a `send` of each frame, three a message: half as much CPU again, here and in small reads
    at the broker. `_adapter_emit_data` is what pika's own adapters override.
    """

    _burst: list[bytes] | None = None

    def _adapter_emit_data(self, data: bytes) -> None:
        if self._burst is None:
            super()._adapter_emit_data(data)
        else:
            self._burst.append(data)

    @contextmanager
    def burst(self) -> Iterator[None]:
        frames = self._burst = []
        try:
            yield
        finally:
            self._burst = None
            if frames:
                super()._adapter_emit_data(b"".join(frames))


class Publisher:
    """An open connection with one confirming channel. Used by one thread, one `publish` at a time."""

    def __init__(self, address: Address) -> None:
        """Connect. Raises TransientError."""
        quiet_pika()
        self._address = address
        self._gone: str | None = None
        self._too_large: int | None = None
        self._blocked = False
        self._ready = False
        self._tag = 0
        self._flight: _Flight | None = None
        self._loop = IOLoop()
        self._loop.activate_poller()
        self._loop_closed = False
        self._channel: Any = None
        self._connection = _Connection(
            address.parameters, self._opened, self._failed, self._closed, custom_ioloop=self._loop
        )
        try:
            if not self._run(lambda: self._ready or bool(self._gone), address.connect_timeout_s):
                self._gone = f"no answer within {address.connect_timeout_s:g} s"
        except ValueError as error:  # what pika raises for a connection that is cut while it is made
            self._lose(error)
        if self._gone:
            reason = self._gone
            self.drop()
            raise TransientError(f"{address.shown}: {reason}")

    def is_usable(self) -> bool:
        """Whether the connection is still there, after a look at what came in since the last time."""
        if not self._gone:
            self._run(lambda: bool(self._gone), 0)
        return not self._gone

    def check_exchange(self) -> None:
        """Raise TransientError when the exchange is not there."""
        found: list[bool] = []
        self._channel.exchange_declare(
            self._address.exchange, passive=True, callback=lambda _: found.append(True)
        )
        self._run(lambda: bool(found or self._gone), self._address.connect_timeout_s)
        if not found:
            raise TransientError(f"{self._address.shown}: {self._gone or 'no answer'}")

    def publish(self, messages: Messages, properties: Any) -> Published:
        """Publish all, and return when the broker has answered for each or cannot any more.

        `properties` are those of every message; the message id is set here.
        """
        flight = self._flight = _Flight(messages, self._tag)
        try:
            self._send(flight, properties)
            while flight.open_count and self._progress(flight, wait=True):
                pass
        except exceptions.AMQPError as error:  # pika will not send on a connection that is being closed
            self._lose(error)
        self._tag += flight.sent_count
        self._flight = None
        return self._settle(flight)

    def close(self) -> None:
        """Say goodbye."""
        with suppress(exceptions.AMQPError):
            if self._connection.is_open and not self._gone:
                self._connection.close()
                self._run(lambda: self._connection.is_closed, _CLOSE_S)
        self.drop()

    def drop(self) -> None:
        """Let go of the connection without a word, whatever state it is in."""
        self._gone = self._gone or "closed"
        if not self._connection.is_closed:
            # pika has no public way to end a connection whose other side does not answer.
            with suppress(exceptions.AMQPError, AssertionError):
                self._connection._terminate_stream(exceptions.AMQPConnectionError("given up"))
                self._run(lambda: bool(self._connection.is_closed), _CLOSE_S)
        if not self._loop_closed:
            self._loop_closed = True
            self._loop.deactivate_poller()
            self._loop.close()

    # What pika calls

    def _opened(self, connection: Any) -> None:
        connection.add_on_connection_blocked_callback(lambda *_: self._set_blocked(True))
        connection.add_on_connection_unblocked_callback(lambda *_: self._set_blocked(False))
        connection.channel(on_open_callback=self._channel_opened)

    def _channel_opened(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(lambda _, reason: self._lose(reason))
        channel.add_on_return_callback(self._returned)
        if self._address.declare is not None:
            channel.exchange_declare(
                self._address.exchange, callback=lambda _: self._confirming(channel), **self._address.declare
            )
        else:
            self._confirming(channel)

    def _confirming(self, channel: Any) -> None:
        channel.confirm_delivery(self._answered, callback=lambda _: self._set_ready())

    def _set_ready(self) -> None:
        self._ready = True

    def _set_blocked(self, blocked: bool) -> None:
        self._blocked = blocked

    def _failed(self, _: Any, error: Exception) -> None:
        self._lose(_innermost(error))

    def _closed(self, _: Any, reason: Exception) -> None:
        self._lose(reason)

    def _lose(self, reason: Exception) -> None:
        if self._gone is None:  # the first reason is the cause, the others follow from it
            self._gone = brief(_words(reason))
            if match := _TOO_LARGE.search(str(reason)):
                self._too_large = int(match[1])

    def _answered(self, frame: Any) -> None:
        if self._flight is not None:
            self._flight.answered(frame.method)

    def _returned(self, _: Any, method: Any, properties: Any, __: bytes) -> None:
        if self._flight is not None:
            self._flight.returned(properties.message_id, method)

    # The loop

    def _send(self, flight: _Flight, properties: Any) -> None:
        """Hand the messages to pika, no more than the window holds."""
        messages, address = flight.messages, self._address
        exchange, mandatory = address.exchange, address.mandatory
        publish = self._channel.basic_publish
        total, headers = len(messages.bodies), properties.headers
        while flight.sent_count < total and not self._gone:
            start = flight.sent_count
            room = min(address.window - flight.open_count, _BURST, total - start)
            with self._connection.burst():
                for index in range(start, start + room):
                    if flight.bytes_open > _WINDOW_BYTES:
                        break
                    properties.message_id = messages.ids[index]
                    if messages.contexts:
                        context = messages.contexts[index]
                        properties.headers = {**(headers or {}), TRACEPARENT: context} if context else headers
                    key, body = messages.routing_keys[index], messages.bodies[index]
                    publish(exchange, key, body, properties, mandatory)
                    flight.sent()
            self._progress(flight, wait=flight.sent_count == start)

    def _run(self, done: Callable[[], bool], timeout_s: float) -> bool:
        """Let pika send and receive until `done`; false when it is not in time."""
        deadline = time.monotonic() + timeout_s
        timer = self._loop.call_later(max(timeout_s, 0), lambda: None)  # so that poll() ends in time
        try:
            while True:
                self._loop.poll()
                self._loop.process_timeouts()
                if done():
                    return True
                if time.monotonic() >= deadline:
                    return False
        finally:
            self._loop.remove_timeout(timer)

    def _progress(self, flight: _Flight, wait: bool) -> bool:
        """Send and receive; with `wait` until something was confirmed. False when it is no use."""
        if not wait:
            self._run(lambda: True, 0)
            return not self._gone
        before = flight.open_count
        timeout = self._address.confirm_timeout_s
        if not self._run(lambda: flight.open_count < before or bool(self._gone), timeout):
            why = "; it blocks publishers (memory or disk alarm)" if self._blocked else ""
            self._gone = f"RabbitMQ confirmed nothing for {timeout:g} s{why}"
        return not self._gone

    def _settle(self, flight: _Flight) -> Published:
        outcome = Published(returned=flight.returned_places(), rejected=flight.rejected)
        if not self._gone:
            return outcome
        shown, limit = self._address.shown, self._too_large
        for index, body in enumerate(flight.messages.bodies):
            if limit is not None and len(body) > limit:
                size = f"{len(body)} bytes are more than the {limit} RabbitMQ allows"
                outcome.impossible[index] = size
            elif index >= flight.sent_count or flight.open[index]:
                outcome.lost[index] = f"{shown}: {self._gone}"
        return outcome


class _Flight:
    """The messages of one `publish` that are under way."""

    def __init__(self, messages: Messages, tag: int) -> None:
        self.messages = messages
        self.open = bytearray(len(messages.bodies))
        """1 for each message that was sent and not answered."""
        self.sent_count = 0
        self.open_count = 0
        self.bytes_open = 0
        self.rejected: dict[int, str] = {}
        self._first = tag + 1
        self._lowest = 0
        self._returned: dict[tuple[str, str], str] = {}

    def sent(self) -> None:
        """The next message is under way."""
        self.open[self.sent_count] = 1
        self.bytes_open += len(self.messages.bodies[self.sent_count])
        self.open_count += 1
        self.sent_count += 1

    def answered(self, method: Any) -> None:
        index = method.delivery_tag - self._first
        if method.multiple:
            places = [one for one in range(self._lowest, index + 1) if self.open[one]]
            self._lowest = index + 1
        else:
            places = [index] if self.open[index] else []
        for one in places:
            self.open[one] = 0
            self.bytes_open -= len(self.messages.bodies[one])
        self.open_count -= len(places)
        if isinstance(method, spec.Basic.Nack):
            reason = "RabbitMQ rejected the message (a full queue with overflow reject-publish, or a fault)"
            self.rejected.update(dict.fromkeys(places, reason))

    def returned(self, message_id: str, method: Any) -> None:
        self._returned[message_id, method.routing_key] = (
            f'no queue of exchange "{method.exchange}" takes the routing key '
            f'"{method.routing_key}" ({method.reply_code} {method.reply_text})'
        )

    def returned_places(self) -> dict[int, str]:
        if not self._returned:
            return {}
        sent = zip(self.messages.ids, self.messages.routing_keys, strict=True)
        return {index: self._returned[key] for index, key in enumerate(sent) if key in self._returned}


def connection_parameters(
    url: str, *, connect_timeout_s: float, ca_file: str | None = None, verify_tls: bool = True
) -> Any:
    """pika's parameters for an address. Raises ValueError for one that is none."""
    parameters = pika.URLParameters(url)
    parameters.socket_timeout = connect_timeout_s
    parameters.stack_timeout = connect_timeout_s
    parameters.connection_attempts = 1
    parameters.client_properties = {"connection_name": "signoff sink"}
    if url.lower().startswith("amqps:"):
        context = ssl.create_default_context(cafile=ca_file)
        if not verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        parameters.ssl_options = pika.SSLOptions(context, parameters.host)
    return parameters


def quiet_pika() -> None:
    """Keep pika from writing a dozen lines for each failed connection: our errors say it in one."""
    logger = logging.getLogger("pika")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)


def in_words(error: Exception) -> str:
    """Why pika did not do it, in a few words."""
    return brief(_words(_innermost(error)))


def _innermost(error: Exception) -> Exception:
    """The cause, below what pika wraps around it."""
    while True:
        several = getattr(error, "exceptions", ())
        inner = [*several[-1:], getattr(error, "exception", None), *error.args[:1]]
        cause = next((one for one in inner if isinstance(one, Exception)), None)
        if cause is None:
            return error
        error = cause


def _words(error: Exception) -> str:
    """What happened, as a user would say it."""
    if isinstance(error, exceptions.ConnectionClosed | exceptions.ChannelClosed):
        return f"RabbitMQ closed it: {error.reply_code} {error.reply_text}"
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
