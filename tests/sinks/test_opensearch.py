"""OpenSearch: what its answers mean, versions, data streams, templates, logins, sizes. The node is real."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from signoff.errors import TransientError
from signoff.pipeline.model import Retry
from signoff.sinks.contract import Part, Refusal, RunRef
from signoff.sinks.message_ids import MessageIds
from signoff.sinks.opensearch.actions import ID, INDEX, ROUTING, VERSION, lines_of, sorted_out
from signoff.sinks.opensearch.sink import ElasticsearchSinkConfig, OpensearchSinkConfig, SearchSink
from signoff.sinks.retry import deliver
from signoff.testing.conformance.rows import batch_ref, numbered, places, write_batch
from tests.search_server import Gate, OpenSearch
from tests.servers import WebhookServer, free_port
from tests.sinks.targets import search_sink

ANY = "'not asked here'"
NUMBERS = {"properties": {"number": {"type": "integer"}, "text": {"type": "keyword"}}}


@pytest.fixture
def search(opensearch: OpenSearch) -> Iterator[OpenSearch]:
    """With an index `events`, in which `number` is an integer."""
    opensearch.ask("DELETE", "/events*,other*?ignore_unavailable=true")
    one = {"number_of_shards": 1, "number_of_replicas": 0}
    opensearch.ask("PUT", "/events", {"settings": one, "mappings": NUMBERS})
    yield opensearch


def given(rows: pa.RecordBatch, index: str | list[str | None] = "events", **computed: Any) -> pa.RecordBatch:
    """The rows with the columns that the engine adds: one value for all, or one for each."""
    columns = {INDEX: index, **{f"_search_{name}": values for name, values in computed.items()}}
    for name, values in columns.items():
        every = values if isinstance(values, list) else [values] * rows.num_rows
        rows = rows.append_column(name, pa.array(every, pa.string()))
    return rows


def texts(rows: pa.RecordBatch, *values: str) -> pa.RecordBatch:
    """The rows, with a `number` that no integer field takes where a value is none."""
    return rows.set_column(1, "number", pa.array(values, pa.string()))


def kinds(refusals: list[Refusal]) -> list[tuple[int, bool]]:
    return [(one.index, one.transient) for one in refusals]


def waits(rows: int) -> list[tuple[int, bool]]:
    return [(index, True) for index in range(rows)]


# One row, and its neighbours


def test_a_document_that_does_not_fit_is_refused_alone_and_for_good(search: OpenSearch) -> None:
    rows = given(texts(numbered(5), "0", "one", "2", "three", "4"))
    refusals = write_batch(search_sink(search), rows)
    assert kinds(refusals) == [(1, False), (3, False)]
    assert "of type [integer]" in refusals[0].reason and 'For input string: "one"' in refusals[0].reason
    assert sorted(search.documents("events")) == ["incoming/0", "incoming/2", "incoming/4"]


def test_rows_of_an_index_that_is_blocked_wait_and_the_others_are_written(search: OpenSearch) -> None:
    """As the server does itself when its disk is above the watermark (429), and as people do (403)."""
    search.ask("PUT", "/other")
    rows = given(texts(numbered(4), "0", "one", "2", "3"), ["other", "events", "events", "other"])
    for block in ("read_only_allow_delete", "write", "read_only"):
        search.settings("other", **{f"index.blocks.{block}": True})
        refusals = write_batch(search_sink(search), rows)
        assert kinds(refusals) == [(0, True), (1, False), (3, True)], block
        assert "cluster_block_exception" in refusals[0].reason
        search.settings("other", **{f"index.blocks.{block}": None})
    assert kinds(write_batch(search_sink(search), rows)) == [(1, False)]
    assert sorted(search.documents("other")) == ["incoming/0", "incoming/3"]


def test_an_index_whose_shards_have_no_place_is_waited_for_and_keeps_no_other_waiting(
    search: OpenSearch,
) -> None:
    """As where all disks are above the watermark: the server waits for them a while, and says 503."""
    allocation = "cluster.routing.allocation.enable"
    search.cluster({allocation: "none"})
    search.ask("PUT", "/other?wait_for_active_shards=0")
    try:
        refusals = write_batch(search_sink(search, timeout_ms=4000), given(numbered(2), ["events", "other"]))
    finally:
        search.cluster({allocation: None})
    assert kinds(refusals) == [(1, True)]
    assert "unavailable_shards_exception" in refusals[0].reason


def test_an_index_that_may_not_be_made_is_waited_for(search: OpenSearch) -> None:
    rows = given(numbered(2), ["events", "other"])
    for setting, value, said in (
        ("action.auto_create_index", "false", "index_not_found_exception"),
        ("cluster.max_shards_per_node", 1, "validation_exception"),
    ):
        search.cluster({setting: value})
        try:
            refusals = write_batch(search_sink(search), rows)
        finally:
            search.cluster({setting: None})
        assert kinds(refusals) == [(1, True)], setting
        assert said in refusals[0].reason
    assert write_batch(search_sink(search), rows) == []


def test_what_is_wrong_with_an_index_and_not_with_the_row_is_waited_for(search: OpenSearch) -> None:
    for name in ("other-a", "other-b"):
        search.ask("PUT", f"/{name}", {"aliases": {"other-alias": {}}})
    search.ask("PUT", "/other-closed")
    search.ask("POST", "/other-closed/_close")
    rows = given(numbered(3), ["other-alias", "events", "other-closed"])
    assert kinds(write_batch(search_sink(search), rows)) == [(0, True), (2, True)]


def test_a_circuit_breaker_that_opens_is_waited_for(search: OpenSearch) -> None:
    breaker = "network.breaker.inflight_requests.limit"
    search.cluster({breaker: "4kb"})
    try:
        refusals = write_batch(search_sink(search), given(numbered(200)))
    finally:
        search.cluster({breaker: None})
    assert kinds(refusals) == waits(200)
    assert "429" in refusals[0].reason


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        (INDEX, "Not An Index", "invalid_index_name_exception"),
        (INDEX, None, "the index is null"),
        (INDEX, "<events-{now/d}>", "date math"),
        (ID, None, "the id is null"),
        (ID, "", "the id is empty"),
        (ID, "x" * 513, "the id has 513 bytes"),
        (VERSION, None, "the version is null"),
        (VERSION, "-1", "the version is '-1'"),
        (VERSION, "1.0", "the version is '1.0'"),
        (VERSION, str(2**63), "no whole number"),
        (VERSION, "9" * 20, "no whole number"),
    ],
)
def test_what_no_document_can_be_called_refuses_its_row_alone(
    search: OpenSearch, column: str, value: str | None, said: str
) -> None:
    good = {INDEX: "events", ID: "b", VERSION: str(2**63 - 1)}
    computed = {name: [f"{good[name]}" if name != ID else "a", good[name], good[name]] for name in good}
    computed[ID][2], computed[column][1] = "c", value  # type: ignore[call-overload]
    rows = numbered(3)
    for name, values in computed.items():
        rows = rows.append_column(name, pa.array(values, pa.string()))
    refusals = write_batch(search_sink(search, id="x", version="x"), rows)
    assert kinds(refusals) == [(1, False)]
    assert said in refusals[0].reason
    assert sorted(search.documents("events")) == ["a", "c"]


def test_a_row_that_spoils_its_whole_request_is_found(
    search: OpenSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id that is too long for the server, which says no to all, and is let through for once."""
    monkeypatch.setattr("signoff.sinks.opensearch.actions._LONGEST_ID", 1000)
    ids = [f"{number}" if number != 5 else "x" * 600 for number in range(9)]
    refusals = write_batch(search_sink(search, id="x"), given(numbered(9), id=ids))
    assert kinds(refusals) == [(5, False)]
    assert "id is too long" not in refusals[0].reason or len(refusals[0].reason) <= 500
    assert len(search.documents("events")) == 8


