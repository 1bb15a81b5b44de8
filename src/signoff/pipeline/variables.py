"""Variables in a pipeline file: `${NAME}`, `${file:PATH}`, `${secret:NAME}`, and what they are replaced by.

In any string of a pipeline: `${NAME}` is an environment variable, `${NAME:-text}` the same with a
default for unset or empty, `${file:/run/secrets/x}` the content of a file (without the newline at
its end), `${secret:NAME}` a secret that the service keeps, `$$` a plain dollar sign.

Invariant: a value that came from a file, from the service, from a variable whose name says so (…PASSWORD…,
…TOKEN…), or into a field that is declared secret, is registered as a secret before anything can fail with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from signoff.pipeline.masking import SHORTEST, redact, register_secret
from signoff.pipeline.secret_files import Unreadable, read_secret
from signoff.pipeline.secrets import TELLING_NAME

REFERENCE = re.compile(
    r"\$\$|\$\{(?:file:(?P<file>[^}]+)|secret:(?P<secret>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?)\}|(?P<bad>\$\{)"
)
SECRET_VARIABLE = "SIGNOFF_SECRET_"
"""The beginning of the variables in which a run without a service finds secrets."""
KEPT_SECRETS = "SIGNOFF_SECRETS"
"""Names the file, in memory, in which a run of the service finds the secrets that the service keeps."""
_SHORTEST_PART = 6
"""Of a secret that is made of references and other text: shorter ones are in too many other texts."""
_SCHEME = re.compile(r"\s*[A-Za-z]+\s+")


@dataclass(frozen=True, slots=True)
class Reference:
    """One `${…}` that was expanded: what stood there and what came out."""

    text: str
    value: str


Fail = Callable[..., None]
"""Called with a message, a hint, and a code if it is not that of a secret that is not set."""


class Lenient(dict[str, str]):
    """An environment for looking at a pipeline: what is not set, or no readable file, stands for itself."""


class Alone(Lenient):
    """The same, where no file may be read either: a reference to one stands for itself."""


class Expansion:
    """Expands the references in the strings of one file, and remembers what it put where."""

    def __init__(self, environ: Mapping[str, str], base: Path) -> None:
        self._environ = environ
        self._base = base
        self.references: list[Reference] = []
        self.unresolved = 0
        """References that stand for themselves."""
        self._kept: Mapping[str, str] | None = None
        """The secrets of the service, once they were read."""

    def expand(self, text: str, *, secret: bool, fail: Fail) -> str:
        """The text with its references replaced; `fail` is told what cannot be."""

        def replace(match: re.Match[str]) -> str:
            if match[0] == "$$":
                return "$"
            value = self._value(match, fail)
            if value is None:
                return ""
            if secret and match["default"] is None and not value.strip():
                if isinstance(self._environ, Lenient):
                    return self._itself(match)
                # In the midst of a text (`Bearer ${TOKEN}`) nobody would see it before the other side does.
                fail(
                    f"it is empty where {match[0]} stands",
                    "set its variable or its file; a default, ${NAME:-}, says that it may be empty",
                    "bad-value",
                )
                return ""
            known = match["file"] or match["secret"]
            if secret or known or TELLING_NAME.search(match["name"] or ""):
                register_secret(value)
            if value != match["default"]:  # a default stands in the file for all to read
                self.references.append(Reference(match[0], value))
            return value

        return REFERENCE.sub(replace, text) if "$" in text else text

    def _value(self, match: re.Match[str], fail: Fail) -> str | None:
        if match["bad"]:
            fail(
                'a "${" is not followed by a reference',
                "write ${NAME}, ${NAME:-default}, ${file:PATH} or ${secret:NAME}, or $${ for a plain ${",
            )
            return None
        if match["file"]:
            if isinstance(self._environ, Alone):
                return self._itself(match)
            try:
                return read_secret(self._base / match["file"])
            except Unreadable as why:
                if isinstance(self._environ, Lenient):
                    return self._itself(match)
                fail(f"{match[0]} cannot be read: {why}", "create the file or correct its path")
                return None
        if match["secret"]:
            return self._kept_secret(match, fail)
        if match["default"] is not None:
            return self._environ.get(match["name"], "") or str(match["default"])
        value = self._environ.get(match["name"])
        if value is None and isinstance(self._environ, Lenient):
            return self._itself(match)
        if value is None:
            name = match["name"]
            fail(f"the variable {name} is not set", f"set it, or give a default: ${{{name}:-…}}")
        elif not _is_text(value):
            fail(f"the variable {match['name']} is not UTF-8 text", "set it anew")
            return None
        return value

    def _kept_secret(self, match: re.Match[str], fail: Fail) -> str | None:
        name = match["secret"]
        value = self._environ.get(SECRET_VARIABLE + name)
        if value is None:
            value = self._kept_by_service().get(name)
        if value is None and isinstance(self._environ, Lenient):
            return self._itself(match)
        if value is None:
            fail(
                f'there is no secret "{name}"',
                f"put it into the service (PUT /v1/secrets/{name}), or set {SECRET_VARIABLE}{name} for a run "
                "without one",
            )
        return value

    def _kept_by_service(self) -> Mapping[str, str]:
        if self._kept is None:
            self._kept = {}
            if place := self._environ.get(KEPT_SECRETS):
                with suppress(OSError):  # the run that has it is gone
                    self._kept = json.loads(Path(place).read_bytes())
        return self._kept

    def _itself(self, match: re.Match[str]) -> str:
        self.unresolved += 1
        return match[0]

    def conceal(self, text: str) -> str:
        """The text with expanded values replaced by the references they came from."""
        for reference in sorted(self.references, key=lambda one: len(one.value), reverse=True):
            if len(reference.value) >= SHORTEST:
                text = text.replace(reference.value, reference.text)
        return redact(text)


def literals(text: str) -> list[str]:
    """What stands in a text of a secret field besides references, but for the word before a token."""
    parts = [part.replace("\0", "$") for part in REFERENCE.sub(_boundary, text).split("\1")]
    if len(parts) == 1:
        return parts
    return [part for part in parts if len(part) >= _SHORTEST_PART and not _SCHEME.fullmatch(part)]


def _boundary(match: re.Match[str]) -> str:
    return {"$$": "\0", "${": "${"}.get(match[0], f"\1{match['default'] or ''}\1")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
