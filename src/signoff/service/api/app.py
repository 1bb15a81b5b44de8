"""The application: routes of all endpoints, who may use them, and how much a request may be.

Invariants: a handler runs only for a token of the tenant that may do it; what it changes is in the trail
before; whatever goes wrong, the answer is a list of errors that shows no secret and no inner state.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import Any

import anyio
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from signoff.errors import SignoffError
from signoff.pipeline.secrets import masking
from signoff.service import metrics
from signoff.service.api import events, pipelines, secrets_and_tokens
from signoff.service.api.answers import ErrorItem, RequestFailed, answer_to, failed
from signoff.service.api.cached_answer import Kept
from signoff.service.api.endpoint import (
    JSON,
    MOST_JSON_BYTES,
    MOST_TEXT_BYTES,
    TEXT,
    Answer,
    Call,
    Endpoint,
    Endpoints,
    unknown_token,
)
from signoff.service.api.openapi import MOST_NAME, PATTERNS, describe
from signoff.service.hosted import Removed
from signoff.service.tenant import NoPipeline, Tenant
from signoff.service.tokens import Token

logger = logging.getLogger(__name__)

_THREADS, _SLOW_THREADS = 16, 4
_READY_S = 0.5
"""Everybody may ask whether all is ready; it is looked at so often."""
_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
_METRICS = "text/plain; version=0.0.4; charset=utf-8"

own = Endpoints()


@own.add("GET", "/metrics", "view", TEXT)
def scrape(call: Call) -> Answer:
    """Metrics of all pipelines, for Prometheus."""
    return Answer(metrics.page(call.tenant))


ENDPOINTS: tuple[Endpoint, ...] = (
    *pipelines.endpoints.all, *events.endpoints.all, *secrets_and_tokens.endpoints.all, *own.all,
)  # fmt: skip
OPEN_PATHS = ("/healthz", "/readyz", "/v1/openapi.json")
"""For everybody; of a pipeline they say nothing without a token."""


class Api:
    """Answers requests."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._limits = {False: _THREADS, True: _SLOW_THREADS}
        self._limiters: dict[bool, anyio.CapacityLimiter] = {}
        self._readiness = Kept(self._not_ready, _READY_S)

    def application(self, *more: BaseRoute) -> Starlette:
        """`more`: routes of the page."""
        routes: list[BaseRoute] = [
            Route("/healthz", self._health, methods=["GET"]),
            Route("/readyz", self._ready, methods=["GET"]),
            Route("/v1/openapi.json", self._openapi, methods=["GET"]),
        ]
        by_path: dict[str, dict[str, Endpoint]] = {}
        for endpoint in ENDPOINTS:
            by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
        for path, methods in by_path.items():
            served = path.replace("{event_id}", "{event_id:path}")
            routes.append(Route(served, partial(self._answer, methods), methods=list(methods)))
        handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
            HTTPException: self._no_route,
            RequestFailed: self._failed,
            Exception: self._crashed,
        }
        _description()  # not while others wait for the loop
        return Starlette(routes=[*routes, *more], exception_handlers=handlers)

    # -- for everybody

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "serving"}, headers=_HEADERS)

    async def _openapi(self, _: Request) -> Response:
        return Response(_description(), headers=_HEADERS, media_type=JSON)

    async def _ready(self, request: Request) -> Response:
        waits = await self._readiness.found()
        said: dict[str, Any] = {"ready": not waits, "not_ready": waits}
        if self._token(request) is None:  # names are not for everybody
            said["not_ready"] = len(waits)
        return JSONResponse(said, 503 if waits else 200, headers=_HEADERS)

    def _not_ready(self) -> dict[str, str]:
        found = {name: hosted.seen() for name, hosted in self._tenant.pipelines.items()}
        return {
            name: f"{seen.state}: {seen.why}" if seen.why else seen.state
            for name, seen in found.items()
            if seen.record.wanted == "running" and seen.state != "running"
        }

    # -- for holders of a token

    async def _answer(self, methods: dict[str, Endpoint], request: Request) -> Response:
        endpoint = methods.get(request.method) or methods["GET"]  # HEAD
        token = self._token(request)
        if token is None:
            raise unknown_token()
        if not token.may(endpoint.role):
            await self._note(endpoint, request, token, "refused: the token may not do this", refused=True)
            raise failed(
                403, "not-allowed", f"the token may {token.role}, and this needs one that may {endpoint.role}"
            )
        path = _path(request)
        query = _query(endpoint, request)
        body = await _body(endpoint, request)
        call = Call(self._tenant, token, path, query, body)
        call.check_token()  # again: the body may have taken long
        try:
            if endpoint.needs_pipeline:
                call.pipeline()  # before it is in the trail that something was asked of it
            await self._note(endpoint, request, token, "asked")
            answer = await anyio.to_thread.run_sync(
                partial(_handled, endpoint, call), limiter=self._limiter(endpoint.slow)
            )
        except RequestFailed as error:
            await self._note(endpoint, request, token, f"refused: {error.status}", refused=True)
            raise
        return _response(answer, _METRICS if endpoint.path == "/metrics" else TEXT)

    def _token(self, request: Request) -> Token | None:
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        return self._tenant.tokens.find(sent.strip()) if scheme.lower() == "bearer" else None

    async def _note(
        self, endpoint: Endpoint, request: Request, token: Token, outcome: str, *, refused: bool = False
    ) -> None:
        if endpoint.changes:
            target = "/".join(str(each)[:MOST_NAME] for each in request.path_params.values())
            who = f"{token.name} ({token.id})"
            trail = self._tenant.trail
            add = trail.refuse if refused else trail.add
            noted = partial(add, time.time(), who, endpoint.changes, target, outcome)
            await anyio.to_thread.run_sync(noted, limiter=self._limiter(False))

    def _limiter(self, slow: bool) -> anyio.CapacityLimiter:
        if slow not in self._limiters:  # needs the loop it is used in
            self._limiters[slow] = anyio.CapacityLimiter(self._limits[slow])
        return self._limiters[slow]

    # -- what goes wrong

    async def _no_route(self, _: Request, error: HTTPException) -> Response:
        known = {
            404: ("no-path", "there is nothing here"),
            405: ("no-method", "the method is not one of this path"),
        }
        code, message = known.get(error.status_code, ("bad-request", str(error.detail)))
        return _refusal(failed(error.status_code, code, message), dict(error.headers or {}))

    async def _failed(self, _: Request, error: RequestFailed) -> Response:
        return _refusal(error, error.headers)

    async def _crashed(self, request: Request, error: Exception) -> Response:
        logger.error("%s %s has failed", request.method, request.url.path, exc_info=error)
        return _refusal(failed(500, "internal", "this is a mistake in the service", "its log says more"), {})


