"""The web server of the http source: from a request to events, from an answer to a response.

It runs in a thread of its own. What it keeps: a request is taken whole or not at all; what cannot be
understood, is too large or has no token is answered here and never becomes an event.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from signoff.errors import SourceError
from signoff.sources.http_requests import Answer, Delivery, Inbox, deadline_after, turned_away

NDJSON = frozenset(
    {"application/x-ndjson", "application/ndjson", "application/jsonl", "application/json-lines"}
)
WHITESPACE = " \t\n\r"
START_S = 10.0


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What of the source's config the server must know."""

    host: str
    port: int
    path: str
    token: str | None
    max_body_bytes: int
    max_event_bytes: int
    acknowledge_within_s: float
    keep_headers: Sequence[str]


class Rejected(Exception):
    """The request is answered at once."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        super().__init__(answer.body.get("error"))


class HttpServer:
    """Listens from `start` to `close`."""

    def __init__(self, settings: ServerSettings, inbox: Inbox) -> None:
        self._settings, self._inbox = settings, inbox
        self._socket = _listen(settings)
        host, port = self._socket.getsockname()[:2]
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{port}{settings.path}"
        routes = [Route("/health", self._health, methods=["GET"])]
        routes.append(Route(settings.path, self._post, methods=["POST"]))
        config = uvicorn.Config(
            Starlette(routes=routes), log_config=None, access_log=False, lifespan="off", ws="none",
            timeout_graceful_shutdown=2, server_header=False,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="http", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Send the answers that are due, and stop."""
        self._server.should_exit = True
        self._thread.join(START_S)
        self._socket.close()

    async def _health(self, _: Request) -> Response:
        closed = self._inbox.closed_because
        state = {"status": closed or "receiving", "pending": self._inbox.pending}
        return _response(Answer(503 if closed else 200, state))

    async def _post(self, request: Request) -> Response:
        size = 0

        def reserve(more: int) -> None:
            nonlocal size
            if not self._inbox.reserve(more):
                raise Rejected(
                    turned_away("more requests than the log takes at the moment; nothing was taken")
                )
            size += more

        try:
            self._authorise(request)
            body = await self._body(request, reserve)
            payloads = split(body, request.headers.get("content-type", ""))
            delivery = self._delivery(request, payloads, size)
        except Rejected as rejected:
            self._inbox.release(size)
            return _response(rejected.answer)
        except ClientDisconnect:
            self._inbox.release(size)
            return Response(status_code=400)
        return _response(await self._settled(delivery))

    async def _settled(self, delivery: Delivery) -> Answer:
        """Queue the request, and wait for its answer."""
        if not delivery.count:
            self._inbox.release(delivery.size)
            return Answer(200, {"events": 0})
        problem = self._inbox.put(delivery)
        if problem:
            self._inbox.release(delivery.size)
            return turned_away(f"{problem}; nothing was taken")
        return await delivery.answered

    def _authorise(self, request: Request) -> None:
        token = self._settings.token
        if token is None:
            return
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            error = "the header `Authorization: Bearer <token>` is missing or wrong"
            raise Rejected(Answer(401, {"error": error}, {"WWW-Authenticate": "Bearer"}))

    async def _body(self, request: Request, reserve: Callable[[int], None]) -> bytes:
        """The body, if it is not too large and there is room for it."""
        limit = self._settings.max_body_bytes
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Rejected(Answer(415, {"error": "compressed requests are not taken; send it as it is"}))
        length = request.headers.get("content-length", "")
        size, chunks = 0, []
        if length.isdigit() and int(length) > limit:
            raise Rejected(_too_large(f"the body has {length} bytes, max_body_bytes is {limit}"))
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise Rejected(_too_large(f"the body has more than max_body_bytes ({limit}) bytes"))
            reserve(len(chunk))
            chunks.append(chunk)
        return b"".join(chunks)

    def _delivery(self, request: Request, payloads: Sequence[bytes], size: int) -> Delivery:
        limit = self._settings.max_event_bytes
        for number, payload in enumerate(payloads):
            if len(payload) > limit:
                error = f"event {number} has {len(payload)} bytes, max_event_bytes is {limit}"
                raise Rejected(_too_large(error))
        loop = asyncio.get_running_loop()
        kept = {
            name: request.headers[name] for name in self._settings.keep_headers if name in request.headers
        }
        return Delivery(
            payloads, kept, request.headers.get("idempotency-key"), size,
            deadline_after(self._settings.acknowledge_within_s), loop, loop.create_future(),
        )  # fmt: skip


def split(body: bytes, content_type: str) -> list[bytes]:
    """The events of a body: JSON (an array is many), NDJSON lines, or the body as it is."""
    kind = content_type.partition(";")[0].strip().lower()
    if not body.strip():
        raise Rejected(Answer(400, {"error": "the body is empty"}))
    if kind in NDJSON:
        return [line for line in (line.strip() for line in body.split(b"\n")) if line]
    if kind in ("", "application/json") or kind.endswith("+json"):
        return _json_events(body)
    return [body]


def _json_events(body: bytes) -> list[bytes]:
    try:
        if body.lstrip()[:1] != b"[":
            orjson.loads(body)
            return [body.strip()]
        return _elements(body.decode())
    except (ValueError, RecursionError) as error:
        raise Rejected(Answer(400, {"error": f"the body is not JSON: {error}"})) from None


def _elements(text: str) -> list[bytes]:
    """The elements of a JSON array as they were sent; parsing and writing them again could change
    them (numbers of many digits, keys that occur twice)."""
    decoder, events = json.JSONDecoder(), []
    place = _skip(text, text.index("[") + 1)
    while text[place : place + 1] != "]":
        _, end = decoder.raw_decode(text, place)
        events.append(text[place:end].encode())
        place = _skip(text, end)
        if text[place : place + 1] == ",":
            place = _skip(text, place + 1)
            if text[place : place + 1] == "]":
                raise ValueError(f"nothing after the comma at {place}")
        elif text[place : place + 1] != "]":
            raise ValueError(f"expected a comma or a closing bracket at {place}")
    if _skip(text, place + 1) != len(text):
        raise ValueError(f"something follows the array at {place + 1}")
    return events


def _skip(text: str, place: int) -> int:
    while place < len(text) and text[place] in WHITESPACE:
        place += 1
    return place


def _too_large(error: str) -> Answer:
    return Answer(413, {"error": error})


def _response(answer: Answer) -> Response:
    body = orjson.dumps(dict(answer.body)) + b"\n"
    return Response(body, answer.status, headers=dict(answer.headers), media_type="application/json")


def _listen(settings: ServerSettings) -> socket.socket:
    """Bound here, not by the server: a port that is taken is then an error that can be shown."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle's delay (40 ms per response) off only then.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(1024)
        return listener
    except OSError as error:
        listener.close()
        raise SourceError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}; "
            "is another program using the port? Choose another `port`"
        ) from error
