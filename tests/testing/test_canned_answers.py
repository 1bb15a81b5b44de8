"""A service in a test: the step decides as in a run what an answer means, and nothing is sent."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from signoff.pipeline.tests_block import Answer
from signoff.testing.canned_answers import with_answers
from signoff.transforms.enrich.calls import Calls
from signoff.transforms.enrich.step import EnrichConfig

ANSWERS = [
    Answer(asked={"id": 5}, answer={"name": "North"}),
    Answer(asked={"id": 6}, status=404),
    Answer(asked={"id": 8}, status=403, answer="not for you"),
]


def asked(events: list[dict[str, Any]], **fields: Any) -> list[Any]:
    config = EnrichConfig.model_validate({"input": "a", **fields})
    step = with_answers(config, ANSWERS)
    return list(Calls(step, str(sorted(fields)))(pa.array(events)).to_pylist())


def test_the_first_answer_that_fits_the_columns_in_the_address_is_given() -> None:
    events = [{"values": [value], "body": None} for value in ("5", "6", "7", "8")]
    north, none, unknown, refused = asked(
        events, url="${STATIONS}/v1/{id}", schema="name STRING", on_missing="null"
    )
    assert north == {"text": '{"name": "North"}', "error": None}
    assert none == {"text": None, "error": None}
    assert 'the test gives no answer for {"id": "7"}' in unknown["error"]
    assert "answered 403 Forbidden: not for you" in refused["error"]


def test_a_request_about_several_events_is_answered_for_each() -> None:
    events = [{"values": [], "body": f'{{"id": {number}}}'} for number in (5, 6)]
    north, none = asked(
        events, url="https://service.example", method="POST", body=["id"], batch=10, into="answer"
    )
    assert north["text"] == '{"name": "North"}'
    assert "answered with null" in none["error"]
