"""RabbitMQ as a sink, against a real broker: what is confirmed, returned, rejected and lost."""

from __future__ import annotations

import errno
import json
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from signoff.errors import PermanentError, SinkError, TransientError
from signoff.pipeline.model import Retry
from signoff.sinks.contract import Part, Refusal, Sink, Writer
from signoff.sinks.files.sink import FilesSink
from signoff.sinks.rabbitmq.publisher import Publisher
from signoff.sinks.rabbitmq.sink import RabbitmqSinkConfig
from signoff.sinks.retry import deliver
from signoff.testing.conformance.rows import batch_ref, every_type, numbered, places, write_batch
from tests.brokers import PASSWORD, RabbitMQ
from tests.servers import free_port
from tests.sinks.targets import keyed, sink_to

QUEUE = "sink tests"


@pytest.fixture
def queue(rabbitmq: RabbitMQ) -> str:
    rabbitmq.declare_queue(QUEUE, "classic")
    return QUEUE


def ids(*numbers: int) -> list[str]:
    return [f"incoming/{number}" for number in numbers]


def outcome(refusals: list[Refusal]) -> list[tuple[int, bool]]:
    return [(one.index, one.transient) for one in refusals]


def open_writer(sink: Sink) -> Writer:
    return sink.open(Part(batch_ref(), 0, 0))


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_every_row_is_a_message_with_the_event_id_as_its_id(rabbitmq: RabbitMQ, kind: Any) -> None:
    rabbitmq.declare_queue(QUEUE, kind)
    sink = sink_to(rabbitmq, headers={"origin": "signoff"})
    assert write_batch(sink, keyed(numbered(12_000), QUEUE)) == []
    messages = rabbitmq.take(QUEUE)
    assert [message.id for message in messages] == ids(*range(12_000))
    first = messages[0]
    assert json.loads(first.body) == {"event_id": "incoming/0", "number": 0, "text": "row 0"}
    assert (first.properties.content_type, first.properties.headers) == (
        "application/json",
        {"origin": "signoff"},
    )
    assert first.properties.delivery_mode == 2


def test_body_is_the_line_the_files_sink_writes(rabbitmq: RabbitMQ, queue: str, tmp_path: Path) -> None:
    files = FilesSink(tmp_path, "jsonl", "none")
    files.prepare()
    write_batch(files, every_type())
    write_batch(sink_to(rabbitmq), keyed(every_type(), queue))
    (file,) = tmp_path.glob("*.jsonl")
    assert [message.body for message in rabbitmq.take(queue)] == file.read_bytes().split(b"\n")[:-1]


def test_body_may_be_a_column_as_it_is(rabbitmq: RabbitMQ, queue: str) -> None:
    rows = numbered(3).append_column("raw", pa.array([b"\x00\xff", None, b""], pa.binary()))
    (refusal,) = write_batch(sink_to(rabbitmq, body="raw"), keyed(rows, queue))
    assert (refusal.index, refusal.transient, refusal.reason) == (1, False, 'column "raw" is null')
    messages = rabbitmq.take(queue)
    assert [(message.id, message.body) for message in messages] == [
        ("incoming/0", b"\x00\xff"),
        ("incoming/2", b""),
    ]
    assert messages[0].properties.content_type is None


def test_text_column_may_be_the_body(rabbitmq: RabbitMQ, queue: str) -> None:
    write_batch(sink_to(rabbitmq, body="text", content_type="text/plain"), keyed(numbered(1), queue))
    (message,) = rabbitmq.take(queue)
    assert (message.body, message.properties.content_type) == (b"row 0", "text/plain")


@pytest.mark.parametrize(("body", "message"), [("none", "there is no column"), ("number", "is int64")])
def test_body_that_is_no_text_is_an_error_that_says_so(rabbitmq: RabbitMQ, body: str, message: str) -> None:
    with pytest.raises(PermanentError, match=message):
        write_batch(sink_to(rabbitmq, body=body), keyed(numbered(1), "any"))


