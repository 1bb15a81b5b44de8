"""The Redis sink against a real server: a row is signed for when the server has answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from signoff.batch import BatchRef
from signoff.errors import TransientError
from signoff.pipeline.secrets import SecretUrl
from signoff.sinks.contract import Part, Refusal, RunRef
from signoff.sinks.redis import KEY, RedisSink, RedisSinkConfig
from tests.redis_server import RedisServer
from tests.sinks.targets import keyed

pytestmark = pytest.mark.servers

SECRET = "sesame-open-6"
PART = Part(BatchRef("incoming", 0, 10), 0, 0)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer(tmp_path / "server") as server:
        yield server


def sink(url: str, **fields: Any) -> RedisSink:
    config = RedisSinkConfig.model_validate({"url": url, "key": "not asked here", **fields})
    return config.build(Path())


def rows(*numbers: int, **columns: list[Any]) -> pa.RecordBatch:
    ids = [f"incoming/{number}" for number in numbers]
    return pa.record_batch({"event_id": ids, "n": list(numbers), **columns})


def write(sink: RedisSink, given: pa.RecordBatch, *keys: str | None, part: Part = PART) -> list[Refusal]:
    writer = sink.open(part)
    try:
        return list(writer.write(keyed(given, *keys, column=KEY)))
    finally:
        writer.close()


def test_a_row_is_an_entry_with_its_id_and_comes_twice_when_it_is_sent_again(server: RedisServer) -> None:
    out = sink(server.url, window=2)
    assert write(out, rows(0, 1, 2), "out") == []
    assert write(out, rows(2), "out") == []
    stored = server.stored("out")
    assert [each[b"event_id"] for each in stored] == [b"incoming/%d" % n for n in (0, 1, 2, 2)]
    assert stored[0][b"data"] == b'{"event_id":"incoming/0","n":0}'


def test_rows_of_several_streams_go_where_their_key_says(server: RedisServer) -> None:
    assert write(sink(server.url), rows(0, 1, 2), "a", "b", "a") == []
    assert (len(server.stored("a")), len(server.stored("b"))) == (2, 1)


def test_a_stream_keeps_about_as_many_entries_as_it_may(server: RedisServer) -> None:
    write(sink(server.url, max_length=100), rows(*range(1000)), "out")
    assert 100 <= len(server.stored("out")) < 400


def test_a_key_is_set_and_set_again(server: RedisServer) -> None:
    out = sink(server.url, mode="string", expire_after="60m")
    assert write(out, rows(0, 1), "last", "other") == []
    assert write(out, rows(0, 1), "last", "other") == []
    assert json.loads(server.do("GET", "last")) == {"event_id": "incoming/0", "n": 0}
    assert 3_000_000 < server.do("PTTL", "last") <= 3_600_000


def test_a_hash_has_the_columns_of_its_row_and_no_others(server: RedisServer) -> None:
    out = sink(server.url, mode="hash", expire_after="60m")
    values = {
        "text": ['say "hi"\n'], "at": [datetime(2026, 5, 1, tzinfo=UTC)], "day": [date(2026, 5, 1)],
        "exact": [Decimal("12345678901234567890.10")], "yes": [True], "many": [[1, 2]],
    }  # fmt: skip
    assert write(out, rows(0, **values), "k") == []
    assert write(out, rows(1, text=[None], at=values["at"]), "k2") == []
    assert server.do("HGETALL", "k") == {
        b"event_id": b"incoming/0", b"n": b"0", b"text": b'say "hi"\n', b"at": b"2026-05-01T00:00:00Z",
        b"day": b"2026-05-01", b"exact": b"12345678901234567890.10", b"yes": b"true", b"many": b"[1,2]",
    }  # fmt: skip
    assert b"text" not in server.do("HGETALL", "k2") and server.do("PTTL", "k") > 0
    assert write(out, rows(2), "k") == []
    assert server.do("HGETALL", "k") == {b"event_id": b"incoming/2", b"n": b"2"}


@pytest.mark.parametrize("mode", ["stream", "hash"])
def test_a_row_that_no_key_can_take_is_refused_alone(server: RedisServer, mode: str) -> None:
    server.do("SET", "taken", "x")
    refusals = write(sink(server.url, mode=mode), rows(0, 1, 2, 3), "a", None, "", "b")
    assert [(one.index, one.transient) for one in refusals] == [(1, False), (2, False)]
    assert server.do("EXISTS", "a", "b") == 2
    if mode == "stream":  # a hash takes the place of whatever was there
        (refusal,) = write(sink(server.url), rows(0, 1), "taken", "a")
        assert (refusal.index, refusal.transient) == (0, False) and "WRONGTYPE" in refusal.reason


def test_a_server_without_memory_is_waited_for(tmp_path: Path) -> None:
    with RedisServer(tmp_path, options=("--maxmemory", "1")) as server:
        refusals = write(sink(server.url, mode="hash"), rows(0, 1), "a", "b")
        assert [one.transient for one in refusals] == [True, True] and "maxmemory" in refusals[0].reason


def test_rows_wait_for_as_many_replicas_as_are_wanted(server: RedisServer, tmp_path: Path) -> None:
    out = sink(server.url, wait_replicas=1, answer_timeout_ms=200)
    with pytest.raises(TransientError, match="0 of 1 replicas"):
        write(out, rows(0), "out")
    of = ("--replicaof", f"127.0.0.1 {server.port}", "--repl-diskless-sync-delay", "0")
    with RedisServer(tmp_path / "replica", options=of) as replica:
        out = sink(server.url, wait_replicas=1, answer_timeout_ms=30_000)
        assert write(out, rows(0), "out") == []
        assert replica.stored("out")


def test_the_next_try_of_a_failed_job_sends_a_row_under_its_earlier_id(server: RedisServer) -> None:
    out = sink(server.url)
    out.begin(RunRef("run-2", bounded=True, key="report", repeats={"incoming": [(7, 0, 1)]}))
    assert write(out, rows(7), "out") == []
    assert server.stored("out")[0][b"event_id"] == b"incoming/0"


def test_the_context_of_a_trace_is_handed_on(server: RedisServer) -> None:
    context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    part = Part(PART.batch, 0, 0, {"incoming/1": context})
    assert write(sink(server.url), rows(0, 1), "out", part=part) == []
    assert [each.get(b"traceparent") for each in server.stored("out")] == [None, context.encode()]


def test_a_login_is_told_without_the_password(tmp_path: Path) -> None:
    server = RedisServer(tmp_path / "server", options=("--requirepass", SECRET))
    server.user = f":{SECRET}@"
    with server:
        wrong = server.url.replace(SECRET, SECRET + "1")
        with pytest.raises(TransientError) as failure:
            sink(wrong).prepare()
        assert "invalid" in str(failure.value) and SECRET not in str(failure.value)
        sink(server.url).prepare()


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "http://x"},
        {"url": "redis://x/name"},
        {"key": ""},
        {"mode": "hash", "max_length": 1},
        {"expire_after": "60m"},
    ],
)
def test_wrong_fields_are_errors(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RedisSinkConfig.model_validate({"url": SecretUrl("redis://x"), "key": "k", **fields})
