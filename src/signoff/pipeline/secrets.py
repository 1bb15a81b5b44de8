"""References to secrets in a pipeline file (how their values are kept out of every text: `masking`).

In any string of a pipeline: `${NAME}` is an environment variable, `${NAME:-text}` the same with a
default for unset or empty, `${file:/run/secrets/x}` the content of a file (without the newline at
its end), `$$` a plain dollar sign.

Invariants: a value that came from a file, from a variable whose name says so (…PASSWORD…, …TOKEN…),
or into a field that is declared secret, is registered before anything can fail with it, and
`redact` masks every registered value. Passwords in URLs are masked by their place, registered or not.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, get_args
from urllib.parse import parse_qsl, unquote

from pydantic import (
    AfterValidator,
    BaseModel,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SecretBytes,
    SecretStr,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from signoff.pipeline.masking import SHORTEST
from signoff.pipeline.masking import KnownSecrets as KnownSecrets
from signoff.pipeline.masking import excerpt as excerpt
from signoff.pipeline.masking import redact as redact
from signoff.pipeline.masking import register_secret as register_secret
from signoff.pipeline.secret_files import Unreadable, read_secret

REFERENCE = re.compile(
    r"\$\$|\$\{(?:file:(?P<file>[^}]+)|(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?)\}|(?P<bad>\$\{)"
)
_SHORTEST_PART = 6
"""Of a secret that is made of references and other text: shorter ones are in too many other texts."""
_SCHEME = re.compile(r"\s*[A-Za-z]+\s+")
_TELLING_NAME = re.compile(r"PASS|PWD|SECRET|TOKEN|KEY|CREDENTIAL|AUTH", re.IGNORECASE)


def _is_not_empty(value: SecretStr) -> SecretStr:
    if not value.get_secret_value().strip():
        raise ValueError("it is empty; set its variable or its file, or leave the field out")
    return value


Token = Annotated[SecretStr, AfterValidator(_is_not_empty)]
"""A secret that is asked for or shown: an empty one would let everybody in, or nobody."""


class SecretUrl:
    """An address that may hold a password: masked wherever it is shown; `get` gives it whole."""

    __slots__ = ("_url",)

    def __init__(self, url: str) -> None:
        self._url = url
        for password in _passwords(url):
            register_secret(password)

    def get(self) -> str:
        return self._url

    def __str__(self) -> str:
        return redact(self._url)

    def __repr__(self) -> str:
        return f"SecretUrl({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretUrl) and other._url == self._url

    def __hash__(self) -> int:
        return hash(self._url)

    def __reduce__(self) -> tuple[type[SecretUrl], tuple[str]]:
        return SecretUrl, (self._url,)  # through __init__: the other process must mask it as well

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from_text = core_schema.no_info_after_validator_function(cls, core_schema.str_schema(min_length=1))
        return core_schema.json_or_python_schema(
            json_schema=from_text,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), from_text]),
            serialization=core_schema.plain_serializer_function_ser_schema(str, when_used="json"),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(schema), "format": "uri", "writeOnly": True}


def _passwords(url: str) -> list[str]:
    authority = url.partition("://")[2]
    user_info = authority.rpartition("@")[0]
    password = user_info.partition(":")[2] or (user_info if url.lower().startswith("http") else "")
    parameters = parse_qsl(url.partition("?")[2])
    named = [value for name, value in parameters if _TELLING_NAME.search(name)]
    return [password, unquote(password), *named] if password else named


@dataclass(frozen=True, slots=True)
class Reference:
    """One `${…}` that was expanded: what stood there and what came out."""

    text: str
    value: str


class Lenient(dict[str, str]):
    """An environment for looking at a pipeline: what is not set, or no readable file, stands for itself."""


class Expansion:
    """Expands the references in the strings of one file, and remembers what it put where."""

    def __init__(self, environ: Mapping[str, str], base: Path) -> None:
        self._environ = environ
        self._base = base
        self.references: list[Reference] = []
        self.unresolved = 0
        """References that stand for themselves."""

    def expand(self, text: str, *, secret: bool, fail: Callable[[str, str], None]) -> str:
        """The text with its references replaced; `fail(message, hint)` is told what cannot be."""

        def replace(match: re.Match[str]) -> str:
            if match[0] == "$$":
                return "$"
            value = self._value(match, fail)
            if value is None:
                return ""
            if secret or match["file"] or _TELLING_NAME.search(match["name"] or ""):
                register_secret(value)
            if value != match["default"]:  # a default stands in the file for all to read
                self.references.append(Reference(match[0], value))
            return value

        return REFERENCE.sub(replace, text) if "$" in text else text

    def _value(self, match: re.Match[str], fail: Callable[[str, str], None]) -> str | None:
        if match["bad"]:
            fail(
                'a "${" is not followed by a reference',
                "write ${NAME}, ${NAME:-default} or ${file:PATH}, or $${ for a plain ${",
            )
            return None
        if match["file"]:
            try:
                return read_secret(self._base / match["file"])
            except Unreadable as why:
                if isinstance(self._environ, Lenient):
                    return self._itself(match)
                fail(f"{match[0]} cannot be read: {why}", "create the file or correct its path")
                return None
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


def holds_secret(annotation: object) -> bool:
    """Whether a field of this type holds a secret, itself or in a container."""
    if annotation in (SecretStr, SecretBytes, SecretUrl):
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return any(holds_secret(field.annotation) for field in annotation.model_fields.values())
    return any(holds_secret(argument) for argument in get_args(annotation))


def register_secrets_of(value: object) -> None:
    """Register every secret a validated model holds."""
    if isinstance(value, SecretStr):
        register_secret(value.get_secret_value())
        _register_credentials(value.get_secret_value())
    elif isinstance(value, BaseModel):
        for part in value.__dict__.values():
            register_secrets_of(part)
    elif isinstance(value, Mapping):
        for part in value.values():
            register_secrets_of(part)
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            register_secrets_of(part)


def _register_credentials(header: str) -> None:
    """What a header such as `Bearer abc` holds is a secret without its first word as well."""
    scheme, _, credentials = header.strip().partition(" ")
    if not scheme.isalpha() or " " in credentials.strip():
        return
    register_secret(credentials.strip())
    if scheme.lower() == "basic":
        with suppress(ValueError):
            register_secret(base64.b64decode(credentials, validate=True).decode().partition(":")[2])


def reveal(value: object) -> Any:
    """A config as plain JSON values *with* its secrets, for a pipe to a process of our own only.

    `Model.model_validate(reveal(config))` gives the config back. `model_dump_json` masks instead.
    """
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return {fields[name].alias or name: reveal(getattr(value, name)) for name in value.model_fields_set}
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, SecretUrl):
        return value.get()
    if isinstance(value, Mapping):
        return {str(key): reveal(part) for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [reveal(part) for part in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, date):  # or a datetime, which is one
        return value.isoformat()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a {type(value).__name__} cannot be sent to another process as JSON")
