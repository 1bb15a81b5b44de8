"""The wire between a server and its clients: whatever goes through it can be cut at any moment, or stall.

A cut resets the connections on both sides; what was on its way, half a frame or many acknowledgements,
is lost. While it stalls nothing gets through in either direction, nobody is told, and new connections are
taken but lead nowhere. The server and its data are untouched by either.
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
        self._flows = asyncio.Event()
        self._flows.set()
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

    def stall(self) -> None:
        """Let nothing through until `resume`."""
        self._loop.call_soon_threadsafe(self._flows.clear)

    def resume(self) -> None:
        self._loop.call_soon_threadsafe(self._flows.set)

    def close(self) -> None:
        self.resume()
        self._loop.call_soon_threadsafe(self._server.close)
        self.cut()
        asyncio.run_coroutine_threadsafe(_end_others(), self._loop).result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flows.wait()
        try:
            there = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:  # no server at the moment
            _reset(writer)
            return
        self._ends |= {writer, there[1]}
        try:
            await asyncio.gather(self._copy(reader, there[1]), self._copy(there[0], writer))
        finally:
            self._ends -= {writer, there[1]}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes on until one side is gone; then the other side learns it."""
        try:
            while data := await reader.read(_CHUNK):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            _reset(writer)
        else:
            writer.close()


@contextmanager
def wire_to(port: int) -> Iterator[Wire]:
    wire = Wire(port)
    try:
        yield wire
    finally:
        wire.close()


async def _end_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
