"""Headers of every type AMQP has, and of none: each is decoded right, or is an error of its event."""

from __future__ import annotations

import json
import math
import struct
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pika.data
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from signoff.sources.rabbitmq.events import events_of
from signoff.sources.rabbitmq.headers import BadHeaders, decode_table
from tests.sources.test_rabbitmq_stream import CHANNEL, Broken, delivery, feed


class Raw(bytes):
    """A value of a table as it stands on the wire, its type in front."""


def encodes_raw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have pika send such values, which it could not encode."""
    encode = pika.data.encode_value

    def encode_raw(pieces: list[bytes], value: Any) -> int:
        if isinstance(value, Raw):
            pieces.append(bytes(value))
            return len(value)
        return int(encode(pieces, value))

    monkeypatch.setattr(pika.data, "encode_value", encode_raw)


def _sized(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def _entry(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + value


def _nested(levels: int, kind: bytes = b"F") -> Raw:
    value = b"t\x01"
    for _ in range(levels):
        value = kind + _sized(_entry(b"n", value) if kind == b"F" else value)
    return Raw(value)


def _decoded(value: bytes) -> Any:
    table = _sized(_entry(b"h", value))
    return decode_table(table, 0, len(table))["h"]


@pytest.mark.case(46)
@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (b"t\x00", False), (b"t\x02", True), (b"b\xff", -1), (b"B\xff", 255), (b"s\xff\xfe", -2),
        (b"U\xff\xfe", -2), (b"u\xff\xfe", 65534), (b"I\xff\xff\xff\xfe", -2),
        (b"i\xff\xff\xff\xfe", 4294967294),
        (b"l" + b"\xff" * 8, -1), (b"L" + b"\xff" * 8, -1), (struct.pack(">cf", b"f", 0.75), 0.75),
        (struct.pack(">cd", b"d", 0.1), 0.1), (struct.pack(">cd", b"d", math.inf), "Infinity"),
        (struct.pack(">cd", b"d", -math.inf), "-Infinity"), (struct.pack(">cd", b"d", math.nan), "NaN"),
        (struct.pack(">cf", b"f", math.inf), "Infinity"), (struct.pack(">cBi", b"D", 2, -1234), "-12.34"),
        (struct.pack(">cBi", b"D", 255, 1), str(Decimal("1e-255"))),
        (struct.pack(">cQ", b"T", 1_700_000_000), "2023-11-14T22:13:20+00:00"),
        (struct.pack(">cQ", b"T", 1_700_000_000_000), 1_700_000_000_000),
        (struct.pack(">cQ", b"T", 2**64 - 1), 2**64 - 1), (b"V", None),
        (b"S" + _sized("ä".encode()), "ä"), (b"S" + _sized(b"\xff\xfe"), "base64://4="),
        (b"x" + _sized(b"ok"), "ok"),
        (b"x" + _sized(b"\x80"), "base64:gA=="), (b"A" + _sized(b"t\x01V"), [True, None]),
        (b"A" + _sized(b""), []),
        (b"F" + _sized(_entry(b"\xff", b"V")), {"base64:/w==": None}),
        (b"F" + _sized(_entry(b"", b"V")), {"": None}),
    ],
)  # fmt: skip
def test_each_type_is_decoded_as_what_it_says(wire: bytes, expected: Any) -> None:
    assert _decoded(wire) == expected


@pytest.mark.case(46)
@pytest.mark.parametrize(
    ("wire", "reason"),
    [
        (b"Z\x00", "no field type 'Z'"), (b"\xff", "no field type '\\\\xff'"), (b"I\x00", "cut off"),
        (b"S\x00\x00\x00\x09x", "of 9 bytes is cut off"), (b"A\xff\xff\xff\xff", "cut off"),
        (b"", "no value"),
        (_nested(300), "nested more than 100 deep"), (_nested(26_000, b"A"), "nested more than 100 deep"),
    ],
)  # fmt: skip
def test_what_cannot_be_decoded_says_why(wire: bytes, reason: str) -> None:
    with pytest.raises(BadHeaders, match=reason):
        _decoded(wire)


@given(st.binary(max_size=200))
@example(_sized(_entry(b"h", b"F" + b"\x00\x00\x00\x0a")))
def test_any_bytes_are_a_table_that_json_can_express_or_an_error(data: bytes) -> None:
    try:
        table = decode_table(data, 0, len(data))
    except BadHeaders as error:
        assert str(error)
    else:
        assert json.loads(json.dumps(table, allow_nan=False)) == table


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=9), _VALUES, max_size=5))
def test_what_pika_encodes_comes_out_again(headers: dict[str, Any]) -> None:
    pieces: list[bytes] = []
    pika.data.encode_table(pieces, headers)
    wire = b"".join(pieces)
    assert decode_table(wire, 0, len(wire)) == headers


def _message(properties: bytes, flags: int, body: bytes = b"body") -> list[bytes]:
    content = struct.pack(">HHQH", 60, 0, len(body), flags) + properties
    header = struct.pack(">BHI", 2, CHANNEL, len(content)) + content + b"\xce"
    method, _, *rest = delivery(1, body, pika.BasicProperties())
    return [method, header, *rest]


@pytest.mark.case(46)
@given(st.binary(max_size=120), st.integers(0, 65535), st.binary(max_size=300))
@example(b"\x05ab", 0x8000, b"")
@example(b"", 0xFFFF, b"x")
def test_no_properties_whatever_their_bytes_stop_the_messages_behind(
    properties: bytes, flags: int, body: bytes
) -> None:
    stream = Broken()
    behind = delivery(2, b"next", pika.BasicProperties(message_id="m"))
    feed(stream, b"".join(_message(properties, flags, body) + behind), [])
    events = events_of(stream.messages, {"incoming.q": "q"}, 0, 1000).to_pylist()
    assert [event["payload"] for event in events] == [body, b"next"]
    assert (events[1]["message_id"], events[1]["error"]) == ("m", None)


def test_a_bad_table_leaves_the_properties_behind_it_alone() -> None:
    table = _sized(_entry(b"h", b"Z"))
    stream = Broken()
    feed(stream, b"".join(_message(table + b"\x02id", 0x2000 | 0x0080)), [])
    (event,) = events_of(stream.messages, {"incoming.q": "q"}, 0, 1000).to_pylist()
    assert event["message_id"] == "id"
    assert event["error"] == "the message's headers cannot be decoded: there is no field type 'Z'"


_MANY = {f"k{number}": number for number in range(5_000)}
HEADERS: dict[str, tuple[Any, str | None]] = {
    "double": (Raw(struct.pack(">cd", b"d", 0.75)), "0.75"),
    "infinite": (Raw(struct.pack(">cd", b"d", math.inf)), "Infinity"),
    "milliseconds": (Raw(struct.pack(">cQ", b"T", 1_700_000_000_000)), "1700000000000"),
    "time": (datetime(2024, 1, 1, tzinfo=UTC), "2024-01-01T00:00:00+00:00"),
    "decimal": (Decimal("12.34"), "12.34"),
    "nested": (_nested(300), None),
    "no_text": (Raw(b"S" + _sized(b"\xff")), "base64:/w=="),
    "many": (
        {f"k{number}": number for number in range(5_000)},
        json.dumps({f"k{n}": n for n in range(5_000)}).replace(" ", ""),
    ),
}
"""Value, and what the event says, None: an error."""


def test_all_values_of_a_name_that_comes_twice_are_kept() -> None:
    table = _sized(
        _entry(b"a", b"b\x01") + _entry(b"b", b"t\x01") + _entry(b"a", b"b\x02") + _entry(b"a", b"V")
    )
    assert decode_table(table, 0, len(table)) == {"a": [1, 2, None], "b": True}


@given(st.floats(width=32))
@example(0.1)
@example(3.4028234663852886e38)
@example(1.401298464324817e-45)
def test_a_number_of_single_precision_is_the_shortest_that_is_the_same(value: float) -> None:
    table = _sized(_entry(b"n", struct.pack(">cf", b"f", value)))
    found = decode_table(table, 0, len(table))["n"]
    assert math.isfinite(value) or isinstance(found, str)
    if math.isfinite(value):
        assert struct.pack(">f", found) == struct.pack(">f", value)
        assert len(repr(found)) <= len(repr(value))


def test_a_tenth_is_a_tenth() -> None:
    table = _sized(_entry(b"n", struct.pack(">cf", b"f", 0.1)))
    assert repr(decode_table(table, 0, len(table))["n"]) == "0.1"
