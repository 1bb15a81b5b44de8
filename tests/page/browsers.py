"""Chromium for tests that look at a page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.servers import PATIENCE_S

CHROMIUM = Path("/usr/bin/chromium")
PHONE = {"width": 360, "height": 740}
FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"viewport": PHONE},
    {"viewport": PHONE, "color_scheme": "dark", "java_script_enabled": False},
)
"""A desk, a phone, and one at night that allows no scripts."""
expect.set_options(timeout=PATIENCE_S * 1000)
_ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-background-networking"]


_BEYOND = """root => root.scrollWidth <= root.clientWidth ? [] : [...root.querySelectorAll("*")]
    .filter(e => e.getBoundingClientRect().right > root.clientWidth + 1)
    .map(e => `${e.tagName} ${e.className} ${e.textContent.slice(0, 40)}`)"""
"""What stands outside of the window, if it is too narrow for the page."""


@contextmanager
def chromium() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is not there: scripts/set-up-chromium installs it, as root")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        yield browser
        browser.close()


def opened(browser: Browser, **options: Any) -> tuple[Page, list[str]]:
    """A page, and what the browser complains of: scripts that fail, or that the page's policy has refused."""
    page = browser.new_context(**options).new_page()
    page.set_default_timeout(PATIENCE_S * 1000)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    return page, said


def looks_right(page: Page) -> None:
    """It fits the window, has one main part with one heading, and every field has a name."""
    assert page.get_by_role("main").count() == page.get_by_role("heading", level=1).count() == 1, page.url
    beyond = page.locator("html").evaluate(_BEYOND)
    assert not beyond, (page.url, beyond)
    fields = "input:not([type=hidden]), select, textarea, button"
    for field in page.locator(fields).all():
        assert field.evaluate("e => e.labels?.length || e.ariaLabel || e.textContent.trim()"), page.url


def is_cut_off(page: Page) -> list[str]:
    """The texts in the picture of the graph that leave their box."""
    return list(
        page.locator(".picture:visible").evaluate(
            "picture => [...picture.querySelectorAll('.node')].flatMap(node => {"
            " const box = node.querySelector('.box').getBBox();"
            " return [...node.querySelectorAll('text')].filter(text => {"
            "  const own = text.getBBox(); return own.x + own.width > box.x + box.width; })"
            " .map(text => text.textContent); })"
        )
    )
