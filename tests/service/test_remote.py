"""The command line as a client: `signoff --server URL --token-file PATH …`."""

from __future__ import annotations

import json
import socket
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from signoff.cli import app
from signoff.cli.remote.client import Client as Asking
from signoff.cli.remote.client import read_token
from signoff.errors import PipelineError, RequestError, SignoffError
from tests.service.client import TEXT, Client

pytestmark = pytest.mark.servers


class Remote:
    """The command, as the administrator of a service."""

    def __init__(self, service: Client, directory: Path) -> None:
        self._service, self._directory = service, directory

    def __call__(self, *args: str, role: str = "administer") -> Any:
        token = self._directory / role
        token.write_text(self._service.tokens[role] + "\n")
        where = ["--server", self._service.address, "--token-file", str(token)]
        return CliRunner().invoke(app, [*where, *args])


@pytest.fixture
def remote(hosted: Client, tmp_path: Path) -> Remote:
    return Remote(hosted, tmp_path)


def test_a_pipeline_is_submitted_shown_and_removed(remote: Remote, tmp_path: Path) -> None:
    file = tmp_path / "new.yaml"
    file.write_text(TEXT.replace("alarms", "meters"))
    assert remote("submit", str(file), "--no-spark", "--no-start").output == "meters: created\n"
    assert remote("submit", str(file), "--no-spark").output == "meters: unchanged\n"
    assert [each["name"] for each in json.loads(remote("list", "--json").output)] == ["alarms", "meters"]
    assert "meters    stopped" in remote("list").output
    shown = remote("status", "meters").output
    assert "meters: stopped, revision 1" in shown
    assert "received" in shown
    assert json.loads(remote("audit", "meters").output)["balanced"]
    assert "flowchart" in remote("graph", "meters").output
    assert remote("dead-letters", "list", "meters").output == ""
    assert json.loads(remote("dead-letters", "replay", "meters", "--all").output)["asked"] == 0
    assert remote("stop", "meters").output == "meters: stopped, revision 1\n"
    assert remote("delete", "meters").output == "meters: removed\n"


def test_what_is_wrong_is_said_as_check_says_it(remote: Remote, tmp_path: Path) -> None:
    file = tmp_path / "alarms.yaml"
    file.write_text(TEXT.replace("input: incoming", "input: incomin"))
    error = remote("submit", str(file), "--no-spark").exception
    assert isinstance(error, PipelineError)
    assert 'alarms.yaml:5 [unknown-input] sink "out" reads "incomin"' in str(error)


def test_what_a_token_may_not_is_an_error_and_no_token_is_shown(remote: Remote, hosted: Client) -> None:
    error = remote("delete", "alarms", role="view").exception
    assert isinstance(error, SignoffError)
    assert "[not-allowed]" in str(error)
    assert hosted.tokens["view"] not in str(error)
    assert isinstance(remote("status", "nothing").exception, SignoffError)


@pytest.mark.parametrize("server", ["http://example.org:8080", "ftp://localhost", "nonsense", "http://"])
def test_a_token_goes_to_no_other_machine_in_clear(server: str) -> None:
    with pytest.raises(SignoffError):
        Asking(server, "signoff_token")


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "all_proxy"])
def test_a_token_goes_in_clear_to_no_proxy_of_the_environment(
    remote: Remote, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with socket.socket() as proxy:
        proxy.bind(("127.0.0.1", 0))  # whoever comes is turned away
        monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        assert "alarms" in remote("list").output


@pytest.mark.parametrize("token", ["", "tökén", "one two", "one\nX-Header: two"])
def test_a_file_without_a_token_is_named_and_not_shown(tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_text(token)
    with pytest.raises(RequestError, match="holds no token") as raised:
        read_token(tmp_path / "token")
    assert not token or token not in str(raised.value)


def test_what_is_no_service_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1" / "pipelines").write_text("a page")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            asking = Asking(f"http://127.0.0.1:{server.server_port}", "signoff_token")
            with asking, pytest.raises(SignoffError, match="is no service: a page"):
                asking.get("/v1/pipelines")
        finally:
            server.shutdown()


def test_commands_of_a_server_are_not_those_of_files(remote: Remote) -> None:
    assert remote("run", "alarms").exit_code == 2
    assert "submit" in remote("--help").output
    assert CliRunner().invoke(app, ["submit", "x"]).exit_code == 2
