"""The alarm desk of the demo: a webhook that breaks down once, for some seconds, and recovers.

A row is in `book` before its request is answered with 200, so the desk can be held to what it signed for.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

DeskState = Literal["open", "closed", "open again"]


class Desk:
    """Takes rows as JSON arrays; answers 503 for `closed_s` seconds once it has `closes_after` rows."""

    def __init__(self, book: Path, *, closes_after: int, closed_s: float) -> None:
        self.state: DeskState = "open"
        self.refused = 0
        """Requests that were answered with 503."""
        self._closes_after, self._closed_s = closes_after, closed_s
        self._opens_at = 0.0
        self._taken = 0
        self._book = book.open("w", encoding="utf-8")
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), self)
        self.url = f"http://127.0.0.1:{self._server.server_port}/alarms"

    def __enter__(self) -> Desk:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._book.close()

    def take(self, rows: list[dict[str, Any]]) -> bool:
        """Write rows into the book; false while the desk is closed."""
        with self._lock:
            if self._is_closed():
                self.refused += 1
                return False
            self._book.writelines(json.dumps(row) + "\n" for row in rows)
            self._book.flush()
            self._taken += len(rows)
            return True

    def _is_closed(self) -> bool:
        if self.state == "open" and self._taken >= self._closes_after:
            self.state, self._opens_at = "closed", time.monotonic() + self._closed_s
        if self.state == "closed" and time.monotonic() >= self._opens_at:
            self.state = "open again"
        return self.state == "closed"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], desk: Desk) -> None:
        self.desk = desk
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.desk.take(rows):
            self._answer(200, b"")
        else:
            self._answer(503, b"the desk is closed for a moment")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """The run's own output is what matters."""
