"""Sink `rabbitmq`: each row a message, published to an exchange with publisher confirms.

Invariants: a row is signed for when the broker has confirmed its message; for a persistent message
that means that every queue it was routed to has it on disk. A message that no queue takes
(`mandatory`) is a refusal of its row alone, for good; one the broker rejects, or does not confirm
because the connection is lost, is asked for again, and its neighbours that were confirmed are not.

At least once: what was published but not confirmed is published again, with the same message id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pydantic import Field, field_validator, model_validator

from signoff.errors import PermanentError, TransientError
from signoff.json_text import json_lines
from signoff.pipeline.model import Config, SinkConfig
from signoff.pipeline.secrets import SecretUrl, register_secrets_of
from signoff.sinks.contract import EVENT_ID, Part, Refusal, RunRef, Sink, Writer
from signoff.sinks.handed_contexts import handed_contexts
from signoff.sinks.message_ids import MessageIds
from signoff.sinks.refusal import Fit, fit, refused

try:
    import pika

    from signoff.sinks.rabbitmq.publisher import Address, Messages, Publisher, connection_parameters
except ModuleNotFoundError:  # an extra; building the sink says so
    if not TYPE_CHECKING:
        pika = None

ROUTING_KEY = "_routing_key"
"""Column the engine adds to the rows: the value of the expression `routing_key`. Never written."""
_SHORT = 255
"""Bytes a routing key or a message id may have."""
_MOST_HEADERS = 64 * 1024
"""Bytes of all headers: they go in one frame with the other properties, of 128 KiB with most brokers."""


class DeclareExchange(Config):
    """The exchange as it is to be."""

    type: Literal["direct", "topic", "fanout", "headers"]
    """How it routes."""
    durable: bool = True
    """Whether it outlives a restart of the broker."""
    arguments: dict[str, str | int | bool] = Field(default={})
    """Further arguments, such as `alternate-exchange`."""


class RabbitmqSinkConfig(SinkConfig):
    """Messages to an exchange of RabbitMQ."""

    summary: ClassVar[str] = "RabbitMQ: a message per row, confirmed by the broker before it is signed for."
    example: ClassVar[str] = """\
