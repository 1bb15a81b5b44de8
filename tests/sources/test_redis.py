"""The Redis source against a real server: acknowledged after settlement, through every fault."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from signoff.errors import SourceError
from signoff.log import LogReader, LogWriter
from signoff.pipeline.model import LogSettings
from signoff.sources.contract import Resume, SourceContext
from signoff.sources.redis.config import RedisConfig
from tests.redis_server import RedisServer
from tests.servers import wait_until
from tests.sources.rabbits import Rabbit

pytestmark = pytest.mark.servers

SECRET = "sesame-open-7"
STREAM, GROUP = "alarms", "tests"
Open = Callable[..., "Stepwise"]


class Stepwise(Rabbit):
    """What the intake does with the source, in this process and step by step."""

    def __init__(self, base: Path, *, once: bool = False, **fields: Any) -> None:
        self.base = base
        given = {"stream": STREAM, "group": GROUP, "field": "payload", **fields}
        self.config = RedisConfig.model_validate(given)  # type: ignore[assignment]
        self.writer = LogWriter(base / "log", LogSettings())
        self.log = LogReader(base / "log")
        self.source = self.config.build(base)
        resume = Resume(self.writer.next_sequence)
        self.source.open(SourceContext("incoming", base / "own", once, base, self.log), resume)

    def crash(self) -> None:
        """As SIGKILL: the source says no word to anyone when it is closed."""
        self.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "server") as server:
        yield server


@pytest.fixture
def open_(tmp_path: Path, server: RedisServer) -> Iterator[Open]:
    opened: list[Stepwise] = []

    def make(name: str = "one", **fields: Any) -> Stepwise:
        opened.append(Stepwise(tmp_path / name, **{"url": server.url, "claim_idle": "1s", **fields}))
        return opened[-1]

    yield make
    for one in opened:
        if one.source._link is not None:
            one.close()


def bodies(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def pending(server: RedisServer) -> int:
    return server.pending(STREAM, GROUP)


def test_an_entry_is_acknowledged_only_when_it_is_settled(server: RedisServer, open_: Open) -> None:
    server.add(STREAM, *bodies(0, 1, 2))
    reader = open_()
    assert reader.take(3) == bodies(0, 1, 2)
    assert pending(server) == 3 and not reader.source.drained()
    reader.settle(1)
    assert pending(server) == 2
    reader.settle(0, 2)
    assert pending(server) == 0 and reader.source.drained()
    assert len(server.stored(STREAM)) == 3, "the stream keeps them"


def test_what_an_entry_says_is_in_the_event(server: RedisServer, open_: Open) -> None:
    server.do("XADD", STREAM, "7-1", "payload", "x", "id", "m-1", "station", "s1", "redis.id", "no")
    server.do("XADD", STREAM, "8-0", "other", "y")
    reader = open_(id_field="id")
    reader.take(2)
    event, without = reader.events
    assert (event["payload"], event["message_id"], event["error"]) == (b"x", "m-1", None)
    assert dict(event["headers"]) == {
        "redis.stream": STREAM, "redis.id": "7-1", "id": "m-1", "station": "s1",
    }  # fmt: skip
    assert (event["unit"], event["position"]) == (7, 1)
    assert without["error"] == 'the entry has no field "payload"' and without["payload"] == b'{"other":"y"}'


def test_without_a_field_the_payload_is_an_object_of_all(server: RedisServer, open_: Open) -> None:
    server.do("XADD", STREAM, "*", "a", "1", "b", "two")
    reader = open_(field=None)
    assert reader.take(1) == [b'{"a":"1","b":"two"}']


def test_no_entry_whatever_its_bytes_stops_the_source(server: RedisServer, open_: Open) -> None:
    server.do("XADD", STREAM, "0-1", b"\xff\x00", b"\xfe", "", "", "payload", b"\xff")
    server.do("XADD", STREAM, "5-5", "payload", "1", "payload", "2")
    server.do("XADD", STREAM, "6-0", "payload", "x" * 100_000)
    server.do("XADD", STREAM, f"{2**63}-{2**63 + 1}", "payload", "far")
    server.do("XADD", STREAM, f"{2**64 - 1}-{2**64 - 1}", "payload", "last")
    reader = open_(max_event_bytes=70_000)
    reader.take(5)
    assert reader.payloads[:2] == [b"\xff", b"2"] and reader.payloads[3:] == [b"far", b"last"]
    assert "max_event_bytes" in reader.events[2]["error"]
    reader.settle(0, 1, 2)
    reader.crash()
    reader = open_(max_event_bytes=70_000)
    reader.silence()
    reader.settle(*range(5))
    assert pending(server) == 0


def test_a_group_may_begin_at_the_end(server: RedisServer, open_: Open) -> None:
    server.add(STREAM, b"old")
    reader = open_(start="end")
    reader.silence(0.1)
    server.add(STREAM, b"new")
    assert reader.take(1) == [b"new"]


def test_nobody_takes_over_what_is_in_flight_however_long_it_takes(server: RedisServer, open_: Open) -> None:
    server.add(STREAM, *bodies(0, 1))
    reader = open_()
    reader.take(2)
    other, until = open_("other"), time.monotonic() + 2.2  # claim_idle is 1 s
    while time.monotonic() < until:
        reader.source.tend()
        other.step(0.02)
    assert not other.payloads
    reader.settle(0, 1)
    assert pending(server) == 0


def test_runs_share_a_group_and_one_takes_over_what_another_left(server: RedisServer, open_: Open) -> None:
    one, other = open_(), open_("other")
    for number in range(40):
        server.add(STREAM, b"%d" % number)
        (one if number % 2 else other).step_until(lambda n=number: one.log.head() + other.log.head() == n + 1)
    assert sorted(one.payloads + other.payloads) == sorted(bodies(*range(40)))
    left = other.payloads
    assert len(left) == 20
    other.crash()
    one.settle(*range(20))
    assert set(one.take(40)) == set(bodies(*range(40)))
    one.settle(*range(40))
    assert pending(server) == 0
    other = open_("other")  # it finds what it left in its log, and answered
    other.settle(*range(20))
    other.silence()


def test_a_killed_server_comes_back_and_nothing_is_lost_or_taken_twice(
    server: RedisServer, open_: Open
) -> None:
    server.add(STREAM, *bodies(*range(20)))
    reader = open_()
    reader.take(20)
    reader.settle(*range(5))
    server.kill()
    reader.step_until(reader.source.trouble)
    assert reader.source.unanswered() == 0, "the log is kept for what cannot be answered"
    reader.settle(*range(5, 10))  # while there is nobody to be told
    server.start()
    server.add(STREAM, *bodies(*range(20, 30)))
    assert reader.take(30) == bodies(*range(30))
    assert pending(server) == 20 and reader.source.unanswered() is None
    reader.settle(*range(10, 30))
    assert pending(server) == 0 and not reader.source.trouble()
    reader.silence(1.2)


def test_a_server_that_forgets_all_is_read_from_its_new_beginning(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "server", durable=False) as server:
        server.add(STREAM, *bodies(0, 1))
        reader = Stepwise(tmp_path, url=server.url)
        reader.take(2)
        reader.settle(0)
        server.kill()
        server.start()
        server.add(STREAM, *bodies(2, 3))
        assert reader.take(4) == bodies(0, 1, 2, 3)
        reader.settle(1, 2, 3)
        assert server.pending(STREAM, GROUP) == 0 and reader.source.drained()
        reader.close()


def test_after_a_crash_entries_that_are_in_the_log_are_no_second_events(
    server: RedisServer, open_: Open
) -> None:
    server.add(STREAM, *bodies(*range(10)))
    reader = open_()
    reader.take(10)
    reader.settle(0, 1)
    reader.crash()
    reader = open_()
    reader.settle(*range(6))  # the ledger tells all of it again
    reader.step_until(lambda: pending(server) == 4)
    server.add(STREAM, b"10")
    assert reader.take(11) == bodies(*range(11))
    reader.settle(*range(11))
    assert pending(server) == 0
    reader.silence(1.2)


def test_events_handed_out_but_not_logged_at_a_crash_come_again(server: RedisServer, open_: Open) -> None:
    server.add(STREAM, *bodies(0, 1, 2))
    reader = open_()
    wait_until(lambda: reader.source.receive(10, 0.05))
    reader.crash()
    server.add(STREAM, b"3")
    reader = open_(claim_idle="60s")
    assert reader.take(4) == bodies(0, 1, 2, 3), "at once, and in order"


def test_a_refused_entry_is_taken_over_acknowledged_or_put_on_another_stream(
    server: RedisServer, open_: Open
) -> None:
    server.add(STREAM, *bodies(0, 1, 2), station="s1")
    reader = open_(on_refuse={"permanent": "dead_stream"}, dead_stream="dead")
    reader.take(3)
    first = reader.events[1]["headers"]
    reader.settle(0, refused=[1], transient=[2])
    (dead,) = server.stored("dead")
    assert dead == {
        b"payload": b"1", b"station": b"s1", b"signoff.reason": b"no",
        b"signoff.id": dict(first)["redis.id"].encode(),
    }  # fmt: skip
    assert pending(server) == 1
    reader.silence(0.4)
    assert reader.take(4) == bodies(0, 1, 2, 2)
    reader.settle(3)
    assert pending(server) == 0
    reader.close()
    server.add(STREAM, b"3")
    reader = open_(on_refuse={"transient": "acknowledge"})
    reader.take(5)
    reader.settle(0, 1, 2, 3, transient=[4])
    assert pending(server) == 0


def test_a_refused_entry_is_a_new_event_also_after_a_crash(server: RedisServer, open_: Open) -> None:
    server.add(STREAM, b"0")
    reader = open_()
    reader.take(1)
    reader.settle(transient=[0])
    reader.crash()
    reader = open_()
    reader.settle(transient=[0])  # told again
    reader.silence(0.4)
    assert reader.take(2) == bodies(0, 0)
    reader.settle(1)
    assert pending(server) == 0


def test_a_refusal_that_did_not_reach_the_server_reaches_it_later(server: RedisServer, open_: Open) -> None:
    server.add(STREAM, *bodies(0, 1))
    reader = open_()
    reader.take(2)
    reader.crash()
    reader = open_()
    reader.settle(1, refused=[0])
    reader.step_until(lambda: pending(server) == 0)
    reader.silence(1.2)


@pytest.mark.parametrize("settled", [(0, 1, 2), (0, 2)])
def test_a_group_that_was_deleted_begins_where_all_before_is_settled(
    server: RedisServer, open_: Open, settled: tuple[int, ...]
) -> None:
    server.add(STREAM, *bodies(0, 1, 2))
    reader = open_()
    reader.take(3)
    reader.settle(*settled)
    server.do("XGROUP", "DESTROY", STREAM, GROUP)
    server.add(STREAM, b"3")
    assert reader.take(4) == bodies(*range(4))
    reader.settle(1, 3)
    reader.step_until(lambda: pending(server) == 0)
    reader.silence()
    assert reader.source.drained()


def test_entries_of_a_stream_that_was_made_anew_are_new_events(server: RedisServer, open_: Open) -> None:
    for number in range(1, 4):
        server.do("XADD", STREAM, f"{number}-0", "payload", f"{number}")
    reader = open_()
    reader.take(3)
    reader.settle(0, 1)
    server.do("DEL", STREAM)
    server.do("XADD", STREAM, "1-0", "payload", "other")  # whoever writes chooses the ids
    assert reader.take(4) == [b"1", b"2", b"3", b"other"]
    reader.settle(2, 3)
    assert pending(server) == 0 and reader.source.drained()


def test_an_entry_that_is_deleted_while_it_is_pending_holds_nothing_up(
    server: RedisServer, open_: Open
) -> None:
    server.add(STREAM, *bodies(0, 1))
    reader = open_()
    wait_until(lambda: reader.source.receive(10, 0.05))
    reader.crash()
    server.do("XTRIM", STREAM, "MAXLEN", 1)
    reader = open_()
    assert reader.take(1) == bodies(1)
    reader.settle(0)
    assert pending(server) == 0


def test_acknowledged_entries_are_deleted_where_that_is_wanted(server: RedisServer, open_: Open) -> None:
    server.add(STREAM, *bodies(0, 1))
    reader = open_(delete=True)
    reader.take(2)
    reader.settle(0)
    assert [each[b"payload"] for each in server.stored(STREAM)] == bodies(1)


def test_no_more_entries_come_than_may_be_pending(server: RedisServer, open_: Open) -> None:
    server.add(STREAM, *bodies(*range(5)))
    reader = open_(max_pending=3)
    assert reader.take(3) == bodies(0, 1, 2)
    reader.silence(0.1)
    assert "max_pending" in reader.source.limit()
    reader.settle(0, 1, 2)
    assert reader.take(5) == bodies(*range(5))


def test_what_is_no_stream_is_told_and_waited_for(server: RedisServer, open_: Open) -> None:
    server.do("SET", STREAM, "x")
    reader = open_()
    reader.step_until(reader.source.trouble)
    assert "WRONGTYPE" in reader.source.trouble()
    server.do("DEL", STREAM)
    server.add(STREAM, b"0")
    assert reader.take(1) == bodies(0)


def test_a_run_that_takes_what_is_there_ends(server: RedisServer, open_: Open) -> None:
    server.add(STREAM, *bodies(0, 1))
    reader = open_(once=True)
    wait_until(lambda: not reader.step(0.05))
    assert reader.payloads == bodies(0, 1)


def test_a_run_that_takes_what_is_there_gives_up_without_a_server(
    server: RedisServer, open_: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signoff.sources.redis.source.ONCE_UNREACHABLE_S", 0.3)
    server.kill()
    reader = open_(once=True)
    with pytest.raises(SourceError, match="nothing is lost"):
        wait_until(lambda: not reader.step(0.05))


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
    tls = ("--port", "0", "--tls-port", "PORT", "--tls-auth-clients", "no")
    tls += ("--tls-cert-file", str(certificate), "--tls-key-file", str(key), "--requirepass", SECRET)
    server = RedisServer(tmp_path / "server", options=tls)
    server.scheme, server.user, server.query = "rediss", f":{SECRET}@", {"ssl_ca_certs": str(certificate)}
    with server:
        server.add(STREAM, b"0")
        url, wrong = server.url, server.url.replace(SECRET, SECRET + "1")
        for fields in ({"url": url}, {"url": wrong, "ca_file": str(certificate)}):
            reader = Stepwise(tmp_path / f"failing-{len(fields)}", **fields)
            reader.step_until(reader.source.trouble)
            assert SECRET not in reader.source.trouble(), "the password is told"
            reader.close()
        for place, fields in enumerate(({"ca_file": str(certificate)}, {"verify_tls": False})):
            reader = Stepwise(tmp_path / f"working-{place}", url=url, group=f"g{place}", **fields)
            assert reader.take(1) == bodies(0)
            reader.settle(0)
            reader.close()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": "http://localhost"}, "no address of a server"),
        ({"url": "redis://localhost/name"}, "number of the database"),
        ({"remember": 10}, "would not be recognised"),
        ({"on_refuse": {"permanent": "dead_stream"}}, "needs dead_stream"),
        ({"dead_stream": STREAM}, "again and again"),
    ],
)
def test_wrong_fields_are_errors(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RedisConfig.model_validate({"url": "redis://x", "stream": STREAM, "group": GROUP, **fields})
