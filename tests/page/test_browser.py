"""The pages in Chromium, on a state directory whose ledger the test writes: views, keyboard, phone."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import Browser, expect

from signoff.ledger import DeadLetter, DeadLetters, Ledger, Outcome, Resolution, RunLock
from signoff.ledger.batch_state import Done
from signoff.ledger.dead_letters import close_letters
from signoff.page.standalone import page_app
from signoff.page.watched import WatchedPipeline
from signoff.pipeline.graph import Graph
from tests.ledger.attempts import attempt
from tests.operate.state import fill
from tests.page.browsers import FORMS, chromium, is_cut_off, looks_right, opened
from tests.servers import wait_until

pytestmark = pytest.mark.servers

VIEWS = (
    "", "?node=table", "?node=incoming", "?node=failures", "account", "account?span=day", "letters",
    "letters?stage=table", "letters/one?event=incoming/1", "letters/confirm?action=drop&stage=table", "find",
    "find?event=incoming/6", "jobs",
)  # fmt: skip


class Served:
    """The page of a pipeline, served by a thread of the test."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._pipeline = WatchedPipeline(graph)
        self._server = uvicorn.Server(
            uvicorn.Config(page_app(self._pipeline), log_config=None, lifespan="off")
        )
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self.at = f"http://127.0.0.1:{self._socket.getsockname()[1]}/pipelines/{graph.name}/"

    def start(self) -> None:
        self._pipeline.start()
        self._thread.start()
        wait_until(lambda: self._server.started)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._pipeline.close()
        self._socket.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    page = Served(fill(tmp_path))
    page.start()
    with RunLock(page.graph.state):
        yield page
    page.stop()


def test_every_view_fits_a_desk_and_a_phone_and_needs_no_script(browser: Browser, served: Served) -> None:
    for options in FORMS:
        page, said = opened(browser, **options)
        for view in VIEWS:
            page.goto(served.at + view)
            looks_right(page)
        page.goto(served.at)
        assert not is_cut_off(page)
        assert not said
        page.context.close()


def test_a_sink_that_comes_back_is_seen_and_said_while_the_focus_stays(
    browser: Browser, served: Served
) -> None:
    page, said = opened(browser)
    page.goto(served.at)
    table = page.locator("#wide-table")
    expect(table).to_have_class(re.compile("failing"))
    expect(table).to_contain_text("failing, 1 wait")
    table.focus()
    with Ledger(served.graph.state / "ledger.db") as ledger:
        attempt(ledger, 4, 8, delivered=[4, 5, 6, 7], sinks={"table": Done()}, rows={"table": 3})
    expect(table).not_to_have_class(re.compile("failing"))
    expect(table).to_be_focused()
    expect(page.locator("#said")).to_have_text("starting")
    expect(page.get_by_role("region", name="Problems")).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=2, name="table")).to_be_visible()
    expect(page.locator(".facts")).to_contain_text("Rows taken4")
    page.get_by_role("link", name="Close table").click()
    expect(page.get_by_role("heading", level=2, name="Account")).to_be_visible()
    page.goto(served.at)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    assert not said


def test_many_letters_are_replayed_and_followed_and_one_is_corrected(
    browser: Browser, served: Served
) -> None:
    evil = "<img src=x onerror=alert(1)>"
    with DeadLetters(served.graph.state / "dead_letters.db") as letters:
        letters.add([DeadLetter("incoming/4", "desk", evil, evil.encode(), {evil: evil})])
        letters.add([DeadLetter("incoming/5", "desk", evil, b'{\n  "n": 5}')])
    page, said = opened(browser)
    page.on("dialog", lambda _: said.append("a script of a payload has run"))
    page.goto(served.at)
    page.get_by_role("link", name="Dead letters").first.click()
    page.get_by_role("link", name="Replay 2 of desk").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Replay 2 dead letters?")
    page.get_by_role("button", name="Replay 2 dead letters").click()
    expect(page.locator("[data-say]")).to_have_text("0 of 2 done")
    with (
        Ledger(served.graph.state / "ledger.db") as ledger,
        DeadLetters(served.graph.state / "dead_letters.db") as letters,
    ):
        delivered = [Resolution(f"incoming/{number}", "desk", Outcome.DELIVERED) for number in (4, 5)]
        close_letters(ledger, letters, delivered)
    expect(page.locator("[data-say]")).to_have_text("All 2 done")
    expect(page.locator("#said")).to_have_text("All 2 done")
    for event in ("incoming/4", "incoming/1"):
        page.goto(f"{served.at}letters/one?event={event}")
    page.get_by_text("Correct a copy and resubmit it").click()
    box = page.get_by_label("Corrected payload")
    expect(box).to_have_value('{"n": 1}')
    box.fill('{\n  "n": 11\n}')
    page.get_by_role("button", name="Resubmit").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Replay of 1 dead letter")
    with DeadLetters(served.graph.state / "dead_letters.db") as letters:
        assert letters.get("incoming/1/+1")[0].payload == b'{\n  "n": 11\n}'
    assert not said


def test_a_page_that_gets_no_answer_says_so_and_what_somebody_reads_stays(
    browser: Browser, served: Served
) -> None:
    page, _ = opened(browser)
    page.goto(served.at)
    expect(page.locator("#unreached")).to_be_hidden()
    was = page.locator(".as-of time").text_content()
    page.evaluate("getSelection().selectAllChildren(document.querySelector('.numbers'))")
    page.wait_for_timeout(2_500)
    assert page.locator(".as-of time").text_content() == was, "what is chosen must not be replaced"
    page.evaluate("getSelection().removeAllRanges()")
    expect(page.locator(".as-of time")).not_to_have_text(was or "")
    served.stop()
    expect(page.locator("#unreached")).to_be_visible()
    expect(page.locator("#unreached")).to_contain_text("No answer from the run")
