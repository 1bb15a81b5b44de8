"""Slack: its pace, its pauses, and what a row cannot make of a message."""

from __future__ import annotations

import json
import logging
import os
import pickle
import tempfile
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from signoff.pipeline.model import Retry
from signoff.pipeline.secrets import redact
from signoff.sinks import slack
from signoff.sinks.contract import EVENT_ID, Part, Refusal
from signoff.sinks.retry import deliver
from signoff.sinks.slack import SlackSink, SlackSinkConfig
from signoff.testing.conformance.rows import batch_ref, every_type, numbered, places, write_batch
from tests.servers import WebhookServer, free_port

SECRET = "services/T0123/B4567/abcdefghijklmnop"


@pytest.fixture
def webhook() -> Any:
    with WebhookServer(f"/{SECRET}") as server:
        yield server


@pytest.fixture(autouse=True)
def own_notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test may have had the port, and have been told to pause."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def sink_for(webhook: WebhookServer | str, **fields: Any) -> SlackSink:
    url = webhook if isinstance(webhook, str) else webhook.url
    made = {"url": url, "text": "{{ text }}", "interval_ms": 0, **fields}
    return SlackSinkConfig.model_validate(made).build(Path())


def texts(*values: str) -> pa.RecordBatch:
    return pa.record_batch(
        {EVENT_ID: [f"incoming/{n}" for n in range(len(values))], "text": pa.array(values)}
    )


def sent(webhook: WebhookServer) -> list[dict[str, Any]]:
    return [json.loads(request.body) for request in webhook.requests]


def outcome(refusals: list[Refusal]) -> list[tuple[int, bool]]:
    return [(one.index, one.transient) for one in refusals]


def test_message_and_blocks_are_made_from_the_row(webhook: WebhookServer) -> None:
    blocks = [
        {"type": "header", "text": {"type": "plain_text", "text": "{{ text }}"}},
        {"type": "section", "fields": [{"type": "mrkdwn", "text": "*Number*\n{{ number }}"}]},
    ]
    assert write_batch(sink_for(webhook, text="<!here> *{{ text }}*", blocks=blocks), numbered(1)) == []
    (message,) = sent(webhook)
    assert message["text"] == "<!here> *row 0*"
    assert message["blocks"][0]["text"]["text"] == "row 0"
    assert message["blocks"][1]["fields"] == [{"type": "mrkdwn", "text": "*Number*\n0"}]
    assert not message["unfurl_links"] and not message["unfurl_media"]


def test_row_mentions_nobody_hides_no_link_and_breaks_no_json(webhook: WebhookServer) -> None:
    hostile = '<!channel> <https://evil.example|here> & "quoted" \n}]} {{ 7*7 }}'
    blocks = [{"type": "section", "text": {"type": "mrkdwn", "text": "{{ text }}"}}]
    assert write_batch(sink_for(webhook, text="*{{ text }}*", blocks=blocks), texts(hostile)) == []
    (message,) = sent(webhook)
    shown = '&lt;!channel&gt; &lt;https://evil.example|here&gt; &amp; "quoted" \n}]} {{ 7*7 }}'
    assert message["text"] == f"*{shown}*"
    assert message["blocks"][0]["text"]["text"] == shown


def test_messages_keep_their_distance_also_from_one_write_to_the_next(webhook: WebhookServer) -> None:
    sink = sink_for(webhook, interval_ms=80)
    write_batch(sink, numbered(3))
    write_batch(sink, numbered(2, start=3))
    assert [message["text"] for message in sent(webhook)] == [f"row {number}" for number in range(5)]
    arrived = [request.at for request in webhook.requests]
    assert all(later - earlier >= 0.079 for earlier, later in pairwise(arrived))
    assert webhook.most_at_once == 1


def test_429_is_waited_for_as_long_as_slack_asks_and_the_row_is_sent_once_more(
    webhook: WebhookServer,
) -> None:
    webhook.answer(429, times=1, headers={"Retry-After": "1"})
    assert write_batch(sink_for(webhook), numbered(2)) == []
    first, again, second = webhook.requests
    assert first.body == again.body and again.at - first.at >= 0.99
    assert json.loads(second.body)["text"] == "row 1"


def test_long_pause_gives_the_rows_back_and_nothing_is_sent_meanwhile(webhook: WebhookServer) -> None:
    webhook.answer(429, times=1, headers={"Retry-After": "3600"})
    for _ in range(2):
        refusals = write_batch(sink_for(webhook), numbered(3))
        assert outcome(refusals) == [(0, True), (1, True), (2, True)]
        assert "asks for a pause of another 3" in refusals[2].reason
    assert len(webhook.requests) == 1


def test_what_one_worker_was_told_holds_for_the_next_one(webhook: WebhookServer) -> None:
    """Spark hands rows to any Python worker, and none of them may post while Slack wants a pause."""
    webhook.answer(429, times=1, headers={"Retry-After": "3600"})
    sink = sink_for(webhook)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as workers:
        for _ in range(2):
            (refusal,) = workers.submit(write_batch, sink, numbered(1)).result()
            assert refusal.transient
        (refusal,) = write_batch(sink, numbered(1))
    assert "asks for a pause of another 3" in refusal.reason and len(webhook.requests) == 1