url: amqp://signoff:${RABBITMQ_PASSWORD}@localhost:5672/%2F
exchange: alarms
routing_key: concat('sensor.', sensor_id)
"""
    knows_ids: ClassVar[bool] = True

    type: Literal["rabbitmq"] = "rabbitmq"
    url: SecretUrl
    """`amqp://user:password@host:port/vhost`, or `amqps://…` for TLS; the password is never shown. The vhost
    `/` is written `%2F`."""
    exchange: str = Field(default="", max_length=_SHORT)
    """Exchange to publish to; the empty one routes to the queue whose name is the routing key."""
    routing_key: str = Field(min_length=1)
    """Routing key of each row: a Spark SQL expression over its columns; a constant is written in quotes,
    `"'alarms'"`."""
    declare: DeclareExchange | None = None
    """Create the exchange if it is missing; null expects it to be there."""
    body: str | None = None
    """Column that is the message's body, a STRING or BINARY as it is; null takes the row as JSON."""
    content_type: str | None = Field(default=None, max_length=_SHORT)
    """The property of this name; null says `application/json` for rows as JSON, and nothing otherwise."""
    headers: dict[str, str] = Field(default={})
    """Headers of every message."""
    persistent: bool = True
    """Whether durable queues keep the messages on disk, so that they outlive the broker's crash."""
    mandatory: bool = True
    """Whether a message that no queue takes is refused; when false the broker discards it silently."""
    window: int = Field(default=5_000, ge=1)
    """Most messages of a task that are under way without a confirm."""
    confirm_timeout_ms: int = Field(default=10_000, ge=1)
    """How long to wait for the next confirm before the connection is closed and unconfirmed rows are
    retried."""
    connect_timeout_s: int = Field(default=10, ge=1)
    """How long to wait for a connection."""
    ca_file: str | None = None
    """Certificates to trust with `amqps`, instead of the system's; relative to the pipeline file."""
    verify_tls: bool = True
    """Whether the broker's certificate must be valid."""

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, value: SecretUrl) -> SecretUrl:
        if not value.get().lower().startswith(("amqp://", "amqps://")):
            raise ValueError("it is not an amqp:// or amqps:// address")
        return value

    @field_validator("exchange", "content_type")
    @classmethod
    def _is_short(cls, value: str | None) -> str | None:
        if value is not None and len(value.encode()) > _SHORT:
            raise ValueError(f"it has {len(value.encode())} bytes; {_SHORT} are the most")
        return value

    @field_validator("headers")
    @classmethod
    def _fit_into_a_frame(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if (length := len(name.encode())) > _SHORT:
                raise ValueError(f"the name {name[:20]}… has {length} bytes; {_SHORT} are the most")
        size = sum(len(name.encode()) + len(text.encode()) + 6 for name, text in value.items())
        if size > _MOST_HEADERS:
            raise ValueError(f"they have {size} bytes; {_MOST_HEADERS} are the most")
        return value

    @model_validator(mode="after")
    def _declares_a_named_exchange(self) -> Self:
        if self.declare is not None and not self.exchange:
            raise ValueError("declare needs the name of an exchange; the one without a name is always there")
        return self

    def expressions(self) -> Mapping[str, str]:
        return {ROUTING_KEY: self.routing_key}

    def needed_files(self, base: Path) -> tuple[Path, ...]:
        return (base / self.ca_file,) if self.ca_file else ()

    def build(self, base: Path) -> RabbitmqSink:
        if pika is None:
            raise PermanentError(
                'sink type rabbitmq needs pika, which is not installed: pip install "signoff[rabbitmq]"'
            )
        return RabbitmqSink(self, base)


class RabbitmqSink(Sink):
    def __init__(self, config: RabbitmqSinkConfig, base: Path) -> None:
        self.config = config
        self.base = base
        self.ids = MessageIds()

    def begin(self, run: RunRef) -> None:
        self.ids = MessageIds(run)

    def prepare(self) -> None:
        register_secrets_of(self.config)
        publisher = self.connect()
        try:
            if self.config.exchange:
                publisher.check_exchange()
        finally:
            publisher.close()

    def open(self, part: Part) -> Writer:
        register_secrets_of(self.config)  # this is another process than the one that read the file
        return _RabbitmqWriter(self, part.contexts)

    def connect(self) -> Publisher:
        """Raises TransientError, also for a refused login and a missing exchange: what is wrong at the
        broker can be put right there, and until then the rows are better kept than dead letters."""
        config = self.config
        try:
            parameters = connection_parameters(
                config.url.get(),
                connect_timeout_s=config.connect_timeout_s,
                ca_file=str(self.base / config.ca_file) if config.ca_file else None,
                verify_tls=config.verify_tls,
            )
        except OSError as error:
            raise TransientError(f"ca_file {config.ca_file} cannot be read: {error.strerror}") from error
        except (ValueError, TypeError) as error:
            raise PermanentError(f"{config.url} is not a valid address: {error}") from None
        declare = config.declare
        return Publisher(
            Address(
                parameters,
                str(config.url),
                config.exchange,
                config.connect_timeout_s,
                config.confirm_timeout_ms / 1000,
                config.mandatory,
                config.window,
                {"exchange_type": declare.type, "durable": declare.durable, "arguments": declare.arguments}
                if declare
                else None,
            )
        )

    def properties(self) -> Any:
        """What all messages have in common."""
        config = self.config
        implied = "application/json" if config.body is None else None
        return pika.BasicProperties(
            content_type=config.content_type or implied,
            headers=dict(config.headers) or None,
            delivery_mode=2 if config.persistent else 1,
        )


class _RabbitmqWriter(Writer):
    def __init__(self, sink: RabbitmqSink, contexts: Mapping[str, str]) -> None:
        self._sink, self._contexts = sink, contexts
        self._publisher: Publisher | None = None

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        sorted_out = _publishable(fit(self._sink.ids.applied(rows)), self._sink.config.body)
        if not sorted_out.rows.num_rows:
            return sorted_out.refusals
        messages = _messages(sorted_out.rows, self._sink.config.body, self._contexts)
        publisher = self._connected()
        try:
            outcome = publisher.publish(messages, self._sink.properties())
        except BaseException:
            self.abort()
            raise
        refusals = [
            *_refusals(outcome.returned, transient=False),
            *_refusals(outcome.impossible, transient=False),
            *_refusals(outcome.rejected, transient=True),
            *_refusals(outcome.lost, transient=True),
        ]
        if not publisher.is_usable():
            self.abort()
        return sorted_out.original(refusals)

    def close(self) -> bytes | None:
        if self._publisher is not None:
            self._publisher.close()
            self._publisher = None
        return None

    def abort(self) -> None:
        if self._publisher is not None:
            self._publisher.drop()
            self._publisher = None

    def _connected(self) -> Publisher:
        if self._publisher is not None and not self._publisher.is_usable():
            self.abort()  # lost since the last write, when no row was at stake
        if self._publisher is None:
            self._publisher = self._sink.connect()
        return self._publisher


def _refusals(reasons: Mapping[int, str], transient: bool) -> list[Refusal]:
    return [Refusal(index, reason, transient) for index, reason in reasons.items()]


def _messages(rows: pa.RecordBatch, body: str | None, contexts: Mapping[str, str]) -> Messages:
    place = rows.num_columns - 1
    if body is None:
        lines = json_lines(rows.select(rows.schema.names[:place]))
        bodies = [line[:-1] for line in lines.view(pa.large_binary()).to_pylist()]
    else:
        bodies = rows.column(body).cast(pa.large_binary()).to_pylist()
    handed = handed_contexts(contexts, rows.column(EVENT_ID))
    return Messages(rows.column(EVENT_ID).to_pylist(), rows.column(place).to_pylist(), bodies, handed)


def _publishable(sorted_out: Fit, body: str | None) -> Fit:
    """Refuse rows that no message can be made of."""
    rows = sorted_out.rows
    faults = [
        *_not_short(rows.column(rows.num_columns - 1), "the routing key"),
        *_not_short(rows.column(EVENT_ID), "the event id"),
    ]
    if body is not None:
        column = _body_column(rows, body)
        faults += [(index, f'column "{body}" is null') for index in _places(column.is_null())]
    if not faults:
        return sorted_out
    refusals = [refused(index, reason) for index, reason in dict(reversed(faults)).items()]
    keep = sorted({*range(rows.num_rows)} - dict(faults).keys())
    return Fit(rows.take(pa.array(keep, pa.int64())), sorted_out.places[keep], sorted_out.original(refusals))


def _not_short(column: pa.Array, what: str) -> list[tuple[int, str]]:
    lengths = pc.binary_length(column)
    long = _places(pc.greater(lengths, _SHORT).fill_null(False))
    return [
        *((index, f"{what} is null") for index in _places(column.is_null())),
        *((index, f"{what} has {lengths[index]} bytes; {_SHORT} are the most") for index in long),
    ]


def _places(mask: pa.BooleanArray) -> list[int]:
    found: list[int] = pc.indices_nonzero(mask).to_pylist() if mask.true_count else []
    return found


def _body_column(rows: pa.RecordBatch, name: str) -> pa.Array:
    if name not in rows.schema.names:
        have = ", ".join(rows.schema.names[:-1])
        raise PermanentError(f'there is no column "{name}" to be the body; the rows have {have}')
    column = rows.column(name)
    kind = column.type
    if not (pt.is_string(kind) or pt.is_large_string(kind) or pt.is_binary(kind) or pt.is_large_binary(kind)):
        raise PermanentError(f'column "{name}" is {kind}; a body must be STRING or BINARY')
    return column