@cache
def _description() -> bytes:
    return json.dumps(describe(ENDPOINTS)).encode()


def _handled(endpoint: Endpoint, call: Call) -> Answer:
    """What the handler answers, with the secrets of the tenant masked, and of no other."""
    hosted = call.tenant.pipelines.get(call.path["name"]) if "/pipelines/" in endpoint.path else None
    with masking(call.tenant.secrets.register()):
        try:
            return endpoint.handler(call)
        except RequestFailed:
            raise
        except (Removed, NoPipeline):
            raise call.no_pipeline() from None
        except Exception as error:
            if hosted is not None and hosted.removed:  # from under the handler
                raise call.no_pipeline() from error
            if isinstance(error, SignoffError):
                raise answer_to(error) from error
            raise


def _path(request: Request) -> dict[str, str]:
    """The parameters of the path; a name that nothing can have is not there."""
    for name, value in request.path_params.items():
        pattern = PATTERNS.get(name)
        if pattern and (len(value) > MOST_NAME or not re.fullmatch(pattern.strip("^$"), value)):
            raise failed(404, f"no-{name}", "nothing can be called that", at=name)
    return dict(request.path_params)


def _query(endpoint: Endpoint, request: Request) -> BaseModel | None:
    given = request.query_params.multi_items()
    if len({name for name, _ in given}) < len(given):
        raise failed(422, "bad-request", "a parameter is there twice")
    if endpoint.query is None:
        if given:
            raise failed(422, "bad-request", "there are no parameters here", at=given[0][0][:MOST_NAME])
        return None
    try:
        return endpoint.query.model_validate(dict(given))
    except ValidationError as error:
        raise _wrong(error) from None


async def _body(endpoint: Endpoint, request: Request) -> Any:
    """The body, read up to its bound and understood."""
    limit = MOST_TEXT_BYTES if isinstance(endpoint.body, str) else MOST_JSON_BYTES
    if endpoint.body is None:
        return None
    if request.headers.get("content-encoding", "identity") != "identity":
        raise failed(415, "bad-request", "compressed bodies are not taken", "send it as it is")
    if not isinstance(endpoint.body, str):
        kind = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if kind != JSON:
            raise failed(415, "bad-request", f"the body must be {JSON}")
    content = b""
    try:
        async for chunk in request.stream():
            content += chunk
            if len(content) > limit:
                raise failed(413, "too-large", f"the body has more than {limit} bytes").ending()
    except ClientDisconnect:
        raise failed(408, "too-slow", "the body did not arrive") from None
    if isinstance(endpoint.body, str):
        return _text(content)
    try:
        return endpoint.body.model_validate_json(content)
    except ValidationError as error:
        raise _wrong(error) from None


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        item = ErrorItem(code="bad-yaml", message="the text is not UTF-8", hint="send it as UTF-8", line=line)
        raise RequestFailed(422, [item]) from None


def _wrong(error: ValidationError) -> RequestFailed:
    """What pydantic says, without the values: one may be a secret."""
    return RequestFailed(
        422,
        [
            ErrorItem(
                code="bad-request", message=each["msg"][:500], file=".".join(map(str, each["loc"]))[:200]
            )
            for each in error.errors(include_input=False, include_url=False, include_context=False)[:50]
        ],
    )


def _response(answer: Answer, text_type: str) -> Response:
    content = answer.content
    if isinstance(content, str):
        return PlainTextResponse(content, answer.status, headers=_HEADERS, media_type=text_type)
    if isinstance(content, BaseModel):
        return Response(content.model_dump_json(), answer.status, headers=_HEADERS, media_type=JSON)
    return JSONResponse(content, answer.status, headers=_HEADERS)


def _refusal(error: RequestFailed, headers: dict[str, str]) -> Response:
    return JSONResponse(error.body, error.status, headers={**_HEADERS, **headers})
