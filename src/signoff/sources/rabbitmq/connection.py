"""One connection to the broker with one channel, on which all queues are consumed.

All queues share a channel, so that one frame acknowledges across them. A link ends with its channel
or its connection, whichever is first, and is never mended: whoever holds it makes a new one, and with
it new delivery tags.

Nothing but `LinkLost` is raised, and its text names no password.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pika
from pika.adapters.utils.connection_workflow import AMQPConnectorException, AMQPConnectorStackTimeout
from pika.exceptions import (
    AMQPError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    ConnectionOpenAborted,
    StreamLostError,
)

from signoff.pipeline.secrets import redact
from signoff.sources.rabbitmq.fast_deliveries import Stream

if TYPE_CHECKING:
    from signoff.sources.rabbitmq.config import RabbitmqConfig
    from signoff.sources.rabbitmq.events import Message

CONNECT_S = 5.0
"""How long connecting may block the intake."""
ANSWER_S = 5.0
"""How long an answer may take. A quorum queue without a leader leaves a consumer without one for 60 s."""
CLOSE_S = 2.0
_MOST_PER_CONSUMER = 65_535

# Every trouble is in the status of the intake; pika would print tracebacks with each attempt.
logging.getLogger("pika").setLevel(logging.CRITICAL)


class LinkLost(Exception):
    """The connection or its channel is gone, or could not be made."""


class Link:
    """A connection that consumes. Deliveries are put into `buffer` while I/O is being done."""

    def __init__(self, config: RabbitmqConfig, name: str) -> None:
        self.buffer: list[Message] = []
        """Delivered, in the order of their tags."""
        self.queues: dict[str, str] = {}
        """The queue of each consumer tag."""
        self._cancelled = ""
        with _translated():
            self._connection = pika.BlockingConnection(_parameters(config, name), _impl_class=Stream)
            try:
                with self._within(ANSWER_S):
                    self._channel: Any = self._connection.channel()
                    self._set_up(config, name)
            except BaseException:
                self.close()
                raise

    def pump(self, wait_s: float = 0.0) -> None:
        """Send and receive what is due; waits for a delivery at most this long."""
        with _translated():
            self._connection.process_data_events(wait_s)
        if not self._channel.is_open:  # pika does not raise when the broker closes a channel only
            why = getattr(self._channel, "_closing_reason", None)
            raise LinkLost(redact(_describe(why)) if why else "the broker has closed the channel")
        if self._cancelled:
            raise LinkLost(f'the broker has cancelled the consumer of queue "{self._cancelled}"')

    @property
    def bytes_received(self) -> int:
        return int(self._connection._impl.bytes_received)

    def acknowledge(self, tag: int, *, multiple: bool = False) -> None:
        with _translated():
            self._channel.basic_ack(tag, multiple)

    def refuse(self, tag: int, *, requeue: bool) -> None:
        with _translated():
            self._channel.basic_nack(tag, multiple=False, requeue=requeue)

    def waiting(self) -> int:
        """Messages in the queues that nobody has been given."""
        with _translated(), self._within(ANSWER_S):
            found = [
                self._channel.queue_declare(queue, passive=True).method for queue in set(self.queues.values())
            ]
        return sum(each.message_count for each in found)

    def stop(self) -> None:
        """Consume no more, and give back what lies in the buffer."""
        with _translated(), self._within(ANSWER_S):
            for consumer in self.queues:
                self._channel.basic_cancel(consumer)
        taken = list(self.buffer)
        self.buffer.clear()
        for method, _, _ in taken:
            self.refuse(method.delivery_tag, requeue=True)

    def close(self) -> None:
        """What was acknowledged reaches the broker first; what is not goes back to its queue."""
        if self._connection.is_closed:
            return
        try:
            with suppress(AMQPError), self._within(CLOSE_S):
                self._connection.close()
        except OSError:
            self._abort()

    def _abort(self) -> None:
        """Let go of the socket without a word; pika closes it in the next turn of its loop."""
        inner: Any = self._connection._impl
        inner._terminate_stream(StreamLostError("given up"))
        with suppress(AMQPError, OSError):
            inner.ioloop.poll()
            inner.ioloop.process_timeouts()
        inner.ioloop.close()

    @contextmanager
    def _within(self, seconds: float) -> Iterator[None]:
        """pika waits for an answer as long as the connection lives; the intake has other things to do.

        What is raised by a timer of its I/O loop comes out of the call that runs the loop.
        """
        loop = self._connection._impl.ioloop
        timer = loop.call_later(seconds, _no_answer)
        try:
            yield
        finally:
            loop.remove_timeout(timer)

    def _set_up(self, config: RabbitmqConfig, name: str) -> None:
        channel = self._channel
        if config.declare is not None:
            _declare(channel, config)
        # A consumer may have 65,535 messages at most; several of one channel share a queue without harm.
        consumers = 1 if config.exclusive else -(-config.prefetch // _MOST_PER_CONSUMER)
        each = min(config.prefetch // consumers, _MOST_PER_CONSUMER)
        self.most_unacknowledged = each * consumers * len(config.queues)
        channel.basic_qos(prefetch_count=each)
        channel.add_on_cancel_callback(self._on_cancel)
        stream: Any = self._connection._impl
        number = channel.channel_number
        # Else pika would wait on for something to do: it does not know of deliveries.
        stream.divert(number, self.buffer.append, lambda: self._connection._request_channel_dispatch(number))
        for queue in config.queues:
            for place in range(consumers):
                consumer = f"{name}.{queue}.{place}"
                self.queues[consumer] = queue
                channel.basic_consume(queue, _never, exclusive=config.exclusive, consumer_tag=consumer)

    def _on_cancel(self, frame: Any) -> None:
        self._cancelled = self.queues[frame.method.consumer_tag]


def _no_answer() -> None:
    raise TimeoutError("the broker does not answer")


def _never(*_: Any) -> None:
    """pika's callback for a delivery, of which it sees none."""
    raise AssertionError("a delivery has passed the stream")


