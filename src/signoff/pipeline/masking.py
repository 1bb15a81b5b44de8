"""Keeping registered secrets out of every text we write.

`register_secret` makes a value known in this process; `redact` masks it wherever it stands in a text, also
in the forms it takes on the way: percent-encoded, inside JSON or a Python repr, in base64 (wherever it
stands in what was encoded), with its whitespace folded, or one line of several. Passwords in addresses are
masked by their place, registered or not.

Invariants: text is masked before anything else is done to it: a secret that was cut, or whose blanks were
folded, is not found any more. So `excerpt` is how text is shortened, everywhere; what is kept unmasked is cut
at `line_outside`. Overlapping secrets are masked together; what is known by value goes before what is known
by its place, which may see a part of it.

Values are known to a register. That of the process is used by default; where one process works for several
parties (the service, for its tenants), each has one of its own (`masking`): what is masked for one would else
tell it which words are secrets of another.

A value of two or three characters is masked where it stands alone, not inside words; one of a single
character only by its place: masking every "a" would make all output unreadable, and protect nothing.
"""

from __future__ import annotations

import base64
import html
import json
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from urllib.parse import quote, quote_plus

MASK = "***"
SHORTEST = 4
"""Values shorter than this are masked as whole words only."""
_SHORTEST_LINE = 12
"""Lines of a secret with several are secrets themselves from this length on."""
_SHORTEST_BASE64 = 8
_REASON_LENGTH = 500

BY_PLACE: tuple[tuple[re.Pattern[str], str], ...] = (
    # The last @ before a slash ends the password: unescaped @ in passwords is common.
    # Bounded, the time for a text grows with its length and not with its square.
    (re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s/:@\"']*):[^\s/\"']*@"), rf"\1:{MASK}@"),
    # Without a colon the user of an HTTP address is a token more often than a name.
    (re.compile(r"(https?://)(?!\*)[^\s/:@\"']+@", re.IGNORECASE), rf"\1{MASK}@"),
    (
        re.compile(
            r"([?&](?:[\w-]*(?:password|passwd|pwd|token|secret|signature|api_?key)|key|sig)=)[^&\s\"'#]+",
            re.IGNORECASE,
        ),
        rf"\1{MASK}",
    ),
    (re.compile(r"(\b\w*password\s*=\s*)(?:'[^']*'|[^\s'\"&;,)]+)", re.IGNORECASE), rf"\1{MASK}"),
    (re.compile(r"(\b(?:bearer|basic)\s+)[\w.~+/=-]{8,}", re.IGNORECASE), rf"\1{MASK}"),
)