# Writing again


@pytest.mark.parametrize("version", [None, "sequence"])
def test_a_row_that_is_written_again_replaces_itself(search: OpenSearch, version: str | None) -> None:
    sink = search_sink(search, version=version)
    for text in ("first", "second"):
        assert write_batch(sink, given(numbered(2, text=text))) == []
    assert [one["text"] for one in search.documents("events").values()] == ["second 0", "second 1"]


def test_an_older_event_that_comes_again_does_not_replace_what_a_newer_one_wrote(search: OpenSearch) -> None:
    sink = search_sink(search, id="station", version="sequence")
    newer = given(numbered(1, start=17, text="newer"), id="station-1")
    older = given(numbered(1, start=9, text="older"), id="station-1")
    for rows in (older, newer, older, newer):
        assert write_batch(sink, rows) == []
    (hit,) = search.hits("events")
    assert (hit["_id"], hit["_version"], hit["_source"]["text"]) == ("station-1", 17, "newer 17")


def test_without_a_version_the_last_to_arrive_wins(search: OpenSearch) -> None:
    sink = search_sink(search, id="station")
    for number in (17, 9):
        assert write_batch(sink, given(numbered(1, start=number), id="station-1")) == []
    assert search.documents("events")["station-1"]["number"] == 9


def test_a_version_may_be_an_expression(search: OpenSearch) -> None:
    sink = search_sink(search, id="station", version="unix_millis(eventTime)")
    for version, text in (("1620000000000", "newer"), ("1619999999999", "older")):
        assert write_batch(sink, given(numbered(1, text=text), id="a", version=version)) == []
    assert search.documents("events")["a"]["text"] == "newer 0"