def _declare(channel: Any, config: RabbitmqConfig) -> None:
    declare = config.declare
    assert declare is not None
    exchange = declare.exchange
    if exchange is not None:
        channel.exchange_declare(exchange.name, exchange.type, durable=exchange.durable)
    for queue in config.queues:
        arguments = {"x-queue-type": declare.queue_type, **declare.arguments}
        channel.queue_declare(queue, durable=True, arguments=arguments)
        for key in declare.bindings.get(queue, ()):
            assert exchange is not None
            channel.queue_bind(queue, exchange.name, key)


def _parameters(config: RabbitmqConfig, name: str) -> Any:
    url = config.url.get()
    parameters = pika.URLParameters(url)
    parameters.heartbeat = config.heartbeat
    parameters.connection_attempts = 1
    parameters.socket_timeout = parameters.stack_timeout = CONNECT_S
    parameters.client_properties = {"connection_name": f"signoff {name}"}
    if url.startswith("amqps:"):
        context = ssl.create_default_context(cafile=config.ca_file)
        if not config.verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        parameters.ssl_options = pika.SSLOptions(context, urlsplit(url).hostname)
    return parameters


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (AMQPError, AMQPConnectorException, OSError, ValueError) as error:
        raise LinkLost(redact(_describe(error))) from None


def _describe(error: BaseException) -> str:
    """The reason at the bottom of pika's exceptions, which wrap each other in their arguments."""
    if isinstance(error, ChannelClosedByBroker | ConnectionClosedByBroker):
        return str(error.reply_text)
    if isinstance(error, AMQPConnectorStackTimeout):
        return "the broker does not answer"
    for inner in error.args:
        if isinstance(inner, BaseException):
            return _describe(inner)
    inner = getattr(error, "exception", None) or error.__cause__
    if isinstance(inner, BaseException):
        return _describe(inner)
    if isinstance(error, ConnectionOpenAborted):
        return "the broker did not let us in"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
