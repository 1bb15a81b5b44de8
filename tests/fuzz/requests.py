"""Requests, byte by byte: each one is answered, and what was answered 200 was an event.

The bytes go into the protocol that the server gives each connection, without a socket between them, so that
thousands a second can be tried. The source behind it is whole: its events are taken, get their numbers and
are settled, as the intake does it.
"""

from __future__ import annotations

import asyncio
import atexit
import gzip
import logging
import random
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from pyroaring import BitMap64
from uvicorn.server import ServerState

from signoff.sources.contract import Resume, Settlement, SourceContext
from signoff.sources.http.source import HttpConfig, HttpSource
from tests.fuzz.targets import mutated, target

ANSWERS = {200, 400, 401, 404, 405, 408, 413, 415, 422, 429, 503}
"""What docs/sources.md says a request may be answered; 404 and 405 are the server's own."""
TURNS = 400
"""So often the loop may go round until a request must have been answered."""
KINDS = (
    "application/json", "application/x-ndjson", "application/vnd.a+json", "text/plain", "text/csv", "",
    "APPLICATION/JSON; charset=utf-16", ";", "\xff", "application/x-ndjson;;", "multipart/form-data",
)  # fmt: skip
ENCODINGS = ("identity", "gzip", "deflate", "br", "zstd", "bzip2", "", "gzip, gzip", "\xff", "GZIP")
BODIES = (
    b'{"a":1}', b'[{"a":1},{"a":2}]', b'{"a":1}\n{"a":2}\n\n{"a":3}', b"[]", b"", b"[1,]", b"[1 2]", b"[[[",
    b"[" * 2_000, b"\xff\xfe", b'["\\ud800"]', b"[1e999, NaN]", b"[" + b"9" * 5_000 + b"]", b"null", b"1",
    b'{"a":1}{"b":2}', b" \r\n\t", b"[1]x", b'"\x00"', b"[" + b"1," * 300 + b"1]", b"\xef\xbb\xbf[1]",
)  # fmt: skip


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closing = False
        self.lost: Callable[[], object] = lambda: None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("192.0.2.1", 5), "sockname": ("192.0.2.2", 80)}.get(name, default)

    def write(self, data: Any) -> None:
        self.written += data

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            self.lost()

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Complaints(logging.Handler):
    """What would be a traceback in the log."""

    def __init__(self, found: list[str]) -> None:
        super().__init__()
        self.found = found

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))


