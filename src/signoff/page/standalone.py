"""The page of one pipeline as an application of its own: what `signoff run --ui` serves."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from signoff.page.guard import Door, Guard
from signoff.page.mounting import Mounting, Visitor
from signoff.page.routes import handlers, pages
from signoff.page.watched import WatchedPipeline


class OnePipeline:
    """Everybody who has passed the guard sees the one pipeline, and may replay its dead letters."""

    def __init__(self, pipeline: WatchedPipeline, guard: Guard) -> None:
        self._pipeline, self._guard = pipeline, guard

    def visitor(self, request: Request) -> Visitor:
        return self._guard.visitor(request)

    def pipelines(self, request: Request) -> Sequence[WatchedPipeline]:
        return [self._pipeline]

    def pipeline(self, request: Request, name: str) -> WatchedPipeline | None:
        return self._pipeline if name == self._pipeline.name else None

    def note(self, request: Request, visitor: Visitor, name: str) -> None:
        """Who has the token is one person."""


def page_app(
    pipeline: WatchedPipeline, *, token: str | None = None, names: Sequence[str] = (), cookie: str = "signoff"
) -> Door:
    """`token`: what one logs in with; None: nobody has to. `names`: under which it may be reached besides."""
    guard = Guard(token, cookie)
    return Door(guarded(OnePipeline(pipeline, guard), guard, login=token is not None), names)


def guarded(mounting: Mounting, guard: Guard, *, login: bool = True) -> Starlette:
    """All pages, behind a login."""
    found = handlers(mounting)
    said = found[HTTPException]

    def refused(request: Request, error: Exception) -> Response:
        wants_login = isinstance(error, HTTPException) and error.status_code == 401
        return guard.to_login(request) if wants_login else said(request, error)

    routes = [*guard.routes(), *pages(mounting)] if login else pages(mounting)
    return Starlette(routes=routes, exception_handlers={**found, HTTPException: refused})
