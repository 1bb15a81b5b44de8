"""Real servers for tests: a webhook receiver that does what it is told, and a private PostgreSQL.

with WebhookServer() as server:
    server.answer(503, when=lambda request: "17" in request.ids, times=2)
    hold = server.hold()                       # requests arrive, and get no answer yet
    ...                                        # run the pipeline against server.url
    hold.wait_for(1)
    hold.release()
    assert server.accepted_ids == ["incoming/0"]

with private_postgres() as postgres:
    psycopg.connect(postgres.url)
    postgres.kill(); postgres.start()

A private RabbitMQ is in `tests.brokers`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import psutil

PATIENCE_S = 180.0
"""Only a test that fails waits so long: a busy machine starts a Spark in a minute."""


_chance = random.SystemRandom()  # the other is seeded by Hypothesis, in every worker the same


def wait_until(condition: Callable[[], Any], timeout_s: float = PATIENCE_S, what: str = "") -> Any:
    """Return the condition's first true value; fail when there is none in time."""
    started = time.monotonic()
    while True:
        if value := condition():
            return value
        waited = time.monotonic() - started
        if waited > timeout_s:
            raise AssertionError(f"not within {timeout_s} s: {what or condition}")
        time.sleep(min(0.05, 0.005 + waited / 50))


def free_port() -> int:
    """A port nobody listens on, of those that no connection is given: a server that is down for a while,
    or not up yet, would else find its port taken by somebody's outgoing connection."""
    while True:
        port = _chance.randrange(15_000, 32_000)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


@dataclass
class Request:
    """One request as it arrived, and the answer it got."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    at: float
    """`time.monotonic()` of its arrival."""
    status: int | None = None
    """None while no answer has been sent."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows in the body: of an object, of an array, or of lines."""
        text = self.body.decode()
        if self.headers.get("content-type") == "application/x-ndjson":
            return [json.loads(line) for line in text.splitlines()]
        value = json.loads(text)
        return value if isinstance(value, list) else [value]

    @property
    def ids(self) -> list[str]:
        return [row["event_id"] for row in self.rows]


Predicate = Callable[[Request], bool]


@dataclass
class Rule:
    """How to answer the requests it fits. `stop` ends it."""

    status: int
    when: Predicate
    times: int | None
    """How many requests it answers; None: no limit."""
    body: bytes | Callable[[Request], str]
    headers: dict[str, str]
    used: int = 0

    def fits(self, request: Request) -> bool:
        return (self.times is None or self.used < self.times) and self.when(request)

    def stop(self) -> None:
        self.times = 0


@dataclass
class Hold:
    """Requests it fits wait, unanswered, until `release`; then they are answered by the rules."""

    when: Predicate
    held: list[Request] = field(default_factory=list)
    _released: threading.Event = field(default_factory=threading.Event)

    def wait_for(self, requests: int = 1, timeout_s: float = PATIENCE_S) -> list[Request]:
        """Wait until at least so many requests are held, and return them."""
        wait_until(lambda: len(self.held) >= requests, timeout_s, f"{requests} held requests")
        return list(self.held)

    def release(self) -> None:
        self._released.set()

    def _fits(self, request: Request) -> bool:
        return not self._released.is_set() and self.when(request)


