"""One pipeline as the sink of another: an event is settled in the first when the second has settled it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.promises.product import FILES, HTTP, LATER, PARSE, SIGNOFF, Inline, Product, books
from tests.promises.test_settling import assert_waits, code, webhook_sink
from tests.servers import PATIENCE_S, WebhookServer

pytestmark = pytest.mark.spark

Make = Callable[..., Inline]
LINK = {"type": "pipeline", "path": "../link"}
LINKED = {"sources": {"linked": LINK}, "transforms": {"parsed": PARSE | {"input": "linked"}}}


def first(source: dict[str, Any] = HTTP, **more: Any) -> dict[str, Any]:
    """The pipeline that hands on."""
    sinks = {"second": {**LINK, "input": "parsed", **more}}
    return {"sources": {"incoming": source}, "transforms": {"parsed": PARSE}, "sinks": sinks, "name": "first"}


@pytest.fixture
def second(inline: Make, webhook: WebhookServer) -> Callable[..., Inline]:
    def make(**more: Any) -> Inline:
        sink = webhook_sink(webhook, "parsed") | more
        return inline("second", **LINKED, sinks={"a": sink}, name="second")

    return make


def test_an_event_is_acknowledged_when_the_other_pipeline_has_settled_it(
    inline: Make, second: Make, webhook: WebhookServer
) -> None:
    held = webhook.hold()
    one, two = inline("first", **first()), second()
    one.start()
    answer = one.post([{"n": n} for n in range(3)])
    running = two.start()
    running.wait_for(lambda: held.held)
    assert_waits(answer)
    assert one.account() == books(in_flight=3)
    assert two.account("linked") == books(in_flight=3)
    held.release()
    assert code(answer) == 200
    assert one.account() == books(delivered=3)
    assert two.account("linked") == books(delivered=3)
    assert sorted(row["n"] for row in webhook.accepted) == [0, 1, 2]


def test_what_the_other_pipeline_drops_is_settled_too(inline: Make, webhook: WebhookServer) -> None:
    one = inline("first", **first())
    few = {"type": "filter", "input": "parsed", "where": "n = 1"}
    transforms = LINKED["transforms"] | {"few": few}
    two = inline(
        "second", sources=LINKED["sources"], transforms=transforms, sinks={"a": webhook_sink(webhook, "few")}
    )
    one.start()
    two.start()
    assert code(one.post([{"n": n} for n in range(3)])) == 200
    assert two.account("linked") == books(delivered=1, dropped=2)


@pytest.mark.parametrize(
    ("policy", "status", "outcome"), [("refuse", 422, "refused"), (None, 200, "dead_lettered")]
)
def test_what_the_other_pipeline_refuses_meets_the_policy_of_the_sink(
    inline: Make, second: Make, webhook: WebhookServer, policy: str | None, status: int, outcome: str
) -> None:
    webhook.answer(400)
    one = inline("first", **first(**({"on_failure": policy} if policy else {})))
    two = second(on_failure="refuse")
    one.start()
    two.start()
    assert code(one.post({"n": 1})) == status
    assert one.account() == books(**{outcome: 1})
    assert two.account("linked") == books(refused=1)


def test_both_pipelines_may_be_restarted_while_rows_are_on_their_way(
    inline: Make, second: Make, webhook: WebhookServer
) -> None:
    failing = webhook.answer(503)
    one, two = inline("first", **first(FILES)), second(retry=LATER)
    file = one.put("a.jsonl", [{"n": n} for n in range(5)])
    running = one.start(drain_s=0.5)
    running.wait_for(lambda: LogHead(one) == 5)
    running.terminate()
    reader = two.start(drain_s=0.5)
    reader.wait_for(lambda: 'sink "a" failed on batch' in reader.output)
    reader.terminate()
    failing.stop()
    two.start()
    again = one.start()
    again.wait_for(lambda: not file.exists())
    assert one.account() == books(delivered=5)
    assert two.account("linked") == books(delivered=5)
    assert sorted(row["n"] for row in webhook.accepted) == [0, 1, 2, 3, 4]


def LogHead(product: Inline) -> int:  # noqa: N802
    from signoff.log import LogReader

    return LogReader(product.directory.parent / "link" / "log").head()


@pytest.mark.crash
def test_a_kill_of_either_pipeline_loses_and_doubles_nothing(
    real_pair: Callable[..., tuple[Product, Product]], webhook: WebhookServer
) -> None:
    failing = webhook.answer(503)
    one, two = real_pair(
        first(FILES), {**LINKED, "sinks": {"a": webhook_sink(webhook, "parsed")}, "name": "second"}
    )
    file = one.put("a.jsonl", [{"n": n} for n in range(2000)])
    writer, reader = one.start(), two.start()
    reader.wait_for(lambda: 'sink "a" failed on batch' in reader.output)
    writer.kill9()
    reader.kill9()
    assert file.exists()
    failing.stop()
    two.start()
    again = one.start()
    again.wait_for(lambda: not file.exists())
    assert one.account() == books(delivered=2000)
    assert two.account("linked") == books(delivered=2000)
    numbers = [row["n"] for row in webhook.accepted]
    assert len(numbers) == len(set(numbers)) == 2000


def test_a_second_reader_of_a_link_is_refused(inline: Make, second: Make, webhook: WebhookServer) -> None:
    two = second()
    running = two.start()
    running.wait_for(lambda: (two.directory.parent / "link" / "reader").exists() and two.intake_pid("linked"))
    third = inline("third", **LINKED, sinks={"a": webhook_sink(webhook, "parsed")}, name="third")
    third.start()
    running.wait_for(lambda: (status := third.intake_status("linked")) and status.state == "failed")
    assert "another pipeline reads this link" in third.intake_status("linked").reason


@pytest.mark.case(44)
def test_a_second_writer_on_a_link_is_refused_before_it_receives_anything_and_the_rows_of_the_first_are_kept(
    inline: Make, second: Make, webhook: WebhookServer
) -> None:
    one = inline("first", **first(FILES))
    one.put("1.jsonl", [{"n": n} for n in range(3)])
    running = one.start(drain_s=0.0)
    running.wait_for(lambda: (one.directory / "../link/log").exists() and one.account() == books(in_flight=3))
    running.wait_for(lambda: handed_on(one))
    running.terminate()

    other = inline("other", **first(FILES))
    other.put("1.jsonl", [{"n": n} for n in (7, 8, 9)])
    command = [str(SIGNOFF), "run", str(other.file), "--once"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert refused.returncode == 2 and "[link-writer]" in refused.stderr
    assert '3 rows of pipeline "first"' in refused.stderr and other.received() == 0

    reading = second().start()
    assert one.run_once().code == 0
    assert one.account() == books(delivered=3)
    assert other.run_once().code == 0, "nothing of the first is left: now it may"
    assert other.account() == books(delivered=3)
    reading.terminate()
    assert sorted(row["n"] for row in webhook.accepted) == [0, 1, 2, 7, 8, 9]


def handed_on(product: Inline) -> bool:
    with product.ledger() as ledger:
        return any(batch.sinks["second"].handed_on for batch in ledger.open_batches("incoming"))
