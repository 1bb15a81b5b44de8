"""The NATS source against a real server: acknowledged after settlement, through every fault."""

from __future__ import annotations

import errno
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import ConsumerConfig, ConsumerInfo
from pydantic import ValidationError
from pyroaring import BitMap64

from signoff.errors import SourceError, TransientError
from signoff.log import LogReader, LogWriter
from signoff.pipeline.model import LogSettings
from signoff.sinks.nats import NatsSinkConfig
from signoff.sources.contract import Resume, SourceContext
from signoff.sources.nats.config import NatsConfig
from signoff.sources.refusal_notes import Refusals
from tests.nats_server import NatsServer
from tests.servers import wait_until
from tests.sources.rabbits import Rabbit

pytestmark = pytest.mark.servers

SECRET = "sesame-open-9"
STREAM, CONSUMER = "ALARMS", "tests"
Open = Callable[..., "Stepwise"]
SEED = b"""-----BEGIN NATS USER JWT-----
abc
------END NATS USER JWT------
-----BEGIN USER NKEY SEED-----
%b
------END USER NKEY SEED------
"""


class Stepwise(Rabbit):
    """What the intake does with the source, in this process and step by step."""

    def __init__(self, base: Path, *, once: bool = False, **fields: Any) -> None:
        self.base = base
        self.config = NatsConfig.model_validate({"stream": STREAM, "consumer": CONSUMER, **fields})  # type: ignore[assignment]
        self.writer = LogWriter(base / "log", LogSettings())
        self.log = LogReader(base / "log")
        self.source = self.config.build(base)
        resume = Resume(self.writer.next_sequence)
        self.source.open(SourceContext("incoming", base / "own", once, base, self.log), resume)

    def crash(self) -> None:
        """End as SIGKILL would: no word to anyone."""
        if self.source._link is not None:
            self.source._link.close()
            self.source._link = None
        self.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "server") as server:
        server.make_stream(STREAM, "alarms.>")
        yield server


@pytest.fixture
def open_(tmp_path: Path, server: NatsServer) -> Iterator[Open]:
    opened: list[Stepwise] = []

    def make(**fields: Any) -> Stepwise:
        defaults = {"url": server.url, "ack_wait": "1s", "nak_delay": "0s"}
        opened.append(Stepwise(tmp_path, **{**defaults, **fields}))
        return opened[-1]

    yield make
    for one in opened:
        if one.source._link is not None:
            one.close()


