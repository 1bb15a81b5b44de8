"""The real intake process with the RabbitMQ source, a real broker, a real log and a real ledger."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap64

from signoff.intake.trim_limit import ToldUpto
from signoff.ledger import Ledger, Outcome, RowOutcome, RowRef
from signoff.ledger.batch_state import Done
from signoff.log import LogReader, trim
from signoff.pipeline.model import LogSettings
from signoff.sources.rabbitmq.config import RabbitmqConfig
from tests.brokers import PASSWORD, RabbitMQ
from tests.intake.processes import IntakeProcess, logged, settle
from tests.servers import PATIENCE_S, wait_until
from tests.sources.rabbits import Cable

pytestmark = pytest.mark.servers

MIB = 1024**2


@pytest.fixture
def queue(rabbitmq: RabbitMQ) -> str:
    rabbitmq.declare_queue("intake")
    return "intake"


def config(rabbitmq: RabbitMQ, **fields: Any) -> RabbitmqConfig:
    return RabbitmqConfig.model_validate({"url": rabbitmq.url, "queues": "intake", **fields})


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def give_up(base: Path, start: int, end: int, sequences: Iterable[int]) -> None:
    """What the engine records of events whose sink has failed for the last time."""
    outcomes = [
        RowOutcome(RowRef(n), "archive", Outcome.REFUSED, "gave up", transient=True) for n in sequences
    ]
    delivered = BitMap64(range(start, end)) - BitMap64(sequences)
    with Ledger(base / "state" / "ledger.db") as ledger:
        ledger.open_batch("incoming", start, end, ["archive"])
        ledger.record(
            "incoming", start, end, delivered=delivered, outcomes=outcomes,
            sinks={"archive": Done()}, owed=BitMap64(),
        )  # fmt: skip


@pytest.mark.crash
def test_messages_of_a_killed_intake_keep_their_sequences(
    rabbitmq: RabbitMQ, queue: str, tmp_path: Path
) -> None:
    rabbitmq.publish(numbered(*range(2000)), queue)
    with IntakeProcess(tmp_path, config(rabbitmq)) as intake:
        intake.wait_for_events(2000)
        settle(tmp_path, 0, 500)
        intake.wait_for(lambda status: status.settled_sequence == 500)
        intake.kill()
    rabbitmq.wait_for(queue, 1500)
    with IntakeProcess(tmp_path, config(rabbitmq)) as intake:
        intake.wait_for(lambda status: status.settled_sequence == 500)
        rabbitmq.publish(numbered(2000), queue, message_id=lambda _: "later")
        intake.wait_for_events(2001)
        settle(tmp_path, 500, 2001)
        intake.wait_for(lambda status: status.settled_sequence == 2001)
        intake.stop()
        intake.wait_for(lambda status: status.drained)
        assert intake.end() == 0
    assert logged(tmp_path) == numbered(*range(2001))
    assert rabbitmq.count(queue) == 0


@pytest.mark.crash
def test_what_was_put_back_is_a_new_event_also_for_the_next_process(
    rabbitmq: RabbitMQ, queue: str, tmp_path: Path
) -> None:
    rabbitmq.publish(numbered(0, 1, 2), queue)
    with IntakeProcess(tmp_path, config(rabbitmq)) as intake:
        intake.wait_for_events(3)
        intake.stop()  # so that the message that goes back stays in the queue
        intake.wait_for_state("stopped")
        give_up(tmp_path, 0, 3, [1])
        rabbitmq.wait_for(queue, 1)
        intake.wait_for(lambda status: status.settled_sequence == 3)
        intake.kill()
    with IntakeProcess(tmp_path, config(rabbitmq)) as intake:
        intake.wait_for_events(4)
        settle(tmp_path, 3, 4)
        intake.stop()
        intake.wait_for(lambda status: status.drained)
        assert intake.end() == 0
    assert logged(tmp_path) == numbered(0, 1, 2, 1)
    assert rabbitmq.count(queue) == 0


@pytest.mark.crash
def test_what_was_settled_while_the_broker_was_away_stays_in_the_log_until_it_came_again(
    rabbitmq: RabbitMQ, queue: str, tmp_path: Path
) -> None:
    """The first event was held for long, so the log would be trimmed as soon as it is settled."""
    log = LogSettings(segment_bytes=64 * 1024)
    fields: dict[str, Any] = {"prefetch": 20, "remember": 20, "log": log}
    rabbitmq.publish([b"%d " % n + b"x" * 20_000 for n in range(60)], queue)
    cable, settings = Cable(rabbitmq), config(rabbitmq, **fields)
    with IntakeProcess(tmp_path, config(rabbitmq, url=cable.url, **fields)) as intake:
        for start, end in ((0, 20), (20, 39), (39, 58), (58, 60)):
            intake.wait_for_events(end)
            settle(tmp_path, start, end, owed={0} if start == 0 else None)
        intake.wait_for(lambda status: sum(status.settled_after) == 59)
        cable.close()
        intake.wait_for(lambda status: bool(status.reason))
        settle(tmp_path, 0, 20)
        intake.wait_for(lambda status: status.settled_sequence == 60)
        told, directory = ToldUpto(intake.instructions.directory), intake.instructions.log_directory
        told.trim(directory, 60, settings)
        intake.kill()
        told.trim(directory, 60, settings)
    wait_until(lambda: rabbitmq.count(queue) >= 1)
    rabbitmq.publish(numbered(60), queue, message_id=lambda _: "later")
    with IntakeProcess(tmp_path, settings) as intake:
        intake.wait_for_events(61)
        assert LogReader(directory).lookup([60])[60]["payload"] == numbered(60)[0], (
            "an old message is a new event"
        )
        settle(tmp_path, 60, 61)
        intake.stop()
        intake.wait_for(lambda status: status.drained)
        assert intake.end() == 0
    assert LogReader(directory).head() == 61
    assert rabbitmq.count(queue) == 0


def test_messages_are_acknowledged_as_soon_as_they_are_logged_if_asked(
    rabbitmq: RabbitMQ, queue: str, tmp_path: Path
) -> None:
    rabbitmq.publish(numbered(*range(100)), queue)
    with IntakeProcess(tmp_path, config(rabbitmq, acknowledge="logged"), acknowledges=False) as intake:
        intake.wait_for(lambda status: status.settled_sequence == 100)
        intake.stop()
        intake.wait_for(lambda status: status.drained)
        intake.kill()
    assert rabbitmq.count(queue) == 0
    assert logged(tmp_path) == numbered(*range(100))


def test_a_run_that_takes_what_is_there_ends_and_drains(
    rabbitmq: RabbitMQ, queue: str, tmp_path: Path
) -> None:
    rabbitmq.publish(numbered(*range(50)), queue)
    with IntakeProcess(tmp_path, config(rabbitmq), once=True) as intake:
        intake.wait_for_state("ended")
        settle(tmp_path, 0, 50)
        intake.wait_for(lambda status: status.drained)
        assert intake.end() == 0
    assert rabbitmq.count(queue) == 0


def test_a_full_log_holds_the_source_back_and_keeps_its_connection(
    rabbitmq: RabbitMQ, queue: str, tmp_path: Path
) -> None:
    rabbitmq.publish([b"%05d" % n + b"x" * 2000 for n in range(4000)], queue)
    log = LogSettings(max_bytes=MIB, segment_bytes=64 * 1024)
    with IntakeProcess(tmp_path, config(rabbitmq, heartbeat=3, log=log)) as intake:
        full = intake.wait_for(
            lambda now: now.state == "held" and now.durable_sequence == now.next_sequence > 0
        )
        head = full.durable_sequence
        with pytest.raises(AssertionError):  # a lost connection would give the messages back
            rabbitmq.wait_for(queue, 4000, timeout_s=9.0)
        settle(tmp_path, 0, head)
        trim(intake.instructions.log_directory, head, spare=200_000, room_bytes=MIB // 2)
        intake.wait_for(lambda status: status.durable_sequence > head)
        assert intake.status.settled_sequence == head


def test_the_password_is_in_no_status_and_no_error(rabbitmq: RabbitMQ, queue: str, tmp_path: Path) -> None:
    wrong = rabbitmq.url.replace(PASSWORD, "incorrect-horse")
    with IntakeProcess(tmp_path, config(rabbitmq, url=wrong)) as intake:
        status = intake.wait_for(lambda now: "ACCESS_REFUSED" in now.reason)
        assert "tester:***@" in status.reason
        file = intake.instructions.directory / "status.json"
        assert "incorrect-horse" not in file.read_text()
        intake.process.stdin.close()
        intake.process.wait(PATIENCE_S)
        said = intake.error()
        assert "ACCESS_REFUSED" in said
        assert "incorrect-horse" not in said
