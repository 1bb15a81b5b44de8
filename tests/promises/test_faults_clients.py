"""Messages and clients that mean harm, or know no better: their source goes on for everybody else."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from urllib.parse import urlsplit

import httpx
import pytest

from tests.brokers import RabbitMQ
from tests.promises.product import FILES, HTTP, PARSE, Inline, books
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
        # Somebody else gets in at once; who has their address, as soon as they count as stalled.
        elsewhere = httpx.HTTPTransport(local_address="127.0.0.2")
        with httpx.Client(transport=elsewhere, timeout=60) as other:
            assert other.post(first.result().url, json={"n": 1}).status_code == 200
        answers = [product.post({"n": 2})]
        while running.wait_for(answers[-1].done) and answers[-1].result().status_code == 429:
            assert answers[-1].result().headers["retry-after"] == "1" and len(answers) < 20
            time.sleep(1)  # as it was told to
            answers.append(product.post({"n": 2}))
        assert answers[-1].result().status_code == 200, answers[-1].result().text
    running.terminate()
    assert [row["n"] for row in product.rows()] == [0, 1, 2]


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


@pytest.mark.spark
@pytest.mark.case(32, 46)
def test_texts_that_even_the_search_for_a_reason_stumbles_over_are_dead_letters(
    inline: Callable[..., Inline],
) -> None:
    """A line break in a CSV line, a field of 200 KB, a number of 5,000 digits; their neighbours arrive."""
    transforms = {
        "lines": {"type": "parse_csv", "input": "incoming", "schema": "n INT, text STRING"},
        "objects": {**PARSE, "input": "others"},
    }
    sinks = {
        "out": {"type": "files", "input": "lines", "path": "./out"},
        "objects_out": {"type": "files", "input": "objects", "path": "./objects"},
    }
    others = {**FILES, "path": "./others/*.jsonl"}
    product = inline(sources={"incoming": FILES, "others": others}, transforms=transforms, sinks=sinks)
    product.put("a.jsonl", ["1,a", "x\ry,b", "x" * 200_000 + ",c", "2,d"])
    product.put("b.jsonl", ['{"n": 3}', '{"n": ' + "1" * 5_000 + "}"], folder="others")
    assert product.run_once().code == 0
    assert [row["n"] for row in product.rows()] == [1, 2]
    assert [row["n"] for row in product.rows("objects")] == [3]
    assert len(product.dead_letters()) == 3