def test_several_rows_of_one_document_in_one_write_leave_the_newest(search: OpenSearch) -> None:
    for version in (None, "sequence"):
        sink = search_sink(search, id="station", version=version)
        assert write_batch(sink, given(numbered(5), id=f"one-{version}")) == []
        assert search.documents("events")[f"one-{version}"]["number"] == 4


def test_rows_of_a_repeated_run_keep_their_ids_and_are_newer_all_the_same(search: OpenSearch) -> None:
    sink = search_sink(search, version="sequence")
    sink.begin(RunRef("run", bounded=True, repeats={"incoming": ((7, 0, 2),)}))
    assert write_batch(sink, given(numbered(3, start=7))) == []
    assert {hit["_id"]: hit["_version"] for hit in search.hits("events")} == {
        "incoming/0": 7,
        "incoming/1": 8,
        "incoming/9": 9,
    }


def test_create_leaves_what_is_there_and_signs_for_it(search: OpenSearch) -> None:
    sink = search_sink(search, op="create")
    assert write_batch(sink, given(numbered(2, text="first"))) == []
    assert write_batch(sink, given(numbered(3, text="second"))) == []
    found = search.documents("events")
    assert [found[f"incoming/{number}"]["text"] for number in range(3)] == ["first 0", "first 1", "second 2"]


def test_only_the_rows_that_were_not_taken_are_sent_again(search: OpenSearch) -> None:
    search.ask("PUT", "/other")
    search.settings("other", **{"index.blocks.write": True})
    writer = search_sink(search).open(Part(batch_ref(), 0, 0))
    rows = given(numbered(4), ["events", "other", "events", "other"])
    first = deliver(writer, rows, Retry(initial_ms=1, max_ms=1), budget_s=0)
    assert (places(first.taken), first.left) == ([0, 2], [1, 3])
    search.settings("other", **{"index.blocks.write": None})
    again = deliver(writer, rows.take(pa.array(first.left)), Retry(), attempts_before=first.attempts)
    writer.close()
    assert places(again.taken) == [0, 1]
    assert {hit["_id"]: hit["_version"] for hit in search.hits("events,other")} == {
        f"incoming/{number}": 1 for number in range(4)
    }


# Templates, data streams, pipelines, routing, refresh


TEMPLATE = {
    "name": "other-stream",
    "body": {
        "index_patterns": ["other-stream*"],
        "data_stream": {},
        "template": {"settings": {"number_of_replicas": 0}, "mappings": {"dynamic": False}},
    },
}


@pytest.fixture
def stream(search: OpenSearch) -> Iterator[OpenSearch]:
    """With no data stream and no template of the name `other-stream`."""
    with removed(search):
        yield search


