"""The pages of pipelines as routes, to be mounted below any prefix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from signoff.errors import SignoffError
from signoff.page import jobs, letters, views
from signoff.page.flow import problems
from signoff.page.mounting import Mounting
from signoff.page.rendering import prefix_of, render
from signoff.page.visits import Visit, changes, failed, reads
from signoff.page.watched import WatchedPipeline

HEADERS: Mapping[str, str] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    # Not `no-referrer`: browsers would not say where a form comes from either.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""For every answer; whoever mounts the pages adds them."""

Answer = Callable[[Visit], Response]
_READS: Mapping[str, Answer] = {
    "": views.graph_page,
    "now": views.graph_now,
    "account": views.account_page,
    "account/now": views.account_now,
    "letters": letters.list_page,
    "letters/one": letters.letter_page,
    "letters/confirm": letters.confirm_page,
    "replays/{replay}": letters.replay_page,
    "replays/{replay}/now": letters.replay_now,
    "find": views.find_page,
    "jobs": jobs.jobs_page,
    "reports/{sink}/{kind}": jobs.report_file,
}
_CHANGES: Mapping[str, Answer] = {
    "letters/replay": letters.replay,
    "letters/drop": letters.drop,
    "letters/resubmit": letters.resubmit,
}


def pages(mounting: Mounting) -> list[BaseRoute]:
    """All of them: an overview at the prefix itself, each pipeline below `pipelines/NAME/`."""
    below = "/pipelines/{pipeline}/"
    return [
        Route("/", _overview(mounting), methods=["GET"]),
        Mount("/assets", StaticFiles(packages=[("signoff.page", "assets")])),
        *(Route(below + path, reads(mounting, answer), methods=["GET"]) for path, answer in _READS.items()),
        *(
            Route(below + path, changes(mounting, answer), methods=["POST"])
            for path, answer in _CHANGES.items()
        ),
    ]


def handlers(mounting: Mounting) -> dict[Any, Callable[[Request, Exception], Response]]:
    """What is said when a page cannot be shown: for the `exception_handlers` of the application."""
    said = failed(mounting)
    return {HTTPException: said, SignoffError: said, Exception: said}


def _overview(mounting: Mounting) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        visitor = mounting.visitor(request)
        found = mounting.pipelines(request)
        if len(found) == 1 and request.query_params.get("all") is None:
            from urllib.parse import quote

            return RedirectResponse(f"{prefix_of(request)}/pipelines/{quote(found[0].name, safe='')}/")
        return render(request, "overview.html", visitor, rows=[_row(each) for each in found])

    return endpoint


def _row(pipeline: WatchedPipeline) -> dict[str, Any]:
    """One that cannot be read takes none of the others away."""
    try:
        reading = pipeline.reading()
    except (SignoffError, OSError) as error:
        return {"pipeline": pipeline, "reading": None, "problems": [f"it cannot be read: {error}"]}
    return {"pipeline": pipeline, "reading": reading, "problems": problems(reading.status)}
