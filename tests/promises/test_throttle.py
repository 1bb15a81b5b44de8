"""A throttle: what is kept out is dropped and counted, and what was let through decides about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.promises.product import FILES, SOON, Inline, Product, books
from tests.servers import WebhookServer

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]
PARSED = {"type": "parse_json", "input": "incoming", "schema": "k STRING, n INT"}
SLOW = {"type": "throttle", "input": "parsed", "keys": ["k"], "every": "1h"}


def to(webhook: WebhookServer, **fields: Any) -> dict[str, Any]:
    sink = {"type": "http", "input": "slow", "url": webhook.url, "retry": SOON, "timeout_ms": 900_000}
    return {**sink, **fields}


@pytest.mark.case(24, 26)
@pytest.mark.crash
def test_after_a_kill_the_same_events_are_let_through_however_long_their_sink_was_down(
    real: Callable[..., Product], webhook: WebhookServer
) -> None:
    """With an interval that is long over when they come again."""
    product = real(
        sources={"incoming": FILES},
        transforms={"parsed": PARSED, "slow": {**SLOW, "events": 2, "every": "200ms"}},
        sinks={"out": to(webhook), "archive": {"type": "files", "input": "slow", "path": "out"}},
    )
    hold = webhook.hold()
    events = [{"k": "a", "n": n} for n in range(6)]
    product.put("0.jsonl", events)
    running = product.start()
    hold.wait_for(1)
    product.put("1.jsonl", [{"k": "a", "n": 10 + n} for n in range(6)])
    running.wait_for(lambda: product.ledger().sources() and product.received() == 12)
    running.kill9()
    hold.release()
    assert product.run_once().code == 0
    sent = sorted({row["n"] for row in webhook.accepted})
    assert sent == [0, 1, 10, 11], "two of each file: more than an interval lies between them"
    assert sorted(row["n"] for row in product.rows()) == sent
    assert product.account() == books(delivered=4, dropped=8)