@contextmanager
def removed(search: OpenSearch) -> Iterator[None]:
    def remove() -> None:
        for path in ("/_data_stream/other-stream*", "/_index_template/other-stream*"):
            search._client.delete(path)

    remove()
    yield
    remove()


def timed(rows: pa.RecordBatch) -> pa.RecordBatch:
    time = pa.array([1_620_000_000_000_000] * rows.num_rows, pa.timestamp("us", "UTC"))
    return rows.append_column("@timestamp", time)


def test_a_data_stream_is_made_by_the_template_and_takes_each_row_once(stream: OpenSearch) -> None:
    sink = search_sink(stream, op="create", template=TEMPLATE)
    sink.prepare()
    for _ in range(2):
        assert write_batch(sink, given(timed(numbered(3)), "other-stream")) == []
    (found,) = stream.ask("GET", "/_data_stream/other-stream")["data_streams"]
    assert found["template"] == "other-stream"
    assert sorted(stream.documents("other-stream")) == [f"incoming/{number}" for number in range(3)]
    without_time = write_batch(sink, given(numbered(1, start=9), "other-stream"))
    assert kinds(without_time) == [(0, False)]
    assert "@timestamp" in without_time[0].reason
    replacing = search_sink(stream)
    assert kinds(write_batch(replacing, given(timed(numbered(1)), "other-stream"))) == [(0, True)]


def test_no_row_is_written_before_the_template_is_there(stream: OpenSearch) -> None:
    """The server was away when the run was prepared: the first row would have made an index of its own."""
    sink = search_sink(stream, op="create", template=TEMPLATE)
    assert write_batch(sink, given(timed(numbered(2)), "other-stream")) == []
    assert stream.ask("GET", "/_data_stream/other-stream")["data_streams"]


def test_a_template_that_the_server_refuses_is_waited_for_with_the_reason(stream: OpenSearch) -> None:
    wrong = {"properties": {"x": {"type": "nonsense"}}}
    body = {"index_patterns": ["other-stream*"], "template": {"mappings": wrong}}
    sink = search_sink(stream, template={"name": "other-stream", "body": body})
    with pytest.raises(TransientError, match=r"the template: .*400.*invalid"):
        sink.prepare()
    with pytest.raises(TransientError, match="the template: "):
        write_batch(sink, given(numbered(1), "other-stream"))
    assert stream.hits("other-stream") == []


def test_an_ingest_pipeline_changes_documents_and_may_fail_them(search: OpenSearch) -> None:
    search.ask(
        "PUT",
        "/_ingest/pipeline/checked",
        {"processors": [{"fail": {"message": "not this one"}}]},
    )
    search.ask("PUT", "/_ingest/pipeline/set", {"processors": [{"set": {"field": "text", "value": "set"}}]})
    sink = search_sink(search, pipeline="set")
    sink.prepare()
    assert write_batch(sink, given(numbered(1))) == []
    assert search.documents("events")["incoming/0"]["text"] == "set"
    refusals = write_batch(search_sink(search, pipeline="checked"), given(numbered(1, start=1)))
    assert kinds(refusals) == [(0, False)]
    assert "fail_processor_exception: not this one" in refusals[0].reason
    search.ask("DELETE", "/_ingest/pipeline/set")
    refusals = write_batch(sink, given(numbered(1, start=2)))
    assert kinds(refusals) == [(0, True)], "somebody removed it while the pipeline was running"
    with pytest.raises(TransientError, match="there is no ingest pipeline 'set'"):
        sink.prepare()


def test_rows_are_routed_and_can_be_found_when_they_are_signed_for(search: OpenSearch) -> None:
    sink = search_sink(search, routing="station", refresh="wait_for")
    search.settings("events", **{"index.refresh_interval": "100ms"})
    assert write_batch(sink, given(numbered(2), routing=["a", None])) == []
    hits = search._client.get("/events/_search").json()["hits"]["hits"]
    assert {hit["_id"]: hit.get("_routing") for hit in hits} == {"incoming/0": "a", "incoming/1": None}


# Sizes


