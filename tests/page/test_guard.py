"""Who may reach the page, and who may change anything by it."""

from __future__ import annotations

import itertools

import pytest
from starlette.requests import Request

from signoff.page.guard import SESSION_S, Door, Guard, address_of
from signoff.page.standalone import page_app
from signoff.page.watched import WatchedPipeline
from tests.page.client import Client, csrf_of
from tests.page.test_pages import AT, stored

TOKEN = "a-token-of-some-length"
DROP = {"event": "incoming/1"}
CONFIRM = f"{AT}/letters/confirm?action=drop&event=incoming/1"


@pytest.fixture
def locked(pipeline: WatchedPipeline) -> Client:
    return Client(page_app(pipeline, token=TOKEN, cookie="signoff-8080"))


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("localhost:8080", 200), ("127.0.0.1:8080", 200), ("[::1]:8080", 200), ("192.168.1.7", 200),
        ("evil.example.com", 421), ("evil.example.com:8080", 421), ("localhost.evil.example.com", 421),
        ("127.0.0.1.evil.example.com", 421), ("", 421), ("allowed.example.com", 200),
        ("ALLOWED.example.com.", 200),
    ],
)  # fmt: skip
def test_a_site_whose_name_leads_here_gets_nothing(pipeline: WatchedPipeline, host: str, code: int) -> None:
    client = Client(page_app(pipeline, names=["allowed.example.com"]))
    assert client.get(f"{AT}/", host=host).status_code == code


@pytest.mark.parametrize(
    ("fields", "headers"),
    [
        ({}, {}),
        ({"csrf": "0" * 64}, {}),
        ({"csrf": None}, {"origin": "http://evil.example.com"}),
        ({"csrf": None}, {"origin": "null"}),
        ({"csrf": None}, {"origin": "http://localhost:9"}),
        ({"csrf": None}, {"sec_fetch_site": "cross-site"}),
        ({"csrf": None}, {"sec_fetch_site": "same-site"}),
    ],
)
def test_a_form_of_another_site_changes_nothing(
    client: Client, pipeline: WatchedPipeline, fields: dict[str, str | None], headers: dict[str, str]
) -> None:
    right = csrf_of(client.get(CONFIRM))
    sent = {name: value or right for name, value in fields.items()}
    assert client.post(f"{AT}/letters/drop", {**DROP, **sent}, **headers).status_code == 403
    assert client.get(f"{AT}/letters/drop?event=incoming/1&csrf={right}").status_code == 405
    assert stored(pipeline, "incoming/1").status == "stored"
    assert client.post(f"{AT}/letters/drop", {**DROP, "csrf": right}, sec_fetch_site="same-origin").is_success
    assert stored(pipeline, "incoming/1").status == "dropped"


@pytest.mark.parametrize("fields", [{}, {"stage": "table"}])
def test_a_form_that_says_not_which_letters_changes_none(
    client: Client, pipeline: WatchedPipeline, fields: dict[str, str]
) -> None:
    assert client.send(CONFIRM, f"{AT}/letters/drop", fields).status_code == 422
    assert stored(pipeline, "incoming/1").status == "stored"


def test_a_body_is_a_form_and_of_bounded_size(client: Client) -> None:
    assert client.post(f"{AT}/letters/drop", {}, content_type="text/plain").status_code == 415
    assert client.post(f"{AT}/letters/drop", {"a": "x" * 5_000_000}).status_code == 413


@pytest.mark.parametrize("path", ["/", f"{AT}/", f"{AT}/letters", CONFIRM, f"{AT}/reports/a/b"])
def test_nothing_is_shown_before_somebody_has_logged_in(locked: Client, path: str) -> None:
    answer = locked.get(path)
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    assert "incoming" not in answer.text
    assert locked.get(path, hx_request="true").headers["hx-redirect"] == "/login"
    assert locked.post(f"{AT}/letters/drop", DROP).status_code == 303


def test_who_knows_the_token_gets_a_session_that_no_script_and_no_other_site_has(
    locked: Client, pipeline: WatchedPipeline
) -> None:
    assert locked.post("/login", {"token": TOKEN + "x"}).status_code == 401
    assert locked.post("/login", {"token": TOKEN}, origin="http://evil.example.com").status_code == 403
    answer = locked.post("/login", {"token": TOKEN})
    cookie = answer.headers["set-cookie"].lower()
    assert cookie.startswith("signoff-8080=")
    assert {"httponly", "samesite=strict", "path=/"} <= {part.strip() for part in cookie.split(";")}
    assert TOKEN not in cookie
    assert locked.get(f"{AT}/").status_code == 200
    assert locked.send(CONFIRM, f"{AT}/letters/drop", DROP).is_success
    assert stored(pipeline, "incoming/1").status == "dropped"
    before = dict(locked.cookies)
    assert locked.send(f"{AT}/", "/logout", {}).status_code == 303
    locked.cookies.update(before)
    assert locked.get(f"{AT}/").status_code == 303


