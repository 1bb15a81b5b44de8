"""`acknowledge_within` in the real intake process: what is not settled in time is refused at its source."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from signoff.intake.loop import _say_expired
from signoff.ledger import Account, Ledger
from signoff.log import LogReader
from signoff.sources.files.config import FilesConfig
from signoff.sources.http.source import ADDRESS_FILE, HttpConfig
from signoff.sources.rabbitmq.config import RabbitmqConfig
from tests.brokers import RabbitMQ
from tests.intake.processes import IntakeProcess, logged, settle
from tests.servers import PATIENCE_S, wait_until

pytestmark = pytest.mark.servers


def files(within: str, **fields: Any) -> FilesConfig:
    return FilesConfig.model_validate(
        {
            "path": "in/*.jsonl",
            "on_acknowledge": "move",
            "on_refuse": "move",
            "settle_ms": 0,
            "poll_ms": 10,
            "acknowledge_within": within,
            **fields,
        }
    )


def put(base: Path, name: str, count: int) -> Path:
    path = base / "in" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f'{{"n":{n}}}\n' for n in range(count)))
    return path


def account(base: Path, received: int) -> Account:
    with Ledger(base / "state" / "ledger.db", readonly=True) as ledger:
        return ledger.account("incoming", received)


def reason(base: Path, sequence: int) -> str:
    with Ledger(base / "state" / "ledger.db", readonly=True) as ledger:
        return ledger.rows("incoming", sequence)[0].reason


def in_batch(base: Path, start: int, end: int, *sinks: str) -> None:
    with Ledger(base / "state" / "ledger.db") as ledger:
        ledger.open_batch("incoming", start, end, sinks)


# -- files


def test_a_file_that_is_not_settled_in_time_is_refused_and_the_log_says_who_owed_it(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", 3)
    (tmp_path / "state").mkdir(exist_ok=True)
    in_batch(tmp_path, 0, 2, "archive", "table")  # in time, however slow the machine is
    with IntakeProcess(tmp_path, files("500ms")) as intake:
        intake.wait_for(lambda status: status.settled_sequence == 3)
        assert (tmp_path / "in/refused/a.jsonl").exists()
        assert account(tmp_path, 3).expired == 3
        assert reason(tmp_path, 1) == (
            "not settled within 0.5 s (acknowledge_within); "
            "owed by archive (no answer yet), table (no answer yet)"
        )
        assert reason(tmp_path, 2).endswith("no batch had taken it from the log then")
        settle(tmp_path, 0, 2)  # too late
        intake.process.stdin.close()
        assert intake.process.wait(PATIENCE_S) == 0
        said = [line for line in intake.error().splitlines() if "expired" in line]
    assert len(said) == 1
    assert 'source "incoming": 3 events expired (incoming/0 to 2)' in said[0]
    assert "2 not settled within 0.5 s (acknowledge_within); owed by archive (no answer yet)," in said[0]
    with Ledger(tmp_path / "state" / "ledger.db", readonly=True) as ledger:
        assert ledger.books("incoming").ignored == 2
    assert account(tmp_path, 3).expired == 3
    assert account(tmp_path, 3).balanced


def test_one_event_that_expires_is_said_as_one(caplog: pytest.LogCaptureFixture) -> None:
    _say_expired("incoming", {7: "late"})
    assert caplog.messages == ['source "incoming": 1 event expired (incoming/7): 1 late']


def test_what_is_settled_in_time_does_not_expire(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", 3)
    with IntakeProcess(tmp_path, files("1h")) as intake:
        intake.wait_for_log(3)
        settle(tmp_path, 0, 3, owed={1})
        intake.wait_for(lambda status: status.settled_sequence == 1)
        intake.kill()
    with IntakeProcess(tmp_path, files("1s")) as intake:
        intake.wait_for(lambda status: status.settled_sequence == 3)
    found = account(tmp_path, 3)
    assert (found.delivered, found.expired) == (2, 1)


def settle_until_the_rest_expires(base: Path, count: int) -> tuple[float, float]:
    """Settle one event after the other, twenty a second. Returns how old the first of the others was when
    they expired, and the longest time between two that were settled."""
    start, done, longest, last = time.time(), 0, 0.0, time.time()

    def expired() -> bool:
        return account(base, count).expired > 0

    while not expired():
        settle(base, done, done + 1)
        done += 1
        longest, last = max(longest, time.time() - last), time.time()
        assert done < count, "it went on and on"
        wait_until(lambda least=done / 20: time.time() - start >= least or expired())
    received = LogReader(base / "state/log/incoming").lookup([done])[done]["received_at"]
    return time.time() - received.timestamp(), max(longest, time.time() - last)


def test_progress_does_not_extend_the_time_of_a_file(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", 200)
    with IntakeProcess(tmp_path, files("1s")) as intake:
        intake.wait_for_log(200)
        lasted, _ = settle_until_the_rest_expires(tmp_path, 200)
        assert lasted >= 1.0
        intake.wait_for(lambda status: status.settled_sequence == 200)
    found = account(tmp_path, 200)
    assert found.delivered + found.expired == 200


@pytest.mark.crash
def test_after_a_kill_the_time_goes_on_from_the_receipt(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", 3)
    with IntakeProcess(tmp_path, files("1h")) as intake:
        intake.wait_for_log(3)
        settle(tmp_path, 0, 1)
        intake.kill()
    received = LogReader(tmp_path / "state/log/incoming").lookup([2])[2]["received_at"].timestamp()
    put(tmp_path, "b.jsonl", 1)
    with IntakeProcess(tmp_path, files("2s")) as intake:
        intake.wait_for(lambda status: status.settled_sequence >= 3)
        expired_at = (tmp_path / "in/refused/a.jsonl").parent.stat().st_mtime
        assert expired_at - received >= 1.9
        assert reason(tmp_path, 1).startswith("not settled within 2 s")
        intake.wait_for(lambda status: status.settled_sequence == 4)
    assert (tmp_path / "in/refused/b.jsonl").exists()
    found = account(tmp_path, 4)
    assert (found.delivered, found.expired) == (1, 3)


@pytest.mark.crash
def test_an_expiry_that_was_recorded_but_not_told_is_told_by_the_next_process(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", 2)
    with IntakeProcess(tmp_path, files("1h")) as intake:
        intake.wait_for_log(2)
        intake.kill()
    with Ledger(tmp_path / "state" / "ledger.db") as ledger:  # the last thing it did
        ledger.expire("incoming", {0: "late", 1: "late"})
    assert (tmp_path / "in/a.jsonl").exists()
    with IntakeProcess(tmp_path, files("1h")) as intake:
        intake.wait_for(lambda status: status.settled_sequence == 2)
    assert (tmp_path / "in/refused/a.jsonl").exists()
    assert account(tmp_path, 2).expired == 2


def test_a_hundred_thousand_events_expire_in_parts(tmp_path: Path) -> None:
    put(tmp_path, "a.jsonl", 100_000)
    with IntakeProcess(tmp_path, files("200ms")) as intake:
        intake.wait_for(lambda status: status.settled_sequence == 100_000)
    assert account(tmp_path, 100_000).expired == 100_000


# -- http


@pytest.mark.crash
def test_what_a_broken_connection_left_behind_expires_too(tmp_path: Path) -> None:
    with IntakeProcess(tmp_path, HttpConfig(port=0, acknowledge_within=3600)) as intake:
        intake.wait_for(lambda status: status.updated_at > 0)
        address = orjson.loads((intake.instructions.directory / ADDRESS_FILE).read_bytes())["address"]
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(address, content=b"[1,2]", timeout=0.5)
        intake.wait_for_log(2)
        intake.kill()
    with IntakeProcess(tmp_path, HttpConfig(port=0, acknowledge_within=0.2)) as intake:
        intake.wait_for(lambda status: status.settled_sequence == 2)
    assert account(tmp_path, 2).expired == 2


def test_without_acknowledgements_a_request_that_finds_no_room_is_answered_in_time(tmp_path: Path) -> None:
    log = {"max_bytes": 1024**2, "segment_bytes": 65536}
    config = HttpConfig.model_validate({"port": 0, "acknowledge_within": "500ms", "log": log})
    with IntakeProcess(tmp_path, config, acknowledges=False) as intake:
        intake.wait_for(lambda status: status.updated_at > 0)
        address = orjson.loads((intake.instructions.directory / ADDRESS_FILE).read_bytes())["address"]
        big = b'"' + b"x" * 600_000 + b'"'
        codes = [httpx.post(address, content=big, timeout=20).status_code for _ in range(4)]
    assert codes[0] == 200
    assert codes[-1] == 503


# -- rabbitmq


@pytest.fixture
def queue(rabbitmq: RabbitMQ) -> str:
    rabbitmq.declare_queue("expiring")
    return "expiring"


def rabbit(rabbitmq: RabbitMQ, within: str, **fields: Any) -> RabbitmqConfig:
    return RabbitmqConfig.model_validate(
        {"url": rabbitmq.url, "queues": "expiring", "acknowledge_within": within, **fields}
    )


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def test_an_expired_message_goes_back_to_its_queue_and_is_a_new_event(
    rabbitmq: RabbitMQ, queue: str, tmp_path: Path
) -> None:
    rabbitmq.publish(numbered(7), queue, message_id=lambda _: "seven")
    with IntakeProcess(tmp_path, rabbit(rabbitmq, "1h")) as intake:
        intake.wait_for_log(1)
        with Ledger(tmp_path / "state" / "ledger.db") as ledger:
            ledger.expire("incoming", {0: "late"})
        intake.wait_for_log(2)
        assert logged(tmp_path)[:2] == numbered(7, 7)
        assert account(tmp_path, 2).expired == 1
        settle(tmp_path, 0, 2)  # the first is too late, the second in time
        intake.wait_for(lambda status: status.settled_sequence == 2)
        intake.stop()
        intake.wait_for(lambda status: status.drained)
    found = account(tmp_path, 2)
    assert (found.expired, found.delivered) == (1, 1)
    assert rabbitmq.count(queue) == 0
    rows = LogReader(tmp_path / "state/log/incoming").lookup([0, 1])
    assert rows[0]["message_id"] == rows[1]["message_id"] == "seven"


@pytest.mark.crash
def test_a_message_that_expired_before_a_kill_is_a_new_event_for_the_next_process(
    rabbitmq: RabbitMQ, queue: str, tmp_path: Path
) -> None:
    rabbitmq.publish(numbered(1, 2), queue)
    with IntakeProcess(tmp_path, rabbit(rabbitmq, "1h")) as intake:
        intake.wait_for_log(2)
        intake.kill()
    rabbitmq.wait_for(queue, 2)
    with Ledger(tmp_path / "state" / "ledger.db") as ledger:  # recorded; the broker was not told
        ledger.expire("incoming", {0: "late"})
    with IntakeProcess(tmp_path, rabbit(rabbitmq, "1h")) as intake:
        intake.wait_for_log(3)
        assert logged(tmp_path) == numbered(1, 2, 1), "the second is the old event, the first a new one"
        settle(tmp_path, 0, 3)
        intake.wait_for(lambda status: status.settled_sequence == 3)
        intake.kill()
    with IntakeProcess(tmp_path, rabbit(rabbitmq, "1h")) as intake:
        intake.wait_for(lambda status: status.settled_sequence == 3)
        intake.stop()
        intake.wait_for(lambda status: status.drained)
    assert rabbitmq.count(queue) == 0
    found = account(tmp_path, 3)
    assert (found.delivered, found.expired) == (2, 1)


@pytest.mark.crash
def test_a_message_that_went_back_because_it_expired_is_not_swallowed_by_the_next_process(
    rabbitmq: RabbitMQ, queue: str, tmp_path: Path
) -> None:
    rabbitmq.publish(numbered(1), queue)
    with IntakeProcess(tmp_path, rabbit(rabbitmq, "1h")) as intake:
        intake.wait_for_log(1)
        intake.stop()  # so that it stays in the queue
        intake.wait_for_state("stopped")
        with Ledger(tmp_path / "state" / "ledger.db") as ledger:
            ledger.expire("incoming", {0: "late"})
        rabbitmq.wait_for(queue, 1)
        intake.kill()
    assert account(tmp_path, 1).expired == 1
    with IntakeProcess(tmp_path, rabbit(rabbitmq, "1h")) as intake:
        intake.wait_for_log(2)
        settle(tmp_path, 0, 2)
        intake.wait_for(lambda status: status.settled_sequence == 2)
        intake.stop()
        intake.wait_for(lambda status: status.drained)
    assert logged(tmp_path) == numbered(1, 1)
    assert rabbitmq.count(queue) == 0
    assert account(tmp_path, 2).delivered == 1


def test_a_message_that_expires_too_often_is_rejected_as_any_other_refused_one(
    rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    rabbitmq.declare_exchange("late", "fanout")
    rabbitmq.declare_queue("late")
    rabbitmq.bind("late", "late", "")
    rabbitmq.declare_queue("strict", arguments={"x-dead-letter-exchange": "late"})
    rabbitmq.publish(numbered(1), "strict")
    config = rabbit(rabbitmq, "200ms", queues="strict", max_redeliveries=2)
    with IntakeProcess(tmp_path, config):
        rabbitmq.wait_for("late", 1)
    assert account(tmp_path, 3).expired == 3
    assert rabbitmq.count("strict") == 0


def test_while_the_pipeline_makes_progress_messages_have_more_time_but_not_beyond_the_cap(
    rabbitmq: RabbitMQ, queue: str, tmp_path: Path
) -> None:
    """Time 1 s, consumer timeout 5 s: the cap is 4.5 s after receipt."""
    rabbitmq.publish(numbered(*range(200)), queue)
    config = rabbit(rabbitmq, "1s", consumer_timeout="5s", max_redeliveries=0)
    with IntakeProcess(tmp_path, config) as intake:
        intake.wait_for_log(200)
        lasted, longest_pause = settle_until_the_rest_expires(tmp_path, 200)
        intake.wait_for(lambda status: status.settled_sequence == 200)
    assert lasted >= 4.4 or longest_pause >= 1.0, "without progress there is no more time"
    found = account(tmp_path, 200)
    assert found.delivered + found.expired == 200


def test_without_progress_messages_expire_when_their_time_is_up(
    rabbitmq: RabbitMQ, queue: str, tmp_path: Path
) -> None:
    rabbitmq.publish(numbered(1, 2), queue)
    others = {"consumer_timeout": "1h", "max_redeliveries": 0}
    with IntakeProcess(tmp_path, rabbit(rabbitmq, "30m", **others)) as intake:
        intake.wait_for_log(2)
        settle(tmp_path, 0, 1)
        intake.wait_for(lambda status: status.settled_sequence == 1)
        intake.kill()
    rabbitmq.wait_for(queue, 1)
    with IntakeProcess(tmp_path, rabbit(rabbitmq, "1s", **others)) as intake:
        intake.wait_for(lambda status: status.settled_sequence == 2)
    assert account(tmp_path, 2).expired == 1
