"""How many rows run along each edge of the graph, and how each node is: what the picture says.

Counted are the events of sources, the rows that sinks have taken, and those that left the pipeline at a
stage. What runs along an edge in between follows from these, where a step gives at most one row for one:
backwards from the sinks, then forwards from the sources. Elsewhere (a window, a fold, rows that were
unfolded) it is not known, and nothing is said rather than something that may be wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from signoff.operate.graph_view import EdgeView, GraphView
from signoff.watch.status_types import SourceStatus, Status

Level = Literal["ok", "idle", "busy", "warning", "failing"]

_ONE_FOR_ONE = frozenset(
    {
        "parse_json", "parse_csv", "parse_regex", "parse_key_value", "filter", "select", "validate",
        "flatten", "mask", "lookup", "enrich", "sample", "dedupe", "throttle",
    }
)  # fmt: skip
"""Steps that give at most one row for one, and count those that they give none for."""

Rate = Callable[[str, str], float | None]
"""How fast a count of a node grows: `taken` rows of a sink, `received` events of a source, rows that
`left`."""


@dataclass(frozen=True)
class NodeState:
    """How a node is, in a word and a few."""

    level: Level
    word: str
    """`failing`, `held back`, `receiving`: what a screen reader says and what stands in the box."""
    waits: str = ""
    """What waits there: `12 in flight`."""
    text: str = ""
    """All of it: the error, the reason."""


def edge_rates(view: GraphView, rate: Rate) -> dict[EdgeView, float]:
    """Rows a second, of the edges of which it is known."""
    into, out = defaultdict(list), defaultdict(list)
    for edge in view.edges:
        into[edge.target].append(edge)
        out[edge.source].append(edge)
    found: dict[EdgeView, float] = {}
    for node in reversed(view.nodes):
        taken = rate("taken", node.name) if node.kind == "sink" else None
        if node.type in _ONE_FOR_ONE:
            taken = max((found[edge] for edge in out[node.name] if edge in found), default=None)
        if taken is not None and len(into[node.name]) == 1:
            found[into[node.name][0]] = taken + (rate("left", node.name) or 0.0)
    for node in view.nodes:
        given = [found[edge] for edge in out[node.name] if edge in found]
        if node.kind == "source" and (received := rate("received", node.name)) is not None:
            given.append(received)
        elif node.type in _ONE_FOR_ONE and len(into[node.name]) == 1 and into[node.name][0] in found:
            given.append(max(found[into[node.name][0]] - (rate("left", node.name) or 0.0), 0.0))
        if given and not any(edge.output for edge in out[node.name]):  # each reader gets every row
            found.update(dict.fromkeys(out[node.name], max(given)))
    return found


def node_states(
    view: GraphView, status: Status, rate: Rate, letters: Mapping[str, int], owed: Mapping[str, int]
) -> dict[str, NodeState]:
    """How each node is; `letters`: dead letters by stage; `owed`: by sink, events it has not delivered."""
    states = {}
    for node in view.nodes:
        if node.kind == "source":
            state = _source(status["sources"].get(node.name), status["alive"], rate("received", node.name))
        elif node.kind == "sink":
            state = _sink(node.name, status, rate("taken", node.name), owed.get(node.name, 0))
        else:
            state = _step(node.name, status)
        if (number := letters.get(node.name, 0)) and state.level != "failing":
            word = f"{number:,} dead letter{'' if number == 1 else 's'}"
            state = NodeState("warning", word, state.waits, state.text)
        states[node.name] = state
    return states


def problems(status: Status) -> list[str]:
    """What somebody may have to look at, the most urgent first; dead letters have a page of their own."""
    found = [
        f'sink "{name}" fails: {sink["last_error"]}'
        for name, sink in status["sinks"].items()
        if sink["failing_since"]
    ]
    for name, source in status["sources"].items():
        found += [f'source "{name}" is held back: {held["reason"]}' for held in source["held"]]
        if source["reason"] and not source["held"]:
            found.append(f'source "{name}": {source["reason"]}')
    found += [
        f'source "{name}" is not in the pipeline any more, and {account["in_flight"]:,} of its events are '
        "not settled"
        for name, account in status["stranded"].items()
    ]
    return [*found, *status["waits_for_gone"]]


def _source(source: SourceStatus | None, alive: bool, rate: float | None) -> NodeState:
    if source is None:
        return NodeState("idle", "new")
    waits = f"{source['in_flight']:,} in flight" if source["in_flight"] else ""
    if not alive:
        return NodeState("idle", "not running", waits, source["reason"])
    if source["held"]:
        return NodeState("warning", "held back", waits, source["held"][0]["reason"])
    if source["intake"] == "failed":
        return NodeState("failing", "failed", waits, source["reason"])
    if source["reason"]:
        return NodeState("warning", source["intake"] or "starting", waits, source["reason"])
    return NodeState("busy" if rate else "ok", source["intake"] or "starting", waits)


def _sink(name: str, status: Status, rate: float | None, owed: int) -> NodeState:
    sink = status["sinks"].get(name)
    waiting = sum(each["waiting"] for each in status["buffers"].values() if each["sink"] == name)
    waits = f"{waiting:,} wait in its buffer" if waiting else ""
    if asked := status["jobs"].get(name):
        waits = waits or (f"{asked['waiting']:,} keys wait" if asked.get("waiting") else "")
    under_way = status["alive"] and rate and sink is not None and not sink["failing_since"]
    waits = waits or (f"{owed:,} wait" if owed and not under_way else "")
    if sink is None:
        return NodeState("idle", "new", waits)
    if sink["failing_since"]:
        return NodeState("failing", "failing", waits, sink["last_error"])
    if not status["alive"]:
        return NodeState("idle", f"{sink['rows']:,} rows", waits, sink["last_error"])
    return NodeState("busy" if rate or owed else "ok", f"{sink['rows']:,} rows", waits)


def _step(name: str, status: Status) -> NodeState:
    if window := status["windows"].get(name):
        waits = f"{window['events']:,} events in it" if window["events"] else ""
        return NodeState("ok", f"{window['late']:,} late" if window["late"] else "", waits)
    if fold := status["folds"].get(name):
        return NodeState("ok", "", f"{fold['open_groups']:,} groups open" if fold["open_groups"] else "")
    if dedupe := status["dedupes"].get(name):
        waits = f"{dedupe['waiting']:,} duplicates wait" if dedupe["waiting"] else ""
        return NodeState("ok", f"{dedupe['keys']:,} keys", waits)
    return NodeState("ok", "")
