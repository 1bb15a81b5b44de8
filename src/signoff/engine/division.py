"""Cutting a graph where rows go through a link: each part is a graph of its own, run by its own queries.

    incoming ─► parse ─► warehouse                the pipeline as it is written; warehouse has a buffer

    incoming ─► parse ─► [warehouse: handover]    the part in front
    warehouse.buffer ─► warehouse.rows ─► warehouse       the part behind, with a source of its own

Some steps have a log in front of them, too, and are, with all behind them, in the part behind it:

    a step that unites events of several sources    each source has a query of its own; they meet in the log
    a window behind a step that unites events       its rows must be those of a batch that can be done again
    a window behind a `dedupe`                      a row that waits for the event it repeats would hold
                                                    it open, and that event may be in the window
    a step that unites events, a window or a        batches of a stream are Spark's, and cannot be read again;
      `dedupe` behind one that makes its source     those of the log can
      a stream
    a step that makes its source a stream,          so that the others are not in a stream
      beside or behind such others

A window is cut out, with a log on either side of the query that keeps its state:

    incoming ─► counts ─► [counts.state]          time, late events and partial results
                counts.late ─► …                  are in the part in front
    counts.buffer ─► Spark's state ─► [counts.results]      see `signoff.engine.windows`
    counts.results.buffer ─► counts ─► …          the part behind, which begins with the results

A fold is cut out in the same way; its part in front only says which events end a group, and the part behind
begins with what makes a result of a group.

What the rows look like is known when the part in front is compiled; see `signoff.engine.parts`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from signoff.engine.joints import (
    NO_LIMIT,
    RETRY,
    FoldJoint,
    Joint,
    KeepingJoint,
    WindowJoint,
    buffer_place,
    handover,
    waits_for_results,
)
from signoff.errors import PipelineError, Problem
from signoff.ledger.outcome import BUFFER
from signoff.link.handover import HandoverConfig
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import BufferSettings, SinkConfig
from signoff.sinks.pipeline import PipelineSinkConfig
from signoff.state.windowing import LATENESS, LateCountConfig
from signoff.transforms.fold import FoldConfig, FoldInput
from signoff.transforms.window import WindowConfig, WindowInput

_INPUT = ".input"
"""What the log in front of a window is called: that in front of its state has the window's own name."""


@dataclass(frozen=True)
class Division:
    whole: Graph
    """What was divided."""
    front: Graph
    """What is in front of all logs, with a handover wherever rows go into one."""
    joints: tuple[Joint, ...]


def divide(graph: Graph, behind: Joint | None = None) -> Division:
    """Cut a graph where its rows go through a log; what is behind may have to be cut again.

    `behind`: where the graph itself was cut off. Buffers that are on disk and not in use any more are found
    only where nothing was cut yet.
    """
    logs = _logs_in_front(graph)
    nodes = _in_front(graph, logs.keys())
    keeping = [_keeping(graph, nodes, name) for name in graph.transforms if _keeps_state(nodes, name, logs)]
    joints: list[Joint] = [*logs.values(), *keeping]
    front = replace(graph, nodes=nodes)
    own = None if behind is None else behind.node.name
    joints += [
        joint
        for name in front.sinks
        if name in graph.sinks and name != own and (joint := joint_of(front, name, _up_to_states(graph)))
    ]
    known = {joint.name for joint in joints}
    joints += [
        Joint(graph.sinks[name], name, BufferSettings(), frozenset(), in_use=False)
        for name in (buffers_on_disk(graph) if behind is None else ())
        if name not in known and name in front.sinks
    ]
    ways_out = {
        name: replace(node, config=_way_out(front, node, node.config))
        for name, node in front.sinks.items()
        if isinstance(node.config, PipelineSinkConfig)
    }
    for kept in keeping:
        if isinstance(kept, WindowJoint):
            _put_window(graph, nodes, kept)
        elif isinstance(kept, FoldJoint):
            _put_fold(graph, nodes, kept)
    for joint in joints:
        if joint.in_use and not isinstance(joint, KeepingJoint):
            inputs = nodes[joint.node.name].inputs
            nodes[joint.node.name] = replace(
                joint.node, kind="sink", config=handover(graph, joint), inputs=inputs
            )
    return Division(graph, replace(graph, nodes=nodes | ways_out), tuple(joints))


