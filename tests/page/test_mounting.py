"""The same pages for many pipelines, below a prefix, for visitors that somebody else knows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from signoff.page.mounting import Visitor
from signoff.page.routes import handlers, pages
from signoff.page.watched import WatchedPipeline
from tests.operate.state import PIPELINE, fill
from tests.page.client import Client
from tests.page.test_pages import stored

PREFIX = "/tenants/acme"


class Tenant:
    """Two pipelines; who says `operator` may change them."""

    def __init__(self, found: Sequence[WatchedPipeline]) -> None:
        self._found = {each.name: each for each in found}

    def visitor(self, request: Request) -> Visitor:
        name = request.headers.get("x-name", "")
        return Visitor(name, name == "operator", "a-token")

    def pipelines(self, request: Request) -> Sequence[WatchedPipeline]:
        return list(self._found.values())

    def pipeline(self, request: Request, name: str) -> WatchedPipeline | None:
        return self._found.get(name)

    def note(self, request: Request, visitor: Visitor, name: str) -> None:
        assert visitor.may_operate


@pytest.fixture
def found(tmp_path: Path) -> list[WatchedPipeline]:
    made = []
    for name in ("alarms", "orders"):
        folder = tmp_path / name
        folder.mkdir()
        made.append(WatchedPipeline(fill(folder, PIPELINE.replace("name: alarms", f"name: {name}"))))
    return made


@pytest.fixture
def client(found: list[WatchedPipeline]) -> Client:
    tenant = Tenant(found)
    return Client(
        Starlette(routes=[Mount(PREFIX, routes=pages(tenant))], exception_handlers=handlers(tenant))
    )


def test_all_pipelines_are_listed_and_every_link_stays_below_the_prefix(client: Client) -> None:
    seen, ahead = set[str](), [f"{PREFIX}/"]
    while ahead and len(seen) < 60:
        path = ahead.pop()
        seen.add(path)
        answer = client.get(path)
        assert answer.status_code == 200, path
        for link in re.findall(r'(?:href|src|action|hx-get)="([^"]+)"', answer.text):
            assert link.startswith((f"{PREFIX}/", "#")), (path, link)
            target = link.replace("&amp;", "&").partition("#")[0]
            if (
                target
                and target not in seen
                and not target.endswith(("/confirm", "/replay", "/drop", "/resubmit"))
            ):
                ahead.append(target)
    assert {f"{PREFIX}/pipelines/alarms/", f"{PREFIX}/pipelines/orders/"} <= seen


def test_a_visitor_who_may_only_look_is_offered_nothing_and_changes_nothing(
    client: Client, found: list[WatchedPipeline]
) -> None:
    at = f"{PREFIX}/pipelines/orders"
    for path in ("/letters?stage=table", "/letters/one?event=incoming/1"):
        page = client.get(at + path).text
        assert "incoming/1" in page and not re.search(r">\s*(Replay|Drop|Resubmit)", page)
    fields = {"event": "incoming/1", "stage": "table", "payload": "{}", "csrf": "a-token"}
    assert client.get(f"{at}/letters/confirm?action=drop&stage=table").status_code == 403
    for action in ("replay", "drop", "resubmit"):
        assert client.post(f"{at}/letters/{action}", fields, x_name="viewer").status_code == 403
        assert stored(found[1], "incoming/1").status == "stored"
    assert client.post(f"{at}/letters/drop", fields, x_name="operator").status_code == 200
    assert (stored(found[0], "incoming/1").status, stored(found[1], "incoming/1").status) == (
        "stored",
        "dropped",
    )
    assert client.get(f"{PREFIX}/pipelines/elsewhere/").status_code == 404
