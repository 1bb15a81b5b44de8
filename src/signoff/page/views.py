"""The pages that only show: the graph, a node of it, the account, one event, jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from signoff.errors import RequestError
from signoff.operate.event_story import read_story
from signoff.operate.graph_view import NodeView
from signoff.page import charts
from signoff.page.flow import problems
from signoff.page.history import Span
from signoff.page.picture import pictures
from signoff.page.visits import Visit
from signoff.page.watched import WatchedPipeline

_MOST_LEFT = 200
OUTCOMES = ("delivered", "dropped", "dead_lettered", "refused", "expired", "in_flight")


def graph_page(visit: Visit) -> Response:
    """The graph, what is wrong, and a node if one is named."""
    name = visit.form.text("node")
    return visit.render(
        "graph.html", here="graph", pictures=pictures(visit.pipeline), **_summary(visit),
        **_node(visit, name) if name else {"node": None},
    )  # fmt: skip


def graph_now(visit: Visit) -> Response:
    """The same, as it is a second later."""
    name = visit.form.text("node")
    return visit.render(
        "graph_now.html", pictures=pictures(visit.pipeline), **_summary(visit),
        **_node(visit, name) if name else {"node": None},
    )  # fmt: skip


def account_page(visit: Visit) -> Response:
    """Where every event is, and how that went over time."""
    return visit.render("account.html", here="account", **_account(visit))


def account_now(visit: Visit) -> Response:
    return visit.render("account_now.html", **_account(visit))


def find_page(visit: Visit) -> Response:
    """Where one event is."""
    asked = visit.form.text("event")
    if asked is None:
        return visit.render("find.html", here="find", asked="", story=None, found=None, problem="")
    from signoff.operate.finding import find_events

    try:
        found = find_events(visit.pipeline.graph, asked)
        story = read_story(visit.pipeline.graph, found.events[0]) if len(found.events) == 1 else None
    except RequestError as error:
        return visit.render(
            "find.html", status=422, here="find", asked=asked, story=None, found=None, problem=str(error)
        )
    return visit.render("find.html", here="find", asked=asked, story=story, found=found, problem="")


def _summary(visit: Visit) -> dict[str, Any]:
    status = visit.pipeline.reading().status
    state = "running" if status["alive"] else "not running"
    if status["alive"] and status["engine"] != "running":
        state = status["engine"] or "starting"
    return {"state": state, "problems": problems(status)}


def _node(visit: Visit, name: str) -> dict[str, Any]:
    found: NodeView | None = next((node for node in visit.pipeline.view.nodes if node.name == name), None)
    if found is None:
        raise HTTPException(404, f'there is no node "{name}"')
    status = visit.pipeline.reading().status
    left = [each for each in status["left_at"] if each["stage"] == name]
    return {
        "node": found,
        "source": status["sources"].get(name),
        "sink": status["sinks"].get(name),
        "window": status["windows"].get(name),
        "fold": status["folds"].get(name),
        "dedupe": status["dedupes"].get(name),
        "buffers": {key: each for key, each in status["buffers"].items() if name in (key, each["sink"])},
        "left": sorted(left, key=lambda each: -each["rows"])[:_MOST_LEFT],
        "letters": visit.pipeline.reading().letters.get(name, 0),
        "owed": visit.pipeline.reading().owed.get(name, 0),
        "chart": _chart_of(visit.pipeline, found),
    }


def _chart_of(pipeline: WatchedPipeline, node: NodeView) -> charts.Chart | None:
    what = {"source": ("received", "Events received"), "sink": ("taken", "Rows taken")}.get(node.kind)
    if what is None:
        return None
    return charts.line(what[1], pipeline.history.rates((what[0], node.name), "quarter"))


def _account(visit: Visit) -> dict[str, Any]:
    pipeline, span = visit.pipeline, _span(visit)
    status, history = pipeline.reading().status, pipeline.history
    sources = []
    for name, source in status["sources"].items():
        counts: dict[str, int] = {word: int(dict(source)[word]) for word in OUTCOMES}  # type: ignore[call-overload]
        limit = pipeline.log_limit(name)
        log = history.values(("log", name), span)
        sources.append(
            {
                "name": name,
                "status": source,
                "counts": counts,
                "balanced": sum(counts.values()) == source["received"],
                "shares": charts.shares(counts),
                "lines": _lines(pipeline, name, span, counts),
                "times": (times := history.settle_times(name, span)),
                "bars": charts.histogram(times) if times else [],
                "log": log.last or 0.0,
                "limit": limit,
                "fill": 100 * (log.last or 0.0) / limit if limit else 0.0,
            }
        )
    return {
        "sources": sources,
        "span": span,
        "spans": charts.SPANS,
        "sinks": [
            charts.line(f"Rows taken by {name}", history.rates(("taken", name), span))
            for name in status["sinks"]
        ],
    }


def _lines(
    pipeline: WatchedPipeline, name: str, span: Span, counts: dict[str, int]
) -> Sequence[charts.Chart]:
    history = pipeline.history
    found = [charts.line("Received", history.rates(("received", name), span))]
    for word in ("delivered", "dropped", "dead_lettered", "refused", "expired"):
        if counts[word] or word == "delivered":
            said = word.replace("_", "-").capitalize()
            found.append(charts.line(said, history.rates((word, name), span)))
    found.append(charts.count_line("In flight", history.values(("in_flight", name), span)))
    found.append(charts.bytes_line("Log on the disk", history.values(("log", name), span)))
    return found


def _span(visit: Visit) -> Span:
    return "day" if visit.form.text("span") == "day" else "quarter"