def all_joints(graph: Graph) -> list[tuple[Graph, Joint]]:
    """Every place where a pipeline is cut, with the graph that is cut there. Raises PipelineError for a node
    whose log would be in two of its parts, for each log has one writer; for a window whose rows come
    through a log in which its sources cannot be told apart; and for a `dedupe` on both sides of a log."""
    ways_out: list[Node] = []
    followers: list[Node] = []
    found = _joints(divide(graph), ways_out, followers)
    known: set[str] = set()
    for node in followers:
        if node.name in known:
            raise PipelineError([_on_both_sides(node)])
        known.add(node.name)
    known.clear()
    for name, node in [*((joint.name, joint.node) for _, joint in found), *((x.name, x) for x in ways_out)]:
        if name in known:
            raise PipelineError([_in_two_parts(node)])
        known.add(name)
    for _, joint in found:
        if joint.in_front and isinstance(joint.node.config, WindowConfig):
            _check_one_source(graph, joint.node)
    return found


def _in_two_parts(node: Node) -> Problem:
    return node.problem(
        "same-buffer",
        "has a log, and gets rows from behind another log (of a window, a fold, a step that unites events or "
        "one that makes its source a stream) and from elsewhere",
        at="inputs",
        hint=f"use a {node.kind} for each",
    )


def _on_both_sides(node: Node) -> Problem:
    """An event behind a log would wait for one in front of it, which waits for what is behind the log."""
    return node.problem(
        "same-dedupe",
        "gets rows from behind a log (of a window, a fold, a step that unites events or one that makes its "
        "source a stream) and from in front of it",
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


def _joints(division: Division, ways_out: list[Node], followers: list[Node]) -> list[tuple[Graph, Joint]]:
    """Where it is cut; in `ways_out` the sinks that are other pipelines, by part, in `followers` the steps at
    which events wait for others."""
    found: list[tuple[Graph, Joint]] = []
    whole = division.whole.nodes
    ways_out += [
        whole[name]
        for name in division.front.sinks
        if name in whole and isinstance(whole[name].config, PipelineSinkConfig)
    ]
    front = division.front
    followers += [node for name, node in front.transforms.items() if _follows(front, name)]
    for joint in division.joints:
        found.append((division.whole, joint))
        if isinstance(joint, KeepingJoint):
            found.append((joint.behind(division.whole), joint.results))
            joint = joint.results
        found += _joints(divide(joint.behind(division.whole), joint), ways_out, followers)
    return found


def _keeps_state(nodes: Mapping[str, Node], name: str, logs: Collection[str]) -> bool:
    """Whether a step is one that is cut out here, and not in the part behind one of the logs."""
    return name in nodes and name not in logs and isinstance(nodes[name].config, WindowConfig | FoldConfig)


def _keeping(graph: Graph, nodes: dict[str, Node], name: str) -> KeepingJoint:
    node = nodes[name]
    kind = WindowJoint if isinstance(node.config, WindowConfig) else FoldJoint
    if not waits_for_results(node):
        return kind(node, name, BufferSettings(), frozenset())
    # Rows wait in the log until later ones let them go: if it could be full, those would never come.
    # The logs of the sources are the limit, which keep their events as long.
    settings = BufferSettings(max_bytes=NO_LIMIT)
    return kind(node, name, settings, frozenset(replace(graph, nodes=nodes).upstream_sources(name)))


def _put_window(graph: Graph, nodes: dict[str, Node], joint: WindowJoint) -> None:
    """The part of a window in front of its state, in its place, and the sinks behind that."""
    name, node, window = joint.node.name, joint.node, joint.window
    late = Port(name, "late")
    read = any(late in other.inputs for other in nodes.values())
    nodes[name] = replace(
        node, config=WindowInput(window=window, late_is_read=read, on_error=window.on_error)
    )
    place = buffer_place(graph, joint.source)
    count = LateCountConfig(place=place, keys=window.keys, retry=RETRY)
    for sink, config, port in (
        (joint.sink, handover(replace(graph, nodes=nodes), joint), Port(name)),
        (name + LATENESS, count, late),
    ):
        nodes[sink] = Node(sink, "sink", config, (port,), node.line, file=node.file)


def _put_fold(graph: Graph, nodes: dict[str, Node], joint: FoldJoint) -> None:
    """The part of a fold in front of its state, in its place, and the sink behind that."""
    name, node = joint.node.name, joint.node
    nodes[name] = replace(node, config=FoldInput(fold=joint.fold, on_error=joint.fold.on_error))
    config = handover(replace(graph, nodes=nodes), joint)
    nodes[joint.sink] = Node(joint.sink, "sink", config, (Port(name),), node.line, file=node.file)


def _logs_in_front(graph: Graph) -> dict[str, Joint]:
    """The steps that have a log in front of them, if rows reach them without going through another one."""
    part = _up_to_states(graph)
    found = {name for name in graph.transforms if _meets(graph, name)}
    found |= {name for name in part.transforms if _behind_a_stream(part, name)}
    front = replace(graph, nodes=_in_front(graph, found))
    reread = [name for name in front.transforms if name not in found and _is_read_again(front, name)]
    sources = {source for name in reread for source in front.upstream_sources(name)}
    found |= {
        name
        for name in front.transforms
        if name not in found and _streams(front, name) and front.upstream_sources(name) & sources
    }
    front = replace(graph, nodes=_in_front(graph, found))
    return {name: _log_in_front(front, name, part) for name in front.transforms if name in found}


def _up_to_states(graph: Graph) -> Graph:
    """What rows reach without going through a state."""
    return replace(graph, nodes=_in_front(graph, ()))


def _log_in_front(graph: Graph, name: str, whole: Graph) -> Joint:
    node = graph.nodes[name]
    own = name + _INPUT if isinstance(node.config, WindowConfig) else name
    # Nobody waits for what is behind it if all that decides is elsewhere.
    free = set[str]() if _authoritative(whole) & whole.downstream(name) else _settled_by_others(whole, name)
    sources = frozenset(graph.upstream_sources(name))
    awaited = sources - free
    # What is waited for waits in the logs of the sources as well: they are the limit. If it could be full,
    # rows that others wait for would never come.
    settings = BufferSettings(max_bytes=NO_LIMIT) if awaited else BufferSettings()
    return Joint(node, own, settings, awaited, fed_by=sources)


def _meets(graph: Graph, name: str) -> bool:
    """Whether a step unites events of several sources."""
    node = graph.nodes[name]
    if not _unites(graph, name) or not getattr(node.config, "keys", ()):
        return False
    if len(graph.upstream_sources(name)) < 2:
        return False
    if any(_meets(graph, other) for other in graph.upstream(name)):
        raise PipelineError(
            [
                node.problem(
                    "nested-meeting",
                    "unites events of several sources behind another step that does",
                    at="inputs",
                    hint="hand them on to another pipeline in between (sink and source `pipeline`)",
                )
            ]
        )
    return True


def _behind_a_stream(graph: Graph, name: str) -> bool:
    """Whether a step must be able to see its rows again, and those in front of it cannot give them."""
    node, before = graph.nodes[name], graph.upstream(name)
    streams = sorted(other for other in before if _streams(graph, other))
    if isinstance(node.config, WindowConfig):
        return bool(streams) or any(_unites(graph, other) or _follows(graph, other) for other in before)
    if _follows(graph, name):
        return bool(streams)
    if not streams or not _unites(graph, name):
        return False
    if not getattr(node.config, "keys", ()):  # in the log each row is an event of its own
        raise PipelineError(
            [
                node.problem(
                    "unites-in-stream",
                    f'unites what one event was split into, but behind "{streams[0]}" that is not known',
                    hint="give it keys, or put it in front of that step",
                )
            ]
        )
    return True


def _is_read_again(graph: Graph, name: str) -> bool:
    """Whether a step depends on batches that are the same whenever they are done."""
    if isinstance(graph.nodes[name].config, WindowConfig):
        return True
    return _unites(graph, name) or _follows(graph, name)


def _streams(graph: Graph, name: str) -> bool:
    return bool(getattr(graph.nodes[name].config, "streams", False))


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
            and (port.output is not None or not _keeps_state(nodes, port.node, logs))
        )
        if node.kind == "source" or inputs:
            nodes[name] = replace(node, inputs=inputs)
    return nodes


