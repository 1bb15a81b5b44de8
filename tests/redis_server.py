"""A private Redis server for tests: its own port, its own data, gone afterwards.

with RedisServer(directory) as server:
    server.add("alarms", b"one", b"two")
    server.kill(); server.start()                     # as SIGKILL would; the data stays
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from tests.servers import free_port, wait_until

PROGRAM = shutil.which("redis-server")


class RedisServer:
    def __init__(self, directory: Path, *, durable: bool = True, options: tuple[str, ...] = ()) -> None:
        self.directory, self.port = directory, free_port()
        self.scheme, self.user, self.query = "redis", "", dict[str, Any]()
        directory.mkdir(parents=True, exist_ok=True)
        kept = ("--appendonly", "yes", "--appendfsync", "always") if durable else ("--appendonly", "no")
        listens = () if "--tls-port" in options else ("--port", str(self.port))
        self._command = ("--bind", "127.0.0.1", *listens, "--dir", str(directory), "--save", "", *kept)
        self._command += tuple(each.replace("PORT", str(self.port)) for each in options)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.user}127.0.0.1:{self.port}/0"

    def start(self) -> None:
        if self._process is None:
            if PROGRAM is None:
                pytest.skip("redis-server is not installed: scripts/set-up-redis")
            with (self.directory / "output").open("ab") as output:
                self._process = subprocess.Popen((PROGRAM, *self._command), stdout=output, stderr=output)
            wait_until(self._answers, what="the Redis server is ready")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self) -> Redis:
        return Redis.from_url(self.url, retry=Retry(NoBackoff(), 0), **self.query)

    def do(self, *command: Any) -> Any:
        with closing(self.client()) as client:
            return client.execute_command(*command)

    def add(self, stream: str, *payloads: bytes, **fields: str) -> None:
        with closing(self.client()) as client:
            for payload in payloads:
                client.xadd(stream, {"payload": payload, **fields})  # type: ignore[arg-type,dict-item]

    def stored(self, stream: str) -> list[dict[bytes, bytes]]:
        with closing(self.client()) as client:
            return [fields for _, fields in client.xrange(stream)]

    def pending(self, stream: str, group: str) -> int:
        """Entries that were delivered and are not acknowledged."""
        with closing(self.client()) as client:
            return int(client.xpending(stream, group)["pending"])

    def _answers(self) -> bool:
        try:
            return bool(self.do("PING"))
        except (RedisError, OSError):
            return False
