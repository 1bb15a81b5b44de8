"""Simulated alarms to a real RabbitMQ: each sensor's to its queue, the rest to the queue of the others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from signoff.errors import SignoffError
from signoff_alarms import topology
from signoff_alarms.__main__ import app
from signoff_alarms.simulator import Sent, Simulation, SimulationConfig, simulate
from tests.brokers import PASSWORD, RabbitMQ

QUEUES = {
    "power.grid.voltage.queue": lambda sensor, alarm: sensor == 121 and alarm != 303,
    "humidity.queue": lambda sensor, alarm: sensor == 115 and alarm != 303,
    "total.battery.voltage.queue": lambda sensor, alarm: sensor == 141 and alarm != 303,
    "equipment.failed.queue": lambda sensor, alarm: alarm == 303,
    "other.alert.messages.queue": lambda sensor, alarm: sensor not in (121, 115, 141) and alarm != 303,
}


@pytest.fixture
def broker(rabbitmq: RabbitMQ) -> Iterator[RabbitMQ]:
    """One that knows nothing of alarms."""
    _forget(rabbitmq)
    yield rabbitmq
    rabbitmq.start()
    _forget(rabbitmq)


def _forget(rabbitmq: RabbitMQ) -> None:
    for queue in QUEUES:
        rabbitmq.delete_queue(queue)
    for exchange in ("alarms", "alarms.other"):
        rabbitmq.delete_exchange(exchange)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["simulate", *map(str, arguments)])


def test_each_sensor_has_its_queue_and_the_others_share_one(broker: RabbitMQ) -> None:
    done = run("--count", 20_000, "--seed", 7, "--errors", 50, "--to", broker.url)
    assert done.exit_code == 0, done.output
    assert "20,000 messages" in done.output
    assert PASSWORD not in done.output
    sent = Simulation(7, SimulationConfig(errors=50)).messages(0, 20_000).to_pylist()
    for queue, takes in QUEUES.items():
        messages = broker.take(queue)
        due = [row for row in sent if takes(row["dataPointId"], row["alarmId"])]
        assert [message.body for message in messages] == [row["payload"] for row in due]
        assert [message.routing_key for message in messages] == [
            "equipment.failed" if row["alarmId"] == 303 else str(row["dataPointId"]) for row in due
        ]
        assert [message.id for message in messages] == [f"7-{row['number']}" for row in due]
        assert {message.properties.delivery_mode for message in messages} == {2}
        assert {message.properties.content_type for message in messages} == {"application/json"}


def test_a_sensor_nobody_thought_of_is_with_the_others(broker: RabbitMQ) -> None:
    topology.declare(broker.url)
    broker.publish([b"{}"], "4711", exchange="alarms")
    broker.wait_for("other.alert.messages.queue", 1)


def test_what_is_declared_already_stays_with_what_it_holds(broker: RabbitMQ) -> None:
    topology.declare(broker.url)
    broker.publish([b"{}"], "121", exchange="alarms")
    topology.declare(broker.url)
    broker.wait_for("power.grid.voltage.queue", 1)


def test_sending_goes_on_after_the_broker_was_away(broker: RabbitMQ) -> None:
    topology.declare(broker.url)
    simulation, sent = Simulation(7), Sent(0)
    with topology.ExchangeTarget(broker.url, 7) as target:
        simulate(simulation, target, sent, 500)
        broker.stop()
        broker.start()
        simulate(simulation, target, sent, 1000)
    bodies = {message.id: message.body for queue in QUEUES for message in broker.take(queue)}
    payloads = simulation.payloads(0, 1000).to_pylist()
    assert bodies == {f"7-{number}": payload for number, payload in enumerate(payloads)}


def test_a_broker_that_stays_away_is_given_up_and_what_was_sent_is_known(broker: RabbitMQ) -> None:
    topology.declare(broker.url)
    simulation, sent = Simulation(7), Sent(0)
    with topology.ExchangeTarget(broker.url, 7, patience_s=5) as target:
        simulate(simulation, target, sent, 500)
        broker.stop()
        with pytest.raises(SignoffError, match="refused"):
            simulate(simulation, target, sent, 1000)
    assert sent.stop == sent.count == 500


def test_a_missing_exchange_is_named(broker: RabbitMQ) -> None:
    done = run("--count", 10, "--to", broker.url, "--no-declare")
    assert done.exit_code == 1
    assert "no exchange 'alarms'" in done.output
    assert PASSWORD not in done.output


def test_an_exchange_of_another_kind_is_left_alone(broker: RabbitMQ) -> None:
    broker.declare_exchange("alarms", "topic")
    done = run("--count", 10, "--to", broker.url)
    assert done.exit_code == 1
    assert "cannot declare exchange and queues" in done.output
    assert "'alarms'" in done.output


def test_a_broker_that_is_not_there_is_named_without_the_password() -> None:
    done = run("--count", 10, "--to", "amqp://somebody:a-secret@127.0.0.1:9/%2F")
    assert done.exit_code == 1
    assert "127.0.0.1:9/%2F: cannot connect: " in done.output
    assert "refused" in done.output
    assert "a-secret" not in done.output
