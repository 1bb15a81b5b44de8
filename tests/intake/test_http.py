"""The http source in its real process: a response comes when, and only when, the ledger says so."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import orjson
import pytest

from signoff.ledger import Ledger
from signoff.log import LogReader
from signoff.pipeline.model import LogSettings
from signoff.sources.http.server import split
from signoff.sources.http.source import ADDRESS_FILE, HttpConfig
from signoff.sources.http.uploads import Rejected
from tests.intake.processes import IntakeProcess, logged, settle
from tests.servers import PATIENCE_S

pytestmark = pytest.mark.servers

NDJSON = {"content-type": "application/x-ndjson"}
TOKEN = "a-token-nobody-may-see"


class Client:
    """Sends in the background, because the answers come late."""

    def __init__(self, base: Path, **fields: object) -> None:
        self.base = base
        self.intake = IntakeProcess(base, HttpConfig.model_validate({"port": 0, **fields}))
        self.intake.wait_for(lambda status: status.updated_at > 0)
        file = self.intake.instructions.directory / ADDRESS_FILE
        self.address = orjson.loads(file.read_bytes())["address"]
        self.client = httpx.Client(timeout=30)
        self.pool = ThreadPoolExecutor(8)

    def post(self, content: bytes, headers: dict[str, str] | None = None) -> Future[httpx.Response]:
        return self.pool.submit(self.client.post, self.address, content=content, headers=headers or {})

    def post_and_log(
        self, content: bytes, count: int, headers: dict[str, str] | None = None
    ) -> Future[httpx.Response]:
        answer = self.post(content, headers)
        self.intake.wait_for_log(count)
        return answer

    def close(self) -> None:
        self.intake.__exit__()
        self.pool.shutdown()
        self.client.close()


@pytest.fixture
def client(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Client]:
    made = Client(tmp_path, **getattr(request, "param", {}))
    yield made
    made.close()


def test_a_request_is_answered_200_only_when_all_its_events_are_settled(client: Client) -> None:
    answer = client.post_and_log(b'{"a":1}\n{"a":2}\n', 2, NDJSON)
    settle(client.base, 0, 2, owed={1})
    client.intake.wait_for(lambda status: status.settled_sequence == 1)
    assert not answer.done()
    settle(client.base, 0, 2)
    response = answer.result(PATIENCE_S)
    counts = {"delivered": 2, "dropped": 0, "dead_lettered": 0}
    assert response.json() == {"events": 2, "first_id": "incoming/0", **counts}
    assert response.status_code == 200
    assert logged(client.base) == [b'{"a":1}', b'{"a":2}']


def test_every_form_of_a_request_becomes_events_as_they_were_sent(client: Client) -> None:
    number = b'{"n": 123456789012345678901234567890, "n": 1}'
    answers = [
        client.post_and_log(b' {"a": 1} ', 1, {"content-type": "application/json; charset=utf-8"}),
        client.post_and_log(b"[" + number + b' , "x", [1]]', 4),
        client.post_and_log(b"plain \xff text", 5, {"content-type": "text/plain"}),
    ]
    settle(client.base, 0, 5)
    assert [answer.result(PATIENCE_S).status_code for answer in answers] == [200] * 3
    assert logged(client.base) == [b'{"a": 1}', number, b'"x"', b"[1]", b"plain \xff text"]


def test_a_refused_event_is_answered_422_with_the_reason(client: Client) -> None:
    answer = client.post_and_log(b'{"a":1}', 1)
    settle(client.base, 0, 1, refused="no such station")
    response = answer.result(PATIENCE_S)
    assert response.status_code == 422
    assert response.json()["refused"] == [{"event_id": "incoming/0", "reason": "no such station"}]


def test_an_event_refused_because_a_sink_was_down_is_answered_503_so_that_it_is_sent_again(
    client: Client,
) -> None:
    answer = client.post_and_log(b'[{"a":1},{"a":2}]', 2)
    settle(client.base, 0, 2, refused="gave up after 3 attempts: connection refused", for_now={1})
    response = answer.result(PATIENCE_S)
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert "send it again" in response.json()["error"]
    assert [one["event_id"] for one in response.json()["refused"]] == ["incoming/0", "incoming/1"]


@pytest.mark.parametrize("client", [{"acknowledge_within": "300ms"}], indirect=True)
def test_a_request_that_is_not_settled_in_time_is_answered_503_and_the_ledger_says_expired(
    client: Client,
) -> None:
    while "nothing was taken" in (response := client.post(b'{"a":1}').result(PATIENCE_S)).text:
        assert response.status_code == 503  # the machine stood still
    assert response.status_code == 503
    assert response.headers["retry-after"]
    assert "0.3 s" in response.text
    client.intake.wait_for(lambda status: status.settled_sequence == 1)
    settle(client.base, 0, 1)  # too late: it changes nothing
    with Ledger(client.base / "state" / "ledger.db", readonly=True) as ledger:
        account = ledger.account("incoming", 1)
    assert (account.expired, account.delivered, account.in_flight) == (1, 0, 0)


@pytest.mark.parametrize(
    "client", [{"token": TOKEN, "max_body_bytes": 1000, "max_event_bytes": 100}], indirect=True
)
def test_what_is_never_an_event_is_answered_at_once(client: Client) -> None:
    secret = {"authorization": f"Bearer {TOKEN}"}

    def status(content: bytes, headers: dict[str, str]) -> int:
        response = client.post(content, headers).result(PATIENCE_S)
        assert response.json()["error"]
        assert TOKEN not in response.text
        return response.status_code

    assert status(b"{}", {}) == 401
    assert status(b"{}", {"authorization": "Bearer wrong"}) == 401
    assert status(b"", secret) == 400
    assert status(b'{"a":', secret) == 400
    assert status(b"[1,]", secret) == 400
    assert status(b"[1] 2", secret) == 400
    assert status(b"[" * 900, secret) == 400
    assert status(b"x" * 1001, secret) == 413
    assert status(b'"' + b"x" * 200 + b'"', secret) == 413
    assert status(b"{}", {**secret, "content-encoding": "gzip"}) == 415
    assert client.intake.status.next_sequence == 0


@pytest.mark.parametrize("client", [{"max_pending": 2}], indirect=True)
def test_more_events_than_may_be_pending_are_turned_away(client: Client) -> None:
    first = client.post_and_log(b"[1,2]", 2)
    second = client.post(b"3").result(PATIENCE_S)
    assert second.status_code == 503
    assert "nothing was taken" in second.json()["error"]
    held = client.intake.wait_for(lambda now: now.held_since)
    assert held.state == "receiving" and held.held_because.startswith("2 events are not settled")
    settle(client.base, 0, 2)
    assert first.result(PATIENCE_S).status_code == 200
    client.intake.wait_for(lambda now: now.held_since is None)
    third = client.post_and_log(b"3", 3)
    settle(client.base, 2, 3)
    assert third.result(PATIENCE_S).json()["first_id"] == "incoming/2"


@pytest.mark.parametrize(
    "client",
    [{"acknowledge_within": "500ms", "log": LogSettings(max_bytes=1024**2, segment_bytes=65536)}],
    indirect=True,
)
def test_while_the_log_is_full_requests_are_turned_away_and_not_counted(client: Client) -> None:
    big = b'"' + b"x" * 600_000 + b'"'
    codes = [client.post(big).result(PATIENCE_S).status_code for _ in range(4)]
    assert codes == [503] * 4
    assert client.intake.status.state == "held"
    assert client.intake.status.next_sequence < 4


def test_a_stopping_intake_turns_requests_away_but_answers_those_it_has(client: Client) -> None:
    answer = client.post_and_log(b'{"a":1}', 1)
    client.intake.stop()
    client.intake.wait_for_state("stopped")
    assert client.post(b'{"a":2}').result(PATIENCE_S).status_code == 503
    assert client.client.get(client.address + "health").status_code == 503
    settle(client.base, 0, 1)
    assert answer.result(PATIENCE_S).status_code == 200
    client.intake.wait_for(lambda status: status.drained)
    assert client.intake.end() == 0


def test_what_is_not_settled_at_the_end_goes_back_to_the_client(client: Client) -> None:
    answer = client.post_and_log(b'{"a":1}', 1)
    assert client.intake.end() == 0
    response = answer.result(PATIENCE_S)
    assert response.status_code == 503
    assert "send them again" in response.json()["error"]


@pytest.mark.parametrize("client", [{"keep_headers": ["X-Station"]}], indirect=True)
def test_chosen_headers_and_the_idempotency_key_travel_with_the_events(client: Client) -> None:
    headers = {"x-station": "7", "x-other": "no", "idempotency-key": "k1"}
    client.post_and_log(b"[1,2]", 2, headers)
    rows = LogReader(client.intake.instructions.log_directory).lookup([0, 1])
    assert [dict(rows[n]["headers"]) for n in (0, 1)] == [{"x-station": "7"}] * 2
    assert [rows[n]["message_id"] for n in (0, 1)] == ["k1/0", "k1/1"]


def test_health_says_whether_events_are_taken(client: Client) -> None:
    response = client.client.get(client.address + "health")
    assert (response.status_code, response.json()) == (200, {"status": "receiving", "pending": 0})


def test_a_port_that_is_taken_is_an_error_that_says_so(tmp_path: Path, client: Client) -> None:
    port = int(client.address.rstrip("/").rpartition(":")[2])
    base = tmp_path / "other"
    base.mkdir()
    with IntakeProcess(base, HttpConfig(port=port)) as second:
        assert second.process.wait(PATIENCE_S) == 1
        assert f"cannot listen on 127.0.0.1:{port}" in second.status.reason


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (None, "has not started yet"),
        ({"state": "starting"}, "is starting"),
        ({"state": "running", "pid": 2**22 + 1}, "is not running"),
        ({"state": "running", "updated_at": 1.0}, "no sign of life for"),
        ({"state": "draining"}, "is stopping"),
        ({"state": "running", "not_ready": {"incoming": {"db": "it is down"}}}, {"db": "it is down"}),
        ({"state": "running", "not_ready": {"other": {"db": "it is down"}}}, {}),
    ],
)
def test_ready_says_who_keeps_an_event_from_being_settled(
    client: Client, engine: dict[str, object] | None, says: str | dict[str, str]
) -> None:
    if engine is not None:
        content = {"pid": os.getpid(), "updated_at": time.time(), **engine}
        (Path(client.intake.instructions.state) / "engine.json").write_bytes(orjson.dumps(content))
    said = client.client.get(f"{client.address}ready")
    waits_for = said.json()["not_ready"]
    assert (said.status_code == 200) is said.json()["ready"] is (says == {})
    assert waits_for == says if isinstance(says, dict) else says in waits_for["engine"]
    assert client.client.get(f"{client.address}health").status_code == 200


@pytest.mark.parametrize("client", [{"acknowledge_within": "1s"}], indirect=True)
def test_a_request_waits_for_the_engine_and_is_told_if_it_did_not_come_in_time(client: Client) -> None:
    state = Path(client.intake.instructions.state)
    content = {"pid": os.getpid(), "updated_at": time.time(), "state": "starting"}
    (state / "engine.json").write_bytes(orjson.dumps(content))
    answer = client.post(b"1").result(PATIENCE_S)
    assert answer.status_code == 503
    assert "engine: it is starting" in answer.json()["expired"][0]["reason"]


@pytest.mark.parametrize("kind", ["", "application/x-www-form-urlencoded"])
@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b'[{"a": 1}, 2]', [b'{"a": 1}', b"2"]),
        (b'{"a": 1}', [b'{"a": 1}']),
        (b'{"a": 1}\n{"a": 2}\n', [b'{"a": 1}', b'{"a": 2}']),
        (b"a=1&b=2", [b"a=1&b=2"]),
    ],
)
def test_without_a_content_type_a_body_is_what_it_looks_like(
    body: bytes, events: list[bytes], kind: str
) -> None:
    if kind or body[:1] != b"a":
        assert split(body, kind) == events
    else:
        with pytest.raises(Rejected, match="not JSON"):
            split(body, kind)
