"""Requests at the same time: what one of them takes away fails no other, and nobody's pipeline is lost."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet

from signoff.service import metrics
from signoff.service.api import app as app_module
from signoff.service.api import pipelines as pipelines_module
from signoff.service.record import Record
from signoff.service.run_process import find_run, hold, write_name
from signoff.service.tenant import Tenant
from tests.service.client import ONE, TEXT, Client, codes

pytestmark = pytest.mark.servers
REMOVE = f"{ONE}?discard=true"


class Slow(dict[str, Any]):
    """Whoever copies it waits for another one who does, or a moment."""

    together = threading.Barrier(2)

    def __iter__(self) -> Any:  # so that a copy asks for the keys
        return super().__iter__()

    def keys(self) -> Any:
        known = list(super().keys())
        with suppress(threading.BrokenBarrierError):
            self.together.wait(1)
        return known


def test_two_pipelines_that_are_made_at_the_same_time_are_both_there(tmp_path: Path) -> None:
    tenant = Tenant(tmp_path / "default", Fernet.generate_key())
    tenant.pipelines = Slow()

    def make(name: str) -> None:
        tenant.create(name, TEXT.replace("alarms", name), start=False)

    threads = [threading.Thread(target=make, args=(name,)) for name in ("one", "other")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(tenant.pipelines) == ["one", "other"]


class Paused:
    """In the place of a function: it waits in the midst of a request until it is told to go on."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self.begun, self.on = threading.Event(), threading.Event()

    def __call__(self, *args: Any, **more: Any) -> Any:
        self.begun.set()
        assert self.on.wait(60)
        return self._function(*args, **more)


