"""The publisher: publishes the known set with confirms, through every fault, and knows what it knows.

A message is *confirmed*, or the connection died before the broker said so: then it is *perhaps* there, at
most once, and is never published again. A fresh one takes its place, until as many are confirmed as were
asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pika
from pika.exceptions import AMQPError

from tests.chaos import messages

WINDOW = 5_000
"""Most messages that are not confirmed."""
_BURST = 250
_AGAIN_S = 0.2


class Publisher(threading.Thread):
    """`rate` says how many messages a second there should be, given how many are still to be confirmed."""

    def __init__(self, url: str, goal: int, rate: Callable[[int], float]) -> None:
        super().__init__(name="publisher", daemon=True)
        self.confirmed: set[int] = set()
        self.perhaps: set[int] = set()
        self.connections = 0
        self.failure: BaseException | None = None
        self._url, self._goal, self._rate = url, goal, rate
        self._next = 0
        self._unconfirmed: dict[int, int] = {}
        """Numbers by tag, in the order of the tags."""
        self._over = threading.Event()

    def run(self) -> None:
        try:
            while self._missing() and not self._over.is_set():
                try:
                    self._publish_until_cut()
                except (AMQPError, OSError, ValueError):  # pika's word for one that is cut as it is made
                    self._over.wait(_AGAIN_S)
                finally:
                    self.perhaps.update(self._unconfirmed.values())
                    self._unconfirmed = {}
        except BaseException as error:  # noqa: BLE001 - whoever waits for the publisher raises it
            self.failure = error

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _missing(self) -> int:
        return self._goal - len(self.confirmed)

    def _publish_until_cut(self) -> None:
        connection = pika.BlockingConnection(pika.URLParameters(self._url))
        try:
            self.connections += 1
            channel = connection.channel()
            # A blocking channel waits for each confirm; the channel below it does not.
            inner = channel._impl
            inner.add_on_return_callback(self._returned)
            inner.confirm_delivery(self._answered)
            self._publish(connection, channel, inner)
        finally:
            if connection.is_open:
                connection.close()

    def _publish(self, connection: Any, channel: Any, inner: Any) -> None:
        tag, due, then = 0, 0.0, time.monotonic()
        while self._missing() and not self._over.is_set():
            now = time.monotonic()
            due, then = min(due + (now - then) * self._rate(self._missing()), WINDOW), now
            room = min(WINDOW, self._missing()) - len(self._unconfirmed)
            for _ in range(min(int(due), room, _BURST)):
                tag, due = tag + 1, due - 1
                self._unconfirmed[tag] = number = self._next
                self._next += 1
                inner.basic_publish(
                    "", messages.queue(number), messages.payload(number).encode(), _properties(number), True
                )
            connection.process_data_events(0 if due >= 1 and room > _BURST else 0.01)
            if not channel.is_open:
                return

    def _answered(self, frame: Any) -> None:
        tag = frame.method.delivery_tag
        if frame.method.multiple:
            tags = []
            for each in self._unconfirmed:
                if each > tag:
                    break
                tags.append(each)
        else:
            tags = [tag] if tag in self._unconfirmed else []
        taken = isinstance(frame.method, pika.spec.Basic.Ack)
        for each in tags:
            number = self._unconfirmed.pop(each)
            (self.confirmed if taken and number not in self.perhaps else self.perhaps).add(number)

    def _returned(self, _channel: Any, _method: Any, properties: Any, _body: bytes) -> None:
        """The broker has no such queue: this one is not there, although a confirm follows."""
        number = messages.number_of(properties.message_id)
        assert number is not None
        self.perhaps.add(number)


def _properties(number: int) -> pika.BasicProperties:
    return pika.BasicProperties(message_id=messages.message_id(number), delivery_mode=2)
