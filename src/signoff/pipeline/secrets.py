"""Fields that hold secrets: their types, and what of them is registered to be masked (see `masking`).

Invariants: a value of a field that is declared secret is registered before anything can fail with it, and
`redact` masks every registered value; so are values that `variables` brings in. Passwords in URLs are masked
by their place, registered or not.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import date
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

from signoff.pipeline.masking import KnownSecrets as KnownSecrets
from signoff.pipeline.masking import Register as Register
from signoff.pipeline.masking import excerpt as excerpt
from signoff.pipeline.masking import masking as masking
from signoff.pipeline.masking import redact as redact
from signoff.pipeline.masking import register_secret as register_secret

TELLING_NAME = re.compile(r"PASS|PWD|SECRET|TOKEN|KEY|CREDENTIAL|AUTH", re.IGNORECASE)
"""Names of variables and parameters whose values are secrets."""


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
    named = [value for name, value in parameters if TELLING_NAME.search(name)]
    return [password, unquote(password), *named] if password else named


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
