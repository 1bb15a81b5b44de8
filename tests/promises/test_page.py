"""The page of a real run in a real browser: what it shows, and a letter from the click to its delivery."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import psutil
import pytest
from playwright.sync_api import Browser, expect

from tests.page.browsers import chromium, looks_right, opened
from tests.promises.product import PARSE, SOON, Product, Running
from tests.servers import PATIENCE_S, WebhookServer, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.servers]

_SERVED = re.compile(r"the page is at (http://\S+)")
_PATIENCE_MS = PATIENCE_S * 1000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


def started(real: Callable[..., Product], webhook: WebhookServer) -> tuple[Product, Running, str]:
    """A run with its page, and where that is."""
    product = real(
        sources={"incoming": {"type": "files", "path": "./in/*.jsonl"}},
        transforms={"parsed": PARSE},
        sinks={
            "hook": {"type": "http", "input": "parsed", "url": webhook.url, "retry": SOON},
            "out": {"type": "files", "input": "parsed", "path": "out"},
        },
    )
    running = product.start("--ui", "127.0.0.1:0")
    at = running.wait_for(lambda: _SERVED.search(running.output))[1]
    return product, running, f"{at}pipelines/{product.graph().name}/"


@pytest.mark.case(40)
def test_a_sink_goes_down_and_comes_back_and_a_letter_goes_from_the_click_to_its_delivery(
    browser: Browser, real: Callable[..., Product], webhook: WebhookServer
) -> None:
    webhook.answer(400, lambda request: any(row.get("n") == 13 for row in request.rows), body="unlucky")
    product, running, at = started(real, webhook)
    page, said = opened(browser)
    page.goto(at)
    hook, problems = page.locator("#wide-hook"), page.get_by_role("region", name="Problems")
    product.put("a.jsonl", [{"n": 1}, {"n": 13}])
    expect(hook).to_contain_text("1 dead letter", timeout=_PATIENCE_MS)
    wait_until(lambda: product.account()["delivered"] == 1)

    webhook.down()
    product.put("b.jsonl", [{"n": 2}])
    expect(hook).to_have_class(re.compile("failing"), timeout=_PATIENCE_MS)
    expect(problems).to_contain_text('sink "hook" fails')
    expect(page.locator("#said")).to_contain_text("1 problem")  # what a screen reader says
    webhook.up()
    expect(problems).to_have_count(0, timeout=_PATIENCE_MS)
    wait_until(lambda: product.account()["delivered"] == 2)

    webhook.answer(200)
    page.get_by_role("link", name="Dead letters").first.click()
    page.get_by_role("link", name="Replay 1 of hook").click()
    page.get_by_role("button", name="Replay 1 dead letter").click()
    expect(page.locator("[data-say]")).to_have_text("All 1 done", timeout=_PATIENCE_MS)
    expect(page.locator(".figures")).to_contain_text("delivered")
    assert [row["event_id"] for row in webhook.accepted if row.get("n") == 13] == ["incoming/1"]
    assert product.account() == {**product.account(), "received": 3, "delivered": 3, "dead_lettered": 0}
    page.goto(f"{at}account")
    looks_right(page)
    expect(page.locator(".equation")).to_contain_text("3 delivered")

    process = next(
        child for child in psutil.Process(running.pid).children() if "signoff.page" in child.cmdline()
    )
    process.kill()
    product.put("c.jsonl", [{"n": 5}])
    wait_until(lambda: product.account()["delivered"] == 4)
    page.goto(at)
    expect(page.locator("#unreached")).to_be_hidden()
    page.goto(f"{at}find?event=incoming/3")
    expect(page.locator(".story")).to_contain_text("delivered")
    assert not said
    assert running.terminate().code == 0
