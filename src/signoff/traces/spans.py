"""Spans as the SDK exports them, by OpenTelemetry's conventions for messaging; with ids of our own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from signoff.traces.export import Exporter
from signoff.traces.ids import Context

Operation = Literal["receive", "process", "send", "settle"]
Kind = Literal["client", "consumer", "producer"]
_KINDS = {"client": SpanKind.CLIENT, "consumer": SpanKind.CONSUMER, "producer": SpanKind.PRODUCER}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


@dataclass(frozen=True, slots=True)
class Happened:
    """An event within a span."""

    name: str
    at_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Where:
    """A source or a sink, as spans name it."""

    node: str
    type: str

    @property
    def system(self) -> str:
        """As the conventions call it; what is no messaging system has our name."""
        return self.type if self.type in ("rabbitmq", "nats", "redis") else "signoff"


def span(
    by: Exporter,
    where: Where,
    operation: Operation,
    context: Context,
    parent: Context | None,
    start_ns: int,
    end_ns: int,
    *,
    kind: Kind,
    name: str = "",
    attributes: Mapping[str, Any] | None = None,
    happened: Sequence[Happened] = (),
    links: Iterable[Context] = (),
    failed: bool = False,
) -> ReadableSpan:
    """A span that is over. `name`: what the operation is called there, where that is another word."""
    called = name or operation
    told = {
        "messaging.system": where.system,
        "messaging.operation.name": called,
        "messaging.operation.type": operation,
        "messaging.destination.name": where.node,
        "signoff.node.type": where.type,
        **(attributes or {}),
    }
    return ReadableSpan(
        f"{called} {where.node}",
        context=_as_context(context, remote=False),
        parent=None if parent is None else _as_context(parent, remote=True),
        resource=by.resource,
        attributes=told,
        events=[Event(each.name, dict(each.attributes), each.at_ns) for each in happened],
        links=[Link(_as_context(each, remote=True)) for each in links],
        kind=_KINDS[kind],
        status=Status(StatusCode.ERROR) if failed else Status(),
        start_time=start_ns,
        end_time=max(end_ns, start_ns),
        instrumentation_scope=by.scope,
    )


def _as_context(context: Context, *, remote: bool) -> SpanContext:
    return SpanContext(context.trace, context.span, is_remote=remote, trace_flags=_SAMPLED)
