"""One request to the pages of a pipeline: who asks, about which pipeline, and the answer in its frame."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from signoff.errors import RequestError, SignoffError
from signoff.page.forms import Form, asked_in, check_token, sent_in
from signoff.page.mounting import Mounting, Visitor
from signoff.page.rendering import own, prefix_of, render
from signoff.page.watched import Reading, WatchedPipeline

Endpoint = Callable[[Request], Any]


@dataclass(frozen=True)
class Visit:
    """A request that may be answered."""

    request: Request
    visitor: Visitor
    pipeline: WatchedPipeline
    form: Form

    @property
    def at(self) -> str:
        """The path below which the pages of the pipeline are."""
        return f"{prefix_of(self.request)}/pipelines/{quote(self.pipeline.name, safe='')}"

    @property
    def fragment(self) -> bool:
        """Whether only a part of a page is wanted, to be put into one that is there."""
        return self.request.headers.get("hx-request") == "true"

    def render(self, template: str, *, status: int = 200, here: str = "", **values: Any) -> Response:
        from markupsafe import Markup

        reading: Reading = values.pop("reading", None) or self.pipeline.reading()
        return render(
            self.request, template, self.visitor, status=status,
            pipeline=self.pipeline, at=Markup.escape(self.at), reading=reading, here=here, **values,
        )  # fmt: skip

    def check_may_operate(self) -> None:
        """Raises 403 for somebody who may only look."""
        if not self.visitor.may_operate:
            raise HTTPException(403, "you may look at this pipeline, and not change it")

    def to(self, path: str) -> Response:
        """On to another page of the pipeline, after something was done."""
        return RedirectResponse(f"{self.at}/{path}", 303)


def reads(mounting: Mounting, answer: Callable[[Visit], Response]) -> Endpoint:
    """For a page that only reads."""

    def endpoint(request: Request) -> Response:
        return answer(_visit(mounting, request, asked_in(request)))

    return endpoint


def changes(mounting: Mounting, answer: Callable[[Visit], Response]) -> Endpoint:
    """For a form that changes something."""

    async def endpoint(request: Request) -> Response:
        form = await sent_in(request)

        def work() -> Response:
            visit = _visit(mounting, request, form)
            check_token(form, visit.visitor)
            visit.check_may_operate()
            mounting.note(request, visit.visitor, visit.pipeline.name)
            return answer(visit)

        return await run_in_threadpool(work)

    return endpoint


def failed(mounting: Mounting) -> Callable[[Request, Exception], Response]:
    """What is said when a page cannot be shown."""

    def handler(request: Request, error: Exception) -> Response:
        status, text = 500, "this page has failed; the log of the run says why"
        if isinstance(error, HTTPException):
            status, text = error.status_code, own(error.detail)
        elif isinstance(error, RequestError):
            status, text = 422, own(f"{error.field}: {error}" if error.field else str(error))
        elif isinstance(error, SignoffError):
            status, text = 503, str(error)
        try:
            visitor = mounting.visitor(request)
        except HTTPException:
            visitor = None
        return render(request, "error.html", visitor, status=status, text=text, code=status)

    return handler


def _visit(mounting: Mounting, request: Request, form: Form) -> Visit:
    visitor = mounting.visitor(request)
    name = request.path_params["pipeline"]
    if (pipeline := mounting.pipeline(request, name)) is None:
        raise HTTPException(404, f'there is no pipeline "{name}"')
    return Visit(request, visitor, pipeline, form)
