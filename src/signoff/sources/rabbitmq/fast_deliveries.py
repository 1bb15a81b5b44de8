"""A shorter way for deliveries through pika: decoded from the stream, straight into a list.

pika spends about 12 µs on a message, most of it on objects and queues of its own; this takes a
quarter of that. Connecting, heartbeats, channels, consumers and acknowledgements stay pika's: only
the frames of deliveries on one channel are taken out of the stream before it sees them.

Invariants: messages are put into the list whole and in the order of their delivery tags. What a message
says of itself never fails the stream, whatever its bytes: one that cannot be decoded bears an `error`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from pika import SelectConnection
from pika.exceptions import InvalidFrameError

from signoff.sources.rabbitmq.headers import BadHeaders, decode_table, table_end
from signoff.sources.rabbitmq.headers import text as _text

_FRAME = struct.Struct(">BHI")
_DELIVER = b"\x00\x3c\x00\x3c"
"""Class and method of basic.deliver."""
_CONTENT = struct.Struct(">HHQH")
"""Class, weight, size of the body, flags of the properties."""
_TAG = struct.Struct(">QB")
_NUMBER = struct.Struct(">Q")
_METHOD, _HEADER, _BODY, _END = 1, 2, 3, 0xCE
_TEXT, _TABLE, _OCTET, _TIME = range(4)
_FIELDS: Final = (
    ("content_type", _TEXT), ("content_encoding", _TEXT), ("headers", _TABLE), ("delivery_mode", _OCTET),
    ("priority", _OCTET), ("correlation_id", _TEXT), ("reply_to", _TEXT), ("expiration", _TEXT),
    ("message_id", _TEXT), ("timestamp", _TIME), ("type", _TEXT), ("user_id", _TEXT), ("app_id", _TEXT),
    ("cluster_id", _TEXT),
)  # fmt: skip
"""The properties of a message, each with its flag from the highest bit on."""
_MOST_KEYS = 10_000
READ_BYTES = 64 * 1024


class Method:
    """How a message was delivered; named as in pika."""

    __slots__ = ("consumer_tag", "delivery_tag", "exchange", "redelivered", "routing_key")

    def __init__(self, consumer_tag: str, tag: int, redelivered: bool, exchange: str, key: str) -> None:
        self.consumer_tag, self.delivery_tag, self.redelivered = consumer_tag, tag, redelivered
        self.exchange, self.routing_key = exchange, key


class Properties:
    """What a message says of itself; None where it says nothing."""

    content_type = content_encoding = correlation_id = reply_to = message_id = None
    type = user_id = app_id = headers = timestamp = None
    error: str | None = None
    """Why they could not be decoded, or not all of them."""


class Stream(SelectConnection):  # type: ignore[misc]  # pika is not typed
    """pika's connection. `divert` is to be called before anything is consumed."""

    _channel_number = 0
    _frame_buffer: bytes

    def divert(
        self,
        channel_number: int,
        keep: Callable[[tuple[Method, Properties, bytes]], None],
        arrived: Callable[[], None],
    ) -> None:
        """Give the deliveries of this channel to `keep`; `arrived` is called when some have come."""
        self._keep, self._arrived = keep, arrived
        self._method: Method | None = None
        self._properties: Properties | None = None
        self._missing = 0
        self._chunks: list[bytes] = []
        self._keys: dict[bytes, tuple[str, str]] = {}
        self._consumers: dict[bytes, str] = {}
        self._channel_number = channel_number
        # pika reads little at a time because it copies what is left after each frame. Here nothing is copied.
        self._transport._MAX_RECV_BYTES, self._transport._MAX_CONSUME_BYTES = READ_BYTES, 8 * READ_BYTES

    def _on_data_available(self, data_in: bytes) -> None:
        """Called by pika with what was read from the socket."""
        if not self._channel_number:
            super()._on_data_available(data_in)
            return
        data = self._frame_buffer + data_in if self._frame_buffer else data_in
        place, size, came = 0, len(data), False
        while place + 7 < size:
            kind, channel, length = _FRAME.unpack_from(data, place)
            end = place + length + 8
            if end > size:
                break
            if data[end - 1] != _END:
                raise InvalidFrameError("Invalid FRAME_END marker")
            if channel == self._channel_number and self._taken(kind, data, place + 7, end - 1):
                came = True
                place = end
                continue
            self.bytes_received += place
            self._frame_buffer = data[place:end]
            super()._on_data_available(b"")
            data, place = data[end:], 0
            size = len(data)
        self.bytes_received += place
        self._frame_buffer = data[place:]
        if came:
            self._arrived()

    def _taken(self, kind: int, data: bytes, start: int, end: int) -> bool:
        """Whether this frame belongs to a delivery; if so it is dealt with."""
        if kind == _METHOD:
            if data[start : start + 4] != _DELIVER:
                return False
            self._method = self._delivered(data, start + 4, end)
            return True
        if self._method is None:
            return False
        if kind == _HEADER:
            _, _, self._missing, flags = _CONTENT.unpack_from(data, start)
            self._properties = _properties(data, start + 14, end, flags)
        elif kind == _BODY:
            self._chunks.append(data[start:end])
            self._missing -= end - start
        else:
            return False
        if not self._missing:
            chunks = self._chunks
            body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            assert self._properties is not None
            self._keep((self._method, self._properties, body))
            self._method, self._chunks = None, []
        return True

    def _delivered(self, data: bytes, start: int, end: int) -> Method:
        after = start + 1 + data[start]
        name = data[start + 1 : after]
        tag, redelivered = _TAG.unpack_from(data, after)
        rest = data[after + 9 : end]
        keys = self._keys.get(rest)
        if keys is None:
            if len(self._keys) >= _MOST_KEYS:
                self._keys.clear()
            exchange = 1 + rest[0]
            keys = _text(rest[1:exchange]), _text(rest[exchange + 1 :])
            self._keys[rest] = keys
        consumer = self._consumers.get(name)
        if consumer is None:
            consumer = self._consumers[name] = _text(name)
        return Method(consumer, tag, bool(redelivered & 1), *keys)


def _properties(data: bytes, place: int, end: int, flags: int) -> Properties:
    found = Properties()
    try:
        place = _decode(found.__dict__, data, place, end, flags)
    except (IndexError, struct.error):
        place = end + 1
    except BadHeaders as error:
        found.error = f"the message's properties cannot be decoded: {error}"
    if place > end:
        found.error = "the message's properties cannot be decoded: they are cut off"
    return found


def _decode(values: dict[str, Any], data: bytes, place: int, end: int, flags: int) -> int:
    """The properties into `values`; returns where they are over."""
    for name, kind in _present(flags):
        if kind == _TEXT:
            after = place + 1 + data[place]
            values[name] = _text(data[place + 1 : after])
            place = after
        elif kind == _OCTET:
            values[name] = data[place]
            place += 1
        elif kind == _TIME:
            (values[name],) = _NUMBER.unpack_from(data, place)
            place += 8
        else:
            after = table_end(data, place, end)
            try:
                values[name] = decode_table(data, place, after)
            except BadHeaders as error:  # what follows is not affected: it is known where the table ends
                values["error"] = f"the message's headers cannot be decoded: {error}"
            place = after
    return place


_SEEN: dict[int, tuple[tuple[str, int], ...]] = {}


def _present(flags: int) -> tuple[tuple[str, int], ...]:
    """The properties that these flags announce, in order."""
    known = _SEEN.get(flags)
    if known is None:
        known = tuple(field for bit, field in enumerate(_FIELDS) if flags & (1 << (15 - bit)))
        _SEEN[flags] = known
    return known
