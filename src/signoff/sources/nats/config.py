"""What a user says about a NATS source. What is done with it stands in `source`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from signoff.errors import SourceError
from signoff.pipeline.durations import Duration
from signoff.pipeline.model import Config, Names, SourceConfig
from signoff.pipeline.secrets import SecretUrl, Token
from signoff.sources.contract import Source

RefuseAction = Literal["nak", "term"]


class OnRefuse(Config):
    """What the stream is told of a message whose event was refused."""

    transient: RefuseAction = "nak"
    """A sink gave up after its last retry: `nak` has the message delivered again, `term` never."""
    permanent: RefuseAction = "term"
    """A sink or a transform will never take it."""


class NatsConfig(SourceConfig):
    """Messages of a JetStream stream."""

    summary: ClassVar[str] = "Consumes a NATS JetStream stream; acknowledged when events are settled."
    example: ClassVar[str] = "url: nats://localhost:4222\nstream: ALARMS\nconsumer: analytics"
    type: Literal["nats"] = "nats"
    url: SecretUrl
    """`nats://user:password@host:port`, or `tls://…` for TLS."""
    stream: str = Field(min_length=1, pattern=r"^[^\s.*>/\\]+$")
    """The stream; it must be there."""
    consumer: str = Field(min_length=1, pattern=r"^[^\s.*>/\\]+$")
    """The durable pull consumer: it remembers what was acknowledged. Made if it is not there; several runs on
    several machines may share one, and each message goes to one of them."""
    subjects: Names = ()
    """Only messages of these subjects (`alarms.*`, `alarms.>`); none means all. Holds for a consumer that is
    made; one that is there keeps its own."""
    ack_wait: Annotated[Duration, Field(ge=1)] = 30.0
    """After how long without a word from us the server delivers a message again; while its event is in
    flight, we ask for more time. Holds for a consumer that is made; one that is there keeps its own."""
    max_ack_pending: int = Field(default=20_000, ge=1, le=1_000_000)
    """Most messages that are with us and not acknowledged. Holds for a consumer that is made; one that is
    there keeps its own."""
    max_deliver: int = Field(default=-1, ge=-1)
    """How often the server delivers a message at most; -1: without end. Then the stream keeps it, and this
    consumer never gets it again. Holds for a consumer that is made; one that is there keeps its own."""
    on_refuse: OnRefuse = OnRefuse()
    """What the stream is told of a message whose event was refused."""
    nak_delay: Annotated[Duration, Field(ge=0)] = 5.0
    """After how long a message is delivered again that was answered with `nak`."""
    remember: int = Field(default=200_000, ge=0)
    """How many of the newest events the log keeps to recognise messages that are delivered again; at least
    `max_ack_pending`."""
    token: Token | None = None
    """Token of the server, instead of a user in `url`."""
    credentials_file: str | None = None
    """File with JWT and key of a user (`.creds`); relative to the pipeline file."""
    ca_file: str | None = None
    """Certificates to trust with `tls`, instead of the system's; relative to the pipeline file."""
    verify_tls: bool = True
    """Whether the server's certificate must be valid."""
    heartbeat: Annotated[Duration, Field(ge=1, le=60)] = 5.0
    """A connection that is silent for two of these counts as dead."""

    @field_validator("url")
    @classmethod
    def _nats(cls, url: SecretUrl) -> SecretUrl:
        parts = urlsplit(url.get())
        if parts.scheme not in ("nats", "tls") or not parts.hostname:
            raise ValueError("this is no address of a server; write nats://host:4222 or tls://host:4222")
        return url

    @model_validator(mode="after")
    def _remembers_enough(self) -> Self:
        if self.remember < self.max_ack_pending:
            raise ValueError(
                f"remember ({self.remember}) is less than max_ack_pending ({self.max_ack_pending}): "
                "messages that are delivered again would not be recognised"
            )
        return self

    @property
    def remembered_events(self) -> int:
        return self.remember

    @property
    def most_unacknowledged(self) -> int | None:
        return self.max_ack_pending

    def build(self, base: Path) -> Source:
        try:  # loaded here: whoever only reads a pipeline needs no client
            from signoff.sources.nats.source import NatsSource
        except ModuleNotFoundError as error:
            if error.name != "nats":
                raise
            raise SourceError(
                'the nats source needs the package nats-py: pip install "signoff[nats]"'
            ) from None
        return NatsSource(self, base)