def test_a_form_of_one_session_is_none_of_another(pipeline: WatchedPipeline) -> None:
    app = page_app(pipeline, token=TOKEN)
    one, other = Client(app), Client(app)
    for client in (one, other):
        client.post("/login", {"token": TOKEN})
    assert other.post(f"{AT}/letters/drop", {**DROP, "csrf": csrf_of(one.get(CONFIRM))}).status_code == 403


def test_whoever_guesses_tokens_waits(locked: Client) -> None:
    codes = [locked.post("/login", {"token": f"guess-{number}"}).status_code for number in range(12)]
    assert codes == [401] * 10 + [429] * 2
    answer = locked.post("/login", {"token": TOKEN})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")


def test_who_guesses_keeps_nobody_out_but_himself(pipeline: WatchedPipeline) -> None:
    app = page_app(pipeline, token=TOKEN)
    guesses = Client(app, address="203.0.113.9")
    for _ in range(11):
        refused = guesses.post("/login", {"token": "guess"})
    assert refused.status_code == 429
    assert Client(app, address="198.51.100.7").post("/login", {"token": TOKEN}).status_code == 303


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (("203.0.113.9", ""), ("203.0.113.9", ""), True),
        (("203.0.113.9", ""), ("203.0.113.8", ""), False),
        (("2001:db8::1", ""), ("2001:db8::ffff", ""), True),
        (("2001:db8::1", ""), ("2001:db8:1::1", ""), False),
        (("127.0.0.1", "203.0.113.9"), ("127.0.0.1", "203.0.113.8"), False),
        (("127.0.0.1", "1.2.3.4, 203.0.113.9"), ("127.0.0.1", "5.6.7.8, 203.0.113.9"), True),
        (("203.0.113.9", "1.2.3.4"), ("203.0.113.9", "5.6.7.8"), True),  # no proxy of this machine
        (("127.0.0.1", "nonsense"), ("127.0.0.1", ""), True),
        (("127.0.0.1", "::ffff:203.0.113.9%a"), ("127.0.0.1", "::ffff:203.0.113.9%b"), True),
        (("::ffff:203.0.113.9", ""), ("::ffff:203.0.113.8", ""), False),
    ],
)
def test_who_asks_is_told_by_his_address(one: tuple[str, str], other: tuple[str, str], same: bool) -> None:
    def address(client: str, named: str) -> str:
        headers = [(b"x-forwarded-for", named.encode())] if named else []
        return address_of(Request({"type": "http", "client": (client, 1), "headers": headers}))

    assert (address(*one) == address(*other)) is same


@pytest.mark.parametrize(
    ("headers", "secure"),
    [
        ({}, False),
        ({"origin": "http://localhost:8080"}, False),
        ({"origin": "https://localhost:8080"}, True),
        ({"x_forwarded_proto": "https"}, True),
        ({"x_forwarded_proto": "http"}, False),
    ],
)
def test_a_cookie_that_came_by_tls_never_goes_in_clear(
    locked: Client, headers: dict[str, str], secure: bool
) -> None:
    cookie = locked.post("/login", {"token": TOKEN}, **headers).headers["set-cookie"].lower()
    assert ("; secure" in cookie) is secure


def test_a_session_ends_and_guesses_are_forgotten() -> None:
    now = itertools.count(0.0, SESSION_S)
    guard = Guard(TOKEN, "signoff", lambda: next(now))
    from starlette.applications import Starlette

    client = Client(Door(Starlette(routes=guard.routes())))
    for _ in range(15):
        assert client.post("/login", {"token": "guess"}).status_code == 401
    assert client.post("/login", {"token": TOKEN}).status_code == 303


def test_sessions_that_have_ended_are_forgotten() -> None:
    now = itertools.count(0.0, SESSION_S / 4)
    guard = Guard(TOKEN, "signoff", lambda: next(now))
    from starlette.applications import Starlette

    client = Client(Door(Starlette(routes=guard.routes())))
    for _ in range(20):
        assert client.post("/login", {"token": TOKEN}).status_code == 303
    assert len(guard._sessions) == 4


def test_every_answer_has_the_headers_that_keep_scripts_and_frames_out(client: Client) -> None:
    for path in (f"{AT}/", "/assets/page.js", "/nowhere", f"{AT}/find?event=%ff", "/pipelines/none/"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]


def test_pages_have_no_inline_style_or_script(client: Client) -> None:
    for path in (
        "/",
        "/?node=desk",
        "/account",
        "/letters",
        "/letters/one?event=incoming/1",
        "/find?event=m-1",
    ):
        page = client.get(AT + path).text
        assert " style=" not in page and "<style" not in page and " onclick" not in page
        assert page.count("<script") == page.count("<script src=")
