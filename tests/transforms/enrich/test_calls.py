"""The requests of `enrich` against a real server, without Spark."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from signoff.transforms.enrich.calls import Calls
from signoff.transforms.enrich.step import EnrichConfig
from signoff.transforms.row_results import RowResult, parse_result
from tests.servers import Request, WebhookServer

EVENT = pa.struct([pa.field("values", pa.list_(pa.string())), pa.field("body", pa.string())])
SOON = {"initial_ms": 1, "max_ms": 5}


@pytest.fixture
def server() -> Iterator[WebhookServer]:
    with WebhookServer("/stations/") as server:
        yield server


class Asked:
    """A step that asks a server, and what it says of the events it is given."""

    def __init__(self, server: WebhookServer, **fields: Any) -> None:
        url = server.url + ("" if fields.get("body") else "{id}")
        self.config = EnrichConfig.model_validate({"url": url, "into": "answer", "retry": SOON, **fields})
        self.calls = Calls(self.config, f"{server.port} {id(self)}")

    def about(self, *ids: str | None) -> list[Any]:
        """By event: the text of its answer, or what is said of it; None where nothing was asked."""
        posts = bool(self.config.body)
        events = [
            i and {"values": [] if posts else [i], "body": f'{{"id":"{i}"}}' if posts else None} for i in ids
        ]
        rows = self.calls(pa.array(events, EVENT)).to_pylist()
        return [row and (parse_result(row["error"]) if row["error"] else row["text"]) for row in rows]


def known(request: Request) -> str:
    """What the server knows of a station: its name."""
    if request.method == "GET":
        return json.dumps({"name": request.path.rpartition("/")[2]})
    return json.dumps([None if row["id"] == "nobody" else {"name": row["id"]} for row in request.rows])


def test_each_event_is_asked_about_with_its_own_address_and_what_is_not_alive_is_not(
    server: WebhookServer,
) -> None:
    server.answer(200, body=known)
    assert Asked(server).about("a", None, "b/c d", "ü") == [
        '{"name": "a"}', None, '{"name": "b%2Fc%20d"}', '{"name": "%C3%BC"}',
    ]  # fmt: skip
    assert sorted(request.path for request in server.requests) == [
        "/stations/%C3%BC", "/stations/a", "/stations/b%2Fc%20d",
    ]  # fmt: skip


def test_a_null_in_the_address_is_an_error_of_that_event(server: WebhookServer) -> None:
    asked = Asked(server)
    (row,) = asked.calls(pa.array([{"values": [None], "body": None}], EVENT)).to_pylist()
    assert parse_result(row["error"]) == (RowResult.FAILED, 'column "id" in the address is null')
    assert not server.requests


def test_several_events_are_asked_about_with_one_request(server: WebhookServer) -> None:
    server.answer(200, body=known)
    asked = Asked(server, method="POST", body=["id"], batch=3, on_missing="drop")
    answers = asked.about("a", "b", "nobody", "d")
    assert answers[:2] + answers[3:] == ['{"name": "a"}', '{"name": "b"}', '{"name": "d"}']
    assert answers[2][0] == RowResult.DROPPED
    assert sorted(len(request.rows) for request in server.requests) == [1, 3]
    assert server.requests[0].headers["content-type"] == "application/json"


def test_of_several_events_only_the_one_at_fault_fails(server: WebhookServer) -> None:
    server.answer(200, body=known)
    server.answer(400, lambda request: any(row["id"] == "bad" for row in request.rows), body="no such id")
    asked = Asked(server, method="POST", body=["id"], batch=4)
    answers = asked.about("a", "b", "bad", "d")
    assert [answers[0], answers[1], answers[3]] == ['{"name": "a"}', '{"name": "b"}', '{"name": "d"}']
    assert answers[2][0] == RowResult.FAILED and "400" in answers[2][1] and "no such id" in answers[2][1]


def test_an_answer_with_another_number_of_elements_is_an_error_of_all(server: WebhookServer) -> None:
    server.answer(200, body="[1]")
    (first, second) = Asked(server, method="POST", body=["id"], batch=4).about("a", "b")
    assert first == second and first[0] == RowResult.FAILED
    assert first[1].endswith("answered with an array of 1 to a request about 2 events")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A moment that is long enough for a machine that is busy."""
    monkeypatch.setattr("signoff.transforms.enrich.calls._MOMENT_S", 60)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 503])
def test_what_fails_for_a_moment_is_asked_again_at_once(
    server: WebhookServer, status: int, patient: None
) -> None:
    server.answer(200, body=known)
    server.answer(status, times=2)
    assert Asked(server).about("a") == ['{"name": "a"}']
    assert len(server.requests) == 3


def test_what_fails_for_longer_has_failed_for_now(server: WebhookServer, patient: None) -> None:
    server.answer(503, body="be patient")
    ((answer, reason),) = Asked(server, tries=2).about("a")
    assert answer == RowResult.WAITS and reason.endswith("answered 503 Service Unavailable: be patient")
    assert len(server.requests) == 2


@pytest.mark.parametrize("status", [301, 400, 401, 403, 410])
def test_what_the_service_will_never_answer_is_asked_once(server: WebhookServer, status: int) -> None:
    server.answer(status)
    ((answer, reason),) = Asked(server).about("a")
    assert answer == RowResult.FAILED and str(status) in reason and len(server.requests) == 1


