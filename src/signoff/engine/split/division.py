"""Cutting a graph where rows go through a link: each part is a graph of its own, run by its own queries.

    incoming ─► parse ─► warehouse                the pipeline as it is written; warehouse has a buffer

    incoming ─► parse ─► [warehouse: handover]    the part in front
    warehouse.buffer ─► warehouse.rows ─► warehouse       the part behind, with a source of its own

Some steps have a log in front of them, too, and are, with all behind them, in the part behind it:

    a step that unites events of several sources    each source has a query of its own; they meet in the log
    a window behind a step that unites events       its rows must be those of a batch that can be done again
    a window behind a `dedupe`                      a row that waits for the event it repeats would hold
                                                    it open, and that event may be in the window

A window is cut out, with a log on either side of the query that keeps its state:

    incoming ─► counts ─► [counts.state]          time, late events and partial results
                counts.late ─► …                  are in the part in front
    counts.buffer ─► Spark's state ─► [counts.results]      see `signoff.engine.state_queries.window_query`
    counts.results.buffer ─► counts ─► …          the part behind, which begins with the results

A fold is cut out in the same way; its part in front only says which events end a group, and the part behind
begins with what makes a result of a group.

What the rows look like is known when the part in front is compiled; see `signoff.engine.parts`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from signoff.engine.split.boundaries import NO_LIMIT, RETRY, Boundary
from signoff.engine.split.stateful import StatefulBoundary, keeps_state, stateful_boundary
from signoff.errors import PipelineError, Problem
from signoff.ledger.outcome import BUFFER
from signoff.link.handover import HandoverConfig
from signoff.link.job_sink import JobSinkConfig, RequestsConfig, invoker_place
from signoff.link.sink import PipelineSinkConfig
from signoff.pipeline.graph import Graph, Node
from signoff.pipeline.model import BufferSettings, SinkConfig
from signoff.transforms.window.event_time import EventTimeConfig

_MOST_REQUESTS = 1024**3
"""Bytes of requests that wait for runs, at which the sources of the pipeline are held back."""
_INPUT = ".input"
"""What the log in front of a window is called: that in front of its state has the window's own name."""


@dataclass(frozen=True)
class Division:
    whole: Graph
    """What was divided."""
    front: Graph
    """What is in front of all logs, with a handover wherever rows go into one."""
    boundaries: tuple[Boundary, ...]


def divide(graph: Graph, behind: Boundary | None = None) -> Division:
    """Cut a graph where its rows go through a log; what is behind may have to be cut again.

    `behind`: where the graph itself was cut off. Buffers that are on disk and not in use any more are found
    only where nothing was cut yet.
    """
    logs = _logs_in_front(graph)
    nodes = _in_front(graph, logs.keys())
    states = [
        stateful_boundary(graph, nodes, name) for name in graph.transforms if _cut_out_here(nodes, name, logs)
    ]
    boundaries: list[Boundary] = [*logs.values(), *states]
    front = replace(graph, nodes=nodes)
    own = None if behind is None else behind.node.name
    boundaries += [
        boundary
        for name in front.sinks
        if name in graph.sinks and name != own and (boundary := _buffer_of(front, name, _up_to_states(graph)))
    ]
    known = {boundary.name for boundary in boundaries}
    boundaries += [
        Boundary(graph.sinks[name], name, BufferSettings(), frozenset(), in_use=False)
        for name in (buffers_on_disk(graph) if behind is None else ())
        if name not in known and name in front.sinks
    ]
    ways_out = {
        name: replace(node, config=_way_out(front, node, node.config))
        for name, node in front.sinks.items()
        if isinstance(node.config, PipelineSinkConfig | JobSinkConfig)
    }
    for state in states:
        state.put_in_front(graph, nodes)
    for boundary in boundaries:
        if boundary.in_use and not isinstance(boundary, StatefulBoundary):
            inputs = nodes[boundary.node.name].inputs
            nodes[boundary.node.name] = replace(
                boundary.node, kind="sink", config=boundary.handover(graph), inputs=inputs
            )
    return Division(graph, replace(graph, nodes=nodes | ways_out), tuple(boundaries))