def test_workers_share_the_pace(webhook: WebhookServer) -> None:
    sink = sink_for(webhook, interval_ms=80)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as workers:
        written = [workers.submit(write_batch, sink, numbered(3, start=n)) for n in (0, 3)]
        assert [refused for each in written for refused in each.result()] == []
    arrived = [request.at for request in webhook.requests]
    assert webhook.most_at_once == 1 and len(arrived) == 6
    assert all(later - earlier >= 0.079 for earlier, later in pairwise(arrived))


def test_a_pause_of_before_the_machine_was_started_is_over(
    webhook: WebhookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook.answer(429, times=1, headers={"Retry-After": "3600"})
    write_batch(sink_for(webhook), numbered(1))
    monkeypatch.setattr(slack, "boot", lambda: "another")
    assert write_batch(sink_for(webhook), numbered(1)) == []


def test_a_directory_that_others_could_have_made_keeps_no_notes(
    webhook: WebhookServer, tmp_path: Path
) -> None:
    place = tmp_path / f"signoff-notes-{os.getuid()}"
    place.mkdir(mode=0o700)
    place.chmod(0o777)
    webhook.answer(429, times=1, headers={"Retry-After": "3600"})
    for _ in range(2):
        (refusal,) = write_batch(sink_for(webhook), numbered(1))
        assert refusal.transient
    assert not list(place.iterdir()) and len(webhook.requests) == 1


def test_429_without_end_gives_the_row_back(webhook: WebhookServer) -> None:
    webhook.answer(429, headers={"Retry-After": "0"})
    (refusal,) = write_batch(sink_for(webhook), numbered(1))
    assert refusal.transient and "answered 429" in refusal.reason and len(webhook.requests) == 3


@pytest.mark.parametrize(
    ("status", "transient"), [(500, True), (503, True), (400, False), (404, False), (410, False)]
)
def test_every_other_answer_is_transient_or_permanent_by_its_status(
    webhook: WebhookServer, status: int, transient: bool
) -> None:
    webhook.answer(status, lambda request: b"row 1" in request.body, body="channel_is_archived")
    (refusal,) = write_batch(sink_for(webhook), numbered(3))
    assert (refusal.index, refusal.transient) == (1, transient)
    assert f"127.0.0.1 answered {status}" in refusal.reason and "channel_is_archived" in refusal.reason
    assert len(webhook.requests) == 3


def test_only_the_row_that_failed_is_sent_again(webhook: WebhookServer) -> None:
    webhook.answer(503, lambda request: b"row 1" in request.body, times=2)
    writer = sink_for(webhook).open(Part(batch_ref(), 0, 0))
    done = deliver(writer, numbered(3), Retry(initial_ms=1, max_ms=1), budget_s=60)
    writer.close()
    assert places(done.taken) == [0, 1, 2]
    assert [message["text"] for message in sent(webhook)] == ["row 0", "row 1", "row 2", "row 1", "row 1"]


def test_address_is_shown_nowhere(webhook: WebhookServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    config = SlackSinkConfig.model_validate({"url": webhook.url, "text": "x", "interval_ms": 0})
    webhook.answer(500, body=f"no team at /{SECRET}")
    (refusal,) = write_batch(pickle.loads(pickle.dumps(config.build(Path()))), numbered(1))
    webhook.down()
    (lost,) = write_batch(config.build(Path()), numbered(1))
    assert lost.transient
    shown = (refusal.reason, lost.reason, repr(config), config.model_dump_json(), caplog.text)
    assert not any("abcdefghijklmnop" in text for text in shown)


def test_slack_that_does_not_answer_costs_few_requests() -> None:
    refusals = write_batch(sink_for(f"http://127.0.0.1:{free_port()}/{SECRET}"), numbered(50))
    assert outcome(refusals) == [(index, True) for index in range(50)]
    assert "not sent: 127.0.0.1 does not answer" in refusals[49].reason


def test_row_that_makes_no_message_is_refused_alone(webhook: WebhookServer) -> None:
    refusals = write_batch(sink_for(webhook), texts("fine", "", "x" * 40_001, "also fine"))
    assert outcome(refusals) == [(1, False), (2, False)]
    assert [one.reason[:16] for one in refusals] == ["text: it is empt", "text: it has mor"]
    assert [message["text"] for message in sent(webhook)] == ["fine", "also fine"]


def test_values_of_every_type_have_a_text(webhook: WebhookServer) -> None:
    assert write_batch(sink_for(webhook, text="{{ row }}"), every_type()) == []
    assert "12345678901234567890.123456789012345678" in sent(webhook)[0]["text"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"url": f"ftp://{SECRET}"}, "not an https:// address"),
        ({"url": ""}, "it is empty"),
        ({"text": "{{ x"}, "line 1 of the template"),
        ({"blocks": {"type": "section"}}, "blocks are a list"),
        ({"blocks": [{}] * 51}, "50 blocks"),
        ({"blocks": [{"text": "{{ a | safe }}"}]}, "No filter named 'safe'"),
    ],
)
def test_what_cannot_work_is_an_error_of_the_file(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said) as raised:
        SlackSinkConfig.model_validate({"url": "https://hooks.example/x/y", "text": "x", **fields})
    assert "abcdefghijklmnop" not in redact(str(raised.value))


def test_columns_that_templates_name_are_known() -> None:
    config = SlackSinkConfig.model_validate(
        {"url": "https://hooks.example/x/y", "text": "{{ a }}", "blocks": [{"text": "{{ b }}"}]}
    )
    assert config.named_columns() == {"a": "text", "b": "blocks"}
