"""The header table of a message, decoded: AMQP 0-9-1's field types as RabbitMQ and its clients use them.

pika's own decoder raises on times that a calendar does not have, on infinite numbers and on deep tables,
which would end the connection, with each delivery again; and it cuts fractions off.

Invariants: whatever the bytes, `decode_table` returns values that JSON can express, or raises `BadHeaders`
with the reason; it never reads beyond `end`. Of a name that stands in a table more than once all values are
kept, as a list in their order. No two different texts become the same: bytes that are not
UTF-8 are given as `base64:…`.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

_MOST_NESTED = 100
"""Levels of tables and arrays; orjson writes 254, and nobody reads a hundred."""
_SIZE = struct.Struct(">I")
_FLOAT = struct.Struct(">f")


class BadHeaders(Exception):
    """The table cannot be decoded."""


def decode_table(data: bytes, place: int, end: int, depth: int = 0) -> dict[str, Any]:
    """The table whose length is at `place`, within `end`."""
    if depth > _MOST_NESTED:
        raise BadHeaders(f"tables and arrays are nested more than {_MOST_NESTED} deep")
    place, end = _extent(data, place, end, "a table")
    found: dict[str, Any] = {}
    again: dict[str, list[Any]] = {}
    while place < end:
        stop = place + 1 + data[place]
        if stop >= end:
            raise BadHeaders("a header has no value")
        name = text(data[place + 1 : stop])
        value, place = _value(data, stop, end, depth)
        if name in found:
            again.setdefault(name, [found[name]]).append(value)
        found[name] = value
    return {**found, **again}


def table_end(data: bytes, place: int, end: int) -> int:
    """Where the table that begins here is over."""
    return _extent(data, place, end, "the table")[1]


def text(value: bytes) -> str:
    """Text as it is; other bytes as `base64:…`."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(value).decode()


def time_text(seconds: int) -> str | None:
    """ISO 8601; None where it is no time of the calendar (publishers send milliseconds as well)."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return None


def _value(data: bytes, place: int, end: int, depth: int) -> tuple[Any, int]:
    kind = data[place : place + 1]
    place += 1
    if (fixed := _FIXED.get(kind)) is not None:
        layout, convert = fixed
        after = place + layout.size
        if after > end:
            raise BadHeaders(f"a value of type {_shown(kind)} is cut off")
        return convert(*layout.unpack_from(data, place)), after
    if kind in (b"S", b"x"):
        start, stop = _extent(data, place, end, f"a value of type {_shown(kind)}")
        return text(data[start:stop]), stop
    if kind == b"F":
        return decode_table(data, place, end, depth + 1), _extent(data, place, end, "a table")[1]
    if kind == b"A":
        return _array(data, place, end, depth + 1)
    raise BadHeaders(f"there is no field type {_shown(kind)}")


def _array(data: bytes, place: int, end: int, depth: int) -> tuple[list[Any], int]:
    if depth > _MOST_NESTED:
        raise BadHeaders(f"tables and arrays are nested more than {_MOST_NESTED} deep")
    place, end = _extent(data, place, end, "an array")
    found: list[Any] = []
    while place < end:
        value, place = _value(data, place, end, depth)
        found.append(value)
    return found, end


def _extent(data: bytes, place: int, end: int, what: str) -> tuple[int, int]:
    """Where something begins and ends that has its length in front."""
    if place + 4 > end:
        raise BadHeaders(f"{what} is cut off")
    (size,) = _SIZE.unpack_from(data, place)
    if place + 4 + size > end:
        raise BadHeaders(f"{what} of {size} bytes is cut off")
    return place + 4, place + 4 + size


def _number(value: float) -> float | str:
    """JSON has no numbers that are infinite or none."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _single(value: float) -> float | str:
    """The shortest number that is this one in single precision: 0.1, and not 0.10000000149011612."""
    if not math.isfinite(value):
        return _number(value)
    for digits in range(6, 9):
        short = float(f"{value:.{digits}g}")
        try:
            if _FLOAT.pack(short) == _FLOAT.pack(value):
                return short
        except OverflowError:  # rounded up, beyond the largest
            continue
    return value


def _decimal(scale: int, value: int) -> str:
    return str(Decimal(value).scaleb(-scale))


def _time(seconds: int) -> str | int:
    return time_text(seconds) or seconds


def _nothing() -> None:
    return None


def _shown(kind: bytes) -> str:
    return ascii(kind.decode("latin-1"))


_FIXED: dict[bytes, tuple[struct.Struct, Callable[..., Any]]] = {
    b"t": (struct.Struct(">B"), bool),
    b"b": (struct.Struct(">b"), int),
    b"B": (struct.Struct(">B"), int),
    b"s": (struct.Struct(">h"), int),
    b"U": (struct.Struct(">h"), int),
    b"u": (struct.Struct(">H"), int),
    b"I": (struct.Struct(">i"), int),
    b"i": (struct.Struct(">I"), int),
    b"l": (struct.Struct(">q"), int),
    b"L": (struct.Struct(">q"), int),
    b"f": (_FLOAT, _single),
    b"d": (struct.Struct(">d"), _number),
    b"D": (struct.Struct(">Bi"), _decimal),
    b"T": (struct.Struct(">Q"), _time),
    b"V": (struct.Struct(""), _nothing),
}
"""Types of a fixed size. `l` and `L` are both signed, as RabbitMQ has them."""