def test_requests_are_as_large_as_they_may_be_and_a_larger_row_has_one_to_itself() -> None:
    rows = numbered(6)
    long = pa.array(["x" * (1000 if number == 2 else 10) for number in range(6)])
    found = sorted_out(given(rows.set_column(2, "text", long)), MessageIds(), by_sequence=False)
    lines = lines_of(found.rows, "index")
    each = len(lines.content(0, 1))
    ranges = list(lines.requests(2 * each + 1))
    assert ranges == [(0, 2), (2, 3), (3, 5), (5, 6)]
    assert b"".join(lines.content(*one) for one in ranges) == lines.content(0, 6)


def test_a_row_that_is_too_large_for_the_server_is_refused_alone(search: OpenSearch) -> None:
    rows = numbered(9)
    large = pa.array(["x" * (1_100_000 if number == 4 else 10) for number in range(9)])
    refusals = write_batch(search_sink(search), given(rows.set_column(2, "text", large)))
    assert kinds(refusals) == [(4, False)]
    assert "413" in refusals[0].reason and "1100" in refusals[0].reason
    assert len(search.documents("events")) == 8


def test_requests_that_are_too_large_together_are_halved(search: OpenSearch) -> None:
    rows = numbered(8)
    rows = rows.set_column(2, "text", pa.array(["x" * 30_000] * 8)).set_column(
        1, "number", pa.array(range(8))
    )
    search.ask("PUT", "/other", {"mappings": {"dynamic": False}})
    many = pa.Table.from_batches([rows] * 6).combine_chunks().to_batches()[0]
    many = many.set_column(0, "event_id", pa.array([f"incoming/{number}" for number in range(48)]))
    assert write_batch(search_sink(search), given(many, "other")) == []
    assert len(search.documents("other")) == 48


def test_an_answer_as_long_as_the_rows_at_fault_is_read(search: OpenSearch) -> None:
    """The server shows the value that it did not take, whole."""
    rows = texts(numbered(3), "x" * 200_000, "1", '"' * 200_000)
    refusals = write_batch(search_sink(search), given(rows))
    assert kinds(refusals) == [(0, False), (2, False)]
    assert len(refusals[0].reason) <= 500


# Hosts, logins, answers of others


def test_a_host_that_is_down_or_cannot_work_is_passed_over(
    search: OpenSearch, webhook: WebhookServer
) -> None:
    webhook.answer(503)
    hosts = [f"http://127.0.0.1:{free_port()}", webhook.url, search.url]
    for _ in range(4):  # in an order that is drawn
        sink = search_sink(search, hosts=hosts)
        sink.prepare()
        assert write_batch(sink, given(numbered(3))) == []
    assert len(search.documents("events")) == 3


def test_a_server_that_is_silent_costs_a_few_requests_and_rows_wait(webhook: WebhookServer) -> None:
    hold = webhook.hold()
    sink = ready(search_sink(webhook.url, timeout_ms=50, max_request_bytes=1))
    refusals = write_batch(sink, given(numbered(50)))
    hold.release()
    assert kinds(refusals) == waits(50)
    assert len(webhook.requests) == 3
    assert "timed out" in refusals[0].reason and "not sent" in refusals[-1].reason


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, "<html>log in</html>"),
        (200, "[" * 100_000),
        (200, '{"errors":false,"items":[]}'),
        (200, '{"errors":false,"items":[{"index":{}},{}]}'),
        (200, "x" * 5_000_000),
        (301, ""),
        (400, "The plain HTTP request was sent to HTTPS port"),
        (400, '{"error":"no handler found for uri"}'),
        (403, '{"error":{"type":"security_exception","reason":"no permissions"}}'),
        (404, "not found"),
        (406, '{"error":{"type":"x"}}'),
        (500, ""),
    ],
)
def test_no_row_is_lost_to_an_answer_that_is_about_the_request(
    webhook: WebhookServer, status: int, body: str
) -> None:
    webhook.answer(status, body=body)
    refusals = write_batch(ready(search_sink(webhook.url)), given(numbered(2)))
    assert kinds(refusals) == waits(2)
    assert len(refusals[0].reason) <= 500