def test_each_row_has_its_own_routing_key(rabbitmq: RabbitMQ) -> None:
    rabbitmq.declare_exchange("sensors", "direct")
    for number in range(2):
        rabbitmq.declare_queue(f"sensor {number}", "classic")
        rabbitmq.bind(f"sensor {number}", "sensors", f"s{number}")
    rows = keyed(numbered(6), *(f"s{number % 2}" for number in range(6)))
    assert write_batch(sink_to(rabbitmq, exchange="sensors"), rows) == []
    assert [message.id for message in rabbitmq.take("sensor 0")] == ids(0, 2, 4)
    odd = rabbitmq.take("sensor 1")
    assert [message.id for message in odd] == ids(1, 3, 5)
    assert {(message.exchange, message.routing_key) for message in odd} == {("sensors", "s1")}


def test_routing_key_that_cannot_be_sent_refuses_its_row_alone(rabbitmq: RabbitMQ, queue: str) -> None:
    refusals = write_batch(sink_to(rabbitmq), keyed(numbered(4), queue, None, "ä" * 128, queue))
    assert outcome(refusals) == [(1, False), (2, False)]
    assert [one.reason for one in refusals] == [
        "the routing key is null",
        "the routing key has 256 bytes; 255 are the most",
    ]
    assert [message.id for message in rabbitmq.take(queue)] == ids(0, 3)


def test_row_no_queue_takes_is_refused_for_good_and_alone(rabbitmq: RabbitMQ, queue: str) -> None:
    keys = [queue if number % 3 else "nobody" for number in range(3_000)]
    refusals = write_batch(sink_to(rabbitmq), keyed(numbered(3_000), *keys))
    assert outcome(refusals) == [(number, False) for number in range(0, 3_000, 3)]
    assert 'no queue of exchange "" takes the routing key "nobody" (312 NO_ROUTE)' in refusals[0].reason
    assert [message.id for message in rabbitmq.take(queue)] == ids(*(n for n in range(3_000) if n % 3))


def test_row_no_queue_takes_is_discarded_only_when_the_user_says_so(rabbitmq: RabbitMQ, queue: str) -> None:
    assert write_batch(sink_to(rabbitmq, mandatory=False), keyed(numbered(2), queue, "nobody")) == []
    assert [message.id for message in rabbitmq.take(queue)] == ids(0)


def test_row_a_full_queue_rejects_is_asked_for_again_and_its_neighbours_are_not(rabbitmq: RabbitMQ) -> None:
    full = {"x-max-length": 3, "x-overflow": "reject-publish"}
    rabbitmq.declare_queue(QUEUE, "classic", arguments=full)
    rabbitmq.declare_queue("roomy", "classic")
    writer = open_writer(sink_to(rabbitmq))
    rows = keyed(numbered(20), *([QUEUE, "roomy"] * 10))
    refusals = list(writer.write(rows))
    # The length is looked at now and then, so a few more than three may get in.
    assert all(one.transient and one.index % 2 == 0 for one in refusals)
    assert "RabbitMQ rejected the message" in refusals[0].reason
    rejected = {one.index for one in refusals}
    assert 0 < len(rejected) <= 7
    assert [message.id for message in rabbitmq.take("roomy")] == ids(*range(1, 20, 2))
    got = [message.id for message in rabbitmq.take(QUEUE)]
    assert got == ids(*(n for n in range(0, 20, 2) if n not in rejected))
    some = sorted(rejected)[:3]
    assert list(writer.write(rows.take(some))) == []
    writer.close()
    assert [message.id for message in rabbitmq.take(QUEUE)] == ids(*some)


def test_nothing_is_signed_for_before_the_broker_confirms(rabbitmq: RabbitMQ, queue: str) -> None:
    writer = open_writer(sink_to(rabbitmq))
    writer.write(keyed(numbered(1), queue))
    rabbitmq.pause()
    with ThreadPoolExecutor(1) as pool:
        try:
            writing = pool.submit(writer.write, keyed(numbered(10, start=1), queue))
            with pytest.raises(TimeoutError):
                writing.result(0.5)
        finally:
            rabbitmq.resume()
        assert writing.result(20) == []
    writer.close()
    assert rabbitmq.count(queue) == 11


def test_broker_that_does_not_confirm_in_time_is_asked_again(rabbitmq: RabbitMQ, queue: str) -> None:
    writer, again = open_writer(sink_to(rabbitmq, confirm_timeout_ms=200)), Retry(initial_ms=1, max_ms=1)
    assert deliver(writer, keyed(numbered(1), queue), again, budget_s=60).taken.all()
    rabbitmq.pause()
    try:
        refusals = list(writer.write(keyed(numbered(3, start=1), queue)))
    finally:
        rabbitmq.resume()
    assert outcome(refusals) == [(0, True), (1, True), (2, True)]
    assert "confirmed nothing for 0.2 s" in refusals[0].reason
    assert PASSWORD not in refusals[0].reason
    assert deliver(writer, keyed(numbered(3, start=1), queue), again, budget_s=60).taken.all()
    writer.close()


