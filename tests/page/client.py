"""Asks an application as a browser does, without a server."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import urlencode

import httpx


class Client:
    """Keeps cookies; follows no redirect."""

    def __init__(self, app: Any, base_url: str = "http://localhost:8080", address: str = "127.0.0.1") -> None:
        """`address`: that of the client."""
        self._app, self._base_url, self._address = app, base_url, address
        self.cookies = httpx.Cookies()

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self._ask("GET", path, headers)

    def post(self, path: str, fields: Any, **headers: str) -> httpx.Response:
        kind = {"content-type": "application/x-www-form-urlencoded"}
        return self._ask("POST", path, {**kind, **headers}, urlencode(fields, doseq=True).encode())

    def send(self, page: str, path: str, fields: dict[str, Any]) -> httpx.Response:
        """A form of a page that was loaded before, as a browser sends it."""
        return self.post(path, {"csrf": csrf_of(self.get(page)), **fields}, origin=self._base_url)

    def _ask(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False, client=(self._address, 1))
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            async with httpx.AsyncClient(
                transport=transport, base_url=self._base_url, cookies=self.cookies
            ) as client:
                answer = await client.request(method, path, headers=named, content=body)
                self.cookies = client.cookies
                return answer

        return asyncio.run(ask())


def csrf_of(page: httpx.Response) -> str:
    """The token in the forms of a page."""
    found = re.search(r'name="csrf" value="([0-9a-f]+)"', page.text)
    assert found, page.text
    return found[1]