def ready(sink: SearchSink) -> SearchSink:
    """As if the server had answered at the start."""
    sink.is_prepared = True
    return sink


@pytest.fixture(scope="module")
def gate(
    opensearch_on_demand: Callable[[], OpenSearch], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gate]:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    with Gate(opensearch_on_demand(), tmp_path_factory.mktemp("gate")) as made:
        yield made


def test_a_login_is_sent_over_tls_and_what_is_wrong_with_it_is_waited_for(
    search: OpenSearch, gate: Gate
) -> None:
    password = "correct-horse-battery-staple"
    login = {"username": "signoff", "password": password}
    sink = search_sink(gate.url, ca_file=str(gate.ca_file), **login)
    gate.let_in("somebody else")
    with pytest.raises(TransientError, match=r"does not accept the credentials \(401\)"):
        sink.prepare()
    (refusal,) = write_batch(
        ready(search_sink(gate.url, ca_file=str(gate.ca_file), **login)), given(numbered(1))
    )
    assert refusal.transient and "does not accept the credentials" in refusal.reason
    gate.let_in(f"Basic {base64.b64encode(f'signoff:{password}'.encode()).decode()}")
    sink.prepare()
    assert write_batch(sink, given(numbered(2))) == []
    gate.let_in("ApiKey key-of-a-few-words")
    keyed = search_sink(gate.url, ca_file=str(gate.ca_file), api_key="key-of-a-few-words")
    keyed.prepare()
    assert write_batch(keyed, given(numbered(1, start=2))) == []
    assert len(search.documents("events")) == 3
    for config in (sink.config, keyed.config):
        for text in (repr(config), config.model_dump_json()):
            assert password not in text and "key-of-a-few" not in text


@pytest.mark.servers
def test_a_certificate_that_is_not_trusted_is_no_connection(gate: Gate, tmp_path: Path) -> None:
    with pytest.raises(TransientError, match="certificate verify failed"):
        search_sink(gate.url).prepare()
    with pytest.raises(TransientError, match=r"ca_file .*missing.pem cannot be read"):
        search_sink(gate.url, ca_file=str(tmp_path / "missing.pem")).prepare()
    gate.let_in("ApiKey some-key")
    search_sink(gate.url, verify_tls=False, api_key="some-key").prepare()


# What is said before anything is sent


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hosts": "search:9200"}, "is not an http:// or https:// address"),
        ({"hosts": []}, "at least 1 item"),
        ({"hosts": "http://search?x=1"}, "has no parameters"),
        ({"username": "signoff"}, "go together"),
        ({"username": "a:b", "password": "secret-word"}, "a colon in it"),
        ({"username": "a", "password": "secret-word", "api_key": "secret-key"}, "choose"),
        ({"hosts": "http://a:secret-word@search", "api_key": "secret-key"}, "a user of its own"),
        ({"api_key": "secret\nkey"}, "a line end"),
        ({"op": "create", "version": "sequence"}, "replaces nothing"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said) as raised:
        OpensearchSinkConfig.model_validate({"hosts": "http://search:9200", "index": ANY, **fields})
    assert "secret-word" not in str(raised.value.errors(include_input=False, include_context=False))


def test_the_same_index_with_ids_of_events_is_one_place() -> None:
    def place(**fields: Any) -> str | None:
        fields = {"hosts": "http://search:9200", "index": ANY, **fields}
        return ElasticsearchSinkConfig.model_validate(fields).target(Path())

    assert place() == place(hosts="http://search:9200/") != place(index="'other'")
    assert place() != place(hosts="http://search:9201")
    assert place(id="station") is None


def test_only_the_fields_that_are_written_are_computed() -> None:
    config = OpensearchSinkConfig.model_validate(
        {"hosts": "http://search", "index": ANY, "version": "sequence", "routing": "station"}
    )
    assert config.expressions() == {INDEX: ANY, ROUTING: "station"}
    assert [config.field_of(name) for name in (INDEX, ID, VERSION, ROUTING)] == [
        "index",
        "id",
        "version",
        "routing",
    ]
