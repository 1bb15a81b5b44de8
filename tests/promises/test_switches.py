"""Sources that cannot acknowledge, and acknowledgements turned off: cases 22 and 23."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.promises.product import FILES, HTTP, PARSE, Inline, Product, books
from tests.promises.test_settling import assert_waits, code, webhook_sink
from tests.servers import WebhookServer, wait_until

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]


@pytest.mark.case(22)
def test_a_source_that_cannot_acknowledge_is_mixed_with_one_that_can(
    inline: Make, webhook: WebhookServer
) -> None:
    hold = webhook.hold(lambda request: request.ids == ["incoming/0"])
    product = inline(
        sources={"incoming": HTTP, "numbers": {"type": "generate", "template": "sequence", "count": 50}},
        sinks={
            "out": {"type": "files", "inputs": ["incoming", "numbers"], "path": "out"},
            "first": webhook_sink(webhook),
        },
    )
    product.start()
    answer = product.post({"n": 1})
    wait_until(lambda: product.account("numbers") == books(delivered=50))
    hold.wait_for(1)
    assert_waits(answer)
    assert product.account() == books(in_flight=1)
    hold.release()
    assert code(answer) == 200
    ids = [row["event_id"] for row in product.rows()]
    assert ids == ["incoming/0", *(f"numbers/{n}" for n in range(50))]
    assert product.explain("numbers/7")["acknowledged"] is None
    assert product.explain("incoming/0")["acknowledged"] is True


@pytest.mark.case(23)
def test_with_acknowledgements_off_sources_are_told_when_events_are_in_the_log(
    inline: Make, webhook: WebhookServer
) -> None:
    hold = webhook.hold()
    product = inline(
        acknowledgements=False,
        sources={"incoming": HTTP, "stored": FILES},
        sinks={"first": webhook_sink(webhook, None, inputs=["incoming", "stored"])},
    )
    file = product.put("a.jsonl", [{"n": 1}])
    product.start()
    assert code(product.post({"n": 1})) == 200
    wait_until(lambda: not file.exists(), what="the acknowledgement of the file")
    hold.wait_for(2)
    assert product.account("incoming") == product.account("stored") == books(in_flight=1)
    assert product.explain("incoming/0")["acknowledged"] is True
    hold.release()
    for source in ("incoming", "stored"):
        wait_until(lambda name=source: product.account(name) == books(delivered=1))
    assert sorted(webhook.accepted_ids) == ["incoming/0", "stored/0"]


@pytest.mark.case(23)
@pytest.mark.parametrize(
    ("everywhere", "quick", "careful"),
    [(True, {"acknowledgements": False}, {}), (False, {}, {"acknowledgements": True})],
)
def test_acknowledgements_are_turned_off_for_one_source(
    inline: Make,
    webhook: WebhookServer,
    everywhere: bool,
    quick: dict[str, Any],
    careful: dict[str, Any],
) -> None:
    hold = webhook.hold()
    product = inline(
        acknowledgements=everywhere,
        sources={"quick": {**HTTP, **quick}, "careful": {**HTTP, **careful}},
        sinks={"first": webhook_sink(webhook, None, inputs=["quick", "careful"])},
    )
    product.start()
    waiting = product.post({"n": 1}, "careful")
    assert code(product.post({"n": 1}, "quick")) == 200
    hold.wait_for(2)
    assert_waits(waiting)
    hold.release()
    assert code(waiting) == 200
    wait_until(lambda: product.account("quick") == books(delivered=1))


@pytest.mark.case(22)
def test_lines_from_standard_input_are_delivered_and_the_run_ends_with_0(
    real: Callable[..., Product],
) -> None:
    product = real(
        sources={"incoming": {"type": "stdin"}},
        transforms={"parsed": PARSE},
        sinks={"out": {"type": "files", "input": "parsed", "path": "out"}},
    )
    lines = product.directory / "lines"
    lines.write_text('{"n": 1}\nnot json\n{"n": 3}')
    with lines.open() as stdin:
        done = product.run_once(120, stdin=stdin)
    assert done.code == 0, done.output
    assert [(row["event_id"], row["n"]) for row in product.rows()] == [("incoming/0", 1), ("incoming/2", 3)]
    assert product.account() == books(delivered=2, dead_lettered=1)
