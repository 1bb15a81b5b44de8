"""Texts of a pipeline file as they may be shown: references stay, what is secret besides does not.

`${NAME}` says where a secret comes from and is none. In a field that is declared secret all else is masked,
the default of a reference as well; in other texts, and in addresses, what `redact` would mask.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from signoff.pipeline.masking import BY_PLACE, MASK, redact, redact_known
from signoff.pipeline.secrets import SecretUrl, holds_secret
from signoff.pipeline.variables import REFERENCE

_FIRST, _LAST = 0xF0000, 0xFFFFD
"""Characters for private use, which stand for what is not to be touched."""
_STANDING = re.compile(f"[{chr(_FIRST)}-{chr(_LAST)}]")
_LITERAL = re.compile(f"[^{chr(_FIRST)}-{chr(_LAST)}]+")


def shown(value: Any, annotation: object = None) -> Any:
    """What YAML can write, without secrets. `annotation`: the type of the field that holds the value."""
    if isinstance(value, Mapping):
        inner = _models_in(annotation)
        return {
            str(key): shown(part, _field(inner, str(key)) if inner else annotation)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [shown(part, annotation) for part in value]
    secret = holds_secret(annotation)
    if isinstance(value, str):
        return _shown_text(value, whole=secret and not _is_address(annotation))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return MASK if secret and not _models_in(annotation) else value
    return getattr(value, "__qualname__", str(value))  # a function of a Python pipeline


def fields_shown(fields: Mapping[str, Any], model: type[BaseModel] | None) -> dict[str, Any]:
    """The fields of a node, or of the pipeline itself."""
    models = [model] if model else []
    return {str(key): shown(value, _field(models, str(key))) for key, value in fields.items()}


def _field(models: list[type[BaseModel]], key: str) -> object:
    for model in models:
        for name, field in model.model_fields.items():
            if key in (name, field.alias):
                return field.annotation
    return None


def _models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for part in getattr(annotation, "__args__", ()) for found in _models_in(part)]


def _is_address(annotation: object) -> bool:
    parts = getattr(annotation, "__args__", ())
    return annotation is SecretUrl or any(_is_address(part) for part in parts)


def _shown_text(text: str, *, whole: bool) -> str:
    """The text, with `***` for its secrets. `whole`: all of it is one, but for references."""
    standing: list[str] = []

    def stand_for(content: str) -> str:
        standing.append(content)
        return chr(_FIRST + len(standing) - 1)

    def put_away(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        if match["bad"]:
            return match[0]
        if match["default"]:
            default = MASK if whole else redact(match["default"])
            return stand_for(f"${{{match['name']}:-{default}}}")
        return stand_for(match[0])

    def by_place(match: re.Match[str]) -> str:
        secret = match[0][len(match[1]) :]
        before, after = ":" * secret.startswith(":"), "@" * secret.endswith("@")
        inside = secret[len(before) : len(secret) - len(after)]
        kept = [standing[ord(sign) - _FIRST] if _STANDING.match(sign) else MASK
                for sign in re.findall(f"{_STANDING.pattern}|{_LITERAL.pattern}", inside)]  # fmt: skip
        return str(match[1]) + stand_for(before + "".join(kept) + after)

    if _STANDING.search(text) or text.count("$") + text.count(":") + text.count("=") > _LAST - _FIRST - 1:
        return MASK  # nobody writes such a text
    plain = REFERENCE.sub(put_away, text)
    if whole:
        masked = _LITERAL.sub(MASK, plain)
    else:
        masked = plain
        for pattern, _ in BY_PLACE:
            masked = pattern.sub(by_place, masked)
        masked = redact_known(masked).encode("utf-8", "backslashreplace").decode()
    if masked == plain and not any(MASK in each for each in standing):
        return text
    # What is written back is read again: a plain dollar sign is two.
    return _STANDING.sub(lambda sign: standing[ord(sign[0]) - _FIRST], masked.replace("$", "$$"))
