"""`signoff serve`: takes a home, finds its pipelines, and serves until SIGTERM or Ctrl-C. The runs go on
after it.

Clients are bounded as those of the `http` source are: how many connections, and how long a request may take
to arrive (`signoff.sources.http.connections`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from signoff.errors import SignoffError, StateError
from signoff.service.api.app import Api
from signoff.service.home import DEFAULT, Home
from signoff.service.reconciler import Reconciler
from signoff.service.tenant import Tenant
from signoff.sources.http.connections import HEADERS_S, Guard
from signoff.sources.http.server import listen, tls_options

if TYPE_CHECKING:
    from signoff.service.pages import ServicePages

logger = logging.getLogger(__name__)

_MOST_CONNECTIONS, _MOST_PER_CLIENT = 512, 128
_REQUEST_S = 30.0
"""How long a request may take to arrive."""
_END_S = 5
_ENDING = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True)
class Options:
    """Where a service is at home, and where it listens."""

    home: Path
    host: str = "127.0.0.1"
    port: int = 8080
    cert_file: Path | None = None
    key_file: Path | None = None
    plain: bool = False
    """Without TLS also where others can listen: something in front of it brings that."""


class _Guard(Guard):
    def said(self, status: int, error: str) -> dict[str, Any]:
        code = {408: "too-slow"}.get(status, "too-many")
        return {"errors": [{"code": code, "message": error, "hint": "", "file": "", "line": 0}]}


class _Server(uvicorn.Server):
    """Ends with SIGTERM and Ctrl-C, and lets the program end by itself then; uvicorn kills it with the same
    signal."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _ENDING}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class Service:
    """A home with its pipelines, and the address it is asked at."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._home = Home(options.home)
        self.address = ""
        self.first_token: Path | None = None
        """The file with the token of the administrator, where this is the first start."""
        self._server: uvicorn.Server | None = None

    def serve(self, started: Callable[[Service], None] = lambda _: None) -> None:
        """Serve until SIGTERM or `end`. `started`: called when requests are taken."""
        _refuse_open_networks(self._options)
        with self._at_home() as tenant:
            guard = _Guard(_MOST_CONNECTIONS, _MOST_PER_CLIENT, _REQUEST_S)
            tls = tls_options(self._options)
            listener = listen(self._options, guard)
            host, port = listener.getsockname()[:2]
            pages = self._pages(tenant, f"signoff-{port}")
            app = Api(tenant).application(*(pages.routes() if pages else ()))
            config = uvicorn.Config(
                app, log_config=None, access_log=False, lifespan="off", ws="none",
                timeout_graceful_shutdown=_END_S, server_header=False, proxy_headers=False,
                http=guard.protocol(), **tls,
            )  # fmt: skip
            shown = f"[{host}]" if ":" in host else host
            self.address = f"{'https' if tls else 'http'}://{shown}:{port}"
            self._server = _Server(config)
            try:
                asyncio.run(self._serve(listener, started))
            finally:
                listener.close()
                if pages is not None:
                    pages.close()

    def end(self) -> None:
        """For another thread."""
        if self._server is not None:
            self._server.should_exit = True

    @contextmanager
    def _at_home(self) -> Iterator[Tenant]:
        self._home.acquire()
        try:
            tenant = Tenant(self._home.tenant(DEFAULT), self._home.key())
            self.first_token = tenant.first_token()
            reconciler = Reconciler(lambda: tenant.pipelines.values())
            reconciler.start()
            try:
                yield tenant
            finally:
                reconciler.stop()
        finally:
            self._home.release()

    def _pages(self, tenant: Tenant, cookie: str) -> ServicePages | None:
        if find_spec("jinja2") is None:
            logger.warning('there is no page: pip install "signoff[service]" brings what it needs')
            return None
        from signoff.service.pages import ServicePages

        return ServicePages(tenant, cookie)

    async def _serve(self, listener: socket.socket, started: Callable[[Service], None]) -> None:
        assert self._server is not None
        if self._options.cert_file is not None:  # uvicorn leaves this at a minute
            loop: Any = asyncio.get_running_loop()
            loop.create_server = partial(loop.create_server, ssl_handshake_timeout=HEADERS_S)
        started(self)
        await self._server.serve([listener])


def _refuse_open_networks(options: Options) -> None:
    """A token is sent with every request: in clear only where nobody else can listen."""
    if not Path("/proc/self/stat").exists():
        raise StateError("the service finds runs again by /proc, which is not there; it needs Linux")
    try:
        here = ipaddress.ip_address(options.host).is_loopback
    except ValueError:
        here = options.host == "localhost"
    if (options.cert_file is None) != (options.key_file is None):
        raise SignoffError("[service-tls] give both --tls-cert and --tls-key")
    if not here and options.cert_file is None and not options.plain:
        raise SignoffError(
            f"[service-tls] tokens would go in clear to {options.host}; give --tls-cert and --tls-key, or "
            "say --plain-http if a proxy in front of the service brings TLS"
        )