class WebhookServer:
    """An HTTP/1.1 server on a port of its own that answers 200 until it is told otherwise.

    The newest rule or hold that fits decides. All methods may be called from any thread, at any time.
    """

    def __init__(self, path: str = "/events") -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}{path}"
        self.requests: list[Request] = []
        """Every request that arrived, in order, answered or not."""
        self.most_at_once = 0
        """Most requests that were waiting for an answer at the same time."""
        self._open = 0
        self._lock = threading.RLock()
        self._rules: list[Rule] = []
        self._holds: list[Hold] = []
        self._server: _Server | None = None

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        for hold in self._holds:
            hold.release()
        self.down()

    def answer(
        self,
        status: int,
        when: Predicate = lambda _: True,
        *,
        times: int | None = None,
        body: str | Callable[[Request], str] = "",
        headers: dict[str, str] | None = None,
    ) -> Rule:
        """From now on, answer requests that fit with this status, and with a body that may depend on them."""
        rule = Rule(status, when, times, body.encode() if isinstance(body, str) else body, headers or {})
        with self._lock:
            self._rules.insert(0, rule)
        return rule

    def answer_rows(self, status: int, ids: set[str], *, times: int | None = None, body: str = "") -> Rule:
        """From now on, answer requests that hold one of these event ids with this status."""
        return self.answer(status, lambda request: bool(ids & set(request.ids)), times=times, body=body)

    def hold(self, when: Predicate = lambda _: True) -> Hold:
        """From now on, keep requests that fit waiting until the hold is released."""
        hold = Hold(when)
        with self._lock:
            self._holds.insert(0, hold)
        return hold

    def down(self) -> None:
        """Refuse connections, and cut those that are open. What was recorded stays."""
        server, self._server = self._server, None
        if server is not None:
            server.stop()

    def up(self) -> None:
        """Listen again, on the same port."""
        if self._server is None:
            self._server = _Server(self)

    @property
    def accepted(self) -> list[dict[str, Any]]:
        """The rows of all requests answered with 2xx, in the order of arrival."""
        with self._lock:
            taken = [one for one in self.requests if one.status is not None and 200 <= one.status < 300]
        return [row for request in taken for row in request.rows]

    @property
    def accepted_ids(self) -> list[str]:
        return [row["event_id"] for row in self.accepted]

    def wait_for(self, condition: Callable[[WebhookServer], Any], timeout_s: float = PATIENCE_S) -> Any:
        """Wait until the condition holds: `server.wait_for(lambda s: len(s.accepted) == 3)`."""
        return wait_until(lambda: condition(self), timeout_s)

    def _answered(self) -> None:
        with self._lock:
            self._open -= 1

    def _arrived(self, request: Request) -> Rule:
        """Record a request, keep it waiting if a hold says so, and choose its answer."""
        with self._lock:
            self.requests.append(request)
            self._open += 1
            self.most_at_once = max(self.most_at_once, self._open)
            hold = next((one for one in self._holds if one._fits(request)), None)
            if hold is not None:
                hold.held.append(request)
        if hold is not None:
            hold._released.wait()
        with self._lock:
            rule = next((one for one in self._rules if one.fits(request)), None)
            rule = rule or Rule(200, lambda _: True, None, b"", {})
            rule.used += 1
            return rule


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, webhook: WebhookServer) -> None:
        self.webhook = webhook
        self.open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", webhook.port), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()
        for connection in list(self.open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.open.add(self.connection)

    def finish(self) -> None:
        self.server.open.discard(self.connection)
        with suppress(OSError):
            super().finish()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers, body, time.monotonic())
        rule = self.server.webhook._arrived(request)
        if self.connection not in self.server.open or self.server.webhook._server is not self.server:
            self.close_connection = True  # the server went down while the request was held
            return
        body = rule.body if isinstance(rule.body, bytes) else rule.body(request).encode()
        request.status = rule.status
        self.send_response(rule.status)
        for name, value in {"Content-Length": str(len(body)), **rule.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.server.webhook._answered()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


def postgres_programs() -> Path | None:
    """The directory of PostgreSQL's server programs, or None where it is not installed."""
    if found := shutil.which("pg_ctl"):
        return Path(found).resolve().parent
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"))
    return installed[-1].parent if installed else None


class PostgresServer:
    """A PostgreSQL of this process alone, on a port of its own; runs as another user under root."""

    def __init__(self, programs: Path, directory: Path) -> None:
        self.port = free_port()
        self.url = f"postgresql://postgres:not-checked@127.0.0.1:{self.port}/postgres"
        self._programs = programs
        self._directory = directory
        # PostgreSQL refuses to run as root.
        user = ["--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        self._as_user = ["setpriv", *user] if os.geteuid() == 0 else []
        if self._as_user:
            shutil.chown(directory, "nobody", "nogroup")
        self._run("initdb", "-A", "trust", "-U", "postgres", "--no-sync", "-D", str(self._data))

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self._directory}"
        log = str(self._directory / "log")
        self._run("pg_ctl", "-D", str(self._data), "-w", "-l", log, "-o", options, "start")

    def stop(self) -> None:
        """Stop at once, cutting all connections; what was committed stays."""
        self._run("pg_ctl", "-D", str(self._data), "-w", "-m", "immediate", "stop")

    def kill(self) -> None:
        """SIGKILL the server and its children, as a power cut would."""
        server = psutil.Process(int((self._data / "postmaster.pid").read_text().split()[0]))
        server.suspend()  # or it would replace the children
        processes = [*server.children(recursive=True), server]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=PATIENCE_S)

    def _run(self, program: str, *arguments: str) -> None:
        command = [*self._as_user, str(self._programs / program), *arguments]
        # Not a pipe: the server would inherit it and keep it open.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(command, stdout=output, stderr=output, cwd=self._directory)
            output.seek(0)
            if done.returncode:
                raise RuntimeError(f"{program} failed: {output.read().decode(errors='replace')}")


@contextmanager
def private_postgres() -> Iterator[PostgresServer]:
    """A running PostgreSQL that is gone afterwards. Raises FileNotFoundError where it is not installed."""
    programs = postgres_programs()
    if programs is None:
        raise FileNotFoundError("PostgreSQL is not installed; on Debian: apt-get install postgresql")
    directory = Path(tempfile.mkdtemp(prefix="signoff-postgres-"))
    try:
        server = PostgresServer(programs, directory)
        server.start()
        try:
            yield server
        finally:
            with suppress(RuntimeError):
                server.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
