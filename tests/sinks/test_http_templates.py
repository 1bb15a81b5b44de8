"""Bodies of the webhook in a form of the user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pyarrow as pa
import pytest
from pydantic import ValidationError

from signoff.sinks.contract import EVENT_ID
from signoff.sinks.http import HttpSinkConfig
from signoff.testing.conformance.rows import every_type, numbered, write_batch
from tests.servers import WebhookServer

HOSTILE = '","to":"+4999","x":"\n\\ {{ 7*7 }} & = + % ä'


def config_for(webhook: WebhookServer, **fields: Any) -> HttpSinkConfig:
    return HttpSinkConfig.model_validate({"url": webhook.url, "concurrency": 1, **fields})


def texts(*values: str | None) -> pa.RecordBatch:
    ids = [f"incoming/{number}" for number in range(len(values))]
    return pa.record_batch({EVENT_ID: ids, "text": pa.array(values, pa.string())})


def test_body_of_a_template_is_valid_json_whatever_a_row_holds(webhook: WebhookServer) -> None:
    body = {
        "messages": [{"to": "+491", "text": "Alarm: {{ text }}", "raw": "{{ text }}", "id": "{{ event_id }}"}]
    }
    assert write_batch(config_for(webhook, body=body).build(Path()), texts(HOSTILE, None)) == []
    first, second = (json.loads(request.body)["messages"] for request in webhook.requests)
    assert first == [{"to": "+491", "text": f"Alarm: {HOSTILE}", "raw": HOSTILE, "id": "incoming/0"}]
    assert second == [{"to": "+491", "text": "Alarm: ", "raw": None, "id": "incoming/1"}]
    assert webhook.requests[0].headers["content-type"] == "application/json"
    assert webhook.requests[0].headers["idempotency-key"] == "incoming/0"


def test_form_holds_what_the_template_says_and_nothing_a_row_adds(webhook: WebhookServer) -> None:
    form = {"To": "+491", "Body": "{{ text }}", "From": "Signoff"}
    assert write_batch(config_for(webhook, form=form).build(Path()), texts(HOSTILE)) == []
    (request,) = webhook.requests
    assert request.headers["content-type"] == "application/x-www-form-urlencoded"
    assert parse_qsl(request.body.decode(), strict_parsing=True) == [
        ("To", "+491"),
        ("Body", HOSTILE),
        ("From", "Signoff"),
    ]


@pytest.mark.parametrize("mode", ["array", "ndjson"])
def test_bodies_of_several_rows_go_together(webhook: WebhookServer, mode: str) -> None:
    sink = config_for(webhook, mode=mode, body={"event_id": "{{ event_id }}", "n": "{{ number + 1 }}"}).build(
        Path()
    )
    assert write_batch(sink, numbered(3)) == []
    (request,) = webhook.requests
    assert [row["n"] for row in request.rows] == [1, 2, 3]


def test_values_of_every_type_can_be_put_into_a_body(webhook: WebhookServer) -> None:
    rows = every_type()
    write_batch(config_for(webhook, body={"row": "{{ row }}"}).build(Path()), rows)
    write_batch(config_for(webhook).build(Path()), rows)
    half = len(webhook.requests) // 2
    sent = [request.body for request in webhook.requests]
    assert [json.loads(one)["row"] for one in sent[:half]] == [json.loads(one) for one in sent[half:]]
    assert b"12345678901234567890.123456789012345678" in sent[0]


def test_row_that_a_template_fails_for_is_refused_alone_and_for_good(webhook: WebhookServer) -> None:
    sink = config_for(webhook, body={"event_id": "{{ event_id }}", "n": "{{ 10 // number }}"}).build(Path())
    (refusal,) = write_batch(sink, numbered(3))
    assert (refusal.index, refusal.transient) == (0, False)
    assert refusal.reason == "body: integer division or modulo by zero"
    assert webhook.accepted_ids == ["incoming/1", "incoming/2"]


def test_a_bad_template_and_a_form_of_several_rows_are_errors_of_the_file(webhook: WebhookServer) -> None:
    for fields, said in (
        ({"body": {"x": "{{ a"}}, "line 1 of the template"),
        ({"form": {"x": "{{ a | safe }}"}}, "No filter named 'safe'"),
        ({"form": {"x": "1"}, "mode": "array"}, "mode: each"),
        ({"form": {"x": "1"}, "body": {}}, "without a body"),
    ):
        with pytest.raises(ValidationError, match=said):
            config_for(webhook, **fields)


def test_columns_that_templates_name_are_known(webhook: WebhookServer) -> None:
    assert config_for(webhook, body={"a": ["{{ x }}", "{{ row.y }}"]}).named_columns() == {"x": "body"}
    assert config_for(webhook, form={"a": "{{ z }}"}).named_columns() == {"z": "form"}
    assert config_for(webhook).named_columns() == {}
