"""The page of a service: an overview, and each hosted pipeline as `signoff run --ui` shows one.

One logs in with a token of the service, and may do what that may; a session ends with its token. A pipeline
is watched from when somebody looks at it, and not any more when nobody has for a while. Nothing that a
pipeline names is read or run for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from signoff.errors import SignoffError
from signoff.page.guard import Door, Guard
from signoff.page.mounting import Visitor
from signoff.page.standalone import guarded
from signoff.page.watched import WatchedPipeline
from signoff.pipeline.graph import Graph
from signoff.pipeline.secrets import masking
from signoff.service.tenant import NoPipeline, Tenant
from signoff.service.tokens import Tokens

logger = logging.getLogger(__name__)

PREFIX = "/ui"
UNUSED_S = 60.0
"""Nobody has looked at a pipeline for so long: it is not watched any more."""
_SWEPT_S = 10.0


class TokenGuard(Guard):
    """Sessions of holders of tokens."""

    hint = "A token of the service. One that may view looks; one that may operate also replays and drops."

    def __init__(self, tokens: Tokens, cookie: str) -> None:
        super().__init__("", cookie)
        self._tokens = tokens

    def holder_of(self, given: str) -> str | None:
        token = self._tokens.find(given.strip())
        return token.id if token else None

    def visitor_of(self, holder: str, csrf: str) -> Visitor:
        token = self._tokens.get(holder)
        if token is None:
            raise HTTPException(401, "log in first")
        return Visitor(f"{token.name} ({token.id})", token.may("operate"), csrf, may_log_out=True)


@dataclass
class _Open:
    graph: Graph
    watched: WatchedPipeline
    used: float


class Watching:
    """The pipelines that somebody looks at."""

    def __init__(self, tenant: Tenant, now: Callable[[], float] = time.monotonic) -> None:
        self._tenant, self._now = tenant, now
        self._lock = threading.Lock()
        self._open: dict[str, _Open] = {}
        self._over = threading.Event()
        self._sweeper = threading.Thread(target=self._go_on, name="page-sweeper", daemon=True)
        self._sweeper.start()

    def of(self, name: str) -> WatchedPipeline:
        """Raises NoPipeline, and SignoffError for one whose text cannot be read any more."""
        graph = self._tenant.graph(name)
        with self._lock:
            known = self._open.get(name)
            if known is None or known.graph is not graph:  # another text is in force
                if known is not None:
                    known.watched.close()
                known = self._open[name] = _Open(graph, WatchedPipeline(graph, follows=False).start(), 0.0)
            known.used = self._now()
            return known.watched

    @property
    def names(self) -> set[str]:
        return set(self._open)

    def sweep(self) -> None:
        """Let go of what nobody looks at, or what is not there any more."""
        with self._lock:
            for name, each in list(self._open.items()):
                if self._now() - each.used > UNUSED_S or name not in self._tenant.pipelines:
                    self._open.pop(name).watched.close()

    def close(self) -> None:
        self._over.set()
        self._sweeper.join()
        with self._lock:
            for each in self._open.values():
                each.watched.close()
            self._open.clear()

    def _go_on(self) -> None:
        while not self._over.wait(_SWEPT_S):
            self.sweep()


class ServicePages:
    """What the pages ask for (see `signoff.page.mounting`)."""

    def __init__(self, tenant: Tenant, cookie: str) -> None:
        self._tenant = tenant
        self._guard = TokenGuard(tenant.tokens, cookie)
        self.watching = Watching(tenant)

    def routes(self) -> list[BaseRoute]:
        """To be served beside the API."""
        app = _Masked(Door(guarded(self, self._guard), None), self._tenant)
        return [Route("/", _to_the_pages, methods=["GET"]), Mount(PREFIX, app=app)]

    def close(self) -> None:
        self.watching.close()

    # -- asked by the pages

    def visitor(self, request: Request) -> Visitor:
        return self._guard.visitor(request)

    def pipelines(self, request: Request) -> Sequence[WatchedPipeline]:
        found = []
        for name in sorted(self._tenant.pipelines):
            try:
                found.append(self.watching.of(name))
            except NoPipeline:
                continue
            except SignoffError as error:
                logger.warning("%s cannot be shown: %s", name, error)
        return found

    def pipeline(self, request: Request, name: str) -> WatchedPipeline | None:
        if name not in self._tenant.pipelines:
            return None
        try:
            return self.watching.of(name)
        except NoPipeline:
            return None

    def note(self, request: Request, visitor: Visitor, name: str) -> None:
        action = f"{request.url.path.rpartition('/')[2]} letters"
        self._tenant.trail.add(time.time(), visitor.name, action, name, "asked on the page")


class _Masked:
    """Around the pages: the secrets of the tenant are masked on them, and of no other."""

    def __init__(self, app: Any, tenant: Tenant) -> None:
        self._app, self._tenant = app, tenant

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        with masking(self._tenant.secrets.register()):
            await self._app(scope, receive, send)


def _to_the_pages(_: Request) -> Response:
    return RedirectResponse(f"{PREFIX}/")
