"""The page `/metrics` of a run, served by a thread of it, which only reads."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from signoff.errors import SignoffError
from signoff.pipeline.graph import Graph
from signoff.watch.metrics import Processes, registry_of

logger = logging.getLogger(__name__)


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
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(address.port, address.host, registry=registry_of(graph, processes))
    except OSError as error:
        raise SignoffError(f"[metrics-address] metrics cannot be served at {address}: {error}") from error
    found = Address(address.host, server.server_port)
    logger.info("metrics at http://%s/metrics", found)
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
