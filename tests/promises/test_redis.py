"""A Redis entry is acknowledged when its event is settled, also if the server is killed in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.promises.product import SOON, Inline
from tests.redis_server import RedisServer
from tests.servers import WebhookServer, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.servers]

Make = Callable[..., Inline]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "redis") as server:
        yield server


@pytest.mark.case(1, 24, 28)
@pytest.mark.crash
def test_an_entry_is_acknowledged_after_delivery_and_delivered_once_though_the_server_is_killed(
    inline: Make, server: RedisServer, webhook: WebhookServer
) -> None:
    source = {"type": "redis", "url": server.url, "stream": "in", "group": "tests", "field": "payload"}
    sink = {"type": "redis", "url": server.url, "input": "incoming", "retry": SOON}
    keys = {
        **sink,
        "mode": "string",
        "key": "concat('row:', get_json_object(decode(payload, 'utf-8'), '$.n'))",
    }
    hook = {"type": "http", "url": webhook.url, "input": "incoming", "retry": SOON}
    sinks = {"out": {**sink, "key": "'out'"}, "keys": keys, "hook": hook}
    product = inline(sources={"incoming": source}, sinks=sinks)

    hold = webhook.hold()
    server.add("in", *[b'{"n": %d}' % n for n in range(40)])
    running = product.start()
    hold.wait_for(1)
    assert server.pending("in", "tests") == 40, "one sink has not confirmed"
    server.kill()
    hold.release()
    server.start()
    server.add("in", *[b'{"n": %d}' % n for n in range(40, 50)])
    wait_until(lambda: product.account()["delivered"] == 50 and server.pending("in", "tests") == 0)
    running.terminate()

    account = product.account()
    assert (account["received"], account["delivered"], account["in_flight"]) == (50, 50, 0)
    ids = {entry[b"event_id"] for entry in server.stored("out")}
    assert ids == {b"incoming/%d" % n for n in range(50)}
    rows = [json.loads(server.do("GET", f"row:{n}")) for n in range(50)]
    assert [json.loads(row["payload"])["n"] for row in rows] == list(range(50))
