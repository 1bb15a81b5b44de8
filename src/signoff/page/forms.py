"""What comes in with a form: read up to a bound, from the same origin, with the token of its visitor."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from signoff.page.mounting import Visitor

MOST_BYTES = 4 * 1024 * 1024
_MOST_FIELDS = 2_000
TOKEN = "csrf"


@dataclass(frozen=True)
class Form:
    """The fields of a form."""

    fields: Mapping[str, tuple[str, ...]]

    def text(self, name: str) -> str | None:
        """The one value of a field; None if it is not there or empty."""
        values = self.fields.get(name, ())
        return values[0] or None if values else None

    def all(self, name: str) -> tuple[str, ...]:
        return self.fields.get(name, ())


def parse(text: str) -> Form:
    """Fields as browsers write them, in an address or in a body."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict")
    except (ValueError, UnicodeDecodeError):
        raise HTTPException(400, "the form cannot be read, or has too many fields") from None
    fields: dict[str, tuple[str, ...]] = {}
    for name, value in pairs:
        fields[name] = (*fields.get(name, ()), value)
    return Form(fields)


def asked_in(request: Request) -> Form:
    """The fields of the address."""
    return parse(request.url.query)


async def sent_in(request: Request) -> Form:
    """The fields of the body, if it comes from a page of ours."""
    check_origin(request)
    if (
        request.headers.get("content-type", "").partition(";")[0].strip()
        != "application/x-www-form-urlencoded"
    ):
        raise HTTPException(415, "a form is expected")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MOST_BYTES:
                raise HTTPException(413, f"more than {MOST_BYTES // 1024**2} MiB")
    except ClientDisconnect:
        raise HTTPException(408, "the form did not arrive") from None
    return parse(body.decode("latin-1"))


def check_origin(request: Request) -> None:
    """Raises 403 for what another site has sent. Browsers say where a form comes from; what says nothing
    is no browser, and has to know the token all the same."""
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    other = origin is not None and urlsplit(origin).netloc != request.headers.get("host")
    if other or site not in (None, "same-origin", "none"):
        raise HTTPException(403, "this form comes from another site")


def check_token(form: Form, visitor: Visitor) -> None:
    """Raises 403 for a form that was not made for this visitor."""
    given = form.text(TOKEN) or ""
    if not hmac.compare_digest(given.encode(), visitor.csrf.encode()):
        raise HTTPException(403, "this form is too old; go back, load the page again, and repeat it")
