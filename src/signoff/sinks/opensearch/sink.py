"""Sinks `opensearch` and `elasticsearch`: each row a document, written with others by `_bulk`.

Invariants: a row is signed for when the answer to its request names it with a status of success, or says that
it is there already (`op: create`), or a newer one is (`version`). What the server says of one document
concerns that row alone; `answers` says which of it may pass. What concerns a whole request, such as wrong
credentials or a server that is down, is never the end of a row: somebody puts it right, and until then the
rows wait. No row is written before the template that its index is made from is there.

The document's id is the event's id, so a row that is written again takes the place of the first. With an `id`
of the user's own several events may write one document, and the last one to arrive would win: `version`
makes that the newest one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, JsonValue, field_validator, model_validator

from signoff.bounded_http import host_and_port, require_sendable
from signoff.pipeline.model import Config, SinkConfig
from signoff.pipeline.secrets import SecretUrl, Token, register_secrets_of
from signoff.sinks.contract import Part, RunRef, Sink, Writer
from signoff.sinks.message_ids import MessageIds
from signoff.sinks.opensearch.actions import ID, INDEX, ROUTING, VERSION
from signoff.sinks.opensearch.server import check
from signoff.sinks.opensearch.writer import SearchWriter

SEQUENCE = "sequence"
"""What `version` says for the number of the event in its source's log."""


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str | SecretUrl) else value


class IndexTemplate(Config):
    """A template for indices, as it is to be."""

    name: str = Field(min_length=1)
    """Its name; a template that has it already is replaced."""
    body: dict[str, JsonValue]
    """What `PUT _index_template/NAME` takes: `index_patterns`, `template`, `data_stream`, `priority`."""


