"""HTTP: events are POSTed, and the response comes when they are settled.

200 delivered, dropped or dead-lettered; 422 refused for good, with the reasons; 503 refused for now (a sink
was down), not settled in time, or not taken at all (then with what to do). 400, 401, 408, 413, 415, 429:
never became an event.

What it keeps: a request is answered 200 only when the ledger holds all its events as settled. A
connection does not survive a restart: its client sees it break and asks again, so the same events
may come twice; `Idempotency-Key` travels with them as `message_id` for a `dedupe`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import orjson
import pyarrow as pa
from pydantic import Field, model_validator
from pyroaring import BitMap64

from signoff.pipeline.durations import Duration
from signoff.pipeline.model import SourceConfig
from signoff.pipeline.secrets import Token
from signoff.sources.contract import EndOfSource, Resume, Settlement, Source, SourceContext
from signoff.sources.events import Piece, event_batch
from signoff.sources.http.requests import Inbox, PendingRequest, Reply, turned_away

if TYPE_CHECKING:
    from signoff.sources.http.server import HttpServer

ADDRESS_FILE = "http.json"
"""In the source's directory: the address it listens on, which `port: 0` leaves to the system."""
GRACE_S = 1.0
"""How long a request whose time is up is left to the ledger: what is recorded is the better answer."""
SHOWN_REASONS = 100
OUTCOMES = ("delivered", "dropped", "dead_lettered")
"""Of events that are acknowledged, as the answer counts them."""


