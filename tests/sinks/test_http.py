"""The webhook: what each answer means, which rows are sent again, and what is never shown."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from signoff.errors import PermanentError
from signoff.pipeline.model import Retry
from signoff.sinks.contract import Part, Sink
from signoff.sinks.http import HttpSinkConfig
from signoff.sinks.retry import deliver
from signoff.testing.conformance.rows import batch_ref, numbered, places, write_batch
from tests.servers import WebhookServer, free_port


def sink_for(webhook: WebhookServer | str, **fields: Any) -> Sink:
    url = webhook if isinstance(webhook, str) else webhook.url
    return HttpSinkConfig.model_validate({"url": url, **fields}).build(Path())


def ids(*numbers: int) -> set[str]:
    return {f"incoming/{number}" for number in numbers}


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_transient_status_asks_for_the_row_again(webhook: WebhookServer, status: int) -> None:
    webhook.answer_rows(status, ids(1), body="later, please")
    (refusal,) = write_batch(sink_for(webhook), numbered(3))
    assert (refusal.index, refusal.transient) == (1, True)
    assert f"answered {status}" in refusal.reason
    assert "later, please" in refusal.reason


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 409, 410, 422, 501])
def test_any_other_status_refuses_the_row_for_good(webhook: WebhookServer, status: int) -> None:
    webhook.answer_rows(status, ids(1))
    (refusal,) = write_batch(sink_for(webhook), numbered(3))
    assert (refusal.index, refusal.transient) == (1, False)


def test_which_statuses_are_transient_is_configurable(webhook: WebhookServer) -> None:
    webhook.answer_rows(409, ids(0))
    webhook.answer_rows(503, ids(1))
    refusals = write_batch(sink_for(webhook, transient_statuses=[409]), numbered(3))
    assert [(one.index, one.transient) for one in refusals] == [(0, True), (1, False)]


def test_only_the_row_that_failed_is_sent_again(webhook: WebhookServer) -> None:
    webhook.answer_rows(503, ids(3), times=2)
    writer = sink_for(webhook, concurrency=1).open(Part(batch_ref(), 0, 0))
    done = deliver(writer, numbered(10), Retry(initial_ms=1, max_ms=1), budget_s=60)
    writer.close()
    assert (places(done.taken), done.attempts) == (list(range(10)), 3)
    assert [request.ids for request in webhook.requests[10:]] == [["incoming/3"], ["incoming/3"]]


@pytest.mark.parametrize("mode", ["array", "ndjson"])
def test_rejected_request_is_split_until_the_row_at_fault_is_found(webhook: WebhookServer, mode: str) -> None:
    webhook.answer_rows(422, ids(3, 77), body="unprocessable")
    refusals = write_batch(sink_for(webhook, mode=mode, max_rows=50), numbered(100))
    assert [(one.index, one.transient) for one in refusals] == [(3, False), (77, False)]
    assert sorted(webhook.accepted_ids) == sorted(ids(*range(100)) - ids(3, 77))
    assert len(webhook.requests) <= 2 * 13


def test_request_that_is_too_large_is_split(webhook: WebhookServer) -> None:
    webhook.answer(413, lambda request: len(request.rows) > 10)
    assert write_batch(sink_for(webhook, mode="array"), numbered(100)) == []
    assert sorted(webhook.accepted_ids) == sorted(ids(*range(100)))


def test_answer_that_is_no_rows_fault_is_not_split(webhook: WebhookServer) -> None:
    webhook.answer(401)
    refusals = write_batch(sink_for(webhook, mode="array"), numbered(100))
    assert ([one.index for one in refusals], len(webhook.requests)) == (list(range(100)), 1)


def test_transient_failure_while_splitting_concerns_its_half_only(webhook: WebhookServer) -> None:
    webhook.answer(503, lambda request: request.ids[0] == "incoming/4" and len(request.ids) == 4)
    webhook.answer(422, lambda request: len(request.ids) == 8)
    refusals = write_batch(sink_for(webhook, mode="array"), numbered(8))
    assert [(one.index, one.transient) for one in refusals] == [(index, True) for index in (4, 5, 6, 7)]


def test_rows_arrive_in_order_when_one_is_sent_at_a_time(webhook: WebhookServer) -> None:
    write_batch(sink_for(webhook, concurrency=1), numbered(20))
    assert webhook.accepted_ids == [f"incoming/{number}" for number in range(20)]


def test_each_request_names_its_rows_the_same_on_every_replay(webhook: WebhookServer) -> None:
    write_batch(sink_for(webhook), numbered(1))
    for _ in range(2):
        write_batch(sink_for(webhook, mode="array"), numbered(2))
    single, first, second = (request.headers["idempotency-key"] for request in webhook.requests)
    assert single == "incoming/0"
    assert first == second != single


def test_sink_that_does_not_answer_costs_a_few_requests_not_one_per_row(webhook: WebhookServer) -> None:
    hold = webhook.hold()
    refusals = write_batch(sink_for(webhook, timeout_ms=50, concurrency=2), numbered(500))
    hold.release()
    assert [(one.index, one.transient) for one in refusals] == [(index, True) for index in range(500)]
    assert len(webhook.requests) <= 6


def test_one_row_that_gets_no_answer_does_not_stop_the_others(webhook: WebhookServer) -> None:
    hold = webhook.hold(lambda request: request.ids == ["incoming/0"])
    refusals = write_batch(sink_for(webhook, timeout_ms=2000, concurrency=1), numbered(20))
    hold.release()
    assert [(one.index, one.transient) for one in refusals] == [(0, True)]


def test_write_does_not_return_while_an_answer_is_owed(webhook: WebhookServer) -> None:
    hold = webhook.hold(lambda request: request.ids == ["incoming/1"])
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write_batch, sink_for(webhook), numbered(3))
        hold.wait_for(1)
        webhook.wait_for(lambda server: len(server.accepted) == 2)
        assert not written.done()
        hold.release()
        assert written.result() == []
    assert sorted(webhook.accepted_ids) == sorted(ids(0, 1, 2))


def test_headers_and_token_are_sent_and_never_shown(webhook: WebhookServer) -> None:
    webhook.answer(500, body="your key is k-123456789 and your token t-987654321")
    config = HttpSinkConfig.model_validate(
        {"url": webhook.url, "headers": {"X-Key": "k-123456789"}, "token": "t-987654321", "method": "PUT"}
    )
    (refusal,) = write_batch(config.build(Path()), numbered(1))
    (request,) = webhook.requests
    assert (request.headers["x-key"], request.headers["authorization"]) == (
        "k-123456789",
        "Bearer t-987654321",
    )
    assert (request.method, request.headers["content-type"]) == ("PUT", "application/json")
    for text in (refusal.reason, repr(config), config.model_dump_json()):
        assert "k-123456789" not in text
        assert "t-987654321" not in text


def test_password_in_the_address_is_used_and_never_shown() -> None:
    address = f"http://user:hunter2hunter2@127.0.0.1:{free_port()}/x?token=abcdefgh"
    (refusal,) = write_batch(sink_for(address), numbered(1))
    assert refusal.transient
    assert "hunter2" not in refusal.reason
    assert "abcdefgh" not in refusal.reason


@pytest.mark.parametrize("address", ["ftp://host/x", "host/x", "http://", "http://[::1"])
def test_what_is_no_address_is_told_at_the_start(address: str) -> None:
    with pytest.raises(PermanentError, match="address"):
        sink_for(address).prepare()


def test_a_secret_in_an_answer_is_masked_before_the_answer_is_cut(webhook: WebhookServer) -> None:
    secret = "correct-horse-battery-staple"
    webhook.answer(400, body="x" * 190 + secret)
    (refusal,) = write_batch(sink_for(webhook, headers={"X-Key": secret}), numbered(1))
    assert "corr" not in refusal.reason and refusal.reason.endswith("x***")