def test_a_short_retry_after_is_waited_for_and_a_long_one_is_not(
    server: WebhookServer, patient: None
) -> None:
    server.answer(200, body=known)
    server.answer(429, times=1, headers={"Retry-After": "1"})
    assert Asked(server).about("a") == ['{"name": "a"}']
    first, second = server.requests
    assert second.at - first.at >= 1.0
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1))
    for text in ("3600", later):
        server.answer(503, times=1, headers={"Retry-After": text})
        ((answer, _),) = Asked(server).about("a")
        assert answer == RowResult.WAITS


@pytest.mark.parametrize(
    ("on_missing", "expected"),
    [("null", None), (None, None), ("drop", RowResult.DROPPED), ("error", RowResult.FAILED)],
)
def test_what_the_service_does_not_know_is_as_configured(
    server: WebhookServer, on_missing: str | None, expected: RowResult | None
) -> None:
    server.answer(404)
    asked = Asked(server, on_missing=on_missing)
    (row,) = asked.calls(pa.array([{"values": ["a"], "body": None}], EVENT)).to_pylist()
    assert row["text"] is None
    assert (parse_result(row["error"])[0] if row["error"] else None) == expected


def test_answers_are_remembered_for_a_while_and_errors_are_not(
    server: WebhookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer(200, body=known)
    bad = server.answer(400, lambda request: request.path.endswith("bad"))
    asked = Asked(server, cache={"seconds": 60, "entries": 2})
    assert asked.about("a", "a", "b", "a") == ['{"name": "a"}'] * 2 + ['{"name": "b"}', '{"name": "a"}']
    assert asked.about("b", "a")[1] == '{"name": "a"}'
    assert len(server.requests) == 2
    asked.about("bad")
    bad.stop()
    assert asked.about("bad") == ['{"name": "bad"}'] and len(server.requests) == 4
    asked.about("a")
    assert len(server.requests) == 4, "the one used last is kept"
    asked.about("b")
    assert len(server.requests) == 5, "the one not used for longest is not"
    clock = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: clock)
    asked.about("a")
    assert len(server.requests) == 6, "what is too old is asked for again"


def test_no_more_requests_are_made_at_once_than_allowed(server: WebhookServer) -> None:
    server.answer(200, body=lambda request: time.sleep(0.01) or known(request))
    assert len(Asked(server, concurrency=3).about(*map(str, range(30)))) == 30
    assert server.most_at_once == 3


def test_a_service_that_does_not_answer_in_time_costs_a_few_timeouts(server: WebhookServer) -> None:
    hold = server.hold()
    answers = Asked(server, timeout_s=0.2, tries=1, concurrency=2).about(*map(str, range(50)))
    assert {answer for answer, _ in answers} == {RowResult.WAITS} and len(answers) == 50
    assert any("timed out" in reason for _, reason in answers)
    assert len(server.requests) <= 5
    hold.release()


def test_a_service_that_is_down_is_waited_for(server: WebhookServer) -> None:
    server.down()
    ((answer, reason),) = Asked(server).about("a")
    assert answer == RowResult.WAITS and "refused" in reason.lower()
    server.up()
    server.answer(200, body=known)
    assert Asked(server).about("a") == ['{"name": "a"}']


@pytest.mark.parametrize("body", ["<html>", "[1]", "17", ""])
def test_an_answer_that_is_no_object_is_an_error_where_fields_are_wanted(
    server: WebhookServer, body: str
) -> None:
    server.answer(200, body=body)
    ((answer, _),) = Asked(server, schema="name STRING").about("a")
    assert answer == RowResult.FAILED


def test_secrets_are_sent_and_in_no_text_that_is_said(
    server: WebhookServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.answer(400, body="token abcd-secret-1 and key efgh-secret-2 are not valid")
    asked = Asked(server, token="abcd-secret-1", headers={"X-Key": "efgh-secret-2"},
                  url=server.url + "{id}?api_key=ijkl-secret-3")  # fmt: skip
    ((_, reason),) = asked.about("a")
    (request,) = server.requests
    assert request.headers["authorization"] == "Bearer abcd-secret-1"
    assert request.headers["x-key"] == "efgh-secret-2" and request.path.endswith("a?api_key=ijkl-secret-3")
    assert "secret" not in reason and "400" in reason
    ours = [record.getMessage() for record in caplog.records if record.name.startswith("signoff")]
    assert not any("secret" in text for text in ours)
    assert "secret" not in repr(asked.config)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"into": None}, "say where the answer goes"),
        ({"body": ["id"]}, "a GET has no body"),
        ({"url": "http://localhost/{id"}, "expected '}'"),
        ({"method": "POST", "batch": 2}, 'need a "body"'),
        ({"method": "POST", "batch": 2, "body": ["id"]}, "of one event"),
    ],
)
def test_fields_that_do_not_fit_together_are_a_problem(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        EnrichConfig.model_validate({"url": "http://localhost/{id}", "into": "answer", **fields})


def test_a_secret_in_an_answer_is_masked_before_the_answer_is_cut(server: WebhookServer) -> None:
    secret = "correct-horse-battery-staple"
    server.answer(400, body="x" * 190 + secret)
    ((answer, reason),) = Asked(server, headers={"X-Key": secret}).about("a")
    assert answer == RowResult.FAILED and "corr" not in reason and reason.endswith("x***")
