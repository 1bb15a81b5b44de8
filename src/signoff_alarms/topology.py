"""The exchanges and queues that alarms and results go through, and a `Target` that sends alarms there.

    alarms (direct) ──121──► power.grid.voltage.queue
          │       └──115──► humidity.queue
          │       └──141──► total.battery.voltage.queue
          │       └──equipment.failed──► equipment.failed.queue
          └─ what is none of these ─► alarms.other (fanout) ──► other.alert.messages.queue

    alarms.results (topic) ──#──► alarm.results.queue
                                  critical.alerts.queue

The routing key is the sensor's id as text, of failed equipment (alarm 303) `equipment.failed`: it is
rare, and need not wait for what is frequent. Of a result it is `sensor.alarm`. The rest goes through an
alternate exchange, not through a binding per sensor: a sensor nobody thought of is then in the queue of the
others, and not lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from signoff.errors import PermanentError, SignoffError, TransientError
from signoff.pipeline.model import Retry
from signoff.pipeline.secrets import SecretUrl
from signoff.sinks.contract import EVENT_ID, BatchRef, Part
from signoff.sinks.rabbitmq.sink import ROUTING_KEY, RabbitmqSinkConfig
from signoff.sinks.retry import deliver
from signoff.sources.stations_network import FAILED_EQUIPMENT, GRID_VOLTAGE, HUMIDITY, TOTAL_BATTERY_VOLTAGE
from signoff_alarms.simulator import Target

EXCHANGE = "alarms"
QUEUES = {
    GRID_VOLTAGE: "power.grid.voltage.queue",
    HUMIDITY: "humidity.queue",
    TOTAL_BATTERY_VOLTAGE: "total.battery.voltage.queue",
}
FAILED_QUEUE, FAILED_KEY = "equipment.failed.queue", "equipment.failed"
"""Failed equipment, of whatever sensor."""
OTHER_QUEUE = "other.alert.messages.queue"
SOURCE_QUEUES = (*QUEUES.values(), FAILED_QUEUE, OTHER_QUEUE)
"""Where alarms wait."""
RESULTS = "alarms.results"
"""Exchange that results of the analysis go to."""
RESULTS_QUEUE = "alarm.results.queue"
CRITICAL_QUEUE = "critical.alerts.queue"

_CONNECT_S = 10.0
_RETRY = Retry(initial_ms=200, max_ms=5_000)


def declare(url: str, exchange: str = EXCHANGE, queue_type: Literal["quorum", "classic"] = "quorum") -> None:
    """Make what is missing of the exchange and the queues; what is there stays as it is. Raises SignoffError,
    also when something of the name is there that is not the same."""
    other = f"{exchange}.other"
    with _channel(url) as channel:
        channel.exchange_declare(other, "fanout", durable=True)
        arguments = {"alternate-exchange": other}
        channel.exchange_declare(exchange, "direct", durable=True, arguments=arguments)
        for queue in SOURCE_QUEUES:
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": queue_type})
        for sensor, queue in QUEUES.items():
            channel.queue_bind(queue, exchange, str(sensor))
        channel.queue_bind(FAILED_QUEUE, exchange, FAILED_KEY)
        channel.queue_bind(OTHER_QUEUE, other, "")


def declare_results(url: str, queue_type: Literal["quorum", "classic"] = "quorum") -> None:
    """The same for what results go through. One queue takes all of them: a result that no queue wants would
    be refused, and whoever wants less binds a queue of their own (`121.*`, `*.303`)."""
    with _channel(url) as channel:
        channel.exchange_declare(RESULTS, "topic", durable=True)
        for queue in (RESULTS_QUEUE, CRITICAL_QUEUE):
            channel.queue_declare(queue, durable=True, arguments={"x-queue-type": queue_type})
        channel.queue_bind(RESULTS_QUEUE, RESULTS, "#")


class ExchangeTarget(Target):
    """Messages to the exchange: persistent, confirmed by the broker when `write` returns.

    It is the sink `rabbitmq` that sends them. What is not confirmed because a connection was lost is sent
    again, under the same message id, so that a message may be there twice after an outage.
    """

    def __init__(self, url: str, seed: int, exchange: str = EXCHANGE, *, patience_s: float = 60.0) -> None:
        config = RabbitmqSinkConfig(
            inputs=("simulation",),
            url=SecretUrl(url),
            exchange=exchange,
            routing_key="dataPointId",
            body="payload",
            content_type="application/json",
        )
        sink = config.build(Path())
        sink.prepare()
        self._writer = sink.open(Part(BatchRef("simulation", 0, 0), 0, 0))
        self._seed, self._patience_s = seed, patience_s

    def write(self, messages: pa.RecordBatch) -> None:
        """Raises TransientError when the broker takes nothing for so long, PermanentError when it refuses."""
        numbers = messages.column("number").cast(pa.string())
        rows = pa.RecordBatch.from_pydict(
            {
                EVENT_ID: pc.binary_join_element_wise(str(self._seed), numbers, "-"),
                "payload": messages.column("payload"),
                ROUTING_KEY: pc.if_else(
                    pc.equal(messages.column("alarmId"), FAILED_EQUIPMENT),
                    FAILED_KEY,
                    messages.column("dataPointId").cast(pa.string()),
                ),
            }
        )
        done = deliver(self._writer, rows, _RETRY, budget_s=self._patience_s)
        if done.refused:
            raise PermanentError(done.refused[0].reason)
        if done.left:
            raise TransientError(done.error)

    def close(self) -> None:
        self._writer.close()


@contextmanager
def _channel(url: str) -> Iterator[Any]:
    try:
        import pika

        from signoff.sinks.rabbitmq.publisher import connection_parameters, in_words, quiet_pika
    except ModuleNotFoundError:
        raise SignoffError('pika is not installed: pip install "signoff[rabbitmq]"') from None
    quiet_pika()
    shown = SecretUrl(url)
    try:
        connection = pika.BlockingConnection(connection_parameters(url, connect_timeout_s=_CONNECT_S))
    except (pika.exceptions.AMQPError, OSError, ValueError) as error:
        raise SignoffError(f"{shown}: cannot connect: {in_words(error)}") from None
    try:
        yield connection.channel()
    except pika.exceptions.AMQPError as error:
        raise SignoffError(f"{shown}: cannot declare exchange and queues: {in_words(error)}") from None
    finally:
        if connection.is_open:
            connection.close()
