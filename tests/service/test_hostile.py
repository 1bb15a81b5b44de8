"""Clients that mean no good, at the service as it is served: none gets what it may not, or keeps others
out."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from signoff.errors import SignoffError, StateError
from signoff.service import server as server_module
from signoff.service.server import Options, Service
from tests.servers import wait_until
from tests.service.client import TEXT

pytestmark = pytest.mark.servers

TRAVERSALS = [
    "..", "../..", "%2e%2e", "%2e%2e%2f%2e%2e", "..%2f..%2fetc%2fpasswd", "/etc/passwd", "%2fetc%2fpasswd",
    "alarms%2f..%2f..%2fsecrets", ".", "", "alarms%00", "alarms%0a", "alarms%20", "-rf", "1alarms", "ALARMS.",
    "al%c0%ae%c0%ae", "%ef%bc%8e%ef%bc%8e", "a" * 65, "~root", "${HOME}", "$(id)", "alarms;id", "alarms'--",
    "alarms*", "tokens.json", "record.json",
]  # fmt: skip
"""Names of pipelines, as they stand in the path."""


class Attacked:
    """A service in a thread of the test, with short patience."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._service = Service(Options(home, port=0))
        started = threading.Event()
        self._thread = threading.Thread(target=self._service.serve, args=(lambda _: started.set(),))
        self._thread.start()
        assert started.wait(60)
        self.address = self._service.address
        self.token = (home / "tenants/default/administrator-token").read_text().strip()

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}", **more.pop("headers", {})}
        return httpx.request(
            method, self.address + path, headers=headers, trust_env=False, timeout=60, **more
        )

    def raw(self) -> socket.socket:
        host, _, port = self.address.removeprefix("http://").rpartition(":")
        return socket.create_connection((host, int(port)), timeout=60)

    def end(self) -> None:
        self._service.end()
        self._thread.join()


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_module, "_REQUEST_S", 1.0)
        patch.setattr(server_module, "_MOST_PER_CLIENT", 20)
        service = Attacked(tmp_path_factory.mktemp("attacked") / "home")
        yield service
        service.end()


def files(home: Path) -> set[str]:
    return {str(path.relative_to(home.parent)) for path in home.parent.rglob("*")}


@pytest.mark.parametrize("name", TRAVERSALS)
def test_no_name_leads_out_of_the_pipelines(attacked: Attacked, name: str) -> None:
    before = files(attacked.home)
    for method, path, more in (
        ("GET", "", {}), ("GET", "/yaml", {}), ("GET", "/log", {}), ("DELETE", "?discard=true", {}),
        ("PUT", "?spark=false&start=false", {"content": TEXT}),
    ):  # fmt: skip
        answer = attacked.ask(method, f"/v1/pipelines/{name}{path}", **more)
        listed = (
            method == "GET" and answer.json() == {"pipelines": []} if answer.status_code == 200 else False
        )
        assert answer.status_code in (404, 405, 307) or listed, (method, answer.text)
        assert "root:" not in answer.text
    assert files(attacked.home) - before <= {"home/tenants/default/trail.jsonl"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": ""}, {"Authorization": "Bearer"}, {"Authorization": "Basic YWRtaW46YWRtaW4="},
        {"Authorization": "Bearer signoff_" + "0" * 12 + "_" + "A" * 43}, {"Authorization": "Bearer *"},
        {"Authorization": "Bearer " + "A" * 8000}, {"Cookie": "token=x"},
        {"X-Forwarded-User": "administrator"},
        {"X-Forwarded-For": "127.0.0.1", "X-Real-IP": "127.0.0.1"}, {"Authorization": "Bearer ' OR '1'='1"},
        {"X-HTTP-Method-Override": "GET"}, {"X-Original-URL": "/healthz"},
    ],
)  # fmt: skip
def test_no_header_takes_the_place_of_a_token(attacked: Attacked, headers: dict[str, str]) -> None:
    answer = httpx.get(f"{attacked.address}/v1/secrets", headers=headers, trust_env=False)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


def test_a_token_of_which_a_part_is_known_is_none(attacked: Attacked) -> None:
    head, _, secret = attacked.token.rpartition("_")
    for sent in (
        head,
        f"{head}_",
        f"{head}_{secret[:-1]}",
        f"{head}_{secret}x",
        f"{head}_{secret.swapcase()}",
    ):
        headers = {"Authorization": f"Bearer {sent}"}
        assert httpx.get(f"{attacked.address}/v1/tokens", headers=headers, trust_env=False).status_code == 401
    in_query = httpx.get(f"{attacked.address}/v1/tokens?token={attacked.token}", trust_env=False)
    assert in_query.status_code == 401


