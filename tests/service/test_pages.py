"""The page of the service: who may see and do what on it, and that it is there only while somebody looks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from signoff.ledger import DeadLetters
from signoff.page import guard
from signoff.service.api.app import Api
from signoff.service.pages import UNUSED_S, ServicePages
from signoff.service.tenant import Tenant
from signoff.service.tokens import ROLES
from tests.operate.state import PIPELINE, fill
from tests.page.client import Client, csrf_of
from tests.service.client import TEXT

AT = "/ui/pipelines/alarms"
DROP = {"event": "incoming/1"}
CONFIRM = f"{AT}/letters/confirm?action=drop&event=incoming/1"


class Site:
    """The page of a tenant with two pipelines, beside its API."""

    def __init__(self, directory: Path) -> None:
        self.tenant = Tenant(directory / "default", Fernet.generate_key())
        for name in ("alarms", "orders"):
            place = directory / name
            place.mkdir()
            text = PIPELINE.replace("name: alarms", f"name: {name}")
            state = fill(place, text).state
            self.tenant.create(name, f"{text}state: {state}\n", start=False)
        self.tokens = {role: self.tenant.tokens.make(role, role)[1] for role in ROLES}
        self.pages = ServicePages(self.tenant, "signoff-8080")
        self.app = Api(self.tenant).application(*self.pages.routes())

    def visitor(self, role: str = "") -> Client:
        client = Client(self.app)
        if role:
            assert client.post("/ui/login", {"token": self.tokens[role]}).status_code == 303
        return client

    def letter(self) -> str:
        with DeadLetters(self.tenant.graph("alarms").state / "dead_letters.db", readonly=True) as letters:
            return str(letters.get("incoming/1")[0].status)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.pages.close()


def test_nothing_is_shown_without_a_token(site: Site) -> None:
    stranger = site.visitor()
    assert stranger.get("/").headers["location"] == "/ui/"
    for path in ("/ui/", f"{AT}/", CONFIRM, f"{AT}/nothing", "/ui/pipelines/none/"):
        answer = stranger.get(path)
        assert (answer.status_code, answer.headers.get("location")) in ((303, "/ui/login"), (404, None)), path
        assert "incoming" not in answer.text
    assert stranger.post("/ui/login", {"token": "signoff_000000000000_" + "x" * 43}).status_code == 401
    assert stranger.post(f"{AT}/letters/drop", DROP).status_code == 303
    assert "token of the service" in stranger.get("/ui/login").text
    assert site.pages.watching.names == set()


def test_all_pipelines_are_listed_and_every_link_stays_below_the_prefix(site: Site) -> None:
    visitor = site.visitor("view")
    seen, ahead = set[str](), ["/ui/"]
    while ahead and len(seen) < 40:
        path = ahead.pop(0)
        seen.add(path)
        answer = visitor.get(path)
        assert answer.status_code == 200, path
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        for link in re.findall(r'(?:href|src|action|hx-get)="([^"]+)"', answer.text):
            assert link.startswith(("/ui/", "#")), (path, link)
            target = link.replace("&amp;", "&").partition("#")[0]
            if target not in seen and target and not target.endswith(("/logout", "/confirm")):
                ahead.append(target)
    assert {"/ui/pipelines/alarms/", "/ui/pipelines/orders/"} <= seen


@pytest.mark.parametrize(("role", "status", "after"), [("view", 403, "stored"), ("operate", 200, "dropped")])
def test_what_a_token_may_not_do_its_session_may_not(site: Site, role: str, status: int, after: str) -> None:
    visitor = site.visitor(role)
    page = visitor.get(f"{AT}/letters/one?event=incoming/1")
    assert "incoming/1" in page.text
    assert bool(re.search(r">\s*(Replay|Drop|Resubmit)", page.text)) is (role == "operate")
    fields = {**DROP, "csrf": csrf_of(visitor.get("/ui/pipelines/alarms/"))}  # that of the form to log out
    assert visitor.post(f"{AT}/letters/drop", fields).status_code == status
    assert site.letter() == after
    trail = [(each["token"].split()[0], each["action"], each["target"]) for each in site.tenant.trail.last(9)]
    assert trail == ([("operate", "drop letters", "alarms")] if role == "operate" else [])


def test_a_form_without_its_token_changes_nothing(site: Site) -> None:
    visitor = site.visitor("operate")
    assert visitor.post(f"{AT}/letters/drop", DROP).status_code == 403
    assert visitor.post(f"{AT}/letters/drop", DROP, origin="http://evil.example.com").status_code == 403
    assert site.letter() == "stored"
    assert site.tenant.trail.last(9) == []


def test_a_session_ends_with_its_token_and_is_none_for_the_api(site: Site) -> None:
    visitor = site.visitor("view")
    assert visitor.get(f"{AT}/").status_code == 200
    assert visitor.get("/v1/pipelines").status_code == 401
    site.tenant.tokens.revoke(site.tokens["view"].split("_")[1])
    assert visitor.get(f"{AT}/").headers["location"] == "/ui/login"


def test_who_logs_in_again_and_again_logs_out_nobody_but_himself(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_MOST_SESSIONS", 6)
    administrator, first = site.visitor("administer"), site.visitor("view")
    latest = [site.visitor("view") for _ in range(6)]
    found = [each.get(f"{AT}/").status_code for each in (administrator, first, *latest)]
    assert found == [200, 303, *[200] * 6]


def test_a_pipeline_is_watched_only_while_somebody_looks_and_shows_the_text_in_force(site: Site) -> None:
    visitor, watching = site.visitor("view"), site.pages.watching
    now = [0.0]
    watching._now = lambda: now[0]
    visitor.get(f"{AT}/")
    assert watching.names == {"alarms"}
    first = watching.of("alarms")
    assert watching.of("alarms") is first
    site.tenant.pipelines["alarms"].change(TEXT.replace("out:", "elsewhere:"))
    assert "elsewhere" in visitor.get(f"{AT}/").text
    assert watching.of("alarms") is not first
    now[0] = UNUSED_S
    watching.sweep()
    assert watching.names == {"alarms"}
    now[0] += 1
    watching.sweep()
    assert watching.names == set()
    visitor.get(f"{AT}/")
    with site.tenant.pipelines["alarms"].lock:
        site.tenant.discard(site.tenant.remove(site.tenant.pipelines["alarms"]))
    assert visitor.get(f"{AT}/").status_code == 404
    watching.sweep()
    assert watching.names == set()


def test_secrets_of_the_tenant_are_masked_and_no_file_of_a_pipeline_is_run(
    site: Site, tmp_path: Path
) -> None:
    marker, code = tmp_path / "marker", tmp_path / "job.py"
    code.write_text(f"open({str(marker)!r}, 'w').write('run')")
    site.tenant.secrets.put("word", "swordfish")
    text = TEXT.replace("alarms", "jobs") + f"  swordfish: {{type: job, input: incoming, job: {code}}}\n"
    site.tenant.create("jobs", text, start=False)
    visitor = site.visitor("view")
    for page in ("", "jobs", "account", "letters"):
        answer = visitor.get(f"/ui/pipelines/jobs/{page}")
        assert answer.status_code == 200
        assert "swordfish" not in re.sub(r'(?:href|hx-get|id|value)="[^"]*"', "", answer.text)
    assert not marker.exists()


def test_no_answer_says_whether_a_guess_is_a_secret(site: Site) -> None:
    """Else whoever may only look finds out those that are words, thousands at a time."""
    site.tenant.secrets.put("word", "swordfish")
    visitor = site.visitor("operate")
    bearer = {"authorization": f"Bearer {site.tokens['view']}"}
    for path in (
        f"{AT}/find?event=pike+{{}}", f"{AT}/find?event=pike+{{}}/1", f"{AT}/find?event=incoming/1/pike+{{}}",
        f"{AT}/letters?reason=pike+{{}}",
        f"{AT}/letters?text=pike+{{}}",
        f"{AT}/letters?stage=pike+{{}}", f"{AT}/letters/one?event=pike+{{}}",
        f"{AT}/letters/one?event=incoming/1&stage=pike+{{}}", f"{AT}/?node=pike+{{}}",
        f"{AT}/letters/confirm?action=drop&reason=pike+{{}}",
        f"{AT}/letters/confirm?action=drop&event=pike/1/{{}}", "/ui/pipelines/pike+{}/",
        "/v1/pipelines/alarms/events/pike+{}", "/v1/pipelines/alarms/events/pike/1/{}",
        "/v1/pipelines/alarms/dead-letters?since=pike+{}",
    ):  # fmt: skip
        right, wrong = (visitor.get(path.format(guess), **bearer) for guess in ("swordfish", "swordfisch"))
        assert "pike" in right.text or "stage=" in path, path
        without = [re.sub(r"swordfisc?h|As of.*", "", answer.text) for answer in (right, wrong)]
        assert (right.status_code, without[0]) == (wrong.status_code, without[1]), path


def test_a_pipeline_that_cannot_be_read_takes_the_overview_of_no_other(site: Site) -> None:
    site.tenant.create("odd", TEXT.replace("type: files", "type: gone").replace("alarms", "odd"), start=False)
    state = site.tenant.graph("orders").state
    (state / "ledger.db").write_bytes(b"no database" * 1000)
    page = site.visitor("view").get("/ui/")
    assert page.status_code == 200
    assert "alarms" in page.text
