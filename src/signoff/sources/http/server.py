"""The web server of the http source: from a request to events, from an answer to a response.

It runs in a thread of its own. What it keeps: a request is taken whole or not at all; what cannot be
understood, is too large or has no token is answered here and never becomes an event.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from signoff.errors import SourceError
from signoff.sources.http.connections import HEADERS_S, GreetingListener, Guard
from signoff.sources.http.requests import Inbox, PendingRequest, Reply, deadline_after, turned_away
from signoff.sources.http.uploads import Rejected, Upload, Uploads

NDJSON = frozenset(
    {"application/x-ndjson", "application/ndjson", "application/jsonl", "application/json-lines"}
)
_FORM = "application/x-www-form-urlencoded"
WHITESPACE = " \t\n\r"
START_S = 10.0


class Listening(Protocol):
    """Where a server listens, and with which certificate."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def cert_file(self) -> Path | None: ...
    @property
    def key_file(self) -> Path | None: ...


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
    request_within_s: float
    max_connections: int
    max_connections_per_client: int
    cert_file: Path | None
    key_file: Path | None


class HttpServer:
    """Listens from `start` to `close`."""

    def __init__(
        self, settings: ServerSettings, inbox: Inbox, not_ready: Callable[[], Mapping[str, str]] = dict
    ) -> None:
        self._settings, self._inbox, self._not_ready = settings, inbox, not_ready
        self._uploads = Uploads(inbox)
        tls = tls_options(settings)
        guard = Guard(
            settings.max_connections, settings.max_connections_per_client, settings.request_within_s
        )
        self._socket = listen(settings, guard)
        host, port = self._socket.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{'https' if tls else 'http'}://{shown}:{port}{settings.path}"
        routes = [Route("/health", self._health, methods=["GET"])]
        routes.append(Route("/ready", self._ready, methods=["GET"]))
        routes.append(Route(settings.path, self._post, methods=["POST"]))
        config = uvicorn.Config(
            Starlette(routes=routes), log_config=None, access_log=False, lifespan="off", ws="none",
            timeout_graceful_shutdown=2, server_header=False, http=guard.protocol(), **tls,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Send the answers that are due, and stop."""
        self._server.should_exit = True
        self._thread.join(START_S)
        self._socket.close()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        if self._settings.cert_file is not None:
            # uvicorn leaves this at a minute.
            loop: Any = asyncio.get_running_loop()
            loop.create_server = partial(loop.create_server, ssl_handshake_timeout=HEADERS_S)
        await self._server.serve([self._socket])

    async def _health(self, _: Request) -> Response:
        closed = self._inbox.closed_because
        state = {"status": closed or "receiving", "pending": self._inbox.pending}
        return _response(Reply(503 if closed else 200, state))

    async def _ready(self, request: Request) -> Response:
        waits_for = dict(self._not_ready())
        try:
            self._authorise(request)
        except Rejected:  # what a database or a service says is not for everybody
            waits_for = dict.fromkeys(waits_for, "not ready; send the token to see why")
        said = {"ready": not waits_for, "not_ready": waits_for, "pending": self._inbox.pending}
        return _response(Reply(503 if waits_for else 200, said))

    async def _post(self, request: Request) -> Response:
        upload = self._uploads.begin(request.client.host if request.client else "")
        try:
            self._authorise(request)
            body = await self._body(request, upload)
            payloads = split(body, request.headers.get("content-type", ""))
            if not payloads:
                return _response(Reply(200, {"events": 0}))
            delivery = self._delivery(request, payloads, upload.size)
            if problem := self._inbox.put(delivery):
                return _response(turned_away(f"{problem}; nothing was taken"))
            upload.hand_over()
        except Rejected as rejected:
            return _response(rejected.answer)
        except ClientDisconnect:
            return Response(status_code=400)
        finally:
            upload.end()
        return _response(await delivery.answered)

    def _authorise(self, request: Request) -> None:
        token = self._settings.token
        if token is None:
            return
        given = request.headers.get("authorization", "").encode("latin-1")  # the bytes that were sent
        if not hmac.compare_digest(_as_utf8(given), f"Bearer {token}".encode()):
            error = "the header `Authorization: Bearer <token>` is missing or wrong"
            raise Rejected(Reply(401, {"error": error}, {"WWW-Authenticate": "Bearer"}))

    async def _body(self, request: Request, upload: Upload) -> bytes:
        """The body, if it is not too large and there is room for it."""
        limit = self._settings.max_body_bytes
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Rejected(Reply(415, {"error": "compressed requests are not taken; send it as it is"}))
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > limit:
            raise Rejected(_too_large(f"the body has {length} bytes, max_body_bytes is {limit}"))
        try:
            async with asyncio.timeout(None) as reading:
                upload.cut = lambda: reading.reschedule(0)
                async for chunk in request.stream():
                    if upload.size + len(chunk) > limit:
                        error = f"the body has more than max_body_bytes ({limit}) bytes"
                        raise Rejected(_too_large(error))
                    upload.add(chunk)
        except TimeoutError:
            upload.end()
        upload.require_whole()
        return bytes(upload.body)

    def _delivery(self, request: Request, payloads: Sequence[bytes], size: int) -> PendingRequest:
        limit = self._settings.max_event_bytes
        for number, payload in enumerate(payloads):
            if len(payload) > limit:
                error = f"event {number} has {len(payload)} bytes, max_event_bytes is {limit}"
                raise Rejected(_too_large(error))
        loop = asyncio.get_running_loop()
        kept = {
            name: _header_text(request.headers[name])
            for name in self._settings.keep_headers
            if name in request.headers
        }
        key = request.headers.get("idempotency-key")
        return PendingRequest(
            payloads, kept, None if key is None else _header_text(key), size,
            deadline_after(self._settings.acknowledge_within_s), loop, loop.create_future(),
        )  # fmt: skip


def _as_utf8(sent: bytes) -> bytes:
    """Header values are UTF-8 from some clients and Latin-1 from others: both mean the same text."""
    try:
        sent.decode()
    except UnicodeDecodeError:
        return sent.decode("latin-1").encode()
    return sent


def _header_text(value: str) -> str:
    """The text of a header, which the server has read as Latin-1."""
    return _as_utf8(value.encode("latin-1")).decode()


def split(body: bytes, content_type: str) -> list[bytes]:
    """The events of a body: JSON (an array is many), NDJSON lines, or the body as it is.

    Without a content type it is what it looks like. curl names the one of forms where nobody gave it one.
    """
    kind = content_type.partition(";")[0].strip().lower()
    if not body.strip():
        raise Rejected(Reply(400, {"error": "the body is empty"}))
    if kind in NDJSON:
        return [line for line in (line.strip() for line in body.split(b"\n")) if line]
    if kind == "application/json" or kind.endswith("+json"):
        return _json_events(body)
    if kind not in ("", _FORM):
        return [body]
    try:
        return _json_events(body)
    except Rejected:
        if lines := _json_lines(body):
            return lines
        if kind == _FORM:
            return [body]
        raise


def _json_lines(body: bytes) -> list[bytes]:
    """The lines of a body in which each is a JSON object or array; none if it is anything else."""
    lines = [line for line in (line.strip() for line in body.split(b"\n")) if line]
    try:
        if all(isinstance(orjson.loads(line), dict | list) for line in lines):
            return lines
    except ValueError:
        pass
    return []


def _json_events(body: bytes) -> list[bytes]:
    try:
        if body.lstrip()[:1] != b"[":
            orjson.loads(body)
            return [body.strip()]
        return _elements(body.decode())
    except (ValueError, RecursionError) as error:
        raise Rejected(Reply(400, {"error": f"the body is not JSON: {error}"})) from None


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


def _too_large(error: str) -> Reply:
    return Reply(413, {"error": error})


def _response(answer: Reply) -> Response:
    body = orjson.dumps(dict(answer.body)) + b"\n"
    return Response(body, answer.status, headers=dict(answer.headers), media_type="application/json")


def tls_options(settings: Listening) -> dict[str, Any]:
    """For uvicorn. Tried here: a certificate that cannot be used is then an error that can be shown."""
    if settings.cert_file is None:
        return {}
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # A key with a password is an error, not a question on a terminal that is not there.
        context.load_cert_chain(settings.cert_file, settings.key_file, password=lambda: "")
    except (OSError, ValueError) as error:  # ssl's errors are OSErrors
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise SourceError(
            f"cert_file {settings.cert_file} and key_file {settings.key_file} cannot be used: {why}; they "
            "are PEM files, the key without a password"
        ) from error
    return {"ssl_certfile": str(settings.cert_file), "ssl_keyfile": str(settings.key_file)}


def listen(settings: Listening, guard: Guard) -> socket.socket:
    """Bound here, not by the server: a port that is taken is then an error that can be shown."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # The protocol is named because asyncio turns Nagle's delay (40 ms per response) off only then.
    if settings.cert_file is None:
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    else:
        listener = GreetingListener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.guard = guard
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
