"""Messages and clients that mean harm, or know no better: their source goes on for everybody else."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest

from tests.brokers import RabbitMQ
from tests.promises.product import HTTP, PARSE, Inline, books
from tests.servers import wait_until
from tests.sources.test_rabbitmq_headers import HEADERS, encodes_raw

SINKS = {"out": {"type": "files", "input": "parsed", "path": "./out"}}


@pytest.mark.spark
@pytest.mark.case(46)
def test_clients_that_send_all_but_the_last_byte_keep_nobody_out(inline: Callable[..., Inline]) -> None:
    """Eight bodies of 8 MiB are all the room there is for what is not in the log yet."""
    size = 8 * 1024**2
    product = inline(sources={"incoming": HTTP}, transforms={"parsed": PARSE}, sinks=SINKS)
    running = product.start()
    first = product.post({"n": 0})
    running.wait_for(first.done)
    address = urlsplit(str(first.result().url))
    with ExitStack() as open_:
        for _ in range(9):
            client = open_.enter_context(socket.create_connection((address.hostname, address.port or 0)))
            client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size)
            client.setblocking(False)
            body, sent = memoryview(b" " * (size - 1)), 0
            while sent < len(body):
                try:
                    sent += client.send(body[sent:])
                except BlockingIOError:
                    wait_until(lambda client=client: _is_writable(client))
                except (BrokenPipeError, ConnectionResetError):
                    break  # turned away already
        for number in range(1, 4):
            answer = product.post({"n": number})
            running.wait_for(answer.done, timeout=20)
            assert answer.result().status_code == 200, answer.result().text
    running.terminate()
    assert [row["n"] for row in product.rows()] == [0, 1, 2, 3]


def _is_writable(client: socket.socket) -> bool:
    return bool(select.select([], [client], [], 0)[1])


@pytest.mark.spark
@pytest.mark.case(32, 46)
def test_a_header_that_cannot_be_decoded_is_a_dead_letter_and_its_queue_goes_on(
    inline: Callable[..., Inline], rabbitmq: RabbitMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = "header-attack"
    rabbitmq.declare_queue(queue)
    encodes_raw(monkeypatch)
    for number, header in enumerate(("nested", "double", "milliseconds")):
        rabbitmq.publish([str(number).encode()], queue, headers={"h": HEADERS[header][0]})
    source = {"type": "rabbitmq", "url": rabbitmq.url, "queues": [queue]}
    chosen = {"type": "select", "input": "incoming", "columns": {"n": "payload", "h": "headers['h']"}}
    sinks = {"out": {"type": "files", "input": "chosen", "path": "./out"}}
    product = inline(sources={"incoming": source}, transforms={"chosen": chosen}, sinks=sinks)
    assert product.run_once().code == 0
    assert [(row["n"], row["h"]) for row in product.rows()] == [("1", "0.75"), ("2", "1700000000000")]
    (letter,) = product.dead_letters()
    assert "headers cannot be decoded: tables and arrays are nested more than" in letter["reason"]
    assert product.account() == books(delivered=2, dead_lettered=1)
    assert rabbitmq.count(queue) == 0