def joint_of(graph: Graph, name: str, whole: Graph) -> Joint | None:
    """The buffer of a sink; None if its rows go to it directly. `whole`: also what is behind other logs."""
    sink = graph.nodes[name]
    config = sink.config
    assert isinstance(config, SinkConfig)
    if isinstance(config, PipelineSinkConfig):
        return None
    settings, free = config.buffer, _settled_by_others(whole, name)
    if settings is None and config.best_effort:
        settings = BufferSettings(when_full="drop_newest")
    elif settings is None and (free or config.ordered_by):
        settings = BufferSettings()
    if settings is None:
        return None
    signs = settings.acknowledgements or config.best_effort
    awaited = frozenset() if signs else frozenset(graph.upstream_sources(name) - free)
    return Joint(sink, settings.name or name, settings, awaited)


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


def _way_out(graph: Graph, node: Node, config: PipelineSinkConfig) -> HandoverConfig:
    return HandoverConfig(
        place=config.place(graph.base),
        sink=node.name,
        max_bytes=config.max_bytes,
        when_full="block",
        awaited_by=frozenset(graph.upstream_sources(node.name)),  # what it refuses is for somebody to hear
        retry=RETRY,
        on_failure=config.on_failure,
        outside=True,
    )


def buffers_on_disk(graph: Graph) -> list[str]:
    """The names of the buffers that a state directory holds, in use or not."""
    found = (graph.state / "links").glob(f"*{BUFFER}")
    return sorted(path.name.removesuffix(BUFFER) for path in found)
