"""The NATS sink against a real server: a row is signed for when the stream has stored it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from signoff.batch import BatchRef
from signoff.errors import TransientError
from signoff.pipeline.secrets import SecretUrl
from signoff.sinks.contract import Part, Refusal, RunRef
from signoff.sinks.nats import SUBJECT, NatsSink, NatsSinkConfig
from tests.nats_server import NatsServer
from tests.sinks.targets import keyed

pytestmark = pytest.mark.servers

SECRET = "sesame-open-8"
PART = Part(BatchRef("incoming", 0, 10), 0, 0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(tmp_path / "server", max_payload=2_000) as server:
        server.make_stream("OUT", "out.>", duplicate_window=120)
        yield server


def sink(url: str, **fields: Any) -> NatsSink:
    config = NatsSinkConfig.model_validate({"url": url, "subject": "not asked here", **fields})
    return config.build(Path())


def rows(*numbers: int, text: str = "x") -> pa.RecordBatch:
    ids = [f"incoming/{number}" for number in numbers]
    return pa.record_batch({"event_id": ids, "n": list(numbers), "text": [text] * len(ids)})


def write(sink: NatsSink, given: pa.RecordBatch, *subjects: str | None, part: Part = PART) -> list[Refusal]:
    writer = sink.open(part)
    try:
        return list(writer.write(keyed(given, *subjects, column=SUBJECT)))
    finally:
        writer.close()


def test_a_row_that_comes_again_is_stored_once_under_its_id(server: NatsServer) -> None:
    out = sink(server.url, headers={"origin": "tests"})
    assert write(out, rows(0, 1, 2), "out.a") == []
    assert write(sink(server.url, headers={"origin": "tests"}), rows(1, 2, 3), "out.a") == []
    stored = server.stored("OUT")
    ids = [(message.headers or {})["Nats-Msg-Id"] for message in stored]
    assert [one.rpartition("/")[0] for one in ids] == [f"incoming/{number}" for number in range(4)]
    assert (stored[0].headers or {})["origin"] == "tests" and stored[0].subject == "out.a"
    assert stored[0].data == b'{"event_id":"incoming/0","n":0,"text":"x"}'


def begun(sink: NatsSink, run: RunRef) -> NatsSink:
    sink.begin(run)
    return sink


def test_a_stream_of_several_sinks_and_pipelines_keeps_the_rows_of_each(server: NatsServer) -> None:
    """All have an event incoming/0, and the stream knows nothing but ids."""
    here, there = RunRef("state-1", bounded=False), RunRef("state-2", bounded=False)
    sinks = [
        begun(sink(server.url, subject="'out.a'"), here),
        begun(sink(server.url, subject="concat('out.', kind)"), here),
        begun(sink(server.url, subject="'out.a'", input="others"), here),
        begun(sink(server.url, subject="'out.a'"), there),
    ]
    for one in (*sinks, *sinks):  # each is asked again, as after a crash
        assert write(one, rows(0), "out.a") == []
    assert len(server.stored("OUT")) == len(sinks)


def test_the_next_try_of_a_failed_job_sends_a_row_under_its_earlier_id(server: NatsServer) -> None:
    first = RunRef("run-1", bounded=True, key="report")
    again = RunRef("run-2", bounded=True, key="report", repeats={"incoming": [(7, 0, 1)]})
    assert write(begun(sink(server.url), first), rows(0), "out.a") == []
    assert write(begun(sink(server.url), again), rows(7), "out.a") == []
    assert len(server.stored("OUT")) == 1


def test_a_row_that_nobody_can_take_is_refused_alone(server: NatsServer) -> None:
    subjects = ("out.a", None, "two words", "out.*", "out..a", "nowhere", "out.b")
    refusals = write(sink(server.url), rows(*range(7)), *subjects)
    assert [(one.index, one.transient) for one in sorted(refusals, key=lambda one: one.index)] == [
        *((index, False) for index in (1, 2, 3, 4)),
        (5, True),  # a stream may be made for it
    ]
    assert {message.subject for message in server.stored("OUT")} == {"out.a", "out.b"}


def test_a_message_that_is_too_large_is_refused_alone(server: NatsServer) -> None:
    large = rows(0, text="x" * 5_000)
    both = pa.Table.from_batches([large, rows(1)]).combine_chunks().to_batches()[0]
    (refusal,) = write(sink(server.url), both, "out.a")
    assert (refusal.index, refusal.transient) == (0, False) and "2000 at most" in refusal.reason
    assert len(server.stored("OUT")) == 1


def test_a_stream_that_is_full_is_waited_for(server: NatsServer) -> None:
    server.make_stream("FULL", "full", max_msgs=1, discard="new")
    refusals = write(sink(server.url), rows(0, 1), "full")
    assert [one.transient for one in refusals] == [True] and len(server.stored("FULL")) == 1


def test_rows_go_to_the_stream_that_is_named(server: NatsServer) -> None:
    (refusal,) = write(sink(server.url, stream="OTHER"), rows(0), "out.a")
    assert refusal.transient and "expected stream does not match" in refusal.reason
    with pytest.raises(TransientError, match="stream not found"):
        sink(server.url, stream="OTHER").prepare()


def test_the_context_of_a_trace_is_handed_on(server: NatsServer) -> None:
    context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    part = Part(PART.batch, 0, 0, {"incoming/1": context})
    assert write(sink(server.url), rows(0, 1), "out.a", part=part) == []
    found = [(message.headers or {}).get("traceparent") for message in server.stored("OUT")]
    assert found == [None, context]


def test_a_login_is_told_without_the_password(tmp_path: Path) -> None:
    users = {"users": [{"user": "ann", "password": SECRET}]}
    server = NatsServer(tmp_path / "server", authorization=users)
    server.user = f"ann:{SECRET}@"
    with server:
        wrong = server.url.replace(SECRET, SECRET + "1")
        with pytest.raises(TransientError) as failure:
            sink(wrong).prepare()
        assert "authorization" in str(failure.value).lower() and SECRET not in str(failure.value)
        sink(server.url).prepare()


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "http://x"},
        {"headers": {"a": "b\r\nc: d"}},
        {"headers": {"Nats-Msg-Id": "x"}},
        {"subject": ""},
    ],
)
def test_wrong_fields_are_errors(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NatsSinkConfig.model_validate({"url": SecretUrl("nats://x"), "subject": "s", **fields})
