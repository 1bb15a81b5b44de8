"""HTTP requests with a deadline for the whole request, and a response of bounded size.

httpx bounds each wait for the network, and a server that sends a byte a second keeps it waiting for ever.
Here a deadline covers the connection, the request, the headers and the body: every read and write of a
request gets what is left of its time. (Only the resolver of names has a time of its own, the system's.) An
answer is read up to a size, and unpacked up to it: a few kilobytes can be gigabytes when they are unpacked.

Whatever else happens is said in two exceptions: `Unsendable`, the request itself is at fault; `NoAnswer`, the
other side, or the way to it. Nothing else is raised.
"""

from __future__ import annotations

import codecs
import functools
import json
import re
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar
from typing import Any

import httpcore
import httpx
from pydantic import SecretStr

_PIECE = 16 * 1024
_PACKED = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
_CHARSETS = re.compile(
    r"utf-(8(-sig)?|(16|32)(-[bl]e)?)|ascii|iso8859-\d+|cp\d+|koi8-[rtu]|mac-\w+|tis-620|hz|johab"
    r"|big5(hkscs)?|gb(k|2312|18030)|(euc|shift)_\w+|iso2022_\w+"
)
"""Those that texts are in, as Python names them. Some of its others take the square of a text's length."""
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_NO_HEADER_TEXT = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_AUTHORIZES = {"authorization", "proxy-authorization"}
_ONLY_SCHEME = re.compile(r"\s*(basic|bearer|digest|token)?\s*", re.IGNORECASE)
_BLANK = re.compile(r"[ \t\n\r]*")


class Unsendable(Exception):
    """The request can never be sent: its address, headers or content are not what HTTP allows."""


class NoAnswer(Exception):
    """There was no answer, or no whole one, in time."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, or as much of it as was wanted."""

    status: int
    phrase: str
    headers: Mapping[str, str]
    body: bytes
    whole: bool = True
    """False: the body is longer than was wanted, or it broke off."""
    trouble: str = ""
    """Why the body is not whole, if it broke off."""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The body as text that UTF-8 can hold, whatever the answer says it is."""
        return _text(self.body, self.headers.get("content-type", ""))


def require_sendable(headers: Mapping[str, SecretStr], token: SecretStr | None) -> None:
    """Raise ValueError for headers that no request can have. The message does not show their values."""
    for name, value in {**headers, "token": token or SecretStr("")}.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be the name of a header")
        if _NO_HEADER_TEXT.search(value.get_secret_value()):
            raise ValueError(f"the value of {name!r} has a line end or another control character in it")
        if name.lower() in _AUTHORIZES and _ONLY_SCHEME.fullmatch(value.get_secret_value()):
            raise ValueError(f"the value of {name!r} is empty but for the scheme")


def host_and_port(url: str) -> tuple[str, int] | None:
    """Where a request to this address goes; None if it is none."""
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        return None
    port = parsed.port or {"http": 80, "https": 443}.get(parsed.scheme)
    return (parsed.host, port) if parsed.host and port else None


def client(
    headers: Mapping[str, str], *, verify_tls: bool, connections: int, ca_file: str | None = None
) -> httpx.Client:
    """A client for `ask`. `ca_file`: what to trust instead of the system's; OSError if it is none."""
    asked = {"Accept-Encoding": "gzip", **headers}
    # As bytes: httpx encodes texts as ASCII, and a token need not be.
    encoded = {name.encode(): value.encode() for name, value in asked.items()}
    made = httpx.Client(
        headers=encoded,
        verify=_trust(ca_file) if verify_tls else False,
        limits=httpx.Limits(max_connections=connections),
        cookies=_NoCookies(),
        event_hooks={"response": [_forget_where_else]},
    )
    for transport in [made._transport, *made._mounts.values()]:  # those of proxies as well
        pool = getattr(transport, "_pool", None)
        if pool is not None:
            pool._network_backend = _Backend()
    return made


def ask(
    by: httpx.Client,
    method: str,
    url: str,
    *,
    content: str | bytes | None = None,
    headers: Mapping[str, str] | None = None,
    seconds: float,
    most_bytes: int,
) -> Reply:
    """Send a request and read its answer. Raises Unsendable or NoAnswer, and nothing else."""
    _time.deadline = time.monotonic() + seconds
    try:
        request = by.build_request(method, url, content=content, headers=dict(headers or {}), timeout=seconds)
    except Exception as error:
        raise Unsendable(_words(error)) from error
    try:
        return _received(by.send(request, stream=True), most_bytes)
    except (httpx.UnsupportedProtocol, httpx.LocalProtocolError, httpx.InvalidURL, UnicodeError) as error:
        raise Unsendable(_words(error)) from error
    except Exception as error:
        raise NoAnswer(_words(error)) from error


def retry_after(reply: Reply, now: datetime | None = None) -> float | None:
    """Seconds the server asks us to wait (Retry-After); it may name a time instead, or nonsense."""
    text = reply.headers.get("retry-after", "").strip()
    try:
        if text.isascii() and text.isdigit():
            return float(text)
        until = parsedate_to_datetime(text)
        until = until if until.tzinfo else until.replace(tzinfo=UTC)
        return max((until - (now or datetime.now(UTC))).total_seconds(), 0.0)
    except (ValueError, TypeError, IndexError, ArithmeticError):
        return None


def read_json(body: bytes) -> tuple[Any, str]:
    """A JSON value and its text. Numbers are texts: nothing is lost of long ones. Raises ValueError."""
    text = _json_text(body)
    value, end = _decoded(text, _blank(text, 0))
    if _blank(text, end) != len(text):
        raise ValueError(f"there is more text after the JSON, at {end}")
    return value, text


