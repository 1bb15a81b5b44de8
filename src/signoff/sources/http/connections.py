"""Connections of the http source: how many there may be, and how long a request may take to arrive.

uvicorn ends a connection that is silent after a response, and no other. Invariants here: a connection that
sends no request, or one that does not come to its end, or that does not read its answers, is over after its
deadline, whatever it sends meanwhile; one client address has at most its share of the connections, and of the
TLS handshakes that are not finished; a client that is turned away is told why (408, 429, 503), unless that is
before its handshake.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections import Counter
from typing import Any, ClassVar

import h11
import orjson
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADERS_S = 10.0
"""How long the headers of a request may take, also its TLS handshake, and a connection be silent."""
_LINGER_S = 1.0
"""How long a client that was turned away may read its answer: closing at once could take it away from it."""
_OTHER_FILES = 256
"""What else the process has open."""
_PHRASES = {408: b"Request Timeout", 429: b"Too Many Requests", 503: b"Service Unavailable"}


class Guard:
    """Counts the connections of one server."""

    def __init__(self, most: int, most_per_client: int, request_within_s: float) -> None:
        self.most, self.most_per_client = most, most_per_client
        self.request_within_s = request_within_s
        self.headers_within_s = min(HEADERS_S, request_within_s)
        self._open: Counter[str] = Counter()
        self._greeting: dict[Any, str] = {}
        """Connections in their TLS handshake, by the address and port of the other end."""
        _allow_files(2 * most + _OTHER_FILES)

    def enter(self, client: str) -> tuple[int, str] | None:
        """Count a connection; or status and sentence for one that is too many."""
        if self._open.total() >= self.most:
            return 503, f"there are {self.most} connections already (max_connections); try again later"
        if self._open[client] >= self.most_per_client:
            most = self.most_per_client
            return 429, f"your address has {most} connections already (max_connections_per_client)"
        self._open[client] += 1
        return None

    def leave(self, client: str) -> None:
        self._open[client] -= 1
        if self._open[client] <= 0:
            del self._open[client]

    def greet(self, peer: Any) -> bool:
        """Count a TLS handshake that begins; false if its address, or all together, have too many."""
        client = str(peer[0])
        own = sum(1 for each in self._greeting.values() if each == client)
        if own >= self.most_per_client or len(self._greeting) >= self.most:
            return False
        self._greeting[peer] = client
        return True

    def greeted(self, peer: Any) -> None:
        """The handshake is over, in whatever way. May be called again."""
        self._greeting.pop(peer, None)

    def said(self, status: int, error: str) -> dict[str, Any]:
        """The answer to a client that is turned away."""
        return {"error": error}

    def protocol(self) -> type[GuardedProtocol]:
        """uvicorn's protocol, under this guard."""
        return type("GuardedProtocol", (GuardedProtocol,), {"guard": self})


class GreetingListener(socket.socket):
    """A listener for TLS: asyncio shows a connection to its protocol only after the handshake, so that those
    before it are counted where they are accepted. One too many is closed without a word: there is no way yet
    to say anything to it."""

    guard: Guard

    def accept(self) -> tuple[socket.socket, Any]:
        while True:
            connection, peer = super().accept()
            if self.guard.greet(peer):
                return _Greeting(self.guard, peer, connection), peer
            connection.close()


class _Greeting(socket.socket):
    """An accepted connection, which is forgotten when it is closed."""

    def __init__(self, guard: Guard, peer: Any, taken: socket.socket) -> None:
        super().__init__(taken.family, taken.type, taken.proto, fileno=taken.detach())
        self._guard, self._peer = guard, peer

    def close(self) -> None:
        self._guard.greeted(self._peer)
        super().close()


class GuardedProtocol(H11Protocol):
    """One connection. A timer runs while a request is expected or arrives, and not while it is answered;
    another one while answers wait to be read."""

    guard: ClassVar[Guard]
    _address = ""
    _counted = False
    _turned_away = False
    _phase: Any = None
    """What is awaited of the client: h11's IDLE (headers), SEND_BODY, or None."""
    _timer: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.guard.greeted(transport.get_extra_info("peername"))
        self._address = self.client[0] if self.client else ""
        refusal = self.guard.enter(self._address)
        self._counted = refusal is None
        if refusal is not None:
            self._turn_away(*refusal)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._counted:
            self._counted = False
            self.guard.leave(self._address)
        self._stop_timer()
        self._stop_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # What follows the last request of a connection is not looked at: it would be answered 400 in the
        # place of that request, whose events may have been taken.
        if self._turned_away or self.conn.their_state in (h11.MUST_CLOSE, h11.CLOSED, h11.ERROR):
            return
        super().data_received(data)
        self._watch()

    def send_400_response(self, msg: str) -> None:
        """Of what is not HTTP the client is told, unless its answer has begun or may have no body (HEAD). Who
        works on the request lets go of it: it has had its answer."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:
            self.transport.close()
        self._end_unread(_LINGER_S)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()
        if self.transport.is_closing():
            self._end_unread(self.guard.request_within_s)

    def pause_writing(self) -> None:
        """Answers have piled up that the client does not read."""
        super().pause_writing()
        self._end_unread(self.guard.request_within_s)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._stop_unread()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._end_unread(_LINGER_S)

    def _end_unread(self, seconds: float) -> None:
        """End the connection if what was written to it has not gone out by then: a close alone waits for
        that without a limit."""
        if self._unread is None:
            self._unread = self.loop.call_later(seconds, self.transport.abort)

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
        self._unread = None

    def _watch(self) -> None:
        """Begin the time of what is awaited now, unless it runs already."""
        state = self.conn.their_state
        phase = state if state in (h11.IDLE, h11.SEND_BODY) and not self._turned_away else None
        if phase is self._phase:
            return
        self._stop_timer()
        self._phase = phase
        if phase is not None:
            guard = self.guard
            seconds = guard.headers_within_s if phase is h11.IDLE else guard.request_within_s
            self._timer = self.loop.call_later(seconds, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._phase = None

    def _too_slow(self) -> None:
        if self.transport.is_closing():
            return
        guard, cycle = self.guard, self.cycle
        if self._phase is h11.SEND_BODY and cycle.response_started:
            self.transport.abort()  # it was answered, and goes on sending
        elif self._phase is h11.SEND_BODY:
            cycle.disconnected = True  # who reads the body lets go of what has come
            cycle.message_event.set()
            self._turn_away(
                408, f"the request did not arrive within {guard.request_within_s:g} s (request_within)"
            )
        elif self.conn.trailing_data[0]:
            self._turn_away(408, f"the headers did not arrive within {guard.headers_within_s:g} s")
        else:
            self.transport.close()
            self._end_unread(_LINGER_S)

    def _turn_away(self, status: int, error: str) -> None:
        """Answer past h11, which may be anywhere in a request, and read no more."""
        self._turned_away = True
        self._stop_timer()
        self._unset_keepalive_if_required()
        body = orjson.dumps(self.guard.said(status, error)) + b"\n"
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nretry-after: 1\r\n"
            b"connection: close\r\n\r\n%s" % (status, _PHRASES[status], len(body), body)
        )
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.abort)


def _allow_files(count: int) -> None:
    """A connection is an open file; where the limit is lower than the user's, it is raised if it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
