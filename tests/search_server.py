"""A private OpenSearch for tests, and a gate in front of it that asks for a login, with TLS.

with private_opensearch() as search:
    search.ask("PUT", "/alarms")
    search.kill(); search.start()                       # SIGKILL, as a power cut would; the data stays
    assert search.documents("alarms") == [...]
    with Gate(search, directory) as gate:               # https, and 401 for whoever is not let in
        gate.let_in("Basic …")

The jars are got by `scripts/set-up-opensearch`.
"""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import httpx

from tests.servers import PATIENCE_S, free_port, wait_until

HERE = Path(__file__).parent / "opensearch"
PLACE = Path(sys.prefix) / "opensearch"
JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xms128m", "-Xmx512m", "-Xshare:auto")


def opensearch_is_set_up() -> bool:
    return any(PLACE.glob("ready-*")) and shutil.which("java") is not None


class OpenSearch:
    """A node of this process alone, which does not outlive it. `start` again after `kill`: the data stays."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._client = httpx.Client(base_url=self.url, timeout=PATIENCE_S, trust_env=False)

    def start(self) -> None:
        """Start if it is not running, and wait until it answers and its indices are there (about 5 s)."""
        if self._process is not None:
            return
        classes = f"{PLACE / 'classes'}:{PLACE / 'jars'}/*"
        logging = f"-Dlog4j2.configurationFile={HERE / 'log4j2.properties'}"
        node = ["SearchNode", str(self._directory), str(self.port), str(free_port())]
        with (self._directory / "output").open("ab") as output:
            self._process = subprocess.Popen(
                ["java", *JAVA, logging, "-cp", classes, *node],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        wait_until(self._answers, 2 * PATIENCE_S, "an answer of OpenSearch")

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process = None

    def close(self) -> None:
        self.kill()
        self._client.close()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """What it answers, which must be a success."""
        answer = self._client.request(method, path, json=body) if body else self._client.request(method, path)
        assert answer.is_success, answer.text
        return answer.json()

    def settings(self, index: str, **settings: Any) -> None:
        """Change settings of an index; None: the default."""
        self.ask("PUT", f"/{index}/_settings", settings)

    def cluster(self, settings: Mapping[str, Any]) -> None:
        """Change settings of the cluster; None: the default."""
        self.ask("PUT", "/_cluster/settings", {"persistent": settings})

    def hits(self, index: str) -> list[dict[str, Any]]:
        """All documents, with their ids, versions and indices, as the server gives them; none of no index."""
        return list(json.loads(self.hits_text(index))["hits"]["hits"])

    def hits_text(self, index: str) -> str:
        path = f"/{index}/_search?size=10000&version=true&ignore_unavailable=true"
        self.ask("POST", f"/{index}/_refresh?ignore_unavailable=true")

        def found() -> httpx.Response | None:
            answer = self._client.get(path)
            # An index that is being made has no shards for a moment.
            return answer if answer.status_code != 503 else None

        answer: httpx.Response = wait_until(found, what="shards to search")
        assert answer.is_success, answer.text
        return answer.text

    def documents(self, index: str) -> dict[str, dict[str, Any]]:
        """By id."""
        hits = self.hits(index)
        found = {hit["_id"]: hit["_source"] for hit in hits}
        assert len(found) == len(hits), "an id is in two indices"
        return found

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            output = (self._directory / "output").read_text(errors="replace")
            raise AssertionError(f"OpenSearch ended with code {self._process.returncode}: {output[-2000:]}")
        with suppress(httpx.HTTPError):
            waiting = "wait_for_status=yellow&timeout=60s"
            return self._client.get(f"/_cluster/health?{waiting}").status_code == 200
        return False


@contextmanager
def private_opensearch() -> Iterator[OpenSearch]:
    """A running OpenSearch that is gone afterwards. Raises FileNotFoundError where it is not set up."""
    if not opensearch_is_set_up():
        raise FileNotFoundError("OpenSearch is not set up: scripts/set-up-opensearch")
    directory = Path(tempfile.mkdtemp(prefix="signoff-opensearch-"))
    try:
        node = OpenSearch(directory)
        try:
            node.start()
            yield node
        finally:
            node.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Gate:
    """An https address that passes requests on to OpenSearch, of those who are let in."""

    def __init__(self, search: OpenSearch, directory: Path) -> None:
        self._search, self._allowed = search, ""
        self.ca_file = directory / "cert.pem"
        _certificate(directory)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.ca_file, directory / "key.pem")
        gate = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                status, content = gate._passed(
                    self.command,
                    self.path,
                    body,
                    self.headers.get("authorization"),
                    self.headers["content-type"],
                )
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_PUT = do_POST  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # whoever does not trust us
        self._server.socket = context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.url = f"https://localhost:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def let_in(self, authorization: str) -> None:
        """From now on, only requests with this header."""
        self._allowed = authorization

    def _passed(
        self, method: str, path: str, body: bytes, authorization: str | None, kind: str
    ) -> tuple[int, bytes]:
        if authorization != self._allowed:
            return 401, b"Unauthorized"
        headers = {"Content-Type": kind}
        answer = httpx.request(
            method,
            self._search.url + path,
            content=body,
            headers=headers,
            timeout=PATIENCE_S,
            trust_env=False,
        )
        return answer.status_code, answer.content


def _certificate(directory: Path) -> None:
    names = "subjectAltName=DNS:localhost"
    kind = ["-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    files = ["-keyout", "key.pem", "-out", "cert.pem"]
    command = ["openssl", "req", *kind, *files, "-subj", "/CN=localhost", "-addext", names]
    subprocess.run(command, cwd=directory, capture_output=True, check=True)