def all_boundaries(graph: Graph) -> list[tuple[Graph, Boundary]]:
    """Every place where a pipeline is cut, with the graph that is cut there. Raises PipelineError for a node
    whose log would be in two of its parts, for each log has one writer; for a window whose rows come
    through a log in which its sources cannot be told apart; and for a `dedupe` on both sides of a log."""
    ways_out: list[Node] = []
    followers: list[Node] = []
    found = _boundaries_of(divide(graph), ways_out, followers)
    known: set[str] = set()
    for node in followers:
        if node.name in known:
            raise PipelineError([_on_both_sides(node)])
        known.add(node.name)
    known.clear()
    for name, node in [
        *((boundary.name, boundary.node) for _, boundary in found),
        *((x.name, x) for x in ways_out),
    ]:
        if name in known:
            raise PipelineError([_in_two_parts(node)])
        known.add(name)
    for _, boundary in found:
        if boundary.in_front and isinstance(boundary.node.config, EventTimeConfig):
            _check_one_source(graph, boundary.node)
    return found


def _in_two_parts(node: Node) -> Problem:
    return node.problem(
        "same-buffer",
        "reads rows from both sides of a log in between (of a window, a fold or a step that merges events)",
        at="inputs",
        hint=f"use a {node.kind} for each",
    )


def _on_both_sides(node: Node) -> Problem:
    """An event behind a log would wait for one in front of it, which waits for what is behind the log."""
    return node.problem(
        "same-dedupe",
        "gets rows from behind a log (of a window, a fold or a step that unites events) and from in front of "
        "it",
        at="inputs",
        hint="use one for each",
    )


def _check_one_source(graph: Graph, window: Node) -> None:
    """In front of a window that has a log of its own nobody knows which source is the slowest."""
    if len(sources := sorted(graph.upstream_sources(window.name))) > 1:
        raise PipelineError(
            [
                window.problem(
                    "window-in-stream",
                    f"gets events of several sources ({', '.join(sources)}) through one log: the fastest "
                    "would make the others late",
                    at="inputs" if "inputs" in window.field_lines else "input",
                    hint="put it in front of the step that unites them or keeps state, or use one for each",
                )
            ]
        )


def _boundaries_of(
    division: Division, ways_out: list[Node], followers: list[Node]
) -> list[tuple[Graph, Boundary]]:
    """Where it is cut; in `ways_out` the sinks that are other pipelines, by part, in `followers` the steps at
    which events wait for others."""
    found: list[tuple[Graph, Boundary]] = []
    whole = division.whole.nodes
    ways_out += [
        whole[name]
        for name in division.front.sinks
        if name in whole and isinstance(whole[name].config, PipelineSinkConfig | JobSinkConfig)
    ]
    front = division.front
    followers += [node for name, node in front.transforms.items() if _follows(front, name)]
    for boundary in division.boundaries:
        found.append((division.whole, boundary))
        if isinstance(boundary, StatefulBoundary):
            found.append((boundary.behind(division.whole), boundary.results))
            boundary = boundary.results
        found += _boundaries_of(divide(boundary.behind(division.whole), boundary), ways_out, followers)
    return found


def _cut_out_here(nodes: Mapping[str, Node], name: str, logs: Collection[str]) -> bool:
    """Whether a step keeps state and is cut out here, and not in the part behind one of the logs."""
    return name in nodes and name not in logs and keeps_state(nodes[name])


def _logs_in_front(graph: Graph) -> dict[str, Boundary]:
    """The steps that have a log in front of them, if rows reach them without going through another one."""
    part = _up_to_states(graph)
    found = {name for name in graph.transforms if _unites_sources(graph, name)}
    found |= {name for name in part.transforms if _needs_a_log(part, name)}
    front = replace(graph, nodes=_in_front(graph, found))
    return {name: _log_in_front(front, name, part) for name in front.transforms if name in found}


def _up_to_states(graph: Graph) -> Graph:
    """What rows reach without going through a state."""
    return replace(graph, nodes=_in_front(graph, ()))


def _log_in_front(graph: Graph, name: str, whole: Graph) -> Boundary:
    node = graph.nodes[name]
    own = name + _INPUT if isinstance(node.config, EventTimeConfig) else name
    # Nobody waits for what is behind it if all that decides is elsewhere.
    free = set[str]() if _authoritative(whole) & whole.downstream(name) else _settled_by_others(whole, name)
    sources = frozenset(graph.upstream_sources(name))
    awaited = sources - free
    # What is waited for waits in the logs of the sources as well: they are the limit. If it could be full,
    # rows that others wait for would never come.
    settings = BufferSettings(max_bytes=NO_LIMIT) if awaited else BufferSettings()
    return Boundary(node, own, settings, awaited, fed_by=sources)


