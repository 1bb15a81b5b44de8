"""The graph of a pipeline as SVG needs it: boxes and edges with what is to be said of each."""

from __future__ import annotations

from dataclasses import dataclass

from signoff.operate.graph_view import EdgeView, GraphView, NodeView
from signoff.page.flow import NodeState, edge_rates, node_states
from signoff.page.layout import NARROW, WIDE, Drawing, Form, lay_out, path_of
from signoff.page.rendering import rate, shown
from signoff.page.watched import WatchedPipeline

_LETTER = {"name": 8.6, "small": 6.7}
"""About how wide a letter is, in the sizes that boxes have: text in SVG is not cut off by itself."""


@dataclass(frozen=True)
class Box:
    """A node in the picture."""

    node: NodeView
    state: NodeState
    x: float
    y: float
    name: str
    """As much of it as fits."""
    about: str
    word: str
    waits: str
    title: str
    """All of it, for screen readers and those who point at it."""


@dataclass(frozen=True)
class Line:
    """An edge in the picture."""

    path: str
    label: str
    x: float
    y: float
    beside: bool
    """The label begins at its place, beside the line, and is not on it."""
    width: float
    flows: bool


@dataclass(frozen=True)
class Picture:
    """The whole graph in one form."""

    form: Form
    width: float
    height: float
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]


def pictures(pipeline: WatchedPipeline) -> list[Picture]:
    """The graph as it is now: for a wide screen, and for a narrow one."""
    reading = pipeline.reading()

    def rate_of(what: str, name: str) -> float | None:
        return pipeline.history.rate((what, name))

    states = node_states(pipeline.view, reading.status, rate_of, reading.letters, reading.owed)
    rates = edge_rates(pipeline.view, rate_of) if reading.status["alive"] else {}
    return [_picture(pipeline.view, states, rates, form) for form in (WIDE, NARROW)]


def _picture(
    view: GraphView, states: dict[str, NodeState], rates: dict[EdgeView, float], form: Form
) -> Picture:
    edges = [(edge.source, edge.target) for edge in view.edges]
    drawn = lay_out([node.name for node in view.nodes], edges, form)
    boxes = tuple(_box(node, states[node.name], drawn, form) for node in view.nodes)
    lines = tuple(_line(edge, drawn, rates.get(edge), form) for edge in view.edges)
    return Picture(form, drawn.width, drawn.height, boxes, lines)


def _box(node: NodeView, state: NodeState, drawn: Drawing, form: Form) -> Box:
    x, y = drawn.boxes[node.name]
    room = form.width - 28
    said = ", ".join(part for part in (state.word, state.waits, state.text) if part)
    title = f"{node.kind} {node.name}, {node.type}" + (f": {said}" if said else "")
    return Box(
        node=node,
        state=state,
        x=x,
        y=y,
        name=_fit(node.name, room - 14, "name"),
        about=_fit(f"{node.type}  {node.detail}", room, "small"),
        word=_fit(_word(state, room - 16), room - 16, "small"),
        waits=state.waits,
        title=shown(title),
    )


def _word(state: NodeState, room: float) -> str:
    """What waits, where all is well; else what is wrong, and what waits if there is room for it."""
    if state.level in ("ok", "busy", "idle"):
        return state.waits or state.word
    both = ", ".join(part for part in (state.word, state.waits) if part)
    return both if len(both) * _LETTER["small"] <= room else state.word


def _line(edge: EdgeView, drawn: Drawing, found: float | None, form: Form) -> Line:
    points = drawn.edges[edge.source, edge.target]
    (x1, y1), (x2, y2) = points[-2:]
    label = "" if found is None else rate(found)
    if edge.output:
        label = f"{_fit(edge.output, 70, 'small')} {label}".strip()
    return Line(
        path=path_of(points, vertical=form.vertical),
        label=label,
        x=x2 + 7 if form.vertical else (x1 + x2) / 2,
        y=y2 - 9 if form.vertical else (y1 + y2) / 2 + (-6 if abs(y1 - y2) < 1 else 4),
        beside=form.vertical,
        width=1.5 if not found else min(1.5 + len(f"{found:.0f}") * 0.6, 5.0),
        flows=bool(found),
    )


def _fit(text: str, room: float, kind: str) -> str:
    most = max(int(room / _LETTER[kind]), 4)
    text = shown(" ".join(text.split()))
    return text if len(text) <= most else text[: most - 1] + "…"