class Register:
    """Values to be masked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.values: frozenset[str] = frozenset()
        """As they were given."""
        self._all: frozenset[str] = frozenset()
        self._forms: tuple[str, ...] = ()
        """All that is looked for in a text."""
        self._words: re.Pattern[str] | None = None
        """The short ones, as words."""

    def add(self, *values: str) -> None:
        new = {value for value in values if len(value) > 1} - self.values
        if not new:
            return
        with self._lock:
            self._all |= {form for value in new for form in _forms_of(value)}
            self._forms = tuple(sorted(form for form in self._all if len(form) >= SHORTEST))
            short = sorted(form for form in self._all if 1 < len(form) < SHORTEST)
            self._words = (
                re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, short))})(?!\w)") if short else None
            )
            self.values |= new

    def found(self, text: str) -> Iterator[tuple[int, int]]:
        for form in self._forms:
            start = text.find(form)
            while start >= 0:
                yield start, start + len(form)
                start = text.find(form, start + 1)
        if self._words is not None:
            yield from (match.span() for match in self._words.finditer(text))


_process = Register()
_current: ContextVar[Register | None] = ContextVar("register", default=None)


def _register() -> Register:
    return _current.get() or _process


@contextmanager
def masking(register: Register) -> Iterator[None]:
    """Meanwhile, in this thread, secrets are registered in this register and masked by it alone."""
    token = _current.set(register)
    try:
        yield
    finally:
        _current.reset(token)


def register_secret(value: str) -> None:
    """Have `redact` mask this value from now on, in this process; also as part of a URL or of JSON."""
    _register().add(value)


def redact(text: str) -> str:
    """The text without secrets, as UTF-8 can hold it: every place that shows a user or a file something
    calls this."""
    text = redact_known(text)
    for pattern, replacement in BY_PLACE:
        text = pattern.sub(replacement, text)
    # Half of a pair of surrogates, which a user's text may hold, can be written nowhere.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def redact_known(text: str) -> str:
    """The text without registered values; secrets that are known only by their place stay."""
    spans = sorted(_register().found(text))
    return _masked(text, spans) if spans else text


def excerpt(text: str, length: int) -> str:
    """The text without secrets, and then not longer than this."""
    text = redact(text)
    return text if len(text) <= length else text[: length - 1] + "…"


def brief(reason: object) -> str:
    """What an error says, on one line, without secrets and without end."""
    text = " ".join(redact(str(reason)).split()) or type(reason).__name__
    return excerpt(text, _REASON_LENGTH)


def line_outside(text: str, start: int) -> int:
    """Where to cut off what stands before: at the first beginning of a line, from `start` on, that is in no
    secret; where no line begins, at another place of which the same holds."""
    spans = [match.span() for pattern, _ in BY_PLACE for match in pattern.finditer(text)]
    place = _line_from(text, start)
    for begin, end in sorted([*spans, *_register().found(text)]):
        if begin < place < end:
            place = _line_from(text, end)
    return place


def _line_from(text: str, start: int) -> int:
    if start == 0 or text[start - 1 : start] == "\n":
        return start
    behind = text.find("\n", start) + 1
    return behind if 0 < behind < len(text) else start


class KnownSecrets:
    """The values this process masks, for one on an executor: it masks them as soon as it was unpickled."""

    def __reduce__(self) -> tuple[object, tuple[tuple[str, ...]]]:
        return _known, (tuple(sorted(_register().values)),)


def _known(values: Iterable[str]) -> KnownSecrets:
    for value in values:
        register_secret(value)
    return KnownSecrets()


def _masked(text: str, spans: Iterable[tuple[int, int]]) -> str:
    parts, done = [], 0
    for start, end in spans:
        if start >= done:
            parts += [text[done:start], MASK]
        done = max(done, end)
    return "".join([*parts, text[done:]])


def _forms_of(value: str) -> Iterator[str]:
    lines = [line.strip() for line in value.splitlines()]
    further = [line for line in lines if len(line) >= _SHORTEST_LINE] if len(lines) > 1 else []
    for text in (value, value.strip(), " ".join(value.split()), *further):
        yield text
        readable = text.encode("utf-8", "replace").decode()  # a lone surrogate has no percent-encoded form
        for encoded in (quote(readable, safe=""), quote(readable), quote_plus(readable)):
            yield encoded
            yield re.sub(r"%[0-9A-F]{2}", lambda match: match[0].lower(), encoded)
        yield json.dumps(text)[1:-1]
        yield json.dumps(text, ensure_ascii=False)[1:-1]
        yield repr(text)[1:-1]
        yield html.escape(text)
        yield from _base64_forms(readable.encode())


def _base64_forms(value: bytes) -> Iterator[str]:
    """What is the same in base64 whatever stands before and after the value."""
    for before in range(3):
        text = base64.b64encode(b"\0" * before + value).decode()
        shared_before = (0, 2, 3)[before]
        shared_after = (0, 3, 2)[(before + len(value)) % 3]
        own = text[shared_before : len(text) - shared_after]
        for form in (own, text if before == 0 else own):
            if len(form) >= _SHORTEST_BASE64:
                yield form
                yield form.replace("+", "-").replace("/", "_")