def test_broker_that_does_not_answer_a_connection_is_given_up_in_time(rabbitmq: RabbitMQ) -> None:
    rabbitmq.pause()
    try:
        with pytest.raises(TransientError, match=r"127\.0\.0\.1"):
            write_batch(sink_to(rabbitmq, connect_timeout_s=1), keyed(numbered(1), QUEUE))
    finally:
        rabbitmq.resume()


@pytest.mark.crash
@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_broker_killed_in_the_middle_of_a_write_loses_no_row(
    rabbitmq: RabbitMQ, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rabbitmq.declare_queue(QUEUE, kind)
    rabbitmq.wait_until_queues_are_durable()
    rows = keyed(numbered(20_000), QUEUE)
    answered, killed = Publisher._answered, list[bool]()

    def kill_when_some_are_confirmed(self: Any, frame: Any) -> None:
        answered(self, frame)
        flight = self._flight
        if not killed and flight is not None and flight.sent_count - flight.open_count > 500:
            killed.append(True)
            rabbitmq.kill()

    monkeypatch.setattr(Publisher, "_answered", kill_when_some_are_confirmed)
    writer = open_writer(sink_to(rabbitmq, window=200))
    refusals = list(writer.write(rows))
    lost = {one.index for one in refusals}
    assert 0 < len(lost) < rows.num_rows, "the kill came too early or too late to say anything"
    assert all(one.transient for one in refusals)
    rabbitmq.start()
    again = deliver(writer, rows.take(sorted(lost)), Retry(initial_ms=50, max_ms=200), budget_s=30)
    writer.close()
    assert again.taken.all()
    found = Counter(message.id for message in rabbitmq.take(QUEUE))
    assert set(found) == set(ids(*range(20_000)))
    assert all(place in lost for place in range(20_000) if found[f"incoming/{place}"] > 1)


@pytest.mark.crash
def test_persistent_messages_outlive_the_broker_and_others_do_not(rabbitmq: RabbitMQ, queue: str) -> None:
    rabbitmq.declare_queue("volatile", "classic")
    assert write_batch(sink_to(rabbitmq), keyed(numbered(2_000), queue)) == []
    assert write_batch(sink_to(rabbitmq, persistent=False), keyed(numbered(10), "volatile")) == []
    rabbitmq.restart()
    assert [message.id for message in rabbitmq.take(queue)] == ids(*range(2_000))
    assert rabbitmq.count("volatile") == 0


@pytest.mark.crash
def test_connection_that_was_lost_between_two_writes_costs_no_try(rabbitmq: RabbitMQ, queue: str) -> None:
    writer = open_writer(sink_to(rabbitmq))
    writer.write(keyed(numbered(1), queue))
    rabbitmq.restart()
    done = deliver(writer, keyed(numbered(1, start=1), queue), Retry())
    writer.close()
    assert (places(done.taken), done.attempts) == ([0], 1)


def test_missing_exchange_keeps_the_rows_until_it_is_there(rabbitmq: RabbitMQ, queue: str) -> None:
    rabbitmq.delete_exchange("later")
    sink = sink_to(rabbitmq, exchange="later")
    with pytest.raises(TransientError, match="404 NOT_FOUND - no exchange 'later'"):
        sink.prepare()
    writer = open_writer(sink)
    refusals = list(writer.write(keyed(numbered(2), "key")))
    assert outcome(refusals) == [(0, True), (1, True)]
    assert "no exchange 'later'" in refusals[0].reason
    rabbitmq.declare_exchange("later")
    rabbitmq.bind(queue, "later", "key")
    assert list(writer.write(keyed(numbered(2), "key"))) == []
    writer.close()
    assert [message.id for message in rabbitmq.take(queue)] == ids(0, 1)


def test_exchange_that_is_deleted_in_the_middle_of_a_write_loses_no_row(
    rabbitmq: RabbitMQ, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rabbitmq.declare_exchange("going")
    rabbitmq.bind(queue, "going", "key")
    rows = keyed(numbered(5_000), "key")
    answered, deleted = Publisher._answered, list[bool]()

    def delete_when_some_are_confirmed(self: Any, frame: Any) -> None:
        answered(self, frame)
        flight = self._flight
        if not deleted and flight is not None and flight.sent_count - flight.open_count > 200:
            deleted.append(True)
            rabbitmq.delete_exchange("going")

    monkeypatch.setattr(Publisher, "_answered", delete_when_some_are_confirmed)
    writer = open_writer(sink_to(rabbitmq, exchange="going", window=100))
    refusals = list(writer.write(rows))
    lost = sorted(one.index for one in refusals)
    assert 0 < len(lost) < rows.num_rows, "the deletion came too early or too late to say anything"
    assert all(one.transient and "going" in one.reason for one in refusals)
    assert all(one.transient for one in writer.write(rows.take(lost))), "it is not there yet"
    rabbitmq.declare_exchange("going")
    rabbitmq.bind(queue, "going", "key")
    assert deliver(writer, rows.take(lost), Retry(initial_ms=10, max_ms=10), budget_s=30).taken.all()
    writer.close()
    found = Counter(message.id for message in rabbitmq.take(queue))
    assert set(found) == set(ids(*range(5_000)))
    assert {int(name.partition("/")[2]) for name, times in found.items() if times > 1} <= set(lost)


def test_broker_with_a_memory_alarm_gets_the_rows_when_it_is_over(rabbitmq: RabbitMQ, queue: str) -> None:
    writer = open_writer(sink_to(rabbitmq, confirm_timeout_ms=1000))
    rows, again = keyed(numbered(500), queue), Retry(initial_ms=10, max_ms=10)
    assert list(writer.write(rows.slice(0, 1))) == []
    rabbitmq.control("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        refusals = list(writer.write(rows.slice(1)))
        assert len(refusals) == 499 and all(one.transient for one in refusals)
        assert "alarm" in refusals[0].reason or "blocked" in refusals[0].reason, refusals[0].reason
        other = open_writer(sink_to(rabbitmq, confirm_timeout_ms=1000, connect_timeout_s=2))
        assert len(list(other.write(rows.slice(1, 3)))) == 3, "nor does a new connection help"
        other.abort()
    finally:
        rabbitmq.control("set_vm_memory_high_watermark", "0.6")
    assert deliver(writer, rows.slice(1), again, budget_s=60).taken.all()
    writer.close()
    assert {message.id for message in rabbitmq.take(queue)} == set(ids(*range(500)))


def test_broker_that_sends_no_heartbeats_is_left_and_asked_again(rabbitmq: RabbitMQ, queue: str) -> None:
    sink = sink_to(f"{rabbitmq.url}?heartbeat=1", confirm_timeout_ms=60_000)
    writer = open_writer(sink)
    rows, again = keyed(numbered(20), queue), Retry(initial_ms=10, max_ms=10)
    assert list(writer.write(rows.slice(0, 1))) == []
    rabbitmq.pause()
    try:
        refusals = list(writer.write(rows.slice(1)))  # long before the time for a confirmation is up
    finally:
        rabbitmq.resume()
    assert len(refusals) == 19 and all(one.transient for one in refusals)
    assert deliver(writer, rows.slice(1), again, budget_s=60).taken.all()
    writer.close()
    assert {message.id for message in rabbitmq.take(queue)} == set(ids(*range(20)))


def test_exchange_is_created_when_the_sink_declares_it(rabbitmq: RabbitMQ, queue: str) -> None:
    rabbitmq.delete_exchange("made")
    sink = sink_to(rabbitmq, exchange="made", declare={"type": "topic"})
    sink.prepare()
    rabbitmq.bind(queue, "made", "sensor.*")
    assert write_batch(sink, keyed(numbered(1), "sensor.7")) == []
    assert rabbitmq.count(queue) == 1
    with pytest.raises(TransientError, match="406 PRECONDITION_FAILED - inequivalent arg 'type'"):
        sink_to(rabbitmq, exchange="made", declare={"type": "fanout"}).prepare()


def test_message_the_broker_finds_too_large_is_refused_for_good_and_alone(
    rabbitmq: RabbitMQ, queue: str
) -> None:
    rows = numbered(3)
    bodies = pa.array([b"small", b"x" * (17 * 1024**2), b"small"], pa.binary())
    writer = open_writer(sink_to(rabbitmq, body="raw"))
    done = deliver(writer, keyed(rows.append_column("raw", bodies), queue), Retry(initial_ms=1), budget_s=60)
    writer.close()
    assert outcome(done.refused) == [(1, False)]
    assert "17825792 bytes are more than the 16777216 RabbitMQ allows" in done.refused[0].reason
    assert places(done.taken) == [0, 2]
    assert {message.id for message in rabbitmq.take(queue)} == {*ids(0, 2)}


def test_large_messages_do_not_pile_up(rabbitmq: RabbitMQ, queue: str) -> None:
    rows = numbered(12).append_column("raw", pa.array([b"x" * 4_000_000] * 12, pa.binary()))
    assert write_batch(sink_to(rabbitmq, body="raw"), keyed(rows, queue)) == []
    assert rabbitmq.count(queue) == 12
    rabbitmq.purge(queue)


def test_refused_login_is_asked_again_and_shows_no_password(rabbitmq: RabbitMQ) -> None:
    sink = sink_to(rabbitmq.url.replace(PASSWORD, "battery-staple"))
    with pytest.raises(TransientError, match="ACCESS_REFUSED - Login was refused") as raised:
        sink.prepare()
    assert "battery-staple" not in str(raised.value)
    assert f"@127.0.0.1:{rabbitmq.port}" in str(raised.value)


def test_broker_that_is_not_there_is_named_without_its_password() -> None:
    port = free_port()
    with pytest.raises(TransientError, match="Connection refused") as raised:
        write_batch(sink_to(f"amqp://me:tr0ub4dor@127.0.0.1:{port}"), keyed(numbered(1), QUEUE))
    assert "tr0ub4dor" not in str(raised.value)
    assert f"127.0.0.1:{port}" in str(raised.value)


@pytest.mark.parametrize("trusting", ["a certificate", "anyone"])
def test_rows_go_over_tls(rabbitmq: RabbitMQ, queue: str, trusting: str) -> None:
    known = {"ca_file": str(rabbitmq.ca_file)} if trusting == "a certificate" else {"verify_tls": False}
    sink = sink_to(rabbitmq.tls_url, **known)
    sink.prepare()
    assert write_batch(sink, keyed(numbered(3_000), queue)) == []
    assert [message.id for message in rabbitmq.take(queue)] == ids(*range(3_000))


def test_connection_that_is_cut_while_it_is_made_is_asked_again(
    rabbitmq: RabbitMQ, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(_: socket.socket) -> Any:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    writer = open_writer(sink_to(rabbitmq))
    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "getpeername", cut)
        with pytest.raises(TransientError, match="not connected"):
            writer.write(keyed(numbered(2), QUEUE))
    assert writer.write(keyed(numbered(2), QUEUE)) == []
    writer.close()


def test_certificate_that_is_not_trusted_is_an_error_that_says_so(rabbitmq: RabbitMQ) -> None:
    with pytest.raises(TransientError, match="certificate verify failed: self-signed certificate"):
        sink_to(rabbitmq.tls_url).prepare()
    with pytest.raises(TransientError, match=r"ca_file missing\.pem cannot be read: No such file"):
        sink_to(rabbitmq.tls_url, ca_file="missing.pem").prepare()


@pytest.mark.parametrize("url", ["amqp://me:tr0ub4dor@host:port/", "amqp://me:tr0ub4dor@host/?heartbeat=x"])
def test_address_that_is_none_is_a_sink_error_without_its_password(url: str) -> None:
    with pytest.raises(SinkError, match="not a valid address") as raised:
        sink_to(url).prepare()
    assert "tr0ub4dor" not in str(raised.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": "http://host"}, "not an amqp"),
        ({"declare": {"type": "direct"}}, "needs the name of an exchange"),
        ({"window": 0}, "greater than or equal to 1"),
        ({"routing_key": ""}, "at least 1 character"),
        ({"content_type": "ä" * 200}, "400 bytes; 255 are the most"),
        ({"exchange": "ä" * 200}, "400 bytes; 255 are the most"),
        ({"headers": {"ä" * 200: "x"}}, "400 bytes; 255 are the most"),
        ({"headers": {"x": "y" * 100_000}}, "65536 are the most"),
    ],
)
def test_config_that_cannot_work_is_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RabbitmqSinkConfig.model_validate({"url": "amqp://localhost", "routing_key": "'x'", **fields})