def during(paused: Paused, request: Callable[[], Any], other: Callable[[], Any]) -> Any:
    """The answer to a request during which another one is made."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(request()))
    thread.start()
    assert paused.begun.wait(60)
    try:
        assert other().status_code == 200
    finally:
        paused.on.set()
        thread.join()
    return answers[0]


@pytest.mark.parametrize("path", ["status", "audit", "graph"])
def test_a_pipeline_that_is_removed_while_it_is_looked_at_is_not_there(
    hosted: Client,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
) -> None:
    paused = Paused(hosted.tenant.graph)
    monkeypatch.setattr(hosted.tenant, "graph", paused)
    answer = during(paused, lambda: hosted("GET", f"{ONE}/{path}"), lambda: removed(hosted, paused))
    assert (answer.status_code, codes(answer)) == (404, ["no-pipeline"])


def removed(hosted: Client, paused: Paused) -> Any:
    """A removal that looks at the graph itself."""
    hosted.tenant.graph = paused._function  # type: ignore[method-assign]
    return hosted("DELETE", REMOVE)


@pytest.mark.parametrize("change", ["start", "stop", "drain"])
def test_what_waited_for_a_removal_writes_nothing(
    hosted: Client,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    pipeline = hosted.tenant.pipelines["alarms"]
    method = "start" if change == "start" else "stop"
    paused = Paused(getattr(pipeline, method))
    monkeypatch.setattr(pipeline, method, paused)
    answer = during(paused, lambda: hosted("POST", f"{ONE}/{change}"), lambda: hosted("DELETE", REMOVE))
    assert (answer.status_code, codes(answer)) == (404, ["no-pipeline"])
    assert not hosted.tenant.place("alarms").exists()


def test_what_a_token_has_begun_is_not_done_when_it_was_revoked_meanwhile(
    ask: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ask("POST", "/v1/tokens", json={"name": "ci", "role": "administer"}).json()

    def revoke() -> Any:
        return ask("DELETE", f"/v1/tokens/{made['id']}")

    paused = Paused(pipelines_module.check_text)
    monkeypatch.setattr(pipelines_module, "check_text", paused)
    submitted = {"content": TEXT, "params": {"spark": "false", "start": "false"}}
    answer = during(paused, lambda: ask("PUT", ONE, made["token"], **submitted), revoke)
    assert (answer.status_code, codes(answer)) == (401, ["no-token"])
    assert ask("GET", ONE).status_code == 404
    assert not ask.tenant.place("alarms").exists()


def test_a_body_that_comes_when_its_token_was_revoked_is_not_taken(ask: Client) -> None:
    made = ask("POST", "/v1/tokens", json={"name": "ci", "role": "administer"}).json()

    def body() -> Iterator[bytes]:
        yield b'{"value": '
        assert ask("DELETE", f"/v1/tokens/{made['id']}").status_code == 200
        yield b'"late"}'

    kind = {"Content-Type": "application/json"}
    assert ask("PUT", "/v1/secrets/late", made["token"], content=body(), headers=kind).status_code == 401
    assert ask("GET", "/v1/secrets").json() == {"secrets": []}


def test_a_pipeline_that_is_removed_stalls_no_other_while_its_files_go(
    hosted: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = hosted.tenant.pipelines["alarms"]
    free: list[bool] = []

    def slow(*_: Any, **__: Any) -> None:
        thread = threading.Thread(target=lambda: free.append(pipeline.lock.acquire(timeout=5)))
        thread.start()
        thread.join()

    monkeypatch.setattr("shutil.rmtree", slow)
    assert hosted("DELETE", REMOVE).status_code == 200
    assert free == [True]


def test_a_pipeline_whose_run_is_about_to_begin_is_not_removed(hosted: Client) -> None:
    """Its launcher, of a service that was killed, has the lock, and has not said yet who it is."""
    lock = hold(hosted.tenant.place("alarms"))
    assert lock is not None
    assert find_run(hosted.tenant.place("alarms")) is None
    assert codes(hosted("DELETE", REMOVE)) == ["still-runs"]


def test_one_pipeline_that_fails_in_any_way_takes_the_metrics_of_no_other(
    hosted: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosted.tenant.create("other", TEXT.replace("alarms", "other"), start=False)
    known = metrics._All._of

    def fails(self: Any, name: str, pipeline: Any) -> Any:
        if name == "alarms":
            raise KeyError(name)
        return known(self, name, pipeline)

    monkeypatch.setattr(metrics._All, "_of", fails)
    page = hosted("GET", "/metrics")
    assert page.status_code == 200
    assert "signoff_service_unreadable_pipelines 1.0" in page.text
    assert 'pipeline="other"' in page.text


@pytest.mark.parametrize("said", ['{"pid": "x"}', '{"pid": [1]}', '{"pid": 1e400}'])
def test_what_one_pipeline_says_of_itself_takes_the_list_from_no_other(hosted: Client, said: str) -> None:
    hosted.tenant.create("other", TEXT.replace("alarms", "other"), start=False)
    pipeline = hosted.tenant.pipelines["alarms"]
    pipeline._write(Record("running", 1))
    lock = hold(pipeline.directory)
    assert lock is not None
    write_name(lock, 1)
    state = pipeline.directory / "state"
    state.mkdir()
    (state / "engine.json").write_text(said)
    found = {each["name"]: each for each in hosted("GET", "/v1/pipelines").json()["pipelines"]}
    os.close(lock)
    assert (found["alarms"]["state"], found["other"]["state"]) == ("starting", "stopped")
    assert "cannot be read" in found["alarms"]["why"]


def test_one_pipeline_name_has_only_its_own_graph(hosted: Client) -> None:
    assert len(hosted("GET", f"{ONE}/graph").json()["nodes"]) == 2
    hosted("DELETE", REMOVE)
    hosted.tenant.create(
        "alarms", TEXT + "  more: {type: files, input: incoming, path: ./more}\n", start=False
    )
    assert len(hosted("GET", f"{ONE}/graph").json()["nodes"]) == 3


def test_what_everybody_may_ask_for_takes_no_thread_of_those_with_a_token(
    hosted: Client,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = hosted.tenant.pipelines["alarms"]
    looks: list[int] = []
    known = pipeline.seen

    def slow() -> Any:
        looks.append(1)
        assert on.wait(60)
        return known()

    on = threading.Event()
    monkeypatch.setattr(pipeline, "seen", slow)
    crowd = [
        threading.Thread(target=lambda: hosted("GET", "/readyz", "")) for _ in range(app_module._THREADS + 4)
    ]
    try:
        for each in crowd:
            each.start()
        while not looks:
            pass
        assert hosted("GET", "/v1/secrets", timeout=20).status_code == 200
        assert len(looks) == 1
    finally:
        on.set()
        for each in crowd:
            each.join()


def test_the_description_is_made_once(hosted: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "describe", lambda _: pytest.fail("made again"))
    assert hosted("GET", "/v1/openapi.json", "").status_code == 200


def test_line_ends_make_no_other_text(ask: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    text = TEXT.replace("\n", "\r\n")
    assert ask.put(text).json()["result"] == "created"
    monkeypatch.setattr(pipelines_module, "check_text", lambda *_, **__: pytest.fail("checked again"))
    assert ask.put(text).json()["result"] == "unchanged"
    assert ask("GET", f"{ONE}/yaml").content == text.encode()
