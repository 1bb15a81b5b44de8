"""A collector of traces, in this process: takes OTLP over HTTP, and keeps the spans."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.servers import wait_until


@dataclass(frozen=True)
class Received:
    """One span, as it came."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    failed: bool
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    events: tuple[tuple[str, dict[str, Any]], ...]
    links: tuple[tuple[str, str], ...]
    text: str
    """All of it."""


@dataclass
class Collector:
    """`with Collector() as collector:`, then `collector.endpoint`."""

    spans: list[Received] = field(default_factory=list)
    requests: list[dict[str, str]] = field(default_factory=list)
    """The headers of each."""
    status: int = 200
    slow_s: float = 0.0

    def __enter__(self) -> Self:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if collector.slow_s:
                    time.sleep(collector.slow_s)
                if collector.status == 200:
                    collector.spans += _spans_in(body)
                collector.requests.append({name.lower(): value for name, value in self.headers.items()})
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def named(self, name: str) -> list[Received]:
        return [span for span in self.spans if span.name == name]

    def wait_for(self, condition: Callable[[Collector], Any]) -> Any:
        return wait_until(lambda: condition(self), what=f"spans; there are {[s.name for s in self.spans]}")


def _spans_in(body: bytes) -> list[Received]:
    request = ExportTraceServiceRequest.FromString(body)
    return [
        Received(
            span.name, span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.kind,
            span.status.code == 2, span.start_time_unix_nano, span.end_time_unix_nano,
            _plain(span.attributes), _plain(resource.resource.attributes),
            tuple((event.name, _plain(event.attributes)) for event in span.events),
            tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links), str(span),
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]  # fmt: skip


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
