"""What is answered: JSON, and where something is wrong a list of errors, each with its place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from signoff.errors import PipelineError, Problem, RequestError, SignoffError
from signoff.pipeline.secrets import redact
from signoff.service.hosted import Seen


class Model(BaseModel):
    """The base of what is sent and answered; attribute docstrings describe it in the OpenAPI document."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class ErrorItem(Model):
    """One thing that is wrong."""

    code: str
    """Stable, kebab-case; those of pipelines are in docs/errors.md."""
    message: str
    hint: str = ""
    """What to do about it."""
    file: str = ""
    """The text that was submitted, or the field of the request."""
    line: int = 0


class Errors(Model):
    """Why a request was not done."""

    errors: list[ErrorItem]


class UpdateView(Model):
    """An update that is under way."""

    revision: int
    before: int
    phase: Literal["draining", "starting"]


class UpdateResultView(Model):
    """How the last update ended."""

    revision: int
    result: Literal["done", "rolled_back", "stopped"]
    reason: str
    at: float
    """Seconds since the epoch."""


class PipelineView(Model):
    """A pipeline, and what it is doing."""

    name: str
    state: Literal["stopped", "starting", "running", "stopping", "updating", "waiting", "failed"]
    why: str
    """Why it is not running, or not yet."""
    wanted: Literal["running", "stopped"]
    revision: int
    pid: int | None
    crashes: int
    """Of its runs, in a row."""
    update: UpdateView | None
    last_update: UpdateResultView | None


class PipelineList(Model):
    """All pipelines of the tenant."""

    pipelines: list[PipelineView]


class Submitted(Model):
    """What became of a text that was submitted."""

    result: Literal["created", "unchanged", "updating"]
    pipeline: PipelineView
    warnings: list[ErrorItem]


class RequestFailed(Exception):
    """The request is answered with this status and these errors."""

    def __init__(
        self, status: int, errors: Sequence[ErrorItem], headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status)
        self.status, self.errors, self.headers = status, list(errors), headers or {}

    def ending(self) -> RequestFailed:
        """The connection is closed, so that no more of the request is read."""
        self.headers["Connection"] = "close"
        return self

    @property
    def body(self) -> dict[str, Any]:
        return {"errors": [each.model_dump() for each in self.errors]}


def failed(status: int, code: str, message: str, hint: str = "", at: str = "") -> RequestFailed:
    """One error."""
    return RequestFailed(status, [ErrorItem(code=code, message=message, hint=hint, file=at)])


def items(problems: Iterable[Problem]) -> list[ErrorItem]:
    """Problems of a pipeline, as the check of it says them."""
    return [
        ErrorItem(
            code=each.code, message=redact(each.message), hint=redact(each.hint), file=each.file,
            line=int(each.line),
        )
        for each in problems
    ]  # fmt: skip


def answer_to(error: SignoffError) -> RequestFailed:
    """An error that was raised on purpose, as an answer."""
    if isinstance(error, PipelineError):
        return RequestFailed(409, items(error.problems))
    if isinstance(error, RequestError):  # holds what was sent: masked, it would say which guess is a secret
        return RequestFailed(422, [ErrorItem(code="bad-request", message=str(error), file=error.field)])
    return failed(409, "not-possible", redact(str(error)))


def view(seen: Seen) -> PipelineView:
    """A hosted pipeline as it is shown."""
    record = seen.record
    update = record.update and UpdateView(
        revision=record.update.revision, before=record.update.before, phase=record.update.phase
    )
    last = record.last_update and UpdateResultView(
        revision=record.last_update.revision,
        result=record.last_update.result,
        reason=redact(record.last_update.reason),
        at=record.last_update.at,
    )
    return PipelineView(
        name=seen.name, state=seen.state, why=redact(seen.why), wanted=record.wanted,
        revision=record.revision,
        pid=seen.run.pid if seen.run else None, crashes=seen.crashes, update=update, last_update=last,
    )  # fmt: skip
