"""The OpenAPI description, made of the endpoints that are served, so that it cannot say anything else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from signoff.pipeline.model import NAME_PATTERN
from signoff.service.api.answers import Errors
from signoff.service.api.endpoint import JSON, Endpoint
from signoff.version import __version__

_REF = "#/components/schemas/{model}"
_PARAMETER = re.compile(r"\{(\w+)\}")
MOST_NAME = 64
PATTERNS = {"name": NAME_PATTERN, "id": "^[0-9a-f]{12}$"}
_SCHEMAS: dict[str, dict[str, Any]] = {
    "name": {"type": "string", "pattern": NAME_PATTERN, "maxLength": MOST_NAME},
    "id": {"type": "string", "pattern": PATTERNS["id"]},
    "event_id": {"type": "string", "minLength": 1, "example": "incoming/17"},
}
_REFUSED = {
    401: "There is no token, or it is none that may be used.",
    403: "The token may not do this.",
    404: "There is no such thing.",
    405: "The method is not one of this path.",
    409: "It cannot be done as things are.",
    413: "The body is too large.",
    415: "The body is compressed or of another type.",
    422: "What was sent is wrong; each error says where.",
    503: "Too much at once; try again later.",
}


def describe(endpoints: Iterable[Endpoint], url: str = "/") -> dict[str, Any]:
    """The document."""
    listed = list(endpoints)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in listed:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Signoff", "version": __version__},
        "servers": [{"url": url}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": _schemas(listed),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": _SCHEMAS[name]}
        for name in _PARAMETER.findall(endpoint.path)
    ]
    if endpoint.query is not None:
        parameters += [
            {"name": name, "in": "query", "required": False, "schema": schema,
             "description": schema.get("description", "")}
            for name, schema in _inline(endpoint.query)["properties"].items()
        ]  # fmt: skip
    operation: dict[str, Any] = {
        "operationId": endpoint.handler.__name__,
        "summary": endpoint.summary,
        "description": f"Needs a token that may {endpoint.role}.",
        "parameters": parameters,
        "responses": {
            **{str(status): _answer(kind) for status, kind in endpoint.answers.items()},
            **{str(status): _error(said) for status, said in _REFUSED.items()},
            "default": _error("Any other error."),
        },
    }
    if endpoint.body is not None:
        media, schema = (endpoint.body, {"type": "string"}) if isinstance(endpoint.body, str) else (
            JSON, _reference(endpoint.body))  # fmt: skip
        operation["requestBody"] = {"required": True, "content": {media: {"schema": schema}}}
    return operation


def _answer(kind: type[BaseModel] | str) -> dict[str, Any]:
    if isinstance(kind, str):
        schema = {"type": "object"} if kind == JSON else {"type": "string"}
        return {"description": "Done.", "content": {kind: {"schema": schema}}}
    return {"description": (kind.__doc__ or "").strip(), "content": {JSON: {"schema": _reference(kind)}}}


def _error(said: str) -> dict[str, Any]:
    return {"description": said, "content": {JSON: {"schema": _reference(Errors)}}}


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}


def _schemas(endpoints: list[Endpoint]) -> dict[str, Any]:
    models: list[type[BaseModel]] = [Errors]
    for endpoint in endpoints:
        models += [kind for kind in (*endpoint.answers.values(), endpoint.body) if isinstance(kind, type)]
    unique = list(dict.fromkeys(models))
    _, found = models_json_schema([(model, "validation") for model in unique], ref_template=_REF)
    schemas: dict[str, Any] = found.get("$defs", {})
    return schemas


@cache
def _inline(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()