def _unites_sources(graph: Graph, name: str) -> bool:
    """Whether a step unites events of several sources."""
    node = graph.nodes[name]
    if not _unites(graph, name) or not getattr(node.config, "keys", ()):
        return False
    if len(graph.upstream_sources(name)) < 2:
        return False
    if any(_unites_sources(graph, other) for other in graph.upstream(name)):
        raise PipelineError(
            [
                node.problem(
                    "nested-merge",
                    "merges events of several sources downstream of another step that does",
                    at="inputs",
                    hint="hand them on to another pipeline in between (sink and source `pipeline`)",
                )
            ]
        )
    return True


def _needs_a_log(graph: Graph, name: str) -> bool:
    """Whether a step is a window to which rows come that are not those of a batch, or may be held up."""
    if not isinstance(graph.nodes[name].config, EventTimeConfig):
        return False
    return any(_unites(graph, other) or _follows(graph, other) for other in graph.upstream(name))


def _follows(graph: Graph, name: str) -> bool:
    return bool(getattr(graph.nodes[name].config, "follows", False))


def _unites(graph: Graph, name: str) -> bool:
    return bool(getattr(graph.nodes[name].config, "unites", False))


def _in_front(graph: Graph, logs: Collection[str]) -> dict[str, Node]:
    """The nodes that rows reach without going through one of these steps, and these themselves."""
    nodes: dict[str, Node] = {}
    for name, node in graph.nodes.items():
        inputs = tuple(
            port
            for port in node.inputs
            if port.node in nodes
            and port.node not in logs
            and (port.output is not None or not _cut_out_here(nodes, port.node, logs))
        )
        if node.kind == "source" or inputs:
            nodes[name] = replace(node, inputs=inputs)
    return nodes


def _buffer_of(graph: Graph, name: str, whole: Graph) -> Boundary | None:
    """The buffer of a sink; None if its rows go to it directly. `whole`: also what is behind other logs."""
    sink = graph.nodes[name]
    config = sink.config
    assert isinstance(config, SinkConfig)
    if isinstance(config, PipelineSinkConfig | JobSinkConfig):
        return None
    settings, free = config.buffer, _settled_by_others(whole, name)
    if settings is None and config.best_effort:
        settings = BufferSettings(when_full="drop_newest")
    elif settings is None and (free or config.ordered_by or config.rows_at_a_time or config.collects_s):
        settings = BufferSettings()
    if settings is None:
        return None
    signs = settings.acknowledgements or config.best_effort
    awaited = frozenset() if signs else frozenset(graph.upstream_sources(name) - free)
    return Boundary(sink, settings.name or name, settings, awaited)


def _settled_by_others(graph: Graph, name: str) -> set[str]:
    """Sources of a sink whose events are settled by an authoritative sink that this one is not."""
    authoritative = _authoritative(graph)
    if name in authoritative:
        return set()
    return {source for source in graph.upstream_sources(name) if graph.downstream(source) & authoritative}


def _authoritative(graph: Graph) -> set[str]:
    return {
        name
        for name, node in graph.sinks.items()
        if isinstance(node.config, SinkConfig) and node.config.authoritative
    }


def _way_out(graph: Graph, node: Node, config: PipelineSinkConfig | JobSinkConfig) -> HandoverConfig:
    fields = {
        "sink": node.name,
        "when_full": "block",
        "awaited_by": frozenset(graph.upstream_sources(node.name)),  # what it refuses is for somebody to hear
        "retry": RETRY,
        "on_failure": config.on_failure,
        "outside": True,
    }
    if isinstance(config, PipelineSinkConfig):
        link = {"place": config.place(graph.base), "max_bytes": config.max_bytes}
        return HandoverConfig.model_validate({**fields, **link})
    computed = dict(config.expressions())
    asking = {
        "place": invoker_place(graph.state, node.name),
        "max_bytes": _MOST_REQUESTS,
        "by_invoker": True,
        "computed": computed,
        "fields_of": {name: config.field_of(name) for name in computed},
    }
    return RequestsConfig.model_validate({**fields, **asking})


def buffers_on_disk(graph: Graph) -> list[str]:
    """The names of the buffers that a state directory holds, in use or not."""
    found = (graph.state / "links").glob(f"*{BUFFER}")
    return sorted(path.name.removesuffix(BUFFER) for path in found)
