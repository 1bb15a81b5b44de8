"""A RabbitMQ source with a real log but no intake process, and a cable to its broker that can be cut."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyroaring import BitMap64

from signoff.log import LogReader, LogWriter
from signoff.pipeline.model import LogSettings
from signoff.sources.contract import EndOfSource, Resume, Settlement, SourceContext
from signoff.sources.rabbitmq.config import RabbitmqConfig
from signoff.sources.rabbitmq.connection import LinkLost
from tests.brokers import RabbitMQ
from tests.servers import wait_until


class Cable:
    """Forwards to the broker from a port of its own, until it is cut."""

    def __init__(self, broker: RabbitMQ) -> None:
        self._broker = broker
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = broker.url.replace(f":{broker.port}/", f":{self._listener.getsockname()[1]}/")
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections; new ones can be made."""
        ends, self._ends = self._ends, []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        """Break all connections; no new one can be made."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # closed only, it would still accept one
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._broker.port))
                except OSError:
                    near.close()
                    continue
                self._ends += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=_forward, args=pair, daemon=True).start()


def _forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


class Rabbit:
    """What the intake does with the source, in this process and step by step."""

    def __init__(
        self,
        base: Path,
        url: str,
        queues: str | list[str],
        *,
        once: bool = False,
        settled_upto: int = 0,
        log: LogSettings | None = None,
        **fields: Any,
    ):
        self.base = base
        self.config = RabbitmqConfig.model_validate({"url": url, "queues": queues, **fields})
        self.writer = LogWriter(base / "log", log or LogSettings())
        self.log = LogReader(base / "log")
        self.source: Any = self.config.build(base)
        context = SourceContext("incoming", base / "own", once, base, self.log)
        self.source.open(context, Resume(self.writer.next_sequence, settled_upto=settled_upto))

    def step(self, timeout_s: float = 0.05, max_events: int = 1000) -> bool:
        """Receive and log; false at the end of the source."""
        try:
            events = self.source.receive(max_events, timeout_s)
        except EndOfSource:
            return False
        if events is not None:
            first = self.writer.append(events)
            self.writer.sync()
            self.source.logged(first, len(events))
        return True

    def step_until(self, condition: Callable[[], Any]) -> None:
        wait_until(lambda: (self.step(0.01), condition())[1])

    def take(self, count: int) -> list[bytes]:
        """Receive until so many events are in the log; returns all payloads of it."""
        self.step_until(lambda: self.log.head() >= count)
        return self.payloads

    def silence(self, seconds: float = 0.4) -> None:
        """Receive for a while, expecting nothing new."""
        head, until = self.log.head(), time.monotonic() + seconds
        while time.monotonic() < until:
            self.step(0.02)
        assert self.log.head() == head, self.payloads[head:]

    @property
    def events(self) -> list[dict[str, Any]]:
        return list(self.log.lookup(range(self.log.head())).values())

    @property
    def payloads(self) -> list[bytes]:
        return [event["payload"] for event in self.events]

    def settle(self, *acknowledged: int, refused: Iterable[int] = (), transient: Iterable[int] = ()) -> None:
        reasons = dict.fromkeys([*refused, *transient], "no")
        self.source.settle(Settlement(BitMap64(acknowledged), reasons, {}, BitMap64(transient)))

    def crash(self) -> None:
        """End as SIGKILL would: no word to anyone."""
        link = self.source._link
        if link is not None:
            end = link._connection._impl._transport._sock
            end.shutdown(socket.SHUT_RDWR)
            with suppress(LinkLost):
                link.pump(10)
            self.source._link = None
        self.close()

    def close(self) -> None:
        self.source.close()
        self.writer.close()