def json_elements(body: bytes) -> list[tuple[Any, str]] | None:
    """The elements of a JSON array, each with its own text as it was sent; None if it is none."""
    text = _json_text(body)
    value, _ = read_json(body)
    if not isinstance(value, list):
        return None
    place, found = text.index("[") + 1, []
    for _ in value:
        place = _blank(text, place)
        element, end = _decoded(text, place)
        found.append((element, text[place:end]))
        place = _blank(text, end) + 1  # the comma, or the end
    return found


def _json_text(body: bytes) -> str:
    # Escaped halves of surrogates stay escaped; as bytes they are not UTF-8.
    return body.decode(json.detect_encoding(body)).removeprefix("\ufeff")


def _decoded(text: str, place: int) -> tuple[Any, int]:
    try:
        return _JSON.raw_decode(text, place)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_JSON = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_no_constant)


def _blank(text: str, place: int) -> int:
    match = _BLANK.match(text, place)
    return match.end() if match else place


class _NoCookies(CookieJar):
    """Requests have nothing to do with each other, and would grow with each cookie until they are refused."""

    def extract_cookies(self, response: Any, request: Any) -> None:
        pass


def _forget_where_else(response: httpx.Response) -> None:
    """httpx makes the next request of a redirect even if it is not followed, and fails on odd addresses."""
    response.headers.pop("location", None)


def _received(response: httpx.Response, most_bytes: int) -> Reply:
    headers = {name.lower(): value for name, value in response.headers.items()}
    body, whole, trouble = bytearray(), True, ""
    try:
        for piece in _unpacked(response.iter_raw(), headers.get("content-encoding", ""), most_bytes):
            body += piece
            if len(body) > most_bytes:
                del body[most_bytes:]
                whole = False
                break
    except Exception as error:  # noqa: BLE001 - the status is known: for some it is all that counts
        whole, trouble = False, _words(error)
    finally:
        try:
            response.close()
        except Exception as error:  # noqa: BLE001 - the connection is not used again, and that is all
            trouble = trouble or _words(error)
    return Reply(response.status_code, response.reason_phrase, headers, bytes(body), whole, trouble)


def _unpacked(pieces: Iterable[bytes], encoding: str, most_bytes: int) -> Iterator[bytes]:
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        yield from pieces
        return
    if encoding not in _PACKED:
        raise NoAnswer(f"the answer is packed in a way that was not asked for: {encoding}")
    unpack = zlib.decompressobj(_PACKED[encoding])
    done = 0
    for piece in pieces:
        while piece:
            if unpack.eof:  # another member follows, or zeros that only fill a block up
                piece = piece.lstrip(b"\0")
                if not piece:
                    break
                unpack = zlib.decompressobj(_PACKED[encoding])
            part = unpack.decompress(piece, _PIECE)
            done += len(part)
            yield part
            if done > most_bytes:
                return
            piece = unpack.unconsumed_tail or unpack.unused_data
    yield unpack.flush()
    if not unpack.eof:
        raise NoAnswer("the answer breaks off")


def _text(body: bytes, kind: str) -> str:
    found = re.search(r"charset=[\"']?([\w.:-]{1,40})", kind, re.IGNORECASE)
    try:
        name = codecs.lookup(found[1] if found else "utf-8").name
    except Exception:  # noqa: BLE001 - the name of a charset may be anything
        name = "utf-8"
    text = body.decode(name if _CHARSETS.fullmatch(name) else "utf-8", "replace")
    return text.encode("utf-8", "replace").decode()


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _trust(ca_file: str | None) -> ssl.SSLContext:
    return _trusted() if ca_file is None else ssl.create_default_context(cafile=ca_file)


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Reading the trusted certificates takes longer than a small batch: once per process."""
    return httpx.create_ssl_context()


class _Time(threading.local):
    deadline: float = float("inf")


_time = _Time()
"""When the request of this thread must be over."""


def _left(timeout: float | None, otherwise: type[Exception]) -> float:
    left = _time.deadline - time.monotonic()
    if left <= 0:
        raise otherwise("the request took too long")
    return left if timeout is None else min(timeout, left)


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _left(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _PIECE):
            self._inner.write(buffer[start : start + _PIECE], _left(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, left))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _addresses(host: str, port: int) -> list[str]:
    """Where a name leads, in the system's order."""
    try:
        found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    except OSError as error:
        raise httpcore.ConnectError(_words(error)) from error
    scoped = [(str(one[4][0]), one[4][3] if len(one[4]) == 4 else 0) for one in found]
    return [f"{address}%{scope}" if scope and "%" not in address else address for address, scope in scoped]


class _Backend(httpcore.NetworkBackend):
    """Gives each step of a request what is left of its time."""

    def __init__(self) -> None:
        self._inner = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Any = None,
    ) -> httpcore.NetworkStream:
        failed: Exception = httpcore.ConnectError(f"{host} has no address")
        addresses = _addresses(host, port)
        for tried, address in enumerate(addresses):
            # A share for each: one that is silent must not take the time of one that answers.
            share = _left(timeout, httpcore.ConnectTimeout) / (len(addresses) - tried)
            try:
                return _Stream(self._inner.connect_tcp(address, port, share, local_address, socket_options))
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failed = error
        raise failed

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Any = None
    ) -> httpcore.NetworkStream:
        left = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._inner.connect_unix_socket(path, left, socket_options))
