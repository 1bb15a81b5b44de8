"""The page `/metrics` of a run, served by a thread of it, which only reads.

Invariant: clients cost the run a few open files, whatever they do. It needs its others to start a process
again that has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from socket import AI_PASSIVE, SOCK_STREAM, getaddrinfo
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from signoff.errors import SignoffError
from signoff.pipeline.graph import Graph
from signoff.watch.metrics import Processes, registry_of

logger = logging.getLogger(__name__)

_MOST_CONNECTIONS = 32
_SILENT_S = 10.0
"""For so long a client may send nothing, or read nothing."""


@dataclass(frozen=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """`9100`, `0.0.0.0:9100` or `[::1]:9100`; raises ValueError."""
        host, colon, port = text.rpartition(":")
        if not port.isascii() or not port.isdigit() or int(port) > 65535 or (colon and not host):
            raise ValueError(f'"{text}" is not a port or HOST:PORT')
        return cls(host.strip("[]") if colon else "127.0.0.1", int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@contextmanager
def serve_metrics(graph: Graph, processes: Processes, address: Address) -> Iterator[Address]:
    """Serve until the block ends. Port 0: one that is free."""
    from prometheus_client import make_wsgi_app

    app: Any = make_wsgi_app(registry_of(graph, processes))
    try:
        family, *_, place = getaddrinfo(address.host, address.port, type=SOCK_STREAM, flags=AI_PASSIVE)[0]
        kind = type("_ServerOfFamily", (_Server,), {"address_family": family})
        server: WSGIServer = make_server(str(place[0]), address.port, app, kind, _Handler)
    except OSError as error:
        raise SignoffError(f"[metrics-address] metrics cannot be served at {address}: {error}") from error
    thread = Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    found = Address(address.host, server.server_port)
    logger.info("metrics at http://%s/metrics", found)
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(WSGIRequestHandler):
    timeout = _SILENT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection, of which there are only so many; one too many is closed."""

    daemon_threads = True

    def __init__(self, *args: Any) -> None:
        self._places = BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a request for metrics broke off", exc_info=True)
