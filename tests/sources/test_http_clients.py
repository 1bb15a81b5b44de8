"""The http source's server and clients that are slow, silent, greedy or broken. Real sockets, no Spark."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import orjson
import pytest

from signoff.errors import SourceError
from signoff.log import LogReader
from signoff.sources.contract import Resume, SourceContext
from signoff.sources.http import connections as http_guard
from signoff.sources.http import uploads as http_uploads
from signoff.sources.http.requests import Inbox, Reply
from signoff.sources.http.server import HttpServer
from signoff.sources.http.source import ADDRESS_FILE, HttpConfig
from signoff.sources.http.uploads import Rejected, Uploads
from tests.servers import wait_until

HEAD = b"POST / HTTP/1.1\r\nHost: x\r\n"


class Serving:
    """A server whose requests are all settled at once."""

    def __init__(self, base: Path, **fields: Any) -> None:
        config = HttpConfig(port=0, **fields)
        self.inbox = Inbox(config.max_pending, 0)
        self.server = HttpServer(config.build(base)._server_settings(), self.inbox)  # type: ignore[attr-defined]
        self.address = self.server.address
        self.port = httpx.URL(self.address).port or 0
        self._ended = threading.Event()
        self.server.start()
        self.go_on()

    def _settle(self) -> None:
        while not self._ended.is_set():
            for delivery, _, end in self.inbox.take(1000, 0.05):
                if end == delivery.count:
                    self.inbox.in_log(delivery)
                    self.inbox.settled(delivery)
                    delivery.answer(Reply(200, {"events": delivery.count}))

    def pause(self) -> None:
        """Settle nothing until it goes on."""
        self._ended.set()
        self._thread.join()

    def go_on(self) -> None:
        self._ended.clear()
        self._thread = threading.Thread(target=self._settle, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.pause()
        self.server.close()

    def connect(self, open_: ExitStack, address: str = "127.0.0.1") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), 30, source_address=(address, 0))
        return open_.enter_context(client)

    def post(self, **further: Any) -> httpx.Response:
        return httpx.post(self.address, json={"n": 1}, timeout=30, trust_env=False, **further)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serving]]:
    made: list[Serving] = []

    def make(**fields: Any) -> Serving:
        made.append(Serving(tmp_path, **fields))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def open_() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def answer_to(client: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    found = b""
    with suppress(ConnectionResetError):
        while more := client.recv(65_536):
            found += more
    return found


def test_a_body_that_does_not_end_is_answered_408_and_its_bytes_are_given_back(
    serve: Callable[..., Serving], open_: ExitStack
) -> None:
    serving = serve(request_within="1s")
    client = serving.connect(open_)
    client.sendall(HEAD + b"Content-Length: 1000\r\n\r\n" + b" " * 999)
    wait_until(lambda: serving.inbox._bytes == 999)
    said = answer_to(client)
    assert said.startswith(b"HTTP/1.1 408 Request Timeout\r\n") and b"within 1 s (request_within)" in said
    wait_until(lambda: serving.inbox._bytes == 0)
    assert serving.post().status_code == 200


def test_a_client_that_goes_away_in_the_middle_gives_its_bytes_back(
    serve: Callable[..., Serving], open_: ExitStack
) -> None:
    serving = serve()
    client = serving.connect(open_)
    client.sendall(HEAD + b"Content-Length: 1000\r\n\r\n" + b" " * 999)
    wait_until(lambda: serving.inbox._bytes == 999)
    client.close()
    wait_until(lambda: serving.inbox._bytes == 0)


@pytest.mark.parametrize(
    ("sent", "drip", "told"),
    [
        (b"", b"", b""),
        (HEAD, b"X-Slow: 1\r\n", b"408"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", b"408"),
        (HEAD + b"Content-Length: 1000\r\n\r\n", b" ", b"408"),
        (b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", b" ", b"404"),
        (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"G", b"200"),
    ],
    ids=["silence", "headers", "chunks", "body", "a body nobody reads", "after an answer"],
)
def test_dripping_does_not_extend_the_deadline(
    serve: Callable[..., Serving],
    open_: ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    sent: bytes,
    drip: bytes,
    told: bytes,
) -> None:
    monkeypatch.setattr(http_guard, "HEADERS_S", 1.0)
    client = serve(request_within="1s").connect(open_)
    client.sendall(sent)
    client.settimeout(0.1)
    said, until = b"", time.monotonic() + 60
    while time.monotonic() < until:
        try:
            client.sendall(drip)
            more = client.recv(65_536)
        except TimeoutError:
            continue
        except (BrokenPipeError, ConnectionResetError):
            break
        if not more:
            break
        said += more
    else:
        pytest.fail("the connection is still open")
    assert told in said.partition(b"\r\n")[0]


def test_one_address_has_its_share_of_the_connections_and_others_get_in(
    serve: Callable[..., Serving], open_: ExitStack
) -> None:
    serving = serve(max_connections=6)
    idle = [serving.connect(open_) for _ in range(3)]
    one_more = serving.connect(open_)
    assert b"429 Too Many Requests" in (said := answer_to(one_more)) and b"max_connections_per_client" in said
    assert _post_from(serving, "127.0.0.2") == 200
    for address in ("127.0.0.3", "127.0.0.4", "127.0.0.5"):
        serving.connect(open_, address)
    wait_until(lambda: b"503 Service Unavailable" in answer_to(serving.connect(open_, "127.0.0.6")))
    for client in idle:
        client.close()
    wait_until(lambda: _post_from(serving, "127.0.0.1") == 200)


def _post_from(serving: Serving, address: str) -> int:
    transport = httpx.HTTPTransport(local_address=address)
    with httpx.Client(transport=transport, timeout=30) as client:
        return client.post(serving.address, json={"n": 1}).status_code


def test_bodies_that_do_not_come_forward_make_room_for_those_that_do(
    serve: Callable[..., Serving], open_: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_uploads, "_STALLED_S", 0.2)
    monkeypatch.setattr("signoff.sources.http.requests.WAITING_BYTES", 3000)
    monkeypatch.setattr(http_uploads, "_CLIENT_BYTES", 3000)
    serving = serve()
    slow = serving.connect(open_)
    slow.sendall(HEAD + b"Content-Length: 4000\r\n\r\n" + b" " * 2990)
    wait_until(lambda: serving.inbox._bytes == 2990)
    wait_until(lambda: httpx.post(serving.address, json="x" * 2000, timeout=30).status_code == 200)
    said = answer_to(slow)
    assert said.startswith(b"HTTP/1.1 408") and b"others needed its room" in said
    wait_until(lambda: serving.inbox._bytes == 0)


@pytest.mark.parametrize("last", [b"", b"the last line"])
def test_a_body_that_ends_in_the_moment_it_is_given_up_is_no_event(
    serve: Callable[..., Serving], last: bytes
) -> None:
    server, now = serve().server, [0.0]
    uploads = Uploads(server._inbox, lambda: now[0])
    slow = uploads.begin("slow")

    async def arriving() -> AsyncIterator[bytes]:
        yield b"the first half"
        now[0] = 10.0
        assert uploads._cut_slowest([slow])  # by another body, whose bytes are read in the same turn
        yield last

    with pytest.raises(Rejected, match="others needed its room") as refused:
        asyncio.run(server._body(SimpleNamespace(headers={}, stream=arriving), slow))  # type: ignore[arg-type]
    assert refused.value.answer.status == 408
    slow.end()
    assert server._inbox._bytes == 0


def test_one_address_has_half_of_the_room_for_unfinished_bodies_once_others_need_it() -> None:
    now = [0.0]
    uploads = Uploads(Inbox(100, 0), lambda: now[0])
    one, two, other = uploads.begin("a"), uploads.begin("a"), uploads.begin("b")
    one.add(b" " * (http_uploads._CLIENT_BYTES - 10))
    now[0] = 0.5
    two.add(b" " * 11)  # more than half, and nobody minds
    two.add(b" " * (http_uploads._CLIENT_BYTES - 1))
    with pytest.raises(Rejected, match="from your address") as refused:
        two.add(b" ")
    assert refused.value.answer.status == 429
    other.add(b" " * 20)
    assert (one.size, one.ended, two.ended) == (0, True, False)
    other.add(b" " * (http_uploads._CLIENT_BYTES - 30))
    with pytest.raises(Rejected, match="more requests than the log takes"):
        other.add(b" " * 11)  # neither has bodies it can be asked to give up
    now[0] = 10.0
    other.add(b" " * 11)
    assert (two.size, uploads.inbox._bytes) == (0, other.size)
    for each in (one, two, other):
        each.end()
        each.end()
    assert uploads.inbox._bytes == 0


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"Content-Length: 5\r\n\r\n[1] \nGARBAGE\r\n\r\n",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n12",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"X: \x00\x01\r\nContent-Length: 1\r\n\r\n1",
        HEAD + b"X-Long: " + b"x" * 100_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b",
        HEAD + b"Idempotency-Key: \xff\xfe\r\nContent-Length: 1\r\n\r\n1",
        b"POST /%ff%00 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n1",
    ],
)
def test_what_is_no_request_ends_its_connection_and_no_other(
    serve: Callable[..., Serving], open_: ExitStack, sent: bytes
) -> None:
    serving = serve(request_within="2s")
    client = serving.connect(open_)
    with suppress(ConnectionResetError, BrokenPipeError):
        client.sendall(sent)
    answer_to(client)
    assert serving.post().status_code == 200
    wait_until(lambda: serving.inbox._bytes == 0)


@pytest.mark.case(46)
def test_bytes_behind_the_last_request_do_not_take_its_answer_away(
    serve: Callable[..., Serving], open_: ExitStack
) -> None:
    serving = serve()
    serving.pause()
    client = serving.connect(open_)
    client.sendall(HEAD + b"Connection: close\r\nContent-Length: 1\r\n\r\n7")
    wait_until(lambda: serving.inbox.pending == 1, what="the request is taken")
    client.sendall(b"more")
    # Answered by the same thread, after it has seen those bytes.
    assert httpx.get(f"http://127.0.0.1:{serving.port}/health", trust_env=False).json()["pending"] == 1
    serving.go_on()
    # Its events were taken: 400 would say that they were not.
    assert b"HTTP/1.1 200" in client.recv(1000)


def test_pipelined_requests_are_answered_in_order(serve: Callable[..., Serving], open_: ExitStack) -> None:
    client = serve().connect(open_)
    client.sendall((HEAD + b"Content-Length: 3\r\n\r\n[1]") * 20 + b"GET /health HTTP/1.0\r\n\r\n")
    assert answer_to(client).count(b"HTTP/1.1 200 OK") == 21


@pytest.mark.parametrize(
    ("requests", "last"),
    [(2000, b""), (300, b"GET /health HTTP/1.0\r\n\r\n"), (300, b"NONSENSE\r\n\r\n"), (300, b"")],
    ids=["many answers", "the last one closes", "no request", "silent after it"],
)
def test_a_client_that_does_not_read_its_answers_loses_its_connection(
    serve: Callable[..., Serving], open_: ExitStack, requests: int, last: bytes
) -> None:
    serving = serve(request_within="1s")
    serving.server._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    client = open_.enter_context(socket.socket())
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", serving.port))
    connections = serving.server._server.server_state.connections
    wait_until(lambda: len(connections) == 1)
    client.settimeout(60)
    with suppress(ConnectionResetError, BrokenPipeError):  # it may be cut off while it goes on asking
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * requests + last)
    wait_until(lambda: not connections)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_token_need_not_be_ascii(serve: Callable[..., Serving], encoding: str) -> None:
    serving = serve(token="schl\u00fcssel")
    assert (
        serving.post(headers={"Authorization": "Bearer schl\u00fcssel".encode(encoding)}).status_code == 200
    )
    assert serving.post(headers={"Authorization": "Bearer schlussel"}).status_code == 401


def test_why_somebody_is_not_ready_is_said_only_with_the_token(tmp_path: Path) -> None:
    for token, given, says in (("t", "t", "pw"), ("t", "x", None), ("t", None, None), (None, None, "pw")):
        settings = HttpConfig(port=0, token=token).build(tmp_path)._server_settings()  # type: ignore[attr-defined, arg-type]
        server = HttpServer(settings, Inbox(1, 0), lambda: {"table": "host db, user x: pw"})
        server.start()
        try:
            headers = {} if given is None else {"Authorization": f"Bearer {given}"}
            answer = httpx.get(f"{server.address}ready", headers=headers)
        finally:
            server.close()
        assert answer.status_code == 503 and list(answer.json()["not_ready"]) == ["table"]
        assert ("user x" in answer.text) is (says is not None)


def test_a_request_of_which_only_a_part_is_in_the_log_in_time_is_answered(tmp_path: Path) -> None:
    source = HttpConfig(port=0, acknowledge_within=0.2).build(tmp_path)
    context = SourceContext(
        "incoming", tmp_path, False, tmp_path, LogReader(tmp_path / "log"), state=tmp_path
    )
    source.open(context, Resume(0, None, None, 0))
    answers: list[httpx.Response] = []
    address = orjson.loads((tmp_path / ADDRESS_FILE).read_bytes())["address"]
    asks = threading.Thread(
        target=lambda: answers.append(httpx.post(address, content=b"[1,2,3]", timeout=60)), daemon=True
    )
    asks.start()
    try:
        wait_until(lambda: source.receive(2, 0.1) is not None)
        source.logged(0, 2)

        def answered() -> bool:
            source.tend()  # the log is full: nothing more is received
            assert source.expire() == {}
            return bool(answers)

        wait_until(answered)
        assert answers[0].status_code == 503 and "it counts as expired" in answers[0].text
        assert source.receive(2, 0.1) is not None  # there is room again
        source.logged(2, 1)
        assert set(source.expire()) == {0, 1, 2}
    finally:
        source.close()
        asks.join()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    directory = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    command += ["-keyout", str(directory / "key.pem"), "-out", str(directory / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)
    return directory


def test_with_a_certificate_the_source_speaks_tls_only(
    serve: Callable[..., Serving], open_: ExitStack, certificate: Path
) -> None:
    serving = serve(cert_file=str(certificate / "cert.pem"), key_file=str(certificate / "key.pem"))
    assert serving.address.startswith("https://")
    trusting = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    assert serving.post(verify=trusting).json() == {"events": 1}
    with pytest.raises(httpx.ConnectError):
        serving.post()  # nobody vouches for it
    plain = serving.connect(open_)
    plain.sendall(b"GET /health HTTP/1.1\r\n\r\n")
    assert not answer_to(plain).startswith(b"HTTP")


def test_a_silent_tls_handshake_is_over_in_time(
    serve: Callable[..., Serving], open_: ExitStack, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signoff.sources.http.server.HEADERS_S", 1.0)
    serving = serve(cert_file=str(certificate / "cert.pem"), key_file=str(certificate / "key.pem"))
    assert answer_to(serving.connect(open_)) == b""


def test_one_address_has_its_share_of_the_unfinished_handshakes(
    serve: Callable[..., Serving], open_: ExitStack, certificate: Path
) -> None:
    serving = serve(
        max_connections=4, cert_file=str(certificate / "cert.pem"), key_file=str(certificate / "key.pem")
    )
    silent = [serving.connect(open_) for _ in range(2)]
    assert answer_to(serving.connect(open_)) == b""  # at once, and not after the handshake's time
    for client in silent:
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
    trusting = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    transport = httpx.HTTPTransport(local_address="127.0.0.2", verify=trusting)
    with httpx.Client(transport=transport, timeout=30) as other:
        assert other.post(serving.address, json=1).status_code == 200
    for client in silent:
        client.close()
    wait_until(lambda: _answers(serving, trusting))


def _answers(serving: Serving, trusting: ssl.SSLContext) -> bool:
    try:
        return serving.post(verify=trusting).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize(
    ("cert", "key"), [("cert.pem", "none.pem"), ("key.pem", "key.pem"), ("cert.pem", "cert.pem")]
)
def test_a_certificate_that_cannot_be_used_is_an_error_at_the_start(
    tmp_path: Path, certificate: Path, cert: str, key: str
) -> None:
    with pytest.raises(SourceError, match=r"cannot be used: .*; they are PEM files"):
        Serving(tmp_path, cert_file=str(certificate / cert), key_file=str(certificate / key))


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(ValueError, match="belong together"):
        HttpConfig(cert_file="cert.pem")