class Server:
    """A source, and a loop in which connections to it are tried."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        # What uvicorn says of requests that are none would be most of the output.
        logger = logging.getLogger("uvicorn.error")
        logger.setLevel(logging.ERROR)
        logger.addHandler(Complaints(self.complaints))
        self.loop = asyncio.new_event_loop()
        self.troubles: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.troubles.append(context))
        config = HttpConfig(port=0, token="t", max_body_bytes=3_000, max_event_bytes=1_000,
                            keep_headers=("x-kept",), max_pending=250)  # type: ignore[arg-type]  # fmt: skip
        self.source = HttpSource(config)
        folder = Path(tempfile.mkdtemp(prefix="signoff-fuzz-"))
        self.source.open(SourceContext("s", folder, False, folder), Resume(0))
        atexit.register(self.source.close)
        inner: uvicorn.Server = self.source._server._server
        self.config, self.state = inner.config, ServerState()
        if not self.config.loaded:
            self.config.load()
        self.sequence = 0

    def connect(self) -> tuple[Any, Transport]:
        protocol: Any = self.config.http_protocol_class
        made = protocol(config=self.config, server_state=self.state, app_state={}, _loop=self.loop)
        transport = Transport()
        # asyncio tells it one turn later.
        transport.lost = lambda: self.loop.call_soon(made.connection_lost, None)
        made.connection_made(transport)
        return made, transport

    def turn(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def take(self, generator: random.Random) -> int:
        """What the intake does; returns how many events there were."""
        batch = self.source.receive(generator.choice((1, 7, 1000)), 0)
        if batch is None:
            return 0
        first, count = self.sequence, batch.num_rows
        batch.validate(full=True)
        self.source.logged(first, count)
        self.sequence += count
        fate = generator.random()
        numbers = range(first, first + count)
        if fate < 0.8:
            self.source.settle(Settlement(BitMap64(numbers)))
        elif fate < 0.9:
            self.source.settle(Settlement(BitMap64(), refused=dict.fromkeys(numbers, "no")))
        else:
            self.source.settle(Settlement(BitMap64(), expired=dict.fromkeys(numbers, "late")))
        return count


_made: list[Server] = []


def server() -> Server:
    if not _made:
        _made.append(Server())
    return _made[0]


def _request(generator: random.Random) -> bytes:
    body = generator.choice(BODIES)
    if generator.random() < 0.3:
        body = mutated(generator, body)
    if generator.random() < 0.1:
        body = gzip.compress(body)
    method = generator.choice(("POST",) * 8 + ("GET", "PUT", "HEAD", "OPTIONS", "post", "\xff"))
    path = generator.choice(
        ("/",) * 8 + ("/health", "/x", "*", "//", "/%ff", "/?a=%00", "http://a/", "/\xff")
    )
    lines = [f"{method} {path} HTTP/1.1", "Host: a"]
    if generator.random() < 0.9:
        lines.append("Authorization: Bearer t")
    if generator.random() < 0.8:
        lines.append(f"Content-Type: {generator.choice(KINDS)}")
    if generator.random() < 0.15:
        lines.append(f"Content-Encoding: {generator.choice(ENCODINGS)}")
    if generator.random() < 0.3:
        lines.append(f"Idempotency-Key: {generator.choice(('k', '', 'é', 'x' * 500, chr(255)))}")
    if generator.random() < 0.3:
        lines.append(f"X-Kept: {generator.choice(('v', '', 'é' * 9, chr(127)))}")
    if generator.random() < 0.1:
        lines.append(generator.choice(("Expect: 100-continue", "Connection: close", "Upgrade: websocket",
                                       "Connection: upgrade", "Content-Length: 0",
                                       "X: " + "y" * 70_000)))  # fmt: skip
    chunked = generator.random() < 0.3
    if chunked:
        lines.append("Transfer-Encoding: chunked")
        size = generator.randint(1, 9)
        parts = [body[start : start + size] for start in range(0, len(body), size)]
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    elif generator.random() < 0.95:
        wrong = generator.choice((-1, 1, 10_000)) if generator.random() < 0.1 else 0
        lines.append(f"Content-Length: {max(0, len(body) + wrong)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@target("http", weight=40)
def requests(generator: random.Random) -> None:
    """One connection, with one request or several on it, in pieces of any size."""
    web = server()
    data = b"".join(_request(generator) for _ in range(generator.choice((1, 1, 1, 2, 3))))
    if generator.random() < 0.3:
        data = mutated(generator, data, most=4)
    protocol, transport = web.connect()
    events, place = 0, 0
    try:
        while place < len(data) and not transport.closing:
            size = generator.choice((1, 20, 200, 5_000, 100_000))
            protocol.data_received(data[place : place + size])
            place += size
            if generator.random() < 0.3:
                web.turn()
                events += web.take(generator)
        events += _until_answered(web, protocol, generator)
    finally:
        transport.close()
        events += _until_idle(web, generator)
    _judge(bytes(transport.written), events)


def _until_answered(web: Server, protocol: Any, generator: random.Random) -> int:
    """Go on until nothing is being answered; what waits for more bytes is left."""
    events = 0
    for _ in range(TURNS):
        web.turn()
        taken = web.take(generator)
        events += taken
        cycle = protocol.cycle
        waits = cycle is None or cycle.response_complete or cycle.more_body or cycle.disconnected
        if not taken and waits and not web.source._inbox.pending:
            return events
    raise AssertionError("a request is not answered")


def _until_idle(web: Server, generator: random.Random) -> int:
    events = 0
    for _ in range(TURNS):
        web.turn()
        events += web.take(generator)
        if not web.state.tasks and not web.state.connections and not web.source._inbox.pending:
            break
    else:
        raise AssertionError("a request goes on after its connection is gone")
    assert not web.source._inbox._bytes, "bytes of a request that is over are held"
    assert not web.source._server._uploads._open, "a body that is over is still arriving"
    said = [*web.complaints, *map(str, web.troubles)]
    web.complaints.clear(), web.troubles.clear()
    assert not said, "\n".join(said)
    assert not web.config.http_protocol_class.guard._open, "a connection that is over is counted"
    return events


def _judge(written: bytes, events: int) -> None:
    said = 0
    for status, rest in re.findall(rb"HTTP/1\.1 (\d+) (.*?)(?=HTTP/1\.1 |\Z)", written, re.DOTALL):
        if status == b"100":
            continue
        assert int(status) in ANSWERS, written
        found = re.search(rb"\r\n\r\n(\{.*\})\n", rest, re.DOTALL)
        body = orjson.loads(found[1]) if found else {}
        if status in (b"200", b"422", b"503"):
            said += body.get("events", 0)
    assert said == events, (said, events, written)
