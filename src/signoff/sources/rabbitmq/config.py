"""What a user says about a RabbitMQ source. What is done with it stands in `source`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from signoff.errors import SourceError
from signoff.pipeline.durations import Duration
from signoff.pipeline.model import Config, Names, SourceConfig
from signoff.pipeline.secrets import SecretUrl
from signoff.sources.contract import Source

RefuseAction = Literal["requeue", "reject"]
LEASE_SHARE = 0.9
"""Of the consumer timeout: a broker that is faster closes the channel, and gives back what is young, too."""


class Exchange(Config):
    """An exchange to be there."""

    name: str = Field(min_length=1)
    """Name of the exchange."""
    type: Literal["direct", "topic", "fanout", "headers"] = "direct"
    """How it routes."""
    durable: bool = True
    """Whether it survives a restart of the broker."""


class Declare(Config):
    """What is made at the broker if it is not there. What is there already must be the same."""

    exchange: Exchange | None = None
    """The exchange the queues are bound to."""
    queue_type: Literal["quorum", "classic"] = "quorum"
    """Type of the queues; all of them are durable."""
    arguments: dict[str, str | int | bool] = Field(default={})
    """Further arguments of the queues, such as `x-dead-letter-exchange`."""
    bindings: dict[str, Names] = Field(default={})
    """By queue: its routing keys at the exchange. `""` where the exchange needs none."""


class OnRefuse(Config):
    """What becomes of a message whose event was refused."""

    transient: RefuseAction = "requeue"
    """A sink gave up after its last retry: put it back into its queue, or reject it."""
    permanent: RefuseAction = "reject"
    """A sink or a transform will never take it: reject it to the queue's dead-letter exchange."""


class RabbitmqConfig(SourceConfig):
    """Messages of RabbitMQ queues."""

    summary: ClassVar[str] = "Consumes RabbitMQ queues; a message is acknowledged when its event is settled."
    example: ClassVar[str] = "url: amqp://guest:${RABBITMQ_PASSWORD}@localhost/\nqueues: [alarms]"
    type: Literal["rabbitmq"] = "rabbitmq"
    url: SecretUrl
    """`amqp://user:password@host:port/vhost`, or `amqps://…` for TLS."""
    queues: Annotated[Names, Field(min_length=1)]
    """The queues to consume, one or several."""
    prefetch: int = Field(default=200_000, ge=1, le=1_000_000)
    """Most messages of a queue that are with us and not acknowledged. While one batch is being settled the
    next one must find room beside it; but each message out costs the broker, a classic queue above all."""
    declare: Declare | None = None
    """What to make at the broker; null takes it as it is."""
    acknowledge: Literal["settled", "logged"] | None = None
    """When a message is acknowledged: `settled` (as `acknowledgements: true`), or `logged`, as soon as it
    is on our disk (as `acknowledgements: false`). Null goes by `acknowledgements`."""
    on_refuse: OnRefuse = OnRefuse()
    """What becomes of a message whose event was refused."""
    max_redeliveries: int = Field(default=5, ge=0)
    """How often a message is put back into its queue; refused once more, it is rejected."""
    consumer_timeout: Duration = Field(default=1800.0, gt=0)
    """The broker's `consumer_timeout`: how long it waits for an acknowledgement; it is set at the broker.
    Here it limits how far progress may extend `acknowledge_within`, and `signoff check` compares it with the
    sinks' retries."""
    remember: int = Field(default=200_000, ge=0)
    """How many of the newest events the log keeps to recognise redelivered messages, at least; it keeps as
    many as may be unacknowledged (`prefetch` for each queue) if that is more. 0: only those in flight."""
    heartbeat: int = Field(default=60, ge=1, le=3600)
    """Seconds of silence after which a connection counts as dead, on either side."""
    exclusive: bool = False
    """Admit no other consumer of these queues. A quorum queue of RabbitMQ 3 admits others all the same."""
    ca_file: str | None = None
    """Certificates to trust for `amqps`; null trusts those of the system."""
    verify_tls: bool = True
    """Whether the broker's certificate is verified."""

    @field_validator("url")
    @classmethod
    def _amqp(cls, url: SecretUrl) -> SecretUrl:
        parts = urlsplit(url.get())
        if parts.scheme not in ("amqp", "amqps") or not parts.hostname:
            raise ValueError("this is no address of a broker; write amqp://user:password@host/")
        return url

    @model_validator(mode="before")
    @classmethod
    def _one_setting(cls, fields: Any) -> Any:
        """`acknowledge` is the same setting as `acknowledgements`, in the words of a broker."""
        if not isinstance(fields, dict) or fields.get("acknowledge") not in ("settled", "logged"):
            return fields
        wanted = fields["acknowledge"] == "settled"
        if fields.get("acknowledgements") is (not wanted):
            raise ValueError(
                f"acknowledge: {fields['acknowledge']} and acknowledgements: {str(not wanted).lower()} "
                "contradict each other; write one of them"
            )
        return {**fields, "acknowledgements": wanted}

    @model_validator(mode="after")
    def _bindings_fit(self) -> Self:
        if len(set(self.queues)) < len(self.queues):
            raise ValueError("a queue is named twice")
        bindings = self.declare.bindings if self.declare else {}
        if unknown := [queue for queue in bindings if queue not in self.queues]:
            raise ValueError(f'declare.bindings names "{unknown[0]}", which is not one of the queues')
        if bindings and (self.declare is None or self.declare.exchange is None):
            raise ValueError("declare.bindings needs declare.exchange, which the queues are bound to")
        return self

    @property
    def remembered_events(self) -> int:
        """Settled or not, what is not acknowledged comes again when the connection ends."""
        return max(self.remember, self.prefetch * len(self.queues)) if self.remember else 0

    @property
    def patience_s(self) -> float | None:
        return self.consumer_timeout

    @property
    def patience_named(self) -> bool:
        return "consumer_timeout" in self.model_fields_set

    @property
    def most_unacknowledged(self) -> int | None:
        return self.prefetch

    @property
    def lease_cap_s(self) -> float | None:
        return LEASE_SHARE * self.consumer_timeout

    def build(self, base: Path) -> Source:
        try:  # loaded here: whoever only reads a pipeline needs no client
            from signoff.sources.rabbitmq.source import RabbitmqSource
        except ModuleNotFoundError as error:
            if error.name != "pika":
                raise
            raise SourceError(
                'the rabbitmq source needs the package pika: pip install "signoff[rabbitmq]"'
            ) from None
        return RabbitmqSource(self)