class SearchSinkConfig(SinkConfig):
    """What both types have in common."""

    example: ClassVar[str] = """\
hosts: https://search.example.org:9200
username: signoff
password: ${SEARCH_PASSWORD}
index: concat('alarms-', date_format(eventTime, 'yyyy.MM.dd'))
"""
    knows_ids: ClassVar[bool] = True

    hosts: Annotated[tuple[SecretUrl, ...], BeforeValidator(_as_list), Field(min_length=1)]
    """Addresses of one or more nodes of one cluster, `https://search.example.org:9200`. One that does not
    answer is passed over for the next."""
    username: str | None = None
    """User name, with `password`; null: no login."""
    password: Token | None = None
    """The password, never shown."""
    api_key: Token | None = None
    """Sent as `Authorization: ApiKey …` instead of a user and a password; never shown."""
    ca_file: str | None = None
    """Certificates to trust with `https`, instead of the system's; relative to the pipeline file."""
    verify_tls: bool = True
    """Whether the server's certificate must be valid."""
    index: str = Field(min_length=1)
    """Index, alias or data stream of each row: a Spark SQL expression over its columns; a constant is written
    in quotes, `"'alarms'"`."""
    op: Literal["index", "create"] = "index"
    """`index` replaces a document that has the id; `create` leaves it as it is, and is what a data stream
    takes."""
    id: str | None = None
    """Id of each document: an expression over the row's columns; null takes the event's id."""
    version: str | None = None
    """A document is not replaced by one with a smaller version: an expression that gives a whole number, or
    `sequence` for the event's number in its source."""
    routing: str | None = None
    """An expression whose value chooses the shard; null leaves that to the id."""
    pipeline: str | None = Field(default=None, min_length=1)
    """Ingest pipeline that each document goes through; null takes that of its index."""
    template: IndexTemplate | None = None
    """Index template that is put at each start, before anything is written; null expects that indices are
    made as they should be."""
    refresh: bool | Literal["wait_for"] = False
    """Whether rows can be found when they are signed for: `true` refreshes with each request, `wait_for`
    waits for the next refresh; false lets them appear later."""
    max_request_bytes: int = Field(default=10 * 1024**2, ge=1)
    """Most bytes of one request. A row that is larger is sent alone."""
    timeout_ms: int = Field(default=60_000, ge=1)
    """How long a request to one host may take, from the connection to the end of the answer."""

    @field_validator("hosts")
    @classmethod
    def _are_addresses(cls, hosts: tuple[SecretUrl, ...]) -> tuple[SecretUrl, ...]:
        for host in hosts:
            url = host.get()
            if not url.lower().startswith(("http://", "https://")) or host_and_port(url) is None:
                raise ValueError(f"{host} is not an http:// or https:// address")
            if "?" in url or "#" in url:
                raise ValueError(f"{host}: an address of a host has no parameters")
        return hosts

    @model_validator(mode="after")
    def _says_who_it_is_once(self) -> Self:
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password go together")
        if self.username is not None and ":" in self.username:
            raise ValueError("the username has a colon in it, which a login cannot have")
        if self.api_key is not None and self.username is not None:
            raise ValueError("an api_key takes the place of username and password: choose")
        if any(_has_user(host.get()) for host in self.hosts) and (self.api_key or self.username):
            raise ValueError("a host has a user of its own: choose between that and the fields")
        require_sendable({"api_key": self.api_key} if self.api_key else {}, None)
        return self

    @model_validator(mode="after")
    def _can_be_ordered(self) -> Self:
        if self.version is not None and self.op == "create":
            raise ValueError("version orders what replaces each other, and op: create replaces nothing")
        return self

    def expressions(self) -> Mapping[str, str]:
        wanted = {INDEX: self.index, ID: self.id, VERSION: self.version, ROUTING: self.routing}
        return {name: sql for name, sql in wanted.items() if sql is not None and not self._is_ours(name)}

    def field_of(self, expression: str) -> str:
        return {INDEX: "index", ID: "id", VERSION: "version", ROUTING: "routing"}[expression]

    def _is_ours(self, name: str) -> bool:
        return name == VERSION and self.version == SEQUENCE

    @property
    def by_sequence(self) -> bool:
        """Whether the newest event of its source wins."""
        return self.version == SEQUENCE

    def needed_files(self, base: Path) -> tuple[Path, ...]:
        return (base / self.ca_file,) if self.ca_file else ()

    def connects_to(self) -> tuple[str, int] | None:
        return host_and_port(self.hosts[0].get())

    def target(self, base: Path) -> str | None:
        if self.id is not None:
            return None  # whose documents they are is the user's to say
        nodes = sorted({"{}:{}".format(*(host_and_port(host.get()) or ("", 0))) for host in self.hosts})
        return f"search:{','.join(nodes)}#{self.index.strip()}"

    def build(self, base: Path) -> SearchSink:
        return SearchSink(self, base)


class OpensearchSinkConfig(SearchSinkConfig):
    """Documents in OpenSearch."""

    summary: ClassVar[str] = "OpenSearch: documents in bulk, keyed by event id, with refusals by row."
    type: Literal["opensearch"] = "opensearch"


class ElasticsearchSinkConfig(SearchSinkConfig):
    """Documents in Elasticsearch, in the same way."""

    summary: ClassVar[str] = "Elasticsearch: documents in bulk, keyed by event id, with refusals by row."
    type: Literal["elasticsearch"] = "elasticsearch"


class SearchSink(Sink):
    def __init__(self, config: SearchSinkConfig, base: Path) -> None:
        self.config = config
        self.base = base
        self.ids = MessageIds()
        self.is_prepared = False
        """Whether `prepare` has succeeded; else the first write of each task does what it does."""

    def begin(self, run: RunRef) -> None:
        self.ids = MessageIds(run)

    def prepare(self) -> None:
        """Raises TransientError, whatever is wrong: all of it can be put right at the server."""
        register_secrets_of(self.config)
        check(self.config, self.base)
        self.is_prepared = True

    def open(self, part: Part) -> Writer:
        register_secrets_of(self.config)  # this is another process than the one that read the file
        return SearchWriter(self)


def _has_user(url: str) -> bool:
    return "@" in urlsplit(url).netloc
