"""The RabbitMQ source against a real broker: acknowledged after settlement, through every fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika.exceptions
import pytest

from signoff.errors import SourceError
from signoff.log import trim
from signoff.pipeline.model import LogSettings
from signoff.sources.rabbitmq.config import RabbitmqConfig
from tests.brokers import PASSWORD, RabbitMQ, private_rabbitmq
from tests.servers import free_port, wait_until
from tests.sources.rabbits import Cable, Rabbit
from tests.sources.test_rabbitmq_headers import HEADERS, encodes_raw

Open = Callable[..., Rabbit]


@pytest.fixture
def queue(rabbitmq: RabbitMQ, request: pytest.FixtureRequest) -> str:
    name = request.node.name[:100]
    rabbitmq.declare_queue(name)
    return name


@pytest.fixture
def cable(rabbitmq: RabbitMQ) -> Iterator[Cable]:
    cable = Cable(rabbitmq)
    yield cable
    cable.close()


@pytest.fixture
def open_(tmp_path: Path, rabbitmq: RabbitMQ, queue: str) -> Iterator[Open]:
    opened: list[Rabbit] = []

    def make(**fields: Any) -> Rabbit:
        opened.append(Rabbit(tmp_path, **{"url": rabbitmq.url, "queues": queue, **fields}))
        return opened[-1]

    yield make
    for rabbit in opened:
        if rabbit.source._link is not None:
            rabbit.close()


def bodies(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def left(rabbitmq: RabbitMQ, queue: str) -> list[bytes]:
    """What waits in the queue, taken out of it."""
    return sorted(message.body for message in rabbitmq.take(queue))


def test_a_message_is_acknowledged_only_when_it_is_settled(
    rabbitmq: RabbitMQ, queue: str, open_: Open
) -> None:
    rabbitmq.publish(bodies(0, 1, 2, 3), queue)
    rabbit = open_()
    assert rabbit.take(4) == bodies(0, 1, 2, 3)
    rabbit.settle(0, 2)
    assert not rabbit.source.drained()
    rabbit.close()
    assert left(rabbitmq, queue) == bodies(1, 3)


def test_a_range_is_acknowledged_with_one_frame_and_what_is_above_a_gap_singly(
    rabbitmq: RabbitMQ, queue: str, open_: Open
) -> None:
    rabbitmq.publish(bodies(*range(300)), queue)
    rabbit = open_()
    rabbit.take(300)
    frames: list[tuple[int, bool]] = []
    told = rabbit.source._link.acknowledge
    rabbit.source._link.acknowledge = lambda tag, multiple=False: (
        frames.append((tag, multiple)),
        told(tag, multiple=multiple),
    )
    rabbit.settle(*range(200))
    rabbit.settle(201, 202)
    rabbit.settle(200, *range(203, 300))
    assert frames == [(200, True), (202, False), (203, False), (300, True)]
    assert rabbit.source.drained()
    rabbit.close()
    assert rabbitmq.count(queue) == 0


def test_what_a_message_says_of_itself_is_in_the_event(rabbitmq: RabbitMQ, queue: str, open_: Open) -> None:
    rabbitmq.publish(
        [b"x"], queue, message_id=lambda _: "id-1", content_type="text/plain", timestamp=1_700_000_000,
        correlation_id="c", headers={"station": "north", "tries": 3, "raw": b"\xff", "more": {"a": [1]}},
    )  # fmt: skip
    rabbitmq.publish([b"y"], queue, message_id=None)
    rabbit = open_()
    rabbit.take(2)
    first, second = rabbit.events
    assert first["message_id"] == "id-1"
    assert first["headers"] == {
        "rabbitmq.queue": queue,
        "rabbitmq.exchange": "",
        "rabbitmq.routing_key": queue,
        "rabbitmq.redelivered": "false",
        "rabbitmq.content_type": "text/plain",
        "rabbitmq.correlation_id": "c",
        "rabbitmq.timestamp": "2023-11-14T22:13:20+00:00",
        "station": "north",
        "tries": "3",
        "raw": "base64:/w==",
        "more": '{"a":[1]}',
    }
    assert second["message_id"] is None
    assert second["headers"].keys() == {
        "rabbitmq.queue", "rabbitmq.exchange", "rabbitmq.routing_key", "rabbitmq.redelivered"
    }  # fmt: skip


@pytest.mark.case(46)
def test_a_queue_goes_on_after_every_header_that_its_broker_carries(
    rabbitmq: RabbitMQ, queue: str, open_: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    encodes_raw(monkeypatch)
    carried = []
    for name, (value, _) in HEADERS.items():
        try:
            rabbitmq.publish([name.encode()], queue, headers={"h": value})
        except pika.exceptions.AMQPError:  # a broker that looks into headers does not take it
            continue
        carried.append(name)
    assert {"double", "milliseconds", "nested"} <= set(carried)
    rabbitmq.publish([b"", b"x" * 300_000], queue)
    rabbit = open_()
    sent = [*(name.encode() for name in carried), b"", b"x" * 300_000]
    assert rabbit.take(len(sent)) == sent
    for name, event in zip(carried, rabbit.events, strict=False):
        expected = HEADERS[name][1]
        assert event["headers"].get("h") == expected, name
        assert (event["error"] is not None) == (expected is None), name
    rabbit.settle(*range(len(sent)))
    rabbit.close()
    assert rabbitmq.count(queue) == 0


def test_a_message_that_is_too_large_is_kept_in_part_and_marked(
    rabbitmq: RabbitMQ, queue: str, open_: Open
) -> None:
    rabbitmq.publish([b"x" * 100_000, b"ok"], queue)
    rabbit = open_(max_event_bytes=70_000)
    rabbit.take(2)
    first, second = rabbit.events
    assert (len(first["payload"]), second["error"]) == (64 * 1024, None)
    assert "larger than max_event_bytes" in first["error"]


def test_several_queues_are_consumed_on_one_channel_and_declared_if_asked(
    rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    for name in ("warm", "cold"):
        rabbitmq.delete_queue(name)
    rabbitmq.delete_exchange("sensors")
    declare = {
        "exchange": {"name": "sensors"},
        "queue_type": "classic",
        "arguments": {"x-max-length": 1000},
        "bindings": {"warm": ["s1", "s2"], "cold": "s3"},
    }
    rabbit = Rabbit(tmp_path, rabbitmq.url, ["warm", "cold"], declare=declare)
    rabbit.step()
    rabbitmq.publish(bodies(0, 1, 2), lambda n: f"s{n + 1}", exchange="sensors")
    rabbit.take(3)
    found = {event["payload"]: event["headers"]["rabbitmq.queue"] for event in rabbit.events}
    assert found == {b"0": "warm", b"1": "warm", b"2": "cold"}
    rabbit.settle(0, 1, 2)
    assert rabbit.source.drained()
    rabbit.close()


def test_a_message_that_comes_again_after_a_cut_gets_its_old_sequence(
    rabbitmq: RabbitMQ, queue: str, open_: Open, cable: Cable
) -> None:
    rabbitmq.publish(bodies(*range(6)), queue)
    rabbit = open_(url=cable.url)
    rabbit.take(6)
    rabbit.settle(0)
    cable.cut()
    rabbit.step_until(lambda: rabbit.source._deliveries.owed == 5)
    rabbit.silence()
    rabbit.settle(1, 2, 4)
    assert rabbit.source._deliveries.owed == 2
    rabbit.settle(3, 5)
    rabbit.close()
    assert rabbitmq.count(queue) == 0
    assert rabbit.payloads == bodies(*range(6))


def test_what_was_settled_while_the_connection_was_down_is_acknowledged_when_it_comes_again(
    rabbitmq: RabbitMQ, queue: str, open_: Open, cable: Cable
) -> None:
    rabbitmq.publish(bodies(0, 1, 2), queue)
    rabbit = open_(url=cable.url)
    rabbit.take(3)
    cable.cut()
    rabbit.step_until(lambda: rabbit.source._link is None)
    rabbit.settle(0, 1, 2)
    rabbit.step_until(lambda: _is_back(rabbit))
    rabbit.silence()
    rabbit.close()
    assert rabbitmq.count(queue) == 0


def test_a_new_message_among_old_ones_is_not_acknowledged_with_them(
    rabbitmq: RabbitMQ, open_: Open, cable: Cable
) -> None:
    """The old one, with the higher tag, is acknowledged at once; that must not include the new one."""
    rabbitmq.declare_queue("urgent", kind="classic", arguments={"x-max-priority": 5})
    rabbitmq.publish(bodies(0), "urgent", priority=1)
    rabbit = open_(url=cable.url, queues="urgent")
    rabbit.take(1)
    cable.cut()
    rabbit.step_until(lambda: rabbit.source._link is None)
    rabbit.settle(0)
    rabbitmq.wait_for("urgent", 1)
    rabbitmq.publish(bodies(1), "urgent", message_id=lambda _: "new", priority=5)
    wait_until(lambda: rabbit.source._linked(0.05))
    link = rabbit.source._link
    wait_until(lambda: (link.pump(0.05), len(link.buffer) == 2)[1])
    assert [body for _, _, body in link.buffer] == bodies(1, 0)
    events = rabbit.source.receive(10, 0.05)
    assert events.column("payload").to_pylist() == bodies(1)
    assert rabbit.source._deliveries.owed == 1
    rabbit.close()  # before it was logged
    rabbitmq.wait_for("urgent", 1)
    assert [message.body for message in rabbitmq.take("urgent")] == bodies(1)
    rabbitmq.delete_queue("urgent")


def test_events_handed_out_but_not_logged_at_a_cut_are_recognised_too(
    rabbitmq: RabbitMQ, queue: str, open_: Open, cable: Cable
) -> None:
    rabbitmq.publish(bodies(0, 1, 2), queue)
    rabbit = open_(url=cable.url)
    waiting = []
    wait_until(
        lambda: waiting.append(rabbit.source.receive(10, 0.05)) or sum(map(len, filter(None, waiting))) == 3
    )
    before = rabbit.source._link
    cable.cut()
    wait_until(
        lambda: (
            rabbit.source.receive(10, 0.02) is None
            and rabbit.source._link not in (None, before)
            and rabbit.source._deliveries.owed == 3
        )
    )
    for events in filter(None, waiting):
        rabbit.source.logged(rabbit.writer.append(events), len(events))
    rabbit.writer.sync()
    rabbit.settle(0, 1, 2)
    assert rabbit.source.drained()
    rabbit.close()
    assert rabbitmq.count(queue) == 0


SMALL_LOG = LogSettings(segment_bytes=64 * 1024, max_bytes=64 * 1024**2)
"""Of which a few large messages are a segment that can be removed."""


def trimmed(rabbit: Rabbit, upto: int) -> None:
    """What the engine does when everything below is settled."""
    trim(rabbit.log.directory, upto, spare=rabbit.config.remembered_events, room_bytes=32 * 1024**2)


@pytest.mark.case(24, 28)
def test_what_was_settled_while_the_intake_was_dead_is_recognised_in_all_queues_together(
    rabbitmq: RabbitMQ, queue: str, open_: Open
) -> None:
    """`prefetch` is for each queue, so there may be more of them than `remember` says."""
    both = [queue, f"{queue}-2"]
    rabbitmq.declare_queue(both[1])
    fields: dict[str, Any] = {"queues": both, "prefetch": 60, "remember": 60, "log": SMALL_LOG}
    for place, name in enumerate(both):
        rabbitmq.publish([b"%d " % (100 * place + n) + b"x" * 20_000 for n in range(60)], name)
    rabbit = open_(**fields)
    rabbit.take(120)
    rabbit.crash()
    trimmed(rabbit, 120)
    for name in both:
        rabbitmq.wait_for(name, 60)
    again = open_(**fields, settled_upto=120)
    again.settle(*range(120))
    again.step_until(lambda: again.source._link is not None and not again.source._orphans)
    again.silence()
    assert again.source.drained()
    again.close()
    assert [rabbitmq.count(name) for name in both] == [0, 0]
    rabbitmq.delete_queue(both[1])


@pytest.mark.case(24, 28)
@pytest.mark.parametrize("cut", [0, 2])
def test_an_old_event_that_was_settled_while_the_intake_was_dead_is_recognised(
    rabbitmq: RabbitMQ, queue: str, open_: Open, cable: Cable, cut: int
) -> None:
    """It was held for long: many newer ones are settled and acknowledged. Its log is trimmed as soon as the
    source was told, which is before its message comes again if the broker cannot be reached."""
    fields: dict[str, Any] = {"url": cable.url, "prefetch": 20, "remember": 20, "log": SMALL_LOG}
    rabbitmq.publish([b"%d " % n + b"x" * 20_000 for n in range(60)], queue)
    rabbit = open_(**fields)
    rabbit.take(20)
    rabbit.settle(*range(1, 20))
    rabbit.take(39)
    rabbit.settle(*range(20, 39))
    rabbit.take(58)
    rabbit.settle(*range(39, 58))
    rabbit.take(60)
    rabbit.settle(58, 59)
    rabbit.crash()
    rabbitmq.wait_for(queue, 1)
    again = open_(**fields, settled_upto=60)
    again.settle(*range(60))
    trimmed(again, 60)
    assert again.log.first() > 0
    for _ in range(cut):
        wait_until(lambda: again.source._linked(0.05))
        cable.cut()
        again.step_until(lambda: again.source._link is None)
    again.step_until(lambda: again.source._link is not None and 0 not in again.source._orphans)
    again.silence()
    again.close()
    assert rabbitmq.count(queue) == 0


@pytest.mark.parametrize("settled", [0, 1])
def test_the_same_message_in_two_queues_is_two_events_also_when_it_comes_again(
    rabbitmq: RabbitMQ, queue: str, open_: Open, settled: int
) -> None:
    both = [queue, f"{queue}-2"]
    rabbitmq.declare_queue(both[1])
    for name in both:
        rabbitmq.publish(bodies(0), name, message_id=lambda _: "same")
    rabbit = open_(queues=both)
    rabbit.take(2)
    origins = [dict(event["headers"])["rabbitmq.queue"] for event in rabbit.events]
    rabbit.crash()
    for name in both:
        rabbitmq.wait_for(name, 1)
    again = open_(queues=both)
    again.step_until(lambda: again.source._deliveries.owed == 2)
    again.settle(settled)
    again.close()
    rabbitmq.wait_for(origins[1 - settled], 1)
    assert rabbitmq.count(origins[settled]) == 0
    rabbitmq.delete_queue(both[1])


@pytest.mark.parametrize("settled", [0, 1])
def test_a_message_that_was_published_twice_is_not_acknowledged_for_its_settled_twin(
    rabbitmq: RabbitMQ, queue: str, open_: Open, settled: int
) -> None:
    rabbitmq.publish(bodies(0, 0), queue, message_id=lambda _: "same")
    rabbit = open_()
    rabbit.take(2)
    rabbit.settle(settled)
    rabbit.close()
    rabbitmq.wait_for(queue, 1)
    again = open_()
    again.settle(settled)
    again.step_until(lambda: len(again.source._orphans) == 1)
    assert again.source._deliveries.owed == 1
    again.close()
    rabbitmq.wait_for(queue, 1)


def test_without_message_ids_a_message_that_comes_again_is_a_new_event(
    rabbitmq: RabbitMQ, queue: str, open_: Open, cable: Cable
) -> None:
    rabbitmq.publish(bodies(0, 1), queue, message_id=None)
    rabbit = open_(url=cable.url)
    rabbit.take(2)
    cable.cut()
    assert rabbit.take(4) == bodies(0, 1, 0, 1)


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_a_killed_broker_comes_back_and_nothing_is_lost_or_taken_twice(
    rabbitmq: RabbitMQ, open_: Open, kind: Any
) -> None:
    rabbitmq.declare_queue(f"killed-{kind}", kind)
    rabbitmq.publish(bodies(*range(100)), f"killed-{kind}")
    rabbit = open_(queues=f"killed-{kind}")
    rabbit.take(100)
    rabbit.settle(*range(50))
    rabbitmq.kill()
    rabbit.step_until(lambda: "no connection" in rabbit.source.trouble())
    rabbitmq.start()
    rabbit.step_until(lambda: rabbit.source._deliveries.owed == 50)
    assert rabbit.source.trouble() == ""
    rabbit.silence()
    rabbit.settle(*range(50, 100))
    assert rabbit.source.drained()
    rabbit.close()
    assert rabbitmq.count(f"killed-{kind}") == 0


@pytest.mark.broker
def test_tags_of_a_channel_the_broker_has_closed_are_never_used(tmp_path: Path) -> None:
    with private_rabbitmq(consumer_timeout_ms=1000) as impatient:
        impatient.declare_queue("slow")
        impatient.publish(bodies(0, 1, 2), "slow")
        rabbit = Rabbit(tmp_path, impatient.url, "slow")
        rabbit.take(3)
        before = rabbit.source._deliveries
        rabbit.step_until(lambda: rabbit.source._deliveries is not before)
        rabbit.settle(0)  # no tag stands for it now
        rabbit.step_until(lambda: rabbit.source._deliveries.owed == 2)
        assert before.owed == 3
        rabbit.settle(1, 2)
        # If the machine stood still for longer than that, the broker has closed this channel, too.
        rabbit.step_until(lambda: rabbit.source._link is not None and len(rabbit.source._orphans) <= 1)
        rabbit.close()
        assert impatient.count("slow") == 0
        assert rabbit.payloads == bodies(0, 1, 2)
        assert "unknown delivery tag" not in impatient.log


def test_refusals_go_back_or_to_the_dead_letter_exchange(rabbitmq: RabbitMQ, open_: Open) -> None:
    rabbitmq.declare_exchange("refused", "fanout")
    rabbitmq.declare_queue("bad")
    rabbitmq.bind("bad", "refused", "")
    rabbitmq.declare_queue("good", arguments={"x-dead-letter-exchange": "refused"})
    rabbitmq.publish(bodies(0, 1, 2), "good")
    rabbit = open_(queues="good")
    rabbit.take(3)
    rabbit.settle(0, transient=[1], refused=[2])
    assert rabbit.take(4) == bodies(0, 1, 2, 1)
    assert rabbit.events[3]["headers"]["rabbitmq.redelivered"] == "true"
    rabbit.settle(3)
    rabbit.close()
    rabbitmq.wait_for("bad", 1)
    assert (left(rabbitmq, "good"), left(rabbitmq, "bad")) == ([], bodies(2))


def test_a_message_is_put_back_only_so_often(rabbitmq: RabbitMQ, open_: Open) -> None:
    rabbitmq.declare_exchange("refused", "fanout")
    rabbitmq.declare_queue("bad")
    rabbitmq.bind("bad", "refused", "")
    rabbitmq.declare_queue("good", "classic", arguments={"x-dead-letter-exchange": "refused"})
    rabbitmq.publish(bodies(7), "good", message_id=None)
    rabbit = open_(queues="good", max_redeliveries=2)
    for number in range(3):
        rabbit.take(number + 1)
        rabbit.settle(transient=[number])
    rabbitmq.wait_for("bad", 1)
    rabbit.silence()
    rabbit.close()
    assert left(rabbitmq, "good") == []


def test_a_refused_message_comes_back_as_a_new_event_also_after_a_crash(
    rabbitmq: RabbitMQ, queue: str, open_: Open
) -> None:
    rabbitmq.publish(bodies(0, 1), queue)
    rabbit = open_()
    rabbit.take(2)
    rabbit.settle(transient=[1])
    rabbit.crash()  # the message was put back; whether it came again before the crash does not matter
    seen = len(rabbit.payloads)
    again = open_()
    again.settle(*range(2, seen), transient=[1])  # the ledger tells everything again
    again.take(3)
    again.step_until(lambda: not again.source._orphans)
    again.settle(0, *range(2, again.log.head()))
    assert again.payloads[2:] == bodies(1)
    again.close()
    assert rabbitmq.count(queue) == 0


def test_a_refusal_that_did_not_reach_the_broker_before_a_crash_reaches_it_later(
    rabbitmq: RabbitMQ, open_: Open
) -> None:
    rabbitmq.declare_exchange("refused", "fanout")
    rabbitmq.declare_queue("bad")
    rabbitmq.bind("bad", "refused", "")
    rabbitmq.declare_queue("good", arguments={"x-dead-letter-exchange": "refused"})
    rabbitmq.publish(bodies(0, 1), "good")
    rabbit = open_(queues="good")
    rabbit.take(2)
    rabbit.crash()
    again = open_(queues="good")
    again.settle(0, refused=[1])  # before the messages have come again
    again.step_until(lambda: rabbitmq.count("bad") == 1)
    again.silence()
    again.close()
    assert rabbitmq.count("good") == 0


def test_a_stopped_source_gives_back_what_it_has_not_handed_out(
    rabbitmq: RabbitMQ, queue: str, open_: Open
) -> None:
    rabbitmq.publish(bodies(*range(10)), queue)
    rabbit = open_()
    while rabbit.log.head() < 4:
        rabbit.step(max_events=4 - rabbit.log.head())
    rabbit.source.stop()
    rabbitmq.wait_for(queue, 6)
    rabbit.settle(0, 1, 2, 3)
    assert rabbit.source.drained()
    rabbit.close()
    assert left(rabbitmq, queue) == bodies(*range(4, 10))


def test_a_run_that_takes_what_is_there_ends_at_an_empty_queue(
    rabbitmq: RabbitMQ, queue: str, open_: Open
) -> None:
    rabbitmq.publish(bodies(*range(20)), queue)
    rabbit = open_(once=True, prefetch=5)
    settled = 0
    while rabbit.step():
        rabbit.settle(*range(settled, rabbit.log.head()))
        settled = rabbit.log.head()
    assert settled == 20
    rabbitmq.publish(bodies(99), queue)
    rabbit.source.tend()
    assert rabbitmq.count(queue) == 1


def test_a_run_that_takes_what_is_there_gives_up_without_a_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signoff.sources.rabbitmq.source.ONCE_UNREACHABLE_S", 0.5)
    rabbit = Rabbit(tmp_path, f"amqp://someone:{PASSWORD}@127.0.0.1:{free_port()}/", "q", once=True)
    with pytest.raises(SourceError, match=r"amqp://someone:\*\*\*@.*Connection refused.*nothing is lost"):
        rabbit.step_until(lambda: False)
    rabbit.close()


def test_a_source_that_is_held_back_keeps_its_connection(rabbitmq: RabbitMQ, queue: str, open_: Open) -> None:
    rabbitmq.publish(bodies(0), queue)
    rabbit = open_(heartbeat=2)
    rabbit.take(1)
    link = rabbit.source._link
    until = time.monotonic() + 7.0
    while time.monotonic() < until:
        rabbit.source.tend()
        time.sleep(0.01)
    rabbit.settle(0)
    assert rabbit.source._link is link
    assert rabbit.source.drained()
    rabbit.close()
    assert rabbitmq.count(queue) == 0


def test_a_source_at_its_limit_of_unacknowledged_messages_says_so(
    rabbitmq: RabbitMQ, queue: str, open_: Open
) -> None:
    rabbitmq.publish(bodies(*range(5)), queue)
    rabbit = open_(prefetch=3)
    rabbit.take(3)
    assert rabbit.source.limit() == "3 messages are unacknowledged, more are not delivered (prefetch)"
    rabbit.settle(0)
    assert rabbit.source.limit() == ""
    rabbit.take(4)
    assert rabbit.source.limit()
    rabbit.close()
    assert rabbit.source.limit() == "", "without a connection that is not the reason"


def test_a_broker_that_does_not_answer_does_not_hold_the_intake(
    rabbitmq: RabbitMQ, queue: str, open_: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    rabbitmq.publish(bodies(0, 1), queue)
    rabbit = open_()
    rabbit.take(2)
    before = rabbit.source._failures
    rabbitmq.pause()
    try:
        with monkeypatch.context() as short:
            for wait in ("CONNECT_S", "ANSWER_S", "CLOSE_S"):
                short.setattr(f"signoff.sources.rabbitmq.connection.{wait}", 0.3)
            began = time.monotonic()
            rabbit.source.stop()
            assert "does not answer" in rabbit.source.trouble()
            rabbit.settle(0, 1)
            rabbit.source._over = False
            rabbit.step_until(lambda: rabbit.source._failures >= before + 2)
            assert time.monotonic() - began < 30, "the heartbeat alone would be 60 s"
    finally:
        rabbitmq.resume()
    rabbit.step_until(lambda: _is_back(rabbit))
    rabbit.silence()
    rabbit.close()
    assert rabbitmq.count(queue) == 0


@pytest.mark.parametrize("what", ["a queue that is not there", "a wrong password"])
def test_trouble_is_told_without_the_password_and_passes(
    rabbitmq: RabbitMQ, open_: Open, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    rabbitmq.delete_queue("later")
    wrong = rabbitmq.url.replace(PASSWORD, "wrong-secret")
    password = what == "a wrong password"
    rabbit = open_(queues="later", url=wrong if password else rabbitmq.url)
    expected = "ACCESS_REFUSED" if password else "no queue 'later'"
    rabbit.step_until(lambda: expected in rabbit.source.trouble())
    assert "wrong-secret" not in rabbit.source.trouble() + caplog.text
    assert PASSWORD not in rabbit.source.trouble() + caplog.text
    if not password:
        rabbitmq.declare_queue("later")
        rabbit.step_until(lambda: not rabbit.source.trouble())


def test_a_queue_that_is_deleted_is_told_and_found_again(rabbitmq: RabbitMQ, queue: str, open_: Open) -> None:
    rabbit = open_()
    rabbit.step_until(lambda: rabbit.source._link is not None)
    rabbitmq.delete_queue(queue)
    rabbit.step_until(rabbit.source.trouble)
    rabbitmq.declare_queue(queue)
    rabbitmq.publish(bodies(5), queue)
    assert rabbit.take(1) == bodies(5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": "http://x/"}, "no address of a broker"),
        ({"queues": []}, "at least 1"),
        ({"queues": ["a", "a"]}, "named twice"),
        ({"acknowledge": "logged", "acknowledgements": True}, "contradict"),
        ({"declare": {"bindings": {"a": "x"}}}, "needs declare.exchange"),
        ({"declare": {"exchange": {"name": "e"}, "bindings": {"b": "x"}}}, "not one of the queues"),
    ],
)
def test_contradictions_are_errors(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RabbitmqConfig.model_validate({"url": "amqp://localhost/", "queues": "a", **fields})


def test_acknowledge_is_acknowledgements_in_the_words_of_a_broker() -> None:
    given = {"url": "amqp://localhost/", "queues": "a"}
    assert RabbitmqConfig.model_validate(given).acknowledgements is None
    assert RabbitmqConfig.model_validate({**given, "acknowledge": "logged"}).acknowledgements is False
    assert RabbitmqConfig.model_validate({**given, "acknowledge": "settled"}).acknowledgements is True


def test_more_messages_are_under_way_than_one_consumer_may_have(
    rabbitmq: RabbitMQ, queue: str, open_: Open
) -> None:
    rabbit = open_(prefetch=130_000)
    rabbit.step_until(lambda: rabbitmq.consumers(queue) > 0)
    assert rabbitmq.consumers(queue) == 2
    rabbitmq.publish(bodies(*range(70_000)), queue)
    rabbit.step_until(lambda: rabbit.log.head() == 70_000)
    rabbit.settle(*range(70_000))
    rabbit.close()
    assert rabbitmq.count(queue) == 0


@pytest.mark.parametrize("trusting", ["a certificate", "everybody"])
def test_messages_come_over_tls_and_are_acknowledged(
    rabbitmq: RabbitMQ, queue: str, open_: Open, trusting: str
) -> None:
    known = {"ca_file": str(rabbitmq.ca_file)} if trusting == "a certificate" else {"verify_tls": False}
    rabbitmq.publish(bodies(*range(500)), queue)
    rabbit = open_(url=rabbitmq.tls_url, **known)
    assert rabbit.take(500) == bodies(*range(500))
    rabbit.settle(*range(499))
    rabbit.close()
    assert left(rabbitmq, queue) == bodies(499)


def test_a_broker_whose_certificate_is_not_trusted_is_not_spoken_to(
    rabbitmq: RabbitMQ, queue: str, open_: Open
) -> None:
    rabbitmq.publish(bodies(0), queue)
    rabbit = open_(url=rabbitmq.tls_url)
    wait_until(lambda: (rabbit.step(0.01), rabbit.source.trouble())[1])
    trouble = rabbit.source.trouble()
    assert "certificate" in trouble.lower() and PASSWORD not in trouble
    assert rabbit.log.head() == 0


def test_an_exclusive_consumer_keeps_others_out_until_it_is_gone(
    rabbitmq: RabbitMQ, open_: Open, tmp_path: Path
) -> None:
    rabbitmq.declare_queue("for-one", kind="classic")
    rabbitmq.publish(bodies(0), "for-one")
    first = open_(queues="for-one", exclusive=True)
    first.take(1)
    second = Rabbit(tmp_path / "second", rabbitmq.url, "for-one", exclusive=True)
    wait_until(lambda: (second.step(0.01), second.source.trouble())[1])
    first.settle(0)
    first.close()
    rabbitmq.publish(bodies(1), "for-one")
    assert second.take(1) == bodies(1)
    second.close()


def _is_back(rabbit: Rabbit) -> bool:
    """It is connected again, and all that had to come again has come."""
    return rabbit.source._link is not None and not rabbit.source._orphans
