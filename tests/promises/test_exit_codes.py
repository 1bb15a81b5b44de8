"""How the real `signoff run --once` ends: 0 settled, 2 the pipeline is wrong, 3 refused or still owed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.promises.product import FILES, PARSE, Inline, Product, books
from tests.promises.test_settling import webhook_sink
from tests.servers import WebhookServer

pytestmark = pytest.mark.spark

Make = Callable[..., Product]


def test_a_pipeline_that_is_wrong_ends_with_2_before_anything_is_started(real: Make) -> None:
    product = real(sources={"incoming": {**FILES, "paht": "x"}}, sinks={"out": {"type": "nothing"}})
    done = product.run_once()
    assert done.code == 2, done.output
    assert "unknown-field" in done.output and "unknown-type" in done.output
    assert not product.state.exists()


def test_an_expression_spark_does_not_accept_ends_with_2_and_touches_no_event(real: Make) -> None:
    product = real(
        sources={"incoming": FILES},
        transforms={"parsed": PARSE, "kept": {"type": "filter", "input": "parsed", "where": "m > 1"}},
        sinks={"out": {"type": "files", "input": "kept", "path": "out"}},
    )
    file = product.put("a.jsonl", [{"n": 1}])
    done = product.run_once(120)
    assert done.code == 2, done.output
    assert 'there is no column "m"' in done.output
    assert file.exists()


def test_a_sink_that_is_down_ends_with_3_and_the_next_run_goes_on_with_0(
    real: Make, inline: Callable[..., Inline], webhook: WebhookServer
) -> None:
    webhook.down()
    product = real(
        sources={"incoming": FILES},
        sinks={"first": webhook_sink(webhook), "out": {"type": "files", "input": "incoming", "path": "out"}},
    )
    file = product.put("a.jsonl", [{"n": 1}, {"n": 2}])
    done = product.run_once(120, "--patience-seconds", "1")
    assert done.code == 3, done.output
    assert 'sink "first" still fails' in done.output
    assert "what it owes is kept, and the next run tries again" in done.output
    assert "StackOverflowError" not in done.output, "a query that is ended leaves no Java trace behind"
    assert file.exists()
    assert product.account() == books(in_flight=2)
    webhook.up()
    webhook.answer_rows(422, {"incoming/1"})
    before = [(path, path.stat().st_mtime_ns) for path in (product.directory / "out").glob("*.jsonl")]
    done = inline().run_once(120)  # in the same directory
    assert done.code == 0, done.output
    assert webhook.accepted_ids == ["incoming/0"]
    assert product.account() == books(delivered=1, dead_lettered=1)
    assert not file.exists()
    after = [(path, path.stat().st_mtime_ns) for path in (product.directory / "out").glob("*.jsonl")]
    assert len(before) == 1 and after == before, "the sink that was done is not written again"


def test_a_refusal_ends_with_3_once_and_the_next_run_with_0(
    inline: Callable[..., Inline], webhook: WebhookServer
) -> None:
    webhook.answer(400)
    product = inline(sources={"incoming": FILES}, sinks={"first": webhook_sink(webhook, on_failure="refuse")})
    product.put("a.jsonl", [{"n": 1}])
    assert product.run_once().code == 3
    assert product.account() == books(refused=1)
    assert product.run_once().code == 0
    assert len(webhook.requests) == 1
