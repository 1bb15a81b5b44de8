"""Who may reach the page of a run: nobody from another site, and on an address that others reach, only who
knows the token.

Invariants: a request is answered only if its Host is an address, `localhost`, the name of this machine, or
one that was allowed: a site whose name is made to lead here (DNS rebinding) is none of these. A session is a
random number in a cookie that scripts cannot read and other sites cannot send; one that was begun by TLS
never goes in clear. Whoever guesses tokens waits, and nobody else does; whoever logs in often ends
sessions of their own only.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import socket
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, MutableMapping
from contextlib import suppress
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from signoff.page.forms import check_token, sent_in
from signoff.page.mounting import Visitor
from signoff.page.rendering import prefix_of, render
from signoff.page.routes import HEADERS

Scope = MutableMapping[str, Any]

SESSION_S = 12 * 3600.0
_MOST_SESSIONS = 200
"""Of one holder of a token; the oldest of them ends for a new one. Not of all together: whoever logs in again
and again would else log out everybody."""
_MOST_FAILURES = 10
"""Wrong tokens a minute from one address. Not from all together: whoever guesses would else keep out all who
know the token. With at least 16 characters it is not guessed from many addresses either."""
_FAILURES_S = 60.0
_MOST_ADDRESSES = 10_000
_NETWORK_V6 = 64
"""Of an IPv6 address so many bits count: whoever has one has all that begin so."""


class Guard:
    """The sessions of one page. Used by one event loop and its threads."""

    hint = "It is in the file that --ui-token-file names, or in SIGNOFF_UI_TOKEN, where the run was started."
    """Where somebody finds the token."""

    def __init__(self, token: str | None, cookie: str, now: Callable[[], float] = time.monotonic) -> None:
        """`token`: None where nobody has to log in. `cookie`: its name, which no other page of this
        machine has."""
        self._token, self._cookie, self._now = token, cookie, now
        self._secret = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._sessions: dict[str, tuple[float, str]] = {}
        """When each ends, and who has logged in, by its hash; the oldest first."""
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def visitor(self, request: Request) -> Visitor:
        """Who asks. Raises 401 for somebody who has to log in first."""
        if self._token is None:
            return Visitor("", True, self._csrf("local"))
        session = request.cookies.get(self._cookie, "")
        ends, holder = self._sessions.get(_hashed(session), (0.0, ""))
        if ends <= self._now():
            raise HTTPException(401, "log in first")
        return self.visitor_of(holder, self._csrf(session))

    def holder_of(self, given: str) -> str | None:
        """Who has this token, in a word for `visitor_of`; None if it is none."""
        right = self._token is not None and hmac.compare_digest(_hashed(given), _hashed(self._token))
        return "" if right else None

    def visitor_of(self, holder: str, csrf: str) -> Visitor:
        """Who has a session, at each request. Raises 401 if they may not have it any more."""
        return Visitor("", True, csrf, may_log_out=True)

    def routes(self) -> list[Route]:
        return [
            Route("/login", self._login_page, methods=["GET"]),
            Route("/login", self._log_in, methods=["POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
        ]

    def to_login(self, request: Request) -> Response:
        """What somebody gets who has to log in: the page for it; a part of a page has it loaded by the
        browser."""
        where = f"{prefix_of(request)}/login"
        if request.headers.get("hx-request"):
            return Response(status_code=401, headers={"hx-redirect": where})
        return RedirectResponse(where, 303)

    def _login_page(self, request: Request) -> Response:
        return self._asked(request, 200, "")

    async def _log_in(self, request: Request) -> Response:
        form = await sent_in(request)
        return await run_in_threadpool(self._answer, request, form.text("token") or "")

    def _answer(self, request: Request, given: str) -> Response:
        now = self._now()
        failures = self._failures_of(address_of(request), now)
        if len(failures) >= _MOST_FAILURES:
            too_many = "too many wrong tokens; wait a minute"
            refused = self._asked(request, 429, too_many)
            refused.headers["retry-after"] = f"{_FAILURES_S:.0f}"
            return refused
        holder = self.holder_of(given)
        if holder is None:
            failures.append(now)
            return self._asked(request, 401, "this is not the token")
        session = secrets.token_urlsafe(32)
        self._begin(session, holder, now)
        prefix = prefix_of(request)
        answer = RedirectResponse(f"{prefix}/", 303)
        answer.set_cookie(
            self._cookie, session, max_age=int(SESSION_S), path=f"{prefix}/", httponly=True,
            samesite="strict", secure=_by_tls(request),
        )  # fmt: skip
        return answer

    def _begin(self, session: str, holder: str, now: float) -> None:
        """Takes the place of those that have ended, and of the oldest one of its holder if there are many."""
        with self._lock:
            ended = [key for key, (ends, _) in self._sessions.items() if ends <= now]
            own = [key for key, (ends, whose) in self._sessions.items() if whose == holder and ends > now]
            for key in (*ended, *own[: max(0, len(own) + 1 - _MOST_SESSIONS)]):
                self._sessions.pop(key, None)
            self._sessions[_hashed(session)] = now + SESSION_S, holder

    def _asked(self, request: Request, status: int, problem: str) -> Response:
        return render(request, "login.html", None, status=status, problem=problem, hint=self.hint)

    def _failures_of(self, address: str, now: float) -> deque[float]:
        """The last ones of an address."""
        failures = self._failures.setdefault(address, deque())
        self._failures.move_to_end(address)
        while len(self._failures) > _MOST_ADDRESSES:
            self._failures.popitem(last=False)
        while failures and now - failures[0] > _FAILURES_S:
            failures.popleft()
        return failures

    async def _log_out(self, request: Request) -> Response:
        form = await sent_in(request)
        check_token(form, self.visitor(request))
        with self._lock:
            self._sessions.pop(_hashed(request.cookies.get(self._cookie, "")), None)
        answer = RedirectResponse(f"{prefix_of(request)}/login", 303)
        answer.delete_cookie(self._cookie, path=f"{prefix_of(request)}/")
        return answer

    def _csrf(self, session: str) -> str:
        return hmac.new(self._secret, session.encode(), hashlib.sha256).hexdigest()


def address_of(request: Request) -> str:
    """Who asks, as far as it can be known: behind a proxy on this machine, whom that names last."""
    address = request.client.host if request.client else ""
    with suppress(ValueError):
        if ipaddress.ip_address(address).is_loopback:
            named = request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
            address = str(ipaddress.ip_address(named)) if named else address
        found = ipaddress.ip_address(address)
        if isinstance(found, ipaddress.IPv6Address):
            network = ipaddress.ip_network((int(found), _NETWORK_V6), strict=False)
            address = str(found.ipv4_mapped or network)  # without a zone, which may be any text
    return address


def _by_tls(request: Request) -> bool:
    """Whether the browser has come by TLS: it says so with a form, and so do proxies. To claim it without
    cause gives nobody anything but a cookie of less use."""
    return (
        request.url.scheme == "https"
        or request.headers.get("origin", "").startswith("https://")
        or request.headers.get("x-forwarded-proto", "").strip().lower() == "https"
    )


class Door:
    """Around the whole application: refuses hosts that are not meant, and adds the headers to every
    answer."""

    def __init__(self, app: Any, names: Iterable[str] | None = ()) -> None:
        """`names`: of this machine, besides those that it gives itself; None: by whatever name one comes,
        which is for pages that show nothing without a login."""
        self._app = app
        own = {"localhost", socket.gethostname().lower()}
        self._names = None if names is None else own.union(name.lower() for name in names)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = [value for name, value in scope["headers"] if name == b"host"]
        answer = self._app
        if len(given) != 1 or not self.knows(given[0].decode("latin-1")):
            answer = PlainTextResponse(
                "421: this page is not served under that name; see --ui-name\n", status_code=421
            )

        async def with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await answer(scope, receive, with_headers)

    def knows(self, host: str) -> bool:
        if self._names is None:
            return True
        name = host.rpartition("]")[0].lstrip("[") if host.startswith("[") else host.partition(":")[0]
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.lower().rstrip(".") in self._names
        return True


def _hashed(text: str) -> str:
    """So that comparing and looking up takes as long whatever the text is."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
