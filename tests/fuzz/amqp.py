"""Messages of a broker: whatever a header table holds, each message is an event, and so is the next."""

from __future__ import annotations

import json
import random
import struct
from itertools import pairwise

import pika

from signoff.sources.rabbitmq.events import events_of
from signoff.sources.rabbitmq.headers import BadHeaders, decode_table
from tests.fuzz.targets import ODD, mutated, target
from tests.sources.test_rabbitmq_stream import CHANNEL, Broken, delivery

SIZES = {
    b"t": 1, b"b": 1, b"B": 1, b"s": 2, b"U": 2, b"u": 2, b"I": 4, b"i": 4, b"l": 8, b"L": 8, b"f": 4,
    b"d": 8, b"D": 5, b"T": 8, b"V": 0,
}  # fmt: skip
"""Of the types of a fixed size."""
LIMIT = 100


def _sized(generator: random.Random, content: bytes) -> bytes:
    wrong = generator.choice((-1, 1, 2**31, 5)) if generator.random() < 0.01 else 0
    return struct.pack(">I", max(0, len(content) + wrong) % 2**32) + content


def value(generator: random.Random, depth: int = 0) -> bytes:
    """A value with its type in front, mostly right."""
    kind = generator.choice(
        [*SIZES, b"S", b"S", b"x", b"F", b"A", b"Z" if generator.random() < 0.02 else b"S"]
    )
    if kind in SIZES:
        size = SIZES[kind]
        edge = generator.choice((bytes(size), b"\xff" * size, b"\x7f" + b"\xff" * max(0, size - 1)))
        return kind + (edge[:size] if generator.random() < 0.3 else generator.randbytes(size))
    if kind in (b"S", b"x"):
        return kind + _sized(generator, generator.choice((*ODD, b"", b"text", generator.randbytes(5))))
    if depth > 3 and generator.random() < 0.99:
        return b"V"
    if generator.random() < 0.01:
        inner = b"t\x01"
        for _ in range(generator.choice((90, 101, 300))):
            inner = b"A" + struct.pack(">I", len(inner)) + inner
        return inner
    inner = b"".join(
        (_name(generator) if kind == b"F" else b"") + value(generator, depth + 1)
        for _ in range(generator.randint(0, 3))
    )
    return kind + _sized(generator, inner)


def _name(generator: random.Random) -> bytes:
    name = generator.choice((b"h", b"x-death", b"", b"rabbitmq.queue", b"\xff", b"n" * 255, b"h"))
    return bytes([len(name)]) + name


def table(generator: random.Random) -> bytes:
    inner = b"".join(_name(generator) + value(generator) for _ in range(generator.randint(0, 4)))
    made = _sized(generator, inner)
    return mutated(generator, made, most=3) if generator.random() < 0.2 else made


@target("amqp-headers", weight=400)
def headers(generator: random.Random) -> None:
    data = table(generator)
    try:
        found = decode_table(data, 0, len(data))
    except BadHeaders as error:
        assert str(error)
        str(error).encode()
    else:
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        json.dumps(found, ensure_ascii=False).encode()


@target("amqp-messages", weight=40)
def messages(generator: random.Random) -> None:
    """Some messages in a row, whose properties are anything, in pieces as a socket gives them."""
    bodies = [generator.randbytes(generator.choice((0, 1, 30, 250))) for _ in range(generator.randint(1, 4))]
    data = b"".join(_message(generator, number, body) for number, body in enumerate(bodies))
    stream = Broken()
    places = sorted({0, len(data), *(generator.randrange(len(data) + 1) for _ in range(3))})
    for start, end in pairwise(places):
        stream._on_data_available(data[start:end])
    events = events_of(stream.messages, {"incoming.q": "q"}, 0, LIMIT)
    events.validate(full=True)
    for body, event in zip(bodies, events.to_pylist(), strict=True):
        assert event["payload"] == body or (len(body) > LIMIT and event["error"])
        names = [name for name, _ in event["headers"]]
        assert len(names) == len(set(names)), names
        if event["error"] is not None:
            event["error"].encode()


def _message(generator: random.Random, number: int, body: bytes) -> bytes:
    method, _, *rest = delivery(number, body, pika.BasicProperties())
    if generator.random() < 0.6:
        flags, properties = 0x2000, table(generator)
    else:
        flags, properties = generator.randrange(65536), generator.randbytes(generator.choice((0, 5, 60)))
    content = struct.pack(">HHQH", 60, 0, len(body), flags) + properties
    header = struct.pack(">BHI", 2, CHANNEL, len(content)) + content + b"\xce"
    return b"".join([method, header, *rest])
