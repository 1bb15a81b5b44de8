"""The wire between the broker and its clients: whatever goes through it can be cut at any moment.

A cut resets the connections on both sides; what was on its way, half a frame or many acknowledgements,
is lost. The broker and its data are untouched by it.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.servers import PATIENCE_S

_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER for no seconds: closing sends RST and throws away what is not sent."""
_CHUNK = 256 * 1024


class Wire:
    """Connections to `port` lead to `target` on this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._ends: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire", daemon=True)
        self._thread.start()
        listening = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._connect, "127.0.0.1", 0), self._loop
        )
        self._server = listening.result(PATIENCE_S)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> int:
        """Cut all connections; returns how many there were."""

        async def cut() -> int:
            ends = list(self._ends)
            for end in ends:
                _reset(end)
            return len(ends) // 2

        return asyncio.run_coroutine_threadsafe(cut(), self._loop).result(PATIENCE_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._server.close)
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:  # no broker at the moment
            _reset(writer)
            return
        self._ends |= {writer, there[1]}
        try:
            await asyncio.gather(_copy(reader, there[1]), _copy(there[0], writer))
        finally:
            self._ends -= {writer, there[1]}


@contextmanager
def wire_to(port: int) -> Iterator[Wire]:
    wire = Wire(port)
    try:
        yield wire
    finally:
        wire.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until one side is gone; then the other side learns it."""
    try:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    except OSError:
        _reset(writer)
    else:
        writer.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
