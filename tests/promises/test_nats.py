"""A NATS message is acknowledged when its event is settled, also if the server is killed in between."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.nats_server import NatsServer
from tests.promises.product import SOON, Inline
from tests.servers import WebhookServer, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.servers]

Make = Callable[..., Inline]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "nats") as server:
        server.make_stream("IN", "in.>")
        server.make_stream("OUT", "out.>", duplicate_window=3600)
        yield server


@pytest.mark.case(1, 24, 28)
@pytest.mark.crash
def test_a_message_is_acknowledged_after_delivery_and_delivered_once_though_the_server_is_killed(
    inline: Make, server: NatsServer, webhook: WebhookServer
) -> None:
    source = {"type": "nats", "url": server.url, "stream": "IN", "consumer": "tests", "ack_wait": "3s"}
    out = {"type": "nats", "url": server.url, "input": "incoming", "subject": "'out.rows'", "retry": SOON}
    hook = {"type": "http", "url": webhook.url, "input": "incoming", "retry": SOON}
    product = inline(sources={"incoming": source}, sinks={"out": out, "hook": hook})

    def unanswered() -> int:
        info = server.consumer("IN", "tests")
        return (info.num_ack_pending or 0) + (info.num_pending or 0)

    hold = webhook.hold()
    server.publish([b'{"n": %d}' % n for n in range(40)], "in.new")
    running = product.start()
    hold.wait_for(1)
    assert unanswered() == 40, "one sink has not confirmed"
    server.kill()
    hold.release()
    server.start()
    server.publish([b'{"n": %d}' % n for n in range(40, 50)], "in.new")
    wait_until(lambda: unanswered() == 0)
    running.terminate()

    account = product.account()
    assert (account["received"], account["delivered"], account["in_flight"]) == (50, 50, 0)
    stored = [json.loads(json.loads(one.data or b"")["payload"])["n"] for one in server.stored("OUT")]
    assert sorted(stored) == list(range(50)), "each once"