@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b'{"name": ' * 5_000, b'{"name":"x","role":"root"}', b'{"name":"x"}', b"null", b"[]",
     b"\x00",
     b'{"name":"x","role":"view","role":"administer","id":"y"}', b'{"name":"x","role":["administer"]}',
     b'{"name":"x","role":"view","expires_in":1e400}', b'{"name":"x","role":"view","expires_in":-1}',
     b'{"name":"' + b"x" * 200 + b'","role":"view"}', b'{"__class__":"x"}'],
)  # fmt: skip
def test_no_body_makes_a_token_that_was_not_meant(attacked: Attacked, body: bytes) -> None:
    before = len(attacked.ask("GET", "/v1/tokens").json()["tokens"])
    answer = attacked.ask("POST", "/v1/tokens", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert answer.json()["errors"]
    assert len(attacked.ask("GET", "/v1/tokens").json()["tokens"]) == before


def test_a_body_without_end_is_cut_off(attacked: Attacked) -> None:
    with attacked.raw() as client:
        client.sendall(_head(attacked, "PUT", "/v1/pipelines/alarms", "Transfer-Encoding: chunked"))
        try:
            for _ in range(2000):
                client.sendall(b"10000\r\n" + b"x" * 65536 + b"\r\n")
        except OSError:
            pass
        else:
            pytest.fail("125 MiB were taken")
    assert attacked.ask("GET", "/healthz").status_code == 200


@pytest.mark.parametrize("part", ["headers", "body"])
def test_a_request_that_does_not_arrive_is_over_in_time(attacked: Attacked, part: str) -> None:
    began = time.monotonic()
    with attacked.raw() as client:
        head = _head(attacked, "PUT", "/v1/pipelines/alarms", "Content-Length: 1000")
        client.sendall(head[:-2] if part == "headers" else head + b"name:")
        said = client.recv(65536)
    assert b"408" in said
    assert b'"errors"' in said
    assert time.monotonic() - began < 30


def test_no_header_makes_whoever_guesses_somebody_else(attacked: Attacked) -> None:
    """Nor does it fill the memory: who has guessed is remembered by an address."""
    answers = [
        httpx.post(
            f"{attacked.address}/ui/login", data={"token": "guess"}, trust_env=False,
            headers={"X-Forwarded-For": f"{number}, no address {number}"},
        ).status_code
        for number in range(12)
    ]  # fmt: skip
    assert answers == [401] * 10 + [429] * 2


def test_one_client_does_not_take_all_connections(attacked: Attacked) -> None:
    clients = [attacked.raw() for _ in range(40)]
    try:
        assert any(b"429" in client.recv(1000) for client in clients[20:])
    finally:
        for client in clients:
            client.close()
    wait_until(lambda: _answers(attacked))


def test_requests_that_are_smuggled_are_not_answered(attacked: Attacked) -> None:
    with attacked.raw() as client:
        client.sendall(
            _head(attacked, "GET", "/healthz", "Content-Length: 4", "Transfer-Encoding: chunked")
            + b"0\r\n\r\nGET /v1/tokens HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        said = b""
        while more := client.recv(65536):
            said += more
            if b'"errors"' in said or b"400" in said:
                break
    assert b'"tokens"' not in said


def test_a_second_service_does_not_get_the_home(attacked: Attacked) -> None:
    with pytest.raises(StateError, match="another service has the home"):
        Service(Options(attacked.home, port=0)).serve()


def test_tokens_go_in_clear_to_no_other_machine(tmp_path: Path) -> None:
    with pytest.raises(SignoffError, match=r"\[service-tls\]"):
        Service(Options(tmp_path / "home", "0.0.0.0", 0)).serve()
    assert not (tmp_path / "home").exists()


def test_the_home_is_nobody_elses(attacked: Attacked) -> None:
    for path in [attacked.home, *attacked.home.rglob("*")]:
        assert not path.stat().st_mode & 0o077, path


def _answers(attacked: Attacked) -> bool:
    try:
        return attacked.ask("GET", "/healthz").status_code == 200
    except httpx.HTTPError:
        return False


def _head(attacked: Attacked, method: str, path: str, *headers: str) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {attacked.token}",
        *headers,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
