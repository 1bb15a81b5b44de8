"""An endpoint, declared once: its route and its part of the OpenAPI document are made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel

from signoff.service.api.answers import ErrorItem, RequestFailed, failed
from signoff.service.hosted import Hosted
from signoff.service.tenant import Tenant
from signoff.service.tokens import Role, Token

JSON, TEXT, YAML = "application/json", "text/plain", "application/yaml"
MOST_TEXT_BYTES = 1024**2
"""Of a pipeline, as of its file."""
MOST_JSON_BYTES = 256 * 1024

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True)
class Answer:
    """What a handler answers."""

    content: BaseModel | Mapping[str, Any] | str
    status: int = 200


@dataclass(frozen=True)
class Call:
    """One request, read and allowed."""

    tenant: Tenant
    token: Token
    path: Mapping[str, str]
    query: Any
    body: Any

    def pipeline(self) -> Hosted:
        """The one that the path names. Another tenant's is as unknown as one that is not there."""
        found = self.tenant.pipelines.get(self.path["name"])
        if found is None:
            raise self.no_pipeline()
        return found

    def check_token(self) -> None:
        """Raises 401 if the token was revoked, or has expired, since the request was allowed."""
        if self.tenant.tokens.get(self.token.id) is None:
            raise unknown_token()

    def no_pipeline(self) -> RequestFailed:
        return failed(404, "no-pipeline", f'there is no pipeline "{self.path["name"]}"', at="name")


def unknown_token() -> RequestFailed:
    """For whoever has none that may be used."""
    error = ErrorItem(code="no-token", message="the header `Authorization: Bearer TOKEN` is missing or wrong")
    return RequestFailed(401, [error], {"WWW-Authenticate": "Bearer"})


@dataclass(frozen=True)
class Endpoint:
    """What is asked of whom, and who may ask."""

    method: str
    path: str
    summary: str
    role: Role
    handler: Callable[[Call], Answer]
    answers: Mapping[int, type[BaseModel] | str]
    """What is answered when all is well, by status: a model, or a media type for anything of it."""
    query: type[BaseModel] | None = None
    body: type[BaseModel] | str | None = None
    """A model, or the media type of a text."""
    slow: bool = False
    """Takes seconds: it waits for others of its kind, and not the fast ones for it."""
    changes: str = ""
    """What it does, in a word for the trail; '' if it changes nothing."""

    @property
    def needs_pipeline(self) -> bool:
        """Whether it is about a pipeline that must be there."""
        return self.path.startswith("/v1/pipelines/{name}") and self.method != "PUT"


@dataclass
class Endpoints:
    """Collects them; a module for each subject has one."""

    all: list[Endpoint] = field(default_factory=list)

    def add(
        self,
        method: str,
        path: str,
        role: Role,
        answers: type[BaseModel] | str | Mapping[int, type[BaseModel] | str],
        **more: Any,
    ) -> Callable[[Callable[[Call], Answer]], Callable[[Call], Answer]]:
        """Declare a handler; the first sentence of its docstring is the summary."""

        def declared(handler: Callable[[Call], Answer]) -> Callable[[Call], Answer]:
            summary = " ".join((handler.__doc__ or "").split())
            by_status = answers if isinstance(answers, Mapping) else {200: answers}
            self.all.append(Endpoint(method, path, summary, role, handler, by_status, **more))
            return handler

        return declared