def bodies(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def unanswered(server: NatsServer) -> int:
    info: ConsumerInfo = server.consumer(STREAM, CONSUMER)
    return (info.num_ack_pending or 0) + (info.num_pending or 0)


def test_a_message_is_acknowledged_only_when_it_is_settled(server: NatsServer, open_: Open) -> None:
    server.publish(bodies(0, 1, 2), "alarms.new")
    reader = open_()
    assert reader.take(3) == bodies(0, 1, 2)
    assert unanswered(server) == 3 and not reader.source.drained()
    reader.settle(1)
    assert unanswered(server) == 2
    reader.settle(0, 2)
    assert unanswered(server) == 0 and reader.source.drained()


def test_what_a_message_says_of_itself_is_in_the_event(server: NatsServer, open_: Open) -> None:
    server.publish(
        [b"x"], "alarms.a.b", {"Nats-Msg-Id": "m-1", "traceparent": "00-1-2-01", "nats.subject": "no"}
    )
    reader = open_()
    reader.take(1)
    event = reader.events[0]
    assert event["message_id"] == "m-1" and event["unit"] == 1 and event["position"] > 1e18
    headers = dict(event["headers"])
    assert headers["nats.subject"] == "alarms.a.b" and headers["nats.sequence"] == "1"
    assert headers["traceparent"] == "00-1-2-01" and headers["nats.delivered"] == "1"


def test_a_message_that_is_too_large_is_kept_in_part_and_marked(server: NatsServer, open_: Open) -> None:
    server.publish([b"x" * 100_000, b"ok"], "alarms.new")
    reader = open_(max_event_bytes=70_000)
    reader.take(2)
    large, fine = reader.events
    assert len(large["payload"]) < 70_000 and "max_event_bytes" in large["error"] and fine["error"] is None


def test_only_the_subjects_that_are_asked_for_come(server: NatsServer, open_: Open) -> None:
    server.publish(bodies(0), "alarms.old")
    server.publish(bodies(1), "alarms.new")
    reader = open_(subjects=["alarms.new"])
    assert reader.take(1) == bodies(1)


def test_an_event_in_flight_is_not_delivered_again_however_long_it_takes(
    server: NatsServer, open_: Open
) -> None:
    server.publish(bodies(0, 1), "alarms.new")
    reader = open_()
    reader.take(2)
    reader.silence(1.5)  # ack_wait is 1 s
    until = time.monotonic() + 1.5
    while time.monotonic() < until:  # held back: nothing is received
        reader.source.tend()
    assert not server.consumer(STREAM, CONSUMER).num_redelivered
    reader.settle(0, 1)
    assert unanswered(server) == 0


def test_a_killed_server_comes_back_and_nothing_is_lost_or_taken_twice(
    server: NatsServer, open_: Open
) -> None:
    server.publish(bodies(*range(20)), "alarms.new")
    reader = open_()
    reader.take(20)
    reader.settle(*range(5))
    server.kill()
    reader.step_until(reader.source.trouble)
    reader.settle(*range(5, 10))  # while there is nobody to be told
    server.start()
    server.publish(bodies(*range(20, 30)), "alarms.new")
    assert reader.take(30) == bodies(*range(30))
    reader.settle(*range(10, 29))
    reader.step_until(lambda: unanswered(server) == 1)
    assert reader.payloads == bodies(*range(30)), "an event came twice"
    assert not reader.source.trouble()


def test_after_a_crash_messages_that_are_in_the_log_are_no_second_events(
    server: NatsServer, open_: Open
) -> None:
    server.publish(bodies(*range(10)), "alarms.new")
    reader = open_()
    reader.take(10)
    reader.settle(0, 1)
    reader.crash()
    reader = open_()
    reader.settle(*range(6))  # the ledger tells all of it again
    reader.step_until(lambda: unanswered(server) == 4)
    server.publish(bodies(10), "alarms.new")
    assert reader.take(11) == bodies(*range(11))
    reader.settle(*range(11))
    reader.step_until(lambda: unanswered(server) == 0)
    assert len(reader.payloads) == 11


def test_events_handed_out_but_not_logged_at_a_crash_come_again(server: NatsServer, open_: Open) -> None:
    server.publish(bodies(0, 1, 2), "alarms.new")
    reader = open_()
    wait_until(lambda: reader.source.receive(10, 0.05))
    reader.crash()
    reader = open_()
    assert reader.take(3) == bodies(0, 1, 2)


def test_a_refused_message_comes_again_as_a_new_event_or_never(server: NatsServer, open_: Open) -> None:
    server.publish(bodies(0, 1, 2), "alarms.new")
    reader = open_()
    reader.take(3)
    reader.settle(0, refused=[1], transient=[2])
    assert reader.take(4) == bodies(0, 1, 2, 2)
    reader.settle(3)
    assert unanswered(server) == 0
    reader.silence(1.2)


def test_a_refused_message_is_a_new_event_also_after_a_crash(server: NatsServer, open_: Open) -> None:
    server.publish(bodies(0), "alarms.new")
    reader = open_(nak_delay="1s")
    reader.take(1)
    reader.settle(transient=[0])
    reader.crash()
    reader = open_()
    reader.settle(transient=[0])  # told again
    assert reader.take(2) == bodies(0, 0)
    reader.settle(1)
    reader.step_until(lambda: unanswered(server) == 0)


def test_a_refusal_that_did_not_reach_the_server_reaches_it_later(server: NatsServer, open_: Open) -> None:
    server.publish(bodies(0, 1), "alarms.new")
    reader = open_()
    reader.take(2)
    reader.crash()
    reader = open_(on_refuse={"transient": "nak", "permanent": "term"})
    reader.settle(1, refused=[0])
    reader.step_until(lambda: unanswered(server) == 0)
    reader.silence(1.2)


def test_numbers_of_a_stream_that_was_made_anew_are_new_events(server: NatsServer, open_: Open) -> None:
    server.publish(bodies(0, 1), "alarms.new")
    reader = open_()
    reader.take(2)
    reader.settle(0, 1)
    server.delete_stream(STREAM)
    reader.step_until(reader.source.trouble)
    server.make_stream(STREAM, "alarms.>")
    server.publish(bodies(2, 3), "alarms.new")
    assert reader.take(4) == bodies(0, 1, 2, 3)
    reader.settle(2, 3)
    assert unanswered(server) == 0


def test_a_consumer_that_was_deleted_begins_where_all_before_is_settled(
    server: NatsServer, open_: Open
) -> None:
    server.publish(bodies(*range(6)), "alarms.new")
    reader = open_()
    reader.take(6)
    reader.settle(0, 1, 3)
    server.delete_consumer(STREAM, CONSUMER)
    reader.step_until(reader.source.trouble)
    server.publish(bodies(6), "alarms.new")
    assert reader.take(7) == bodies(*range(7))
    reader.settle(2, 4, 5, 6)
    reader.step_until(lambda: unanswered(server) == 0)
    assert reader.payloads == bodies(*range(7))
    delivered = server.consumer(STREAM, CONSUMER).delivered
    assert delivered is not None and delivered.consumer_seq == 5, "it began at the first that was not settled"


def test_a_consumer_that_is_there_keeps_its_settings_and_must_be_one_to_pull_from(
    server: NatsServer, open_: Open
) -> None:
    pushing = ConsumerConfig(durable_name=CONSUMER, deliver_subject="elsewhere", ack_wait=5)
    server.do(lambda stream: stream.add_consumer(STREAM, pushing))
    reader = open_()
    reader.step_until(reader.source.trouble)
    assert "pushes messages" in reader.source.trouble()
    server.delete_consumer(STREAM, CONSUMER)
    pulled = ConsumerConfig(durable_name=CONSUMER, ack_wait=5, max_ack_pending=3)
    server.do(lambda stream: stream.add_consumer(STREAM, pulled))
    server.publish(bodies(*range(5)), "alarms.new")
    assert reader.take(3) == bodies(0, 1, 2)
    assert "max_ack_pending" in reader.source.limit()
    reader.settle(0, 1, 2)
    assert reader.take(5) == bodies(*range(5))


ODD_HEADERS = (
    b"NATS/1.0\r\na: \xff\xfe\r\n\xff: x\r\n\r\n",
    b"NATS/1.0\r\nwithout colon\r\n: without name\r\nk: \xed\xa0\x80\x00\r\n\r\n",
    b"NATS/1.0\r\nStatus: 404\r\nDescription: none\r\n\r\n",
    b"NATS/1.0 100 Idle Heartbeat\r\n\r\n",
    b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
    b"NATS/1.0 \xff\xfe\xfd \xff\r\n\r\n",
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0",
    b"NATS/1.0 1",
    b"\xff" * 9,
    b"NATS/1.0\r\ntwice: 1\r\ntwice: 2\r\nlong: " + b"y" * 30_000 + b"\r\n\r\n",
)


def test_no_header_whatever_its_bytes_stops_the_source(server: NatsServer, open_: Open) -> None:
    server.publish_raw("alarms.odd", *ODD_HEADERS)
    server.publish(bodies(0), "alarms.new")
    reader = open_()
    reader.take(server.do(lambda stream: stream.stream_info(STREAM)).state.messages)
    assert reader.payloads[-1] == b"0" and len(reader.payloads) == len(ODD_HEADERS) + 1
    assert not reader.source.trouble()
    reader.settle(*range(len(reader.payloads)))
    assert unanswered(server) == 0
    headers = [dict(event["headers"]) for event in reader.events]
    assert [each["twice"] for each in headers if "twice" in each] == ["1, 2"]


def test_a_stopped_source_acknowledges_however_long_it_takes(server: NatsServer, open_: Open) -> None:
    server.publish(bodies(0, 1), "alarms.new")
    reader = open_()
    reader.take(2)
    reader.source.stop()
    reader.source._link._heard -= 1000  # no heartbeat comes where nothing is asked for
    until = time.monotonic() + 1.3
    while time.monotonic() < until:  # ack_wait is 1 s
        reader.source.tend()
    assert not reader.source.drained() and not server.consumer(STREAM, CONSUMER).num_redelivered
    reader.settle(0, 1)
    assert reader.source.drained() and unanswered(server) == 0


def test_the_log_is_kept_for_what_could_not_be_answered(server: NatsServer, open_: Open) -> None:
    server.publish(bodies(0, 1, 2), "alarms.new")
    reader = open_()
    reader.take(3)
    assert reader.source.unanswered() is None
    server.kill()
    reader.step_until(reader.source.trouble)
    reader.settle(1)
    assert reader.source.unanswered() == 0
    server.start()
    reader.step_until(lambda: not reader.source.trouble())
    assert reader.source.unanswered() == 0, "it has not come yet"
    reader.step_until(lambda: reader.source.unanswered() is None)
    reader.settle(0, 2)
    reader.step_until(lambda: unanswered(server) == 0)
    assert reader.payloads == bodies(0, 1, 2)


def test_what_is_in_the_log_is_not_given_to_another_run_when_a_source_is_closed(
    server: NatsServer, open_: Open, tmp_path: Path
) -> None:
    server.publish(bodies(0, 1), "alarms.new")
    reader = open_(ack_wait="60s")
    reader.take(2)
    reader.close()
    other = Stepwise(tmp_path / "other", url=server.url)
    other.silence(0.3)
    other.close()


def test_two_runs_share_a_consumer_and_one_takes_over_what_the_other_left(
    server: NatsServer, open_: Open, tmp_path: Path
) -> None:
    one, other = open_(), Stepwise(tmp_path / "other", url=server.url, ack_wait="1s")
    for number in range(60):
        server.publish(bodies(number), "alarms.new")
        one.step(0.005)
        other.step(0.005)
    wait_until(lambda: (one.step(0.01), other.step(0.01), one.log.head() + other.log.head() == 60)[2])
    assert sorted(one.payloads + other.payloads) == sorted(bodies(*range(60)))
    assert one.payloads and other.payloads, "each has some"
    one.settle(*range(one.log.head()))
    left = other.payloads
    other.crash()
    one.take(60)
    one.settle(*range(60))
    one.step_until(lambda: unanswered(server) == 0)
    assert set(left) <= set(one.payloads) and len(one.payloads) == 60


def test_a_consumer_that_somebody_changes_is_followed(server: NatsServer, open_: Open) -> None:
    server.publish(bodies(0), "alarms.new")
    reader = open_(ack_wait="60s")
    reader.take(1)
    changed = server.consumer(STREAM, CONSUMER).config
    changed.ack_wait, changed.max_ack_pending = 1, 2
    server.do(lambda stream: stream.add_consumer(STREAM, changed))
    reader.step_until(lambda: reader.source._link.ack_wait_s == 1)
    redelivered = server.consumer(STREAM, CONSUMER).num_redelivered
    server.publish(bodies(1, 2), "alarms.new")
    reader.take(2)
    reader.silence(1.2)
    assert "max_ack_pending" in reader.source.limit()
    assert server.consumer(STREAM, CONSUMER).num_redelivered == redelivered, "the new ack_wait is kept"
    reader.settle(0, 1)
    assert reader.take(3) == bodies(0, 1, 2)


def test_a_consumer_that_is_deleted_and_made_by_somebody_gets_no_answers_of_the_old_one(
    server: NatsServer, open_: Open
) -> None:
    server.publish(bodies(0, 1), "alarms.new")
    reader = open_()
    reader.take(2)
    reader.source.stop()  # it asks for nothing more, so nobody tells it
    server.delete_consumer(STREAM, CONSUMER)
    server.do(lambda stream: stream.add_consumer(STREAM, ConsumerConfig(durable_name=CONSUMER, ack_wait=1)))
    wait_until(lambda: reader.source.tend() or reader.source.trouble())
    assert "made anew" in reader.source.trouble()
    reader.settle(0, 1)
    assert unanswered(server) == 2, "they come again, and are recognised"


@pytest.mark.parametrize("restarted", [False, True])
def test_a_message_that_was_given_back_is_not_lost_with_the_consumer(
    server: NatsServer, open_: Open, restarted: bool
) -> None:
    server.publish(bodies(*range(4)), "alarms.new")
    reader = open_(nak_delay="60s")
    reader.take(4)
    reader.settle(0, 1, 3, transient=[2])
    if restarted:
        reader.crash()
    server.delete_consumer(STREAM, CONSUMER)
    if restarted:
        reader = open_(nak_delay="60s")
        reader.settle(0, 1, 3, transient=[2])
    assert reader.take(5) == bodies(0, 1, 2, 3, 2)
    reader.settle(4)
    reader.step_until(lambda: unanswered(server) == 0)


def test_a_stream_that_is_purged_goes_on(server: NatsServer, open_: Open) -> None:
    server.publish(bodies(0, 1), "alarms.new")
    reader = open_()
    reader.take(2)
    server.do(lambda stream: stream.purge_stream(STREAM))
    server.publish(bodies(2), "alarms.new")
    assert reader.take(3) == bodies(0, 1, 2)
    reader.settle(0, 1, 2)
    reader.step_until(lambda: unanswered(server) == 0)
    assert not reader.source.trouble()


def test_numbers_of_a_stream_that_was_longer_mean_nothing_to_a_consumer_of_the_next(
    server: NatsServer, open_: Open
) -> None:
    server.publish(bodies(*range(9)), "alarms.new")
    reader = open_()
    reader.take(9)
    reader.settle(*range(9))
    server.delete_stream(STREAM)
    server.make_stream(STREAM, "alarms.>")
    server.publish(bodies(10, 11), "alarms.new")
    reader.take(11)
    reader.settle(9, 10)
    server.delete_consumer(STREAM, CONSUMER)
    server.publish(bodies(12), "alarms.new")
    assert reader.take(12)[9:] == bodies(10, 11, 12)
    delivered = server.consumer(STREAM, CONSUMER).delivered
    assert delivered is not None and delivered.consumer_seq == 1, "it began behind what was settled"


def test_a_message_is_given_back_no_more_often_than_the_consumer_delivers(
    server: NatsServer, open_: Open
) -> None:
    server.publish(bodies(0, 1), "alarms.new")
    reader = open_(max_deliver=2)
    reader.take(2)
    reader.settle(1, transient=[0])
    assert reader.take(3) == bodies(0, 1, 0)
    reader.settle(transient=[2])
    reader.silence(0.5)
    server.publish(bodies(2), "alarms.new")
    assert reader.take(4)[3:] == bodies(2)


def test_events_that_come_with_a_refusal_for_whose_note_there_is_no_room_are_kept(
    server: NatsServer, open_: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.publish(bodies(0), "alarms.new")
    reader = open_()
    reader.take(1)
    reader.crash()
    reader = open_()
    reader.settle(refused=[0])
    note, full = reader.source._notes.note, [OSError(errno.ENOSPC, "No space left on device")]

    def note_later(*given: Any) -> None:
        if full:
            raise full.pop()
        note(*given)

    monkeypatch.setattr(reader.source._notes, "note", note_later)
    time.sleep(1.0)  # the ack_wait of the first: both come together
    server.publish(bodies(1), "alarms.new")
    assert reader.take(2) == bodies(0, 1)
    reader.settle(1)
    reader.step_until(lambda: unanswered(server) == 0)
    assert reader.payloads == bodies(0, 1) and not full


def test_notes_of_refusals_do_not_grow_beyond_the_log(tmp_path: Path) -> None:
    notes = Refusals(tmp_path / "refused", 0)
    for first in range(0, 600_000, 50_000):
        notes.note(range(first, first + 50_000), first)
    assert (tmp_path / "refused").stat().st_size < 2 * 1024**2
    notes.close()
    assert Refusals(tmp_path / "refused", 560_000).sequences == BitMap64(range(560_000, 600_000))


def test_a_server_that_is_away_does_not_hold_up_the_intake(server: NatsServer, open_: Open) -> None:
    server.kill()
    reader, began = open_(), time.monotonic()
    reader.step()
    assert time.monotonic() - began < 5 and "Connect call failed" in reader.source.trouble()


def test_a_stopped_source_gives_back_what_it_has_not_handed_out(server: NatsServer, open_: Open) -> None:
    server.publish(bodies(*range(10)), "alarms.new")
    reader = open_(ack_wait="60s")
    reader.step_until(lambda: reader.log.head() >= 1 or reader.step(0.05, max_events=1))
    reader.source.stop()
    reader.settle(*range(reader.log.head()))
    assert reader.source.drained()
    taken = reader.log.head()
    reader.close()
    again = open_(ack_wait="60s")
    assert again.take(10) == bodies(*range(10)), f"{taken} were taken before"


def test_a_run_that_takes_what_is_there_ends(server: NatsServer, open_: Open) -> None:
    server.publish(bodies(0, 1), "alarms.new")
    reader = open_(once=True)
    wait_until(lambda: not reader.step(0.05))
    assert reader.payloads == bodies(0, 1)


def test_a_run_that_takes_what_is_there_gives_up_without_a_server(
    server: NatsServer, open_: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signoff.sources.nats.source.ONCE_UNREACHABLE_S", 0.3)
    server.kill()
    reader = open_(once=True)
    with pytest.raises(SourceError, match="nothing is lost"):
        wait_until(lambda: not reader.step(0.05))


def test_a_missing_stream_is_waited_for(server: NatsServer, open_: Open) -> None:
    reader = open_(stream="LATER")
    reader.step_until(reader.source.trouble)
    assert "stream not found" in reader.source.trouble()
    server.make_stream("LATER", "later")
    server.publish(bodies(0), "later")
    assert reader.take(1) == bodies(0)


@pytest.mark.parametrize("content", [b"", b"\xff\x00", SEED % b"SUAAAA"], ids=["empty", "bytes", "no seed"])
def test_a_file_of_credentials_that_is_none_is_told_and_waited_for(tmp_path: Path, content: bytes) -> None:
    key = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4"
    server = NatsServer(tmp_path / "server", authorization={"users": [{"nkey": key}]})
    server.start(server.listens)
    with server:
        (tmp_path / "user.creds").write_bytes(content)
        reader = Stepwise(tmp_path, url=server.url, credentials_file="user.creds")
        reader.step_until(reader.source.trouble)
        assert "is credentials_file user.creds what NATS makes" in reader.source.trouble()
        reader.close()
        sink = NatsSinkConfig.model_validate(
            {"url": server.url, "subject": "'a'", "credentials_file": "user.creds"}
        )
        with pytest.raises(TransientError, match=r"is credentials_file user\.creds what NATS makes"):
            sink.build(tmp_path).prepare()


def test_a_login_is_told_without_the_password_and_tls_is_spoken(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    users = {"users": [{"user": "ann", "password": SECRET}]}
    tls = {"cert_file": str(certificate), "key_file": str(key)}
    server = NatsServer(tmp_path / "server", authorization=users, tls=tls)
    server.scheme, server.user, server.ca_file = "tls", f"ann:{SECRET}@", certificate
    with server:
        server.make_stream(STREAM, "alarms.>")
        server.publish(bodies(0), "alarms.new")
        url, wrong = server.url, server.url.replace(SECRET, SECRET + "1")
        for fields in ({"url": url}, {"url": wrong, "ca_file": str(certificate)}):
            reader = Stepwise(tmp_path / f"failing-{len(fields)}", **fields)
            reader.step_until(reader.source.trouble)
            assert SECRET not in reader.source.trouble(), "the password is told"
            reader.close()
        for place, fields in enumerate(({"ca_file": str(certificate)}, {"verify_tls": False})):
            reader = Stepwise(tmp_path / f"working-{place}", url=url, consumer=f"c{place}", **fields)
            assert reader.take(1) == bodies(0)
            reader.settle(0)
            reader.close()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": "http://localhost"}, "no address of a server"),
        ({"stream": "two words"}, "should match pattern"),
        ({"remember": 10}, "would not be recognised"),
    ],
)
def test_wrong_fields_are_errors(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        NatsConfig.model_validate({"url": "nats://x", "stream": STREAM, "consumer": CONSUMER, **fields})
