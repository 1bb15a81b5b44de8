"""A private NATS server with JetStream for tests: its own port, its own data, gone afterwards.

with NatsServer(directory) as server:
    server.make_stream("ALARMS", "alarms.>")
    server.publish([b"one", b"two"], "alarms.new")
    server.kill(); server.start()                     # as a power cut would; the data stays
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import nats
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerInfo, StreamConfig

from tests.servers import free_port, wait_until

PROGRAM = Path(sys.executable).with_name("nats-server")
_T = TypeVar("_T")


async def _quiet(_: Exception) -> None:
    """Whoever has asked hears of it."""


_AT_ONCE: dict[str, Any] = {
    "allow_reconnect": False,
    "max_reconnect_attempts": 1,
    "reconnect_time_wait": 0,
    "error_cb": _quiet,
}


class NatsServer:
    def __init__(self, directory: Path, **settings: Any) -> None:
        """`settings`: more of the server's configuration."""
        self.directory, self.port = directory, free_port()
        self.scheme, self.user = "nats", ""
        self.ca_file: Path | None = None
        directory.mkdir(parents=True, exist_ok=True)
        config = {
            "host": "127.0.0.1",
            "port": self.port,
            "jetstream": {"store_dir": str(directory / "store"), "sync_interval": "always"},
            **settings,
        }
        (directory / "server.conf").write_text(json.dumps(config))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()  # nothing to do if it runs
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.user}127.0.0.1:{self.port}"

    def start(self, ready: Callable[[], bool] | None = None) -> None:
        if self._process is None:
            with (self.directory / "output").open("ab") as output:
                command = [str(PROGRAM), "-c", str(self.directory / "server.conf")]
                self._process = subprocess.Popen(command, stdout=output, stderr=output)
            wait_until(ready or self._answers, what="the NATS server is ready")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def make_stream(self, name: str, subject: str, **fields: Any) -> None:
        async def make(stream: JetStreamContext) -> None:
            await stream.add_stream(StreamConfig(name=name, subjects=[subject], **fields))

        self.do(make)

    def delete_stream(self, name: str) -> None:
        self.do(lambda stream: stream.delete_stream(name))

    def delete_consumer(self, stream: str, name: str) -> None:
        self.do(lambda context: context.delete_consumer(stream, name))

    def publish(self, payloads: Sequence[bytes], subject: str, headers: dict[str, str] | None = None) -> None:
        async def publish(stream: JetStreamContext) -> None:
            for payload in payloads:
                await stream.publish(subject, payload, headers=headers)

        self.do(publish)

    def publish_raw(self, subject: str, *header_blocks: bytes) -> None:
        """Messages whose headers are these bytes, as no client would send them."""
        with socket.create_connection(("127.0.0.1", self.port)) as line:
            line.sendall(b'CONNECT {"verbose":false,"headers":true}\r\n')
            for block in header_blocks:
                sizes = b"%d %d" % (len(block), 2 * len(block))
                line.sendall(b"HPUB " + subject.encode() + b" " + sizes + b"\r\n" + 2 * block + b"\r\n")
            line.sendall(b"PING\r\n")
            while b"PONG" not in line.recv(65536):
                pass

    def consumer(self, stream: str, name: str) -> ConsumerInfo:
        return self.do(lambda context: context.consumer_info(stream, name))

    def stored(self, name: str) -> list[Msg]:
        """All messages of a stream, oldest first."""

        async def read(stream: JetStreamContext) -> list[Any]:
            state = (await stream.stream_info(name)).state
            if not state.messages:
                return []
            return [await stream.get_msg(name, n) for n in range(state.first_seq, state.last_seq + 1)]

        return self.do(read)

    def do(self, work: Callable[[JetStreamContext], Awaitable[_T]]) -> _T:
        async def connected() -> _T:
            client = await nats.connect(self.url, **_AT_ONCE, **self._tls())
            try:
                return await work(client.jetstream())
            finally:
                await client.close()

        return asyncio.run(connected())

    def _tls(self) -> dict[str, Any]:
        if self.ca_file is None:
            return {}
        import ssl

        return {"tls": ssl.create_default_context(cafile=str(self.ca_file))}

    def listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def _answers(self) -> bool:
        async def account(stream: JetStreamContext) -> bool:
            return bool(await stream.account_info())

        try:
            return self.do(account)
        except (nats.errors.Error, OSError):
            return False
