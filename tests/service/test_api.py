"""The REST API, without runs: who may ask, what is answered, and that its description is true."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
import schemathesis
from cryptography.fernet import Fernet
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import positive_data_acceptance
from starlette.routing import Route

from signoff.ledger import DeadLetters, RunLock
from signoff.ledger.letter import DeadLetter
from signoff.service.api import events
from signoff.service.api.app import ENDPOINTS, OPEN_PATHS
from signoff.service.api.endpoint import MOST_TEXT_BYTES
from signoff.service.tenant import Tenant
from signoff.service.tokens import ROLES
from tests.service.client import ONE, TEXT, Client, codes

pytestmark = pytest.mark.servers

BOMB = "b: &b [x, x]\n" + "".join(
    f"{one}: &{one} [{', '.join([f'*{other}'] * 8)}]\n" for other, one in pairwise("bcdefghijk")
)


# -- pipelines


def test_a_text_is_taken_once_and_the_same_again_changes_nothing(ask: Client) -> None:
    made = ask.put()
    assert (made.status_code, made.json()["result"]) == (201, "created")
    again = ask.put()
    assert (again.status_code, again.json()["result"]) == (200, "unchanged")
    changed = ask.put(TEXT + "# new\n")
    assert (changed.status_code, changed.json()["result"]) == (202, "updating")
    assert ask("GET", ONE).json()["revision"] == 2
    assert ask("GET", f"{ONE}/yaml").text == TEXT + "# new\n"
    assert [each["name"] for each in ask("GET", "/v1/pipelines").json()["pipelines"]] == ["alarms"]


def test_what_is_kept_of_a_pipeline_is_nobody_elses(ask: Client) -> None:
    ask.put()
    ask.put(TEXT + "  more: {type: files, input: incoming, path: ./more}\n")
    kept = [ask.tenant.directory, *ask.tenant.directory.rglob("*")]
    assert [path for path in kept if path.stat().st_mode & 0o077] == []
    assert ask.tenant.place("alarms") in kept


def test_what_is_wrong_with_a_text_is_said_with_its_lines_and_nothing_is_kept(ask: Client) -> None:
    answer = ask.put(TEXT.replace("input: incoming", "input: incomin, tabel: 3"))
    assert answer.status_code == 422
    found = {(each["code"], each["file"], each["line"]) for each in answer.json()["errors"]}
    assert found == {("unknown-field", "alarms.yaml", 5), ("unknown-input", "alarms.yaml", 5)}
    assert all(each["hint"] for each in answer.json()["errors"])
    assert ask("GET", ONE).status_code == 404
    assert not ask.tenant.place("alarms").exists()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"\xff\xfe", "bad-yaml"),
        (b"", "bad-yaml"),
        (b"a: [", "bad-yaml"),
        (TEXT.replace("alarms", "others").encode(), "not-hosted"),
        (b"include: ../other.yaml\n" + TEXT.encode(), "not-hosted"),
        (b"pipeline: /etc/passwd\n", "not-hosted"),
        (BOMB.encode(), "bad-yaml"),
    ],
)
def test_a_text_that_is_none_is_refused(ask: Client, text: bytes, code: str) -> None:
    answer = ask.put(text)
    assert answer.status_code == 422
    assert codes(answer) == [code]


def test_a_body_is_bounded_and_not_compressed(ask: Client) -> None:
    assert ask.put(b"x" * (MOST_TEXT_BYTES + 1)).status_code == 413
    compressed = ask("PUT", ONE, content=b"x", headers={"Content-Encoding": "gzip"})
    assert compressed.status_code == 415
    assert ask("POST", "/v1/tokens", content=b"x" * 10**6, headers={"Content-Type": "application/json"})
    form = ask("POST", "/v1/tokens", content=b"a=b", headers={"Content-Type": "text/plain"})
    assert form.status_code == 415


def test_a_pipeline_that_holds_something_is_not_removed_by_chance(hosted: Client) -> None:
    state = hosted.tenant.graph("alarms").state
    state.mkdir()
    with DeadLetters(state / "dead_letters.db") as letters:
        letters.add([DeadLetter("incoming/1", "out", "no", b"{}")])
    answer = hosted("DELETE", ONE)
    assert answer.status_code == 409
    (error,) = answer.json()["errors"]
    assert error["message"] == "it holds 1 dead letter"
    assert "?discard=true" in error["hint"] and "--discard" in error["hint"]
    with DeadLetters(state / "dead_letters.db") as letters:
        letters.add([DeadLetter("incoming/2", "out", "no", b"{}")])
    assert hosted("DELETE", ONE).json()["errors"][0]["message"] == "it holds 2 dead letters"
    assert hosted("DELETE", f"{ONE}?discard=true").status_code == 200
    assert hosted("GET", ONE).status_code == 404
    assert not hosted.tenant.place("alarms").exists()
    assert Tenant(hosted.tenant.directory, Fernet.generate_key()).pipelines == {}


def test_removing_a_pipeline_leaves_the_state_of_another_alone(hosted: Client) -> None:
    state = hosted.tenant.graph("alarms").state
    state.mkdir()
    text = TEXT.replace("name: alarms", "name: thief\nstate: ../alarms/state")
    hosted.tenant.create("thief", text, start=False)
    assert hosted("DELETE", "/v1/pipelines/thief?discard=true").status_code == 200
    assert state.is_dir()


def test_a_pipeline_that_somebody_runs_by_hand_is_not_removed(hosted: Client) -> None:
    with RunLock(hosted.tenant.graph("alarms").state):
        assert codes(hosted("DELETE", f"{ONE}?discard=true")) == ["still-runs"]
    assert hosted("DELETE", ONE).status_code == 200


def test_a_pipeline_whose_text_cannot_be_read_any_more_can_be_discarded(hosted: Client) -> None:
    hosted.tenant.create(
        "odd", TEXT.replace("type: files", "type: gone").replace("alarms", "odd"), start=False
    )
    assert hosted("GET", "/v1/pipelines/odd/status").status_code == 409
    assert codes(hosted("DELETE", "/v1/pipelines/odd")) == ["unknown-type", "unknown-type"]
    assert hosted("DELETE", "/v1/pipelines/odd?discard=true").status_code == 200


@pytest.mark.parametrize("name", ["candidate", "run", "record", "texts", "state"])
def test_a_pipeline_may_be_called_as_a_file_of_the_service(ask: Client, name: str) -> None:
    text = TEXT.replace("alarms", name)
    path = f"/v1/pipelines/{name}"
    query = {"spark": "false", "start": "false"}
    assert ask("PUT", path, content=text, params=query).status_code == 201
    assert ask("PUT", path, content=text + "wrong: 1\n", params=query).status_code == 422
    assert (ask.tenant.place(name) / f"{name}.yaml").read_text() == text
    assert ask("GET", f"{path}/status").status_code == 200


def test_a_pipeline_that_is_to_run_is_not_removed(hosted: Client) -> None:
    assert hosted("POST", f"{ONE}/start").status_code == 202
    assert codes(hosted("DELETE", ONE)) == ["still-runs"]
    assert hosted("GET", "/readyz").json() == {
        "ready": False,
        "not_ready": {"alarms": "starting: its process is starting"},
    }


def test_answers_have_the_form_of_the_commands(hosted: Client) -> None:
    assert hosted("GET", f"{ONE}/status").json()["pipeline"] == "alarms"
    assert hosted("GET", f"{ONE}/audit").json()["balanced"]
    assert [node["name"] for node in hosted("GET", f"{ONE}/graph").json()["nodes"]] == ["incoming", "out"]
    assert codes(hosted("GET", f"{ONE}/events/incoming/17")) == ["no-event"]
    assert hosted("GET", f"{ONE}/events/nonsense").status_code == 422
    assert hosted("GET", f"{ONE}/buffers").json() == {"buffers": {}}
    assert hosted("GET", f"{ONE}/log").text == ""
    assert 'signoff_service_pipelines{state="stopped"} 1.0' in hosted("GET", "/metrics").text


def test_letters_are_listed_without_payload_unless_it_is_asked_for(hosted: Client) -> None:
    state = hosted.tenant.graph("alarms").state
    state.mkdir()
    with DeadLetters(state / "dead_letters.db") as letters:
        letters.add([DeadLetter(f"incoming/{n}", "out", "no", b"its payload") for n in (1, 2)])
    assert "its payload" not in hosted("GET", f"{ONE}/dead-letters").text
    found = hosted("GET", f"{ONE}/dead-letters?payloads=true&limit=1").json()["dead_letters"]
    assert [(each["event_id"], each["payload"]) for each in found] == [("incoming/1", "its payload")]
    assert hosted("POST", f"{ONE}/dead-letters/drop", json={}).status_code == 422
    assert hosted("POST", f"{ONE}/dead-letters/drop", json={"event_ids": ["incoming/9"]}).status_code == 422
    asked = hosted("POST", f"{ONE}/dead-letters/replay", json={"event_ids": ["incoming/1"]})
    assert (asked.status_code, asked.json()["requested"]) == (202, 1)
    dropped = hosted("POST", f"{ONE}/dead-letters/drop", json={"event_ids": ["incoming/2"]})
    assert dropped.json() == {"asked": 1, "dropped": 1}


def test_an_answer_holds_no_more_payloads_than_fit_into_memory(
    hosted: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = hosted.tenant.graph("alarms").state
    state.mkdir()
    with DeadLetters(state / "dead_letters.db") as letters:
        letters.add([DeadLetter(f"incoming/{n}", "out", "no", b"its payload") for n in range(5)])

    def asked(query: str) -> tuple[int, bool]:
        found = hosted("GET", f"{ONE}/dead-letters?{query}").json()
        return len(found["dead_letters"]), found["more"]

    assert (asked("payloads=true"), asked("limit=5"), asked("limit=4")) == ((5, False), (5, False), (4, True))
    monkeypatch.setattr(events, "_MOST_PAYLOAD_BYTES", 15)
    assert (asked("payloads=true"), asked("payloads=true&limit=1"), asked("")) == (
        (2, True),
        (1, True),
        (5, False),
    )


# -- who may ask


def test_nothing_is_answered_without_a_token_that_may(hosted: Client) -> None:
    tried = 0
    for endpoint in ENDPOINTS:
        path = endpoint.path.format(name="alarms", id="0" * 12, event_id="incoming/1")
        for sent in ("", "nonsense", "signoff_000000000000_" + "x" * 43):
            answer = hosted(endpoint.method, path, sent)
            assert (answer.status_code, codes(answer)) == (401, ["no-token"]), path
        for role in ROLES[: ROLES.index(endpoint.role)]:
            answer = hosted(endpoint.method, path, role)
            assert (answer.status_code, codes(answer)) == (403, ["not-allowed"]), path
            tried += 1
    assert tried > 20
    assert hosted("GET", ONE).json()["wanted"] == "stopped"


def test_without_a_token_readiness_names_nobody(hosted: Client) -> None:
    hosted("POST", f"{ONE}/start")
    said = hosted("GET", "/readyz", "")
    assert (said.status_code, said.json()) == (503, {"ready": False, "not_ready": 1})
    assert hosted("GET", "/healthz", "").json() == {"status": "serving"}


def test_a_token_that_is_revoked_or_has_expired_is_none(ask: Client) -> None:
    made = ask("POST", "/v1/tokens", json={"name": "ci", "role": "view"}).json()
    assert ask("GET", "/v1/pipelines", made["token"]).status_code == 200
    assert ask("DELETE", f"/v1/tokens/{made['id']}").status_code == 200
    assert ask("GET", "/v1/pipelines", made["token"]).status_code == 401
    short = ask("POST", "/v1/tokens", json={"name": "ci", "role": "view", "expires_in": 1e-9}).json()
    assert ask("GET", "/v1/pipelines", short["token"]).status_code == 401
    listed = {each["id"]: each for each in ask("GET", "/v1/tokens").json()["tokens"]}
    assert listed[made["id"]]["revoked_at"]
    assert made["token"] not in (ask.tenant.directory / "tokens.json").read_text()


def test_changes_are_in_the_trail_with_who_asked_and_what_was_refused(hosted: Client) -> None:
    hosted("POST", f"{ONE}/start", "view")
    hosted("POST", f"{ONE}/start", "operate")
    hosted("DELETE", ONE)
    lines = hosted("GET", "/v1/trail").json()["trail"]
    said = [(line["token"].split()[0], line["action"], line["target"], line["outcome"]) for line in lines]
    assert said == [
        ("view", "start", "alarms", "refused: the token may not do this"),
        ("operate", "start", "alarms", "asked"),
        ("administer", "delete", "alarms", "asked"),
        ("administer", "delete", "alarms", "refused: 409"),
    ]


# -- secrets


def test_a_secret_goes_in_and_never_comes_out(hosted: Client) -> None:
    value = "correct horse battery"
    assert hosted("PUT", "/v1/secrets/db", json={"value": value}).json() == {"secrets": ["db"]}
    kept = hosted.tenant.directory
    assert not any(value in path.read_text(errors="replace") for path in kept.rglob("*") if path.is_file())
    assert hosted.tenant.secrets.values() == {"db": value}
    for endpoint in ENDPOINTS:
        if endpoint.method == "GET":
            path = endpoint.path.format(name="alarms", id="0" * 12, event_id="incoming/1")
            assert value not in hosted("GET", path).text
    wrong = hosted("PUT", "/v1/secrets/db", json={"value": value, "valeu": value})
    assert wrong.status_code == 422
    assert value not in wrong.text
    assert hosted("DELETE", "/v1/secrets/db").json() == {"secrets": []}
    assert codes(hosted("DELETE", "/v1/secrets/db")) == ["no-secret"]


def test_a_secret_is_used_by_the_check_and_is_in_no_error(ask: Client) -> None:
    text = TEXT.replace("path: ./out", "path: ./out, format: '${secret:form}'")
    missing = ask.put(text)
    assert missing.status_code == 422
    assert "there is no secret" in missing.text
    ask("PUT", "/v1/secrets/form", json={"value": "geheimnis"})
    refused = ask.put(text)
    assert refused.status_code == 422
    assert "geheimnis" not in refused.text
    ask("PUT", "/v1/secrets/form", json={"value": "csv"})
    assert ask.put(text).status_code == 201


# -- the description


def test_every_route_is_described_and_every_description_is_a_route(ask: Client) -> None:
    described = ask("GET", "/v1/openapi.json", "").json()
    assert set(described["paths"]) | set(OPEN_PATHS) == {
        route.path.replace(":path", "") for route in ask.app.routes if isinstance(route, Route)
    }
    for route in ask.app.routes:
        assert isinstance(route, Route)
        if route.path not in OPEN_PATHS:
            methods = described["paths"][route.path.replace(":path", "")]
            assert {method.upper() for method in methods} == set(route.methods or ()) - {"HEAD"}
    text = json.dumps(described)
    named = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert named == set(described["components"]["schemas"])
    ids = [each["operationId"] for path in described["paths"].values() for each in path.values()]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("name", [each.handler.__name__ for each in ENDPOINTS])
def test_generated_requests_are_answered_as_described(hosted: Client, name: str) -> None:
    schema = schemathesis.openapi.from_url(f"{hosted.address}/v1/openapi.json")
    (found,) = schema.include(operation_id=name).get_all_operations()
    headers = {"Authorization": f"Bearer {hosted.tokens['administer']}"}

    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(case=found.ok().as_strategy(), known=st.booleans())
    def one(case: Any, known: bool) -> None:
        if known and "/pipelines/{name}" in case.path:
            if "alarms" not in hosted.tenant.pipelines:  # the one before has removed it
                hosted.tenant.create("alarms", TEXT, start=False)
            case.path_parameters["name"] = "alarms"
        if known and "{id}" in case.path:
            case.path_parameters["id"] = hosted.tenant.tokens.make("generated", "view")[0].id
        # What is no time, or names a letter that is not there, is refused although its form is right.
        case.call_and_validate(headers=headers, excluded_checks=[positive_data_acceptance])

    one()
