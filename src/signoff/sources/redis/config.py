"""What a user says about a Redis source. What is done with it stands in `source`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from signoff.errors import SourceError
from signoff.pipeline.durations import Duration
from signoff.pipeline.model import Config, SourceConfig
from signoff.pipeline.secrets import SecretUrl
from signoff.sources.contract import Source

RefuseAction = Literal["pending", "dead_stream", "acknowledge"]


class OnRefuse(Config):
    """What becomes of an entry whose event was refused."""

    transient: RefuseAction = "pending"
    """A sink gave up after its last retry: leave the entry pending, so that it is taken over after
    `claim_idle`, by this run or another; put it on `dead_stream`; or acknowledge it."""
    permanent: RefuseAction = "acknowledge"
    """A sink or a transform will never take it."""


class RedisConfig(SourceConfig):
    """Entries of a Redis stream."""

    summary: ClassVar[str] = "Reads a Redis stream in a consumer group; acknowledged when events are settled."
    example: ClassVar[str] = "url: redis://localhost:6379/0\nstream: alarms\ngroup: analytics"
    type: Literal["redis"] = "redis"
    url: SecretUrl
    """`redis://user:password@host:port/database`, or `rediss://…` for TLS."""
    stream: str = Field(min_length=1)
    """The stream. Made, with its group, if it is not there."""
    group: str = Field(min_length=1)
    """The consumer group: it remembers what was acknowledged. Several runs on several machines may share one,
    and each entry goes to one of them."""
    start: Literal["beginning", "end"] = "beginning"
    """Where a group begins that is made."""
    consumer: str | None = Field(default=None, min_length=1)
    """Our name in the group, of which no other run may have the same; null makes one for each state
    directory."""
    field: str | None = Field(default=None, min_length=1)
    """The field of an entry that is the payload; the others are headers. Null makes a JSON object of all."""
    id_field: str | None = Field(default=None, min_length=1)
    """The field that is the event's `message_id`."""
    claim_idle: Annotated[Duration, Field(ge=1)] = 60.0
    """What another consumer of the group has left unacknowledged for so long is taken over. While an event is
    in flight here its entry never is idle for so long, so that nobody takes it over."""
    max_pending: int = Field(default=20_000, ge=1, le=1_000_000)
    """Most entries that are with us and not acknowledged."""
    on_refuse: OnRefuse = OnRefuse()
    """What becomes of an entry whose event was refused."""
    dead_stream: str | None = Field(default=None, min_length=1)
    """Where `on_refuse` puts entries: with the fields they had, `signoff.id` and `signoff.reason`."""
    delete: bool = False
    """Delete entries when they are acknowledged. Other groups of the stream lose them, too."""
    remember: int = Field(default=200_000, ge=0)
    """How many of the newest events the log keeps to recognise entries that come again; at least
    `max_pending`."""
    ca_file: str | None = None
    """Certificates to trust with `rediss`, instead of the system's; relative to the pipeline file."""
    verify_tls: bool = True
    """Whether the server's certificate must be valid."""

    @field_validator("url")
    @classmethod
    def _redis(cls, url: SecretUrl) -> SecretUrl:
        parts = urlsplit(url.get())
        if parts.scheme not in ("redis", "rediss") or not parts.hostname or parts.query:
            raise ValueError("this is no address of a server; write redis://host:6379/0 or rediss://…")
        if not (parts.path.strip("/") or "0").isdigit():
            raise ValueError("behind the host comes the number of the database, as in redis://host:6379/0")
        return url

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.remember < self.max_pending:
            raise ValueError(
                f"remember ({self.remember}) is less than max_pending ({self.max_pending}): "
                "entries that come again would not be recognised"
            )
        if "dead_stream" in (self.on_refuse.transient, self.on_refuse.permanent) and not self.dead_stream:
            raise ValueError("on_refuse: dead_stream needs dead_stream, the name of that stream")
        if self.dead_stream == self.stream:
            raise ValueError("dead_stream is the stream itself: what is refused would come again and again")
        return self

    @property
    def remembered_events(self) -> int:
        return self.remember

    @property
    def most_unacknowledged(self) -> int | None:
        return self.max_pending

    def build(self, base: Path) -> Source:
        try:  # loaded here: whoever only reads a pipeline needs no client
            from signoff.sources.redis.source import RedisSource
        except ModuleNotFoundError as error:
            if error.name != "redis":
                raise
            raise SourceError(
                'the redis source needs the package redis: pip install "signoff[redis]"'
            ) from None
        return RedisSource(self, base)