class HttpConfig(SourceConfig):
    """Events POSTed over HTTP."""

    summary: ClassVar[str] = "Takes events by HTTP POST; the response comes when they are settled."
    always_answers: ClassVar[bool] = True
    type: Literal["http"] = "http"
    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` for all."""
    port: int = Field(default=8080, ge=0, le=65535)
    """Port to listen on; 0 takes a free one."""
    path: str = Field(default="/", pattern=r"^/[^{}\s]*$")
    """Where events are POSTed to. `GET /health` says whether they are taken, `GET /ready` whether one that
    comes now would be settled, and who keeps it from that; why, only with the `token`, if there is one."""
    token: Token | None = None
    """If set, requests need the header `Authorization: Bearer <token>`."""
    acknowledge_within: Duration = Field(default=30.0, gt=0)
    """How long a request waits for its events to be settled before it is answered 503; they then count as
    expired. Counted from the arrival of the request, and never extended: its client does not wait longer."""
    max_body_bytes: int = Field(default=8 * 1024**2, ge=1)
    """Largest request; larger ones are answered 413."""
    max_pending: int = Field(default=100_000, ge=1)
    """Most events that are not settled; further requests are answered 503."""
    keep_headers: tuple[str, ...] = ()
    """Names of request headers that become headers of the events."""
    request_within: Duration = Field(default=30.0, gt=0)
    """How long a request may take to arrive; then it is answered 408 and its connection closed. As long may
    answers wait to be read."""
    max_connections: int = Field(default=1_000, ge=2)
    """Most connections at a time; further ones are answered 503."""
    max_connections_per_client: int | None = Field(default=None, ge=1)
    """Most connections of one client address, by default half of `max_connections`; further ones are answered
    429. A proxy in front counts as one client."""
    cert_file: str | None = None
    """Certificate for TLS with its chain (PEM), relative to the pipeline file; needs `key_file`."""
    key_file: str | None = None
    """Its private key (PEM, without a password)."""

    @model_validator(mode="after")
    def _both_or_neither(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together; give both, or neither")
        return self

    def belongs_to_project(self, base: Path) -> bool:
        return True  # of two on one port, one does not start

    def listens_on(self) -> tuple[str, int] | None:
        return self.host, self.port

    def with_header(self, name: str) -> Self:
        known = {each.lower() for each in self.keep_headers}
        return self if name in known else self.model_copy(update={"keep_headers": (*self.keep_headers, name)})

    def build(self, base: Path) -> Source:
        return HttpSource(self, base)


class HttpSource(Source):
    """`unit` is the request's number, `position` the number of the event in it."""

    def __init__(self, config: HttpConfig, base: Path = Path()) -> None:
        self._config, self._base = config, base
        self._received: deque[list[tuple[PendingRequest, int, int]]] = deque()
        """Batches handed out that are not in the log yet."""
        self._in_flight: dict[int, PendingRequest] = {}
        """Requests in the log, by number, oldest first."""
        self._settled = BitMap64()

    def open(self, context: SourceContext, resume: Resume) -> None:
        # Loaded here: whoever only reads a pipeline, or a log, needs no web server.
        from signoff.sources.http.server import HttpServer

        self._name, self._once = context.name, context.once
        self._inbox = Inbox(self._config.max_pending, 0 if resume.unit is None else resume.unit + 1)
        self._not_ready = context.not_ready
        self._server: HttpServer = HttpServer(self._server_settings(), self._inbox, self._who_is_not_ready)
        context.directory.mkdir(parents=True, exist_ok=True)
        address = {"address": self._server.address}
        part = context.directory / f"{ADDRESS_FILE}.part"
        part.write_bytes(orjson.dumps(address))
        part.replace(context.directory / ADDRESS_FILE)
        self._server.start()

    def receive(self, max_events: int, timeout_s: float) -> pa.RecordBatch | None:
        self._inbox.held_because = ""
        parts = self._inbox.take(max_events, timeout_s)
        if not parts:
            if self._once:
                raise EndOfSource
            return None
        self._received.append(parts)
        return _batch(parts)

    def logged(self, first_sequence: int, count: int) -> None:
        sequence = first_sequence
        for delivery, start, end in self._received.popleft():
            if start == 0:
                delivery.first = sequence
                self._in_flight[delivery.unit] = delivery
            sequence += end - start
            delivery.logged = end
            if end == delivery.count:
                self._inbox.in_log(delivery)

    def limit(self) -> str:
        pending = self._inbox.pending
        if pending < self._config.max_pending:
            return ""
        return f"{pending} events are not settled, requests are answered 503 (max_pending)"

    def settle(self, settlement: Settlement) -> None:
        self._settled |= settlement.acknowledged
        self._settled |= BitMap64([*settlement.refused, *settlement.expired])
        for delivery in list(self._in_flight.values()):
            end = delivery.first + delivery.count
            _pick(settlement.refused, delivery.first, end, delivery.refused)
            _pick(settlement.expired, delivery.first, end, delivery.expired)
            delivery.for_now += settlement.transient.range_cardinality(delivery.first, end)
            for name in OUTCOMES:
                number = getattr(settlement, name).range_cardinality(delivery.first, end)
                delivery.outcomes[name] = delivery.outcomes.get(name, 0) + number
            if delivery.logged == delivery.count and self._settled.contains_range(delivery.first, end):
                self._finish(delivery, self._answer(delivery))
        lowest = next(iter(self._in_flight.values())).first if self._in_flight else None
        self._settled.remove_range(0, lowest) if lowest is not None else self._settled.clear()

    def expire(self) -> Mapping[int, str]:
        now = time.monotonic()
        within = f"{self._config.acknowledge_within:g} s"
        self._inbox.give_back(f"the log had no room within {within}; nothing was taken", now)
        self._give_up(
            f"the log had no room within {within}; should it be taken yet, it counts as expired", now
        )
        reason = f"not settled within {within} (acknowledge_within)"
        if engine := self._not_ready().get("engine") if self._in_flight else None:
            reason += f"; engine: {engine}"
        late = [d for d in self._in_flight.values() if d.deadline <= now and d.logged == d.count]
        for delivery in late:
            if delivery.deadline + GRACE_S <= now and not delivery.given_up:
                delivery.given_up = True  # nobody waits longer because the ledger has no room
                delivery.answer(turned_away(f"{reason}; that cannot be recorded at the moment"))
        return {
            sequence: reason
            for delivery in late
            for sequence in range(delivery.first, delivery.first + delivery.count)
            if sequence not in self._settled
        }

    def stop(self) -> None:
        self._inbox.close("the pipeline is stopping")

    def drained(self) -> bool:
        return not self._in_flight and not self._received

    def close(self) -> None:
        self._inbox.close("the pipeline has stopped")
        handed_out = {d.unit: d for parts in self._received for d, _, _ in parts}
        for delivery in {**self._in_flight, **handed_out}.values():
            delivery.answer(
                turned_away("the pipeline stopped before the events were settled; send them again")
            )
        self._server.close()

    def tend(self) -> None:
        self._inbox.held_because = "its log has no room"

    def _who_is_not_ready(self) -> dict[str, str]:
        """Who keeps an event that comes now from being settled, and why."""
        own = self._inbox.closed_because or self._inbox.held_because or self.limit()
        return {**({self._name: own} if own else {}), **self._not_ready()}

    def _server_settings(self) -> Any:
        from signoff.sources.http.server import ServerSettings

        config = self._config
        return ServerSettings(
            config.host, config.port, config.path,
            None if config.token is None else config.token.get_secret_value(),
            config.max_body_bytes, config.max_event_bytes, config.acknowledge_within,
            [name.lower() for name in config.keep_headers], config.request_within, config.max_connections,
            config.max_connections_per_client or config.max_connections // 2,
            self._base / config.cert_file if config.cert_file else None,
            self._base / config.key_file if config.key_file else None,
        )  # fmt: skip

    def _give_up(self, reason: str, now: float) -> None:
        """Answer requests that were handed out in time but did not get into the log in time.

        They may get there yet: the intake holds them. Their events are then expired at once.
        """
        handed_out = [d for parts in self._received for d, _, _ in parts]
        begun = [d for d in self._in_flight.values() if d.logged < d.count]  # the rest finds no room
        for delivery in {*handed_out, *begun}:
            if delivery.deadline <= now and not delivery.given_up:
                delivery.given_up = True
                delivery.answer(turned_away(reason))

    def _finish(self, delivery: PendingRequest, answer: Reply) -> None:
        del self._in_flight[delivery.unit]
        self._inbox.settled(delivery)
        delivery.answer(answer)

    def _answer(self, delivery: PendingRequest) -> Reply:
        body: dict[str, Any] = {"events": delivery.count, "first_id": f"{self._name}/{delivery.first}"}
        counts = delivery.outcomes
        if sum(counts.values()) + len(delivery.refused) + len(delivery.expired) == delivery.count:
            body |= counts
        elif counts.get("dead_lettered"):  # of some it is not known any more whether they were dropped
            body["dead_lettered"] = counts["dead_lettered"]
        if delivery.refused:
            body |= {"error": "refused", "refused": self._shown(delivery.refused)}
        if delivery.expired:
            body |= {"error": "not settled in time", "expired": self._shown(delivery.expired)}
        elif delivery.for_now:
            body["error"] = "refused temporarily: a sink or a service was not available; send it again"
        if delivery.expired or delivery.for_now:  # first of all: a 422 would end the other events' tries
            return Reply(503, body, {"Retry-After": "1"})
        return Reply(422 if delivery.refused else 200, body)

    def _shown(self, reasons: Mapping[int, str]) -> list[dict[str, str]]:
        """The first reasons: a client with a hundred of them knows enough."""
        return [
            {"event_id": f"{self._name}/{sequence}", "reason": reasons[sequence]}
            for sequence in sorted(reasons)[:SHOWN_REASONS]
        ]


def _batch(parts: list[tuple[PendingRequest, int, int]]) -> pa.RecordBatch:
    payloads = [payload for delivery, start, end in parts for payload in delivery.payloads[start:end]]
    sizes = [end - start for _, start, end in parts]
    positions = np.concatenate([np.arange(start + 1, end + 1) for _, start, end in parts])
    units = np.repeat(np.array([delivery.unit for delivery, _, _ in parts], dtype=np.int64), sizes)
    headers = None
    if any(delivery.headers for delivery, _, _ in parts):
        headers = [delivery.headers for delivery, start, end in parts for _ in range(start, end)]
    ids = [_message_id(delivery, place) for delivery, start, end in parts for place in range(start, end)]
    return event_batch(
        Piece(pa.array(payloads, pa.binary()), positions), unit=units, headers=headers, message_ids=ids
    )


def _message_id(delivery: PendingRequest, place: int) -> str | None:
    """The client's key; with the event's number where one request has several."""
    if delivery.message_id is None or delivery.count == 1:
        return delivery.message_id
    return f"{delivery.message_id}/{place}"


def _pick(reasons: Mapping[int, str], start: int, end: int, into: dict[int, str]) -> None:
    """The reasons of one request, found from the shorter side."""
    if len(reasons) < end - start:
        into.update({sequence: reason for sequence, reason in reasons.items() if start <= sequence < end})
    else:
        into.update({sequence: reasons[sequence] for sequence in range(start, end) if sequence in reasons})
