"""From a template to an answer. Every text on its way into a template is masked, its control characters are
written out, and it is escaped; there is no other way."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import HTMLResponse

from signoff.ledger.explain import as_text
from signoff.page.mounting import Visitor
from signoff.pipeline.secrets import redact
from signoff.terminal import written_out
from signoff.watch.drawing import duration


def shown(text: str) -> str:
    """As it may be shown, but not escaped."""
    return written_out(redact(text))


def exact(text: str) -> Markup:
    """As it is, escaped: for what is sent back, such as a payload that somebody corrects, or an event id in a
    form. Never for what holds a secret."""
    return Markup.escape(text)


def own(text: str) -> Markup:
    """What the visitor has sent with this very request, or text that holds only that and words of ours. It is
    not masked: a mask would say which of a thousand guesses is a secret."""
    return Markup.escape(written_out(text))


def payload_text(payload: bytes) -> str:
    """A payload for people: its text, or base64 of what is none."""
    text, encoding = as_text(payload)
    return text if encoding == "utf-8" else f"(base64) {text}"


def number(value: float | None) -> str:
    """A count, short enough for a box."""
    if value is None:
        return "–"
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * size:
            return (
                f"{value / size:,.0f} {unit}" if abs(value) >= 100 * size else f"{value / size:,.1f} {unit}"
            )
    return f"{value:,.0f}"


def rate(value: float | None) -> str:
    """How many a second."""
    if value is None:
        return "–"
    return f"{value:.1f}/s" if 0 < value < 10 else f"{number(value)}/s"


def size(value: float) -> str:
    """Bytes."""
    for unit, one in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if value >= one:
            return f"{value / one:,.1f} {unit}"
    return f"{value:,.0f} B"


def seconds(value: float | None) -> str:
    """A bound of a histogram."""
    if value is None:
        return "more"
    return f"{value * 1000:g} ms" if value < 1 else duration(value)


def clock(value: float | None) -> str:
    """A time of day, in UTC."""
    return "–" if value is None else f"{datetime.fromtimestamp(value, UTC):%H:%M:%S}"


def ago(value: float | None) -> str:
    """How long ago a moment was."""
    return "–" if value is None else duration(max(time.time() - value, 0.0))


def _finalized(value: Any) -> Any:
    return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _query(fields: Mapping[str, Any]) -> Markup:
    return exact(urlencode({name: value for name, value in fields.items() if value not in (None, "")}))


_environment = Environment(
    loader=PackageLoader("signoff.page", "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    finalize=_finalized,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {
    "number": number, "rate": rate, "size": size, "seconds": seconds, "clock": clock, "ago": ago,
    "value": _value,
    "duration": duration, "exact": exact, "own": own, "payload": payload_text,
    "dash": lambda word: str(word).replace("_", "-"),
    "segment": lambda text: exact(quote(str(text), safe="")),
    "query": _query,
}  # fmt: skip


def prefix_of(request: Request) -> str:
    """The path that the pages are mounted at."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def render(
    request: Request, template: str, visitor: Visitor | None, *, status: int = 200, **values: Any
) -> HTMLResponse:
    prefix = exact(quote(prefix_of(request)))
    text = _environment.get_template(template).render(prefix=prefix, visitor=visitor, **values)
    return HTMLResponse(text, status)
