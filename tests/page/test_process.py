"""The page as the process that a run starts: at its address, again after a kill, gone with the run."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from typer.testing import CliRunner

from signoff.cli import app
from signoff.errors import SignoffError
from signoff.pipeline.overlays import Layers
from signoff.run.options import PageOptions, RunOptions
from signoff.run.page import PageProcess
from signoff.run.processes import Child
from signoff.run.supervisor import Run
from tests.operate.state import fill
from tests.servers import free_port, wait_until

pytestmark = pytest.mark.servers
TOKEN = "a-token-of-some-length"
ENGINE = "tests.page.idle_engine"


@pytest.fixture
def page(tmp_path: Path) -> Iterator[PageProcess]:
    graph = fill(tmp_path)
    layers = Layers().to_json()
    job = {"file": graph.file, "layers": layers, "texts": dict(graph.texts), "log_format": "text"}
    made = PageProcess(PageOptions(token=TOKEN), job)
    made.start()
    yield made
    made.close()


def answers(page: PageProcess) -> httpx.Response | None:
    try:
        return httpx.get(page.address, timeout=30)
    except httpx.TransportError:
        return None


def test_page_comes_back_at_its_address_and_ends_with_the_run(page: PageProcess) -> None:
    first = wait_until(lambda: answers(page))
    assert first.headers["location"] == "/login"
    assert first.headers["content-security-policy"] and "server" not in first.headers
    pid = page.pid
    assert pid is not None and psutil.Process(pid).nice() >= min(19, os.nice(0) + 10)
    assert TOKEN not in " ".join(psutil.Process(pid).cmdline())
    assert TOKEN not in " ".join(psutil.Process(pid).environ().values())
    os.kill(pid, signal.SIGKILL)

    def is_back() -> bool:
        page.tend()
        return page.pid not in (None, pid)

    wait_until(is_back)
    assert wait_until(lambda: answers(page)).headers["location"] == "/login"
    again = psutil.Process(page.pid)
    page.close()
    wait_until(lambda: not again.is_running() or again.status() == psutil.STATUS_ZOMBIE)


def test_connections_that_send_nothing_or_not_all_keep_nobody_out(tmp_path: Path) -> None:
    graph = fill(tmp_path)
    layers = Layers().to_json()
    job = {"file": graph.file, "layers": layers, "texts": dict(graph.texts), "log_format": "text"}
    page = PageProcess(PageOptions(token=TOKEN), {**job, "request_s": 2})
    page.start()
    host, _, port = page.address.removeprefix("http://").rstrip("/").partition(":")
    form = "Content-Type: application/x-www-form-urlencoded\r\n"
    slow: list[socket.socket] = []
    try:
        wait_until(lambda: answers(page))
        for number in range(100):
            slow.append(socket.create_connection((host, int(port)), timeout=60))
            head = f"POST /login HTTP/1.1\r\nHost: {host}\r\nContent-Length: 9\r\n{form}"
            slow[-1].sendall((head if number % 2 else head + "\r\ntoken").encode())
        first = answers(page)
        assert first is not None
        assert first.headers["location"] == "/login"
        assert b" 408 " in slow[0].recv(1000)
        assert b" 408 " in slow[1].recv(1000)
    finally:
        for each in slow:
            each.close()
        page.close()


def test_an_address_that_is_taken_is_known_at_once(page: PageProcess) -> None:
    port = int(page.address.rstrip("/").rpartition(":")[2])
    with pytest.raises(SignoffError, match=r"\[page-address\]"):
        PageProcess(PageOptions(port=port), {})


def test_a_run_has_its_page_from_the_beginning_to_the_end_and_again_after_a_kill(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    graph = fill(tmp_path)
    run = Run(graph, RunOptions(page=PageOptions()), Path(graph.file), Child("the engine", ENGINE))
    seen: list[int] = []

    def tick(_: Run) -> None:
        pid = run.processes.get("page")
        if pid is not None and pid not in seen:
            seen.append(pid)
            if len(seen) == 1:
                os.kill(pid, signal.SIGKILL)
        run.stop_requested = len(seen) == 2

    with caplog.at_level("INFO", "signoff"):
        assert run.execute(tick) == 0
    assert "the page is at http://127.0.0.1:" in caplog.text
    assert "the page ended with code -9; started again" in caplog.text
    assert len(seen) == 2 and not any(map(psutil.pid_exists, seen))
    assert "page" not in run.processes


@pytest.mark.parametrize(
    ("words", "environ", "said"),
    [
        (["--ui", "0.0.0.0:8080"], {}, "give a token"),
        (["--ui", "[::]:8080"], {}, "give a token"),
        (["--ui", "example.com:8080"], {}, "give a token"),
        (["--ui", "x"], {}, "is not a port"),
        (["--ui", "8080"], {"SIGNOFF_UI_TOKEN": "short"}, "fewer than 16"),
        (["--ui", "8080", "--ui-token-file", "none"], {}, "No such file"),
        (["--ui-token-file", "none"], {}, "say where"),
        (["--ui-name", "example.com"], {}, "say where"),
    ],
)
def test_what_is_wrong_with_the_page_is_said_before_anything_is_started(
    tmp_path: Path, words: list[str], environ: dict[str, str], said: str
) -> None:
    done = CliRunner().invoke(app, ["run", str(tmp_path / "none.yaml"), *words], env=environ)
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


def test_addresses_that_only_this_machine_reaches_are_told_from_others() -> None:
    assert PageOptions().is_local and PageOptions("::1").is_local and PageOptions("localhost").is_local
    assert not PageOptions("0.0.0.0").is_local and not PageOptions("192.168.1.7", free_port()).is_local
