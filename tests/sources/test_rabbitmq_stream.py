"""Deliveries decoded from the stream, compared with what pika makes of the same bytes."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pika import BasicProperties, frame
from pika.spec import Basic, Queue

from signoff.sources.rabbitmq.fast_deliveries import Stream

CHANNEL = 1


class Broken(Stream):
    """A stream without a connection: it is given bytes, and says what pika would be given."""

    def __init__(self) -> None:
        self._frame_buffer, self.bytes_received = b"", 0
        self._transport = SimpleNamespace()
        self.messages: list[Any] = []
        self.passed: list[Any] = []
        self.arrivals = 0
        self.divert(CHANNEL, self.messages.append, self._count)

    def _count(self) -> None:
        self.arrivals += 1

    def _process_frame(self, frame_value: Any) -> None:
        self.passed.append(frame_value)


def delivery(
    tag: int, body: bytes, properties: BasicProperties, *, key: str = "k", chunk: int = 100
) -> list[bytes]:
    method = Basic.Deliver("incoming.q", tag, tag % 2 == 0, "sensors", key)
    chunks = [body[start : start + chunk] for start in range(0, len(body), chunk)]
    return [
        frame.Method(CHANNEL, method).marshal(),
        frame.Header(CHANNEL, len(body), properties).marshal(),
        *(frame.Body(CHANNEL, part).marshal() for part in chunks),
    ]


def feed(stream: Broken, data: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        stream._on_data_available(data[start:end])


def test_everything_a_message_says_is_decoded_as_pika_does() -> None:
    properties = BasicProperties(
        content_type="text/plain", content_encoding="gzip", headers={"a": 1, "b": {"c": ["d", True]}},
        delivery_mode=2, priority=3, correlation_id="c", reply_to="r", expiration="60000", message_id="m",
        timestamp=1_700_000_000, type="t", user_id="u", app_id="x", cluster_id="y",
    )  # fmt: skip
    stream = Broken()
    feed(stream, b"".join(delivery(7, b"body", properties)), [])
    ((method, found, body),) = stream.messages
    assert (method.consumer_tag, method.delivery_tag, method.redelivered) == ("incoming.q", 7, False)
    assert (method.exchange, method.routing_key, body) == ("sensors", "k", b"body")
    assert found.__dict__ == properties.__dict__


def test_a_message_without_properties_and_without_a_body_is_a_message() -> None:
    stream = Broken()
    feed(stream, b"".join(delivery(1, b"", BasicProperties())), [])
    ((_, properties, body),) = stream.messages
    assert (body, properties.message_id, properties.headers) == (b"", None, None)


def test_other_frames_are_passed_on_in_their_place() -> None:
    first, second = (delivery(tag, b"x" * 250, BasicProperties(message_id=str(tag))) for tag in (1, 2))
    heartbeat = frame.Heartbeat().marshal()
    declared = frame.Method(CHANNEL, Queue.DeclareOk("q", 1, 2)).marshal()
    stream = Broken()
    feed(stream, b"".join([declared, first[0], heartbeat, *first[1:], heartbeat, *second, declared]), [])
    assert [type(each).__name__ for each in stream.passed] == ["Method", "Heartbeat", "Heartbeat", "Method"]
    assert [method.delivery_tag for method, _, _ in stream.messages] == [1, 2]


@given(
    st.lists(st.tuples(st.binary(max_size=350), st.text(max_size=8), st.booleans()), max_size=8),
    st.lists(st.integers(0, 10_000), max_size=12),
)
def test_messages_come_whole_and_in_order_however_the_bytes_are_cut(
    messages: list[tuple[bytes, str, bool]], cuts: list[int]
) -> None:
    at = datetime(2024, 1, 1, tzinfo=UTC)
    data = b"".join(
        part
        for tag, (body, identity, plain) in enumerate(messages, 1)
        for part in (
            *delivery(tag, body, BasicProperties(message_id=identity, headers=None if plain else {"at": at})),
            *([frame.Heartbeat().marshal()] if plain else []),
        )
    )
    stream = Broken()
    feed(stream, data, cuts)
    found = [(body, properties.message_id, not properties.headers) for _, properties, body in stream.messages]
    assert found == messages
    assert [method.delivery_tag for method, _, _ in stream.messages] == list(range(1, len(messages) + 1))
    assert stream.bytes_received == len(data)
    assert len(stream.passed) == sum(plain for _, _, plain in messages)
