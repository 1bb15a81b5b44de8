"""From a draft to a checked graph: every structural problem at once, or a Graph that keeps its invariants.

What needs Spark to find (a wrong column, a lost origin) is found by `signoff.engine.check`, which
takes the graph made here. A problem that only follows from another is not reported: a sink that
reads "parsd" does not also make "parsed" unreachable.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from signoff.errors import PipelineError, Problem
from signoff.pipeline import addresses
from signoff.pipeline.cases import read_cases
from signoff.pipeline.csv_types import problems_of_csv
from signoff.pipeline.draft import Draft, DraftNode
from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import (
    KINDS,
    NAME_PATTERN,
    Catalog,
    InputsConfig,
    NodeConfig,
    Settings,
    SinkConfig,
    SourceConfig,
    TransformConfig,
)
from signoff.pipeline.paths import unusable, unusable_paths_of
from signoff.pipeline.places import problems_of
from signoff.pipeline.problems import did_you_mean, suggestion
from signoff.pipeline.secrets import Expansion
from signoff.pipeline.validate import validate

_LEASE = 0.9
"""The share of a broker's patience that may be used up."""


def check(draft: Draft, catalog: Catalog, environ: Mapping[str, str]) -> Graph:
    """The graph of a draft; raises PipelineError with all problems, in the order of the file."""
    checker = _Checker(draft, catalog, Expansion(environ, draft.base))
    settings = checker.settings()
    checker.names()
    for node in draft.nodes:
        checker.configure(node)
    checker.wire()
    checker.reached()
    checker.paths(settings)
    checker.targets()
    checker.buffers()
    checker.expiry(settings)
    if checker.problems or settings is None:
        raise PipelineError(_in_order(checker.problems, draft.file))
    graph = Graph(settings, draft.file, draft.base, checker.ordered())
    checker.refusals(graph)
    checker.settled_before(graph)
    checker.shared_disk(graph)
    checker.one_machine(graph)
    checker.problems += problems_of(checker.nodes, checker.configs, draft.base, graph.state)
    checker.problems += addresses.problems_of(checker.nodes, checker.configs)
    checker.holding(graph)
    tests, wrong = read_cases(draft, graph)
    checker.problems += wrong
    checker.problems += problems_of_csv(graph)
    if checker.problems:
        raise PipelineError(_in_order(checker.problems, draft.file))
    checker.patience(graph)
    return replace(graph, warnings=tuple(_in_order(checker.warnings, draft.file)), tests=tests)


def _in_order(problems: list[Problem], file: str) -> list[Problem]:
    unique = dict.fromkeys(problems)
    return sorted(unique, key=lambda problem: (problem.file != file, problem.file, problem.line))


def _place_of_output(node: DraftNode, output: str) -> str:
    """The field an output is declared in: `routes.high`."""
    return next((place for place in node.field_lines if place.endswith(f".{output}")), "")


@dataclass
class _Checker:
    draft: Draft
    catalog: Catalog
    expansion: Expansion
    problems: list[Problem] = field(init=False)
    warnings: list[Problem] = field(default_factory=list)
    nodes: dict[str, DraftNode] = field(default_factory=dict)
    configs: dict[str, NodeConfig] = field(default_factory=dict)
    inputs: dict[str, list[Port]] = field(default_factory=dict)
    read: set[str] = field(default_factory=set)
    """Nodes and outputs somebody reads, or tried to read under a misspelt name."""

    def __post_init__(self) -> None:
        self.problems = list(self.draft.problems)

    def settings(self) -> Settings | None:
        pseudo = DraftNode(
            "source", "", self.draft.settings, 0, self.draft.settings_lines, file=self.draft.file
        )
        settings, problems = validate(Settings, pseudo, "the pipeline", self.expansion)
        self.problems += problems
        return settings

    def names(self) -> None:
        for node in self.draft.nodes:
            if not re.match(NAME_PATTERN, node.name):
                message = f"{node.label} may not be called that"
                hint = "begin with a letter and use letters, digits and _ only"
                self.problems.append(node.problem("bad-name", message, hint=hint))
            earlier = self.nodes.setdefault(node.name, node)
            if earlier is not node:
                place = f" in line {earlier.line}" if earlier.line else ""
                message = f"{node.label} has the name of a {earlier.kind}{place}"
                self.problems.append(node.problem("duplicate-name", message, hint="rename one of them"))
        for kind in KINDS:
            if kind != "transform" and not any(node.kind == kind for node in self.draft.nodes):
                message = f"the pipeline has no {kind}"
                problem = Problem(f"missing-{kind}", message, f"add one under {kind}s:", self.draft.file)
                self.problems.append(problem)

    def configure(self, node: DraftNode) -> None:
        """Validate one node; a second node of the same name is validated but not wired."""
        config = node.config or self._validated(node)
        if config is None:
            return
        if isinstance(config, SourceConfig) and config.acknowledgements and not config.can_acknowledge:
            message = f"{node.label} ({config.type}) cannot be acknowledged"
            hint = "remove the field; such a source takes part without"
            self.problems.append(
                node.problem("cannot-acknowledge", message, at="acknowledgements", hint=hint)
            )
        if isinstance(config, TransformConfig):
            self._check_output_names(node, config)
        if self.nodes[node.name] is node:
            self.configs[node.name] = config

    def _validated(self, node: DraftNode) -> NodeConfig | None:
        types = self.catalog.of(node.kind)
        type_name = node.fields.get("type")
        if type_name is None:
            hint = f"one of {', '.join(types)}"
            self.problems.append(
                node.problem("missing-field", f'{node.label} needs the field "type"', hint=hint)
            )
            return None
        model = types.get(type_name) if isinstance(type_name, str) else None
        if model is None:
            message = f'{node.label} has the unknown type "{type_name}"'
            self.problems.append(
                node.problem("unknown-type", message, at="type", hint=self._other_type(node, str(type_name)))
            )
            return None
        config, problems = validate(model, node, node.label, self.expansion)
        self.problems += problems
        return config

    def _other_type(self, node: DraftNode, type_name: str) -> str:
        kinds = [kind for kind in self.catalog.kinds(type_name) if kind != node.kind]
        if kinds:
            return f"{type_name} is a {kinds[0]}; move it to {kinds[0]}s:"
        return suggestion(type_name, self.catalog.of(node.kind), "the types are")

    def _check_output_names(self, node: DraftNode, config: TransformConfig) -> None:
        for output in config.outputs:
            if not re.match(NAME_PATTERN, output):
                message = f'{node.label} has an output "{output}", which may not be called that'
                hint = "begin with a letter and use letters, digits and _ only"
                self.problems.append(
                    node.problem("bad-name", message, at=_place_of_output(node, output), hint=hint)
                )

    def wire(self) -> None:
        """Resolve every input to a port, then look for circles."""
        for name, node in self.nodes.items():
            if node.kind != "source":
                self.inputs[name] = self._ports(node)
        self._cycles()

    def _ports(self, node: DraftNode) -> list[Port]:
        ports: list[Port] = []
        written = self._written_inputs(node)
        if written == []:
            hint = "add input: NAME, or inputs: [NAME, …]"
            self.problems.append(node.problem("missing-input", f"{node.label} has no input", hint=hint))
        for text, at in written or []:
            port = self._port(node, text, at)
            if port in ports:
                message = f'{node.label} reads "{port}" twice'
                self.problems.append(
                    node.problem("duplicate-input", message, at=at, hint="every row would come twice")
                )
            elif port:
                ports.append(port)
        return ports

    def _written_inputs(self, node: DraftNode) -> list[tuple[str, str]] | None:
        """Inputs with their fields; None where their types are wrong, which is reported already."""
        config = self.configs.get(node.name)
        fields: Mapping[str, Any] = node.fields
        if isinstance(config, InputsConfig):
            fields = {"input": config.input, "inputs": list(config.inputs)}
        one, several = fields.get("input"), fields.get("inputs")
        several = [several] if isinstance(several, str) else several or []
        if isinstance(one, list):  # reported as a wrong type; still wired, so that no more is reported
            one, several = None, one
        if not isinstance(several, list | tuple) or not all(isinstance(item, str) for item in several):
            return None
        if one is not None and not isinstance(one, str):
            return None
        found = [(one, "input")] if one else []
        return found + [(item, f"inputs.{index}") for index, item in enumerate(several)]

    def _port(self, node: DraftNode, text: str, at: str) -> Port | None:
        name, _, output = text.partition(".")
        if name not in self.nodes or self.nodes[name].kind == "sink":
            self._unknown_input(node, text, name, at)
            return None
        self.read.add(name)
        config = self.configs.get(name)
        if config is None:  # its own problems are reported; nothing is known of its outputs
            return Port(name, output or None)
        outputs = config.outputs if isinstance(config, TransformConfig) else ()
        plain = not isinstance(config, TransformConfig) or config.has_main_output
        if (output in outputs) if output else plain:
            self.read.add(text)
            return Port(name, output or None)
        target = self.nodes[name].label
        known = [f"{name}.{each}" for each in outputs]
        if output:
            message = f'{node.label} reads "{text}", but {target} has no such output'
            hint = suggestion(text, known, "its outputs are") or f"write {name}"
            self.read.add(did_you_mean(text, known) or "")
        else:
            message = f'{node.label} reads "{text}", but {target} has only named outputs'
            hint = f"write one of {', '.join(known)}"
            self.read.update(known)
        self.problems.append(node.problem("unknown-output", message, at=at, hint=hint))
        return None

    def _unknown_input(self, node: DraftNode, text: str, name: str, at: str) -> None:
        readable = [other.name for other in self.nodes.values() if other.kind != "sink"]
        if name in self.nodes:
            message = f'{node.label} reads "{text}", which is a sink'
            hint = "nothing comes out of a sink; read what the sink reads"
        else:
            close = did_you_mean(name, [each for each in readable if each != node.name])
            self.read.add(close or "")
            message = f'{node.label} reads "{text}", which does not exist'
            hint = suggestion(name, [close] if close else readable, "it can read")
        self.problems.append(node.problem("unknown-input", message, at=at, hint=hint))

    def _cycles(self) -> None:
        """Report each circle once, at its first node in the file."""
        reported: set[str] = set()
        feeds = self._feeds()
        for name in self._not_in_order(feeds):
            circle = None if name in reported else self._circle(name, feeds)
            if circle and not reported & set(circle):
                reported.update(circle)
                node = self.nodes[name]
                way = " → ".join([*circle, name])
                message = f"{node.label} reads what it feeds itself: {way}"
                hint = "rows go from sources to sinks only"
                self.problems.append(node.problem("cycle", message, at="input", hint=hint))

    def _feeds(self) -> dict[str, list[str]]:
        """Who reads each node."""
        feeds: dict[str, list[str]] = {}
        for name, ports in self.inputs.items():
            for port in ports:
                feeds.setdefault(port.node, []).append(name)
        return feeds

    def _not_in_order(self, feeds: Mapping[str, list[str]]) -> list[str]:
        """The nodes that cannot be put behind all they read: those in circles, and those behind one."""
        waits = {name: len(ports) for name, ports in self.inputs.items()}
        free = [name for name in feeds.keys() | waits.keys() if not waits.get(name)]
        while free:
            for reader in feeds.get(free.pop(), []):
                waits[reader] -= 1
                if not waits[reader]:
                    free.append(reader)
        return [name for name, count in waits.items() if count]

    @staticmethod
    def _circle(start: str, feeds: Mapping[str, list[str]]) -> list[str] | None:
        """The nodes of a way from `start` along its readers back to itself."""
        came_from = {start: ""}
        left = [start]
        while left:
            name = left.pop()
            for reader in feeds.get(name, []):
                if reader == start:
                    way = [name]
                    while came_from[way[-1]]:
                        way.append(came_from[way[-1]])
                    return way[::-1]
                if reader not in came_from:
                    came_from[reader] = name
                    left.append(reader)
        return None

    def reached(self) -> None:
        """Everything but a sink must be read by somebody."""
        for name, node in self.nodes.items():
            if node.kind == "sink":
                continue
            if name not in self.read:
                hint = f"name it as an input (input: {name}), or remove it"
                self.problems.append(node.problem("unreachable", f"nothing reads {node.label}", hint=hint))
                continue
            config = self.configs.get(name)
            needed = config.needed_outputs if isinstance(config, TransformConfig) else ()
            for output in needed:
                if f"{name}.{output}" not in self.read:
                    message = f'nothing reads the output "{output}" of {node.label}'
                    hint = "events that go only there count as dropped"
                    self.warnings.append(
                        node.problem("unused-output", message, at=_place_of_output(node, output), hint=hint)
                    )

    def paths(self, settings: Settings | None) -> None:
        """Paths that no disk can hold are said here, and not looked at again."""
        for name, config in list(self.configs.items()):
            if why := unusable_paths_of(config, self.draft.base):
                node = self.nodes[name]
                message = f"{node.label} has a path that cannot be used: {why}"
                self.problems.append(node.problem("bad-path", message, at="path", hint="correct it"))
                del self.configs[name]
        if settings is not None and (why := unusable([self.draft.base / settings.state])):
            line = self.draft.settings_lines.get("state", 0)
            message = f"the state directory cannot be used: {why}"
            self.problems.append(Problem("bad-path", message, "correct it", self.draft.file, line))

    def targets(self) -> None:
        taken: dict[str, DraftNode] = {}
        for name, config in self.configs.items():
            target = config.target(self.draft.base) if isinstance(config, SinkConfig) else None
            if target is None:
                continue
            node = self.nodes[name]
            other = taken.setdefault(target, node)
            if other is not node:
                message = f"{node.label} writes to the same place as {other.label}"
                hint = "give each its own, or make them one sink with several inputs"
                self.problems.append(node.problem("same-target", message, hint=hint))

    def buffers(self) -> None:
        """What a sink says about waiting must not contradict itself, and each buffer belongs to one sink."""
        taken: dict[str, DraftNode] = {}
        for name, config in self.configs.items():
            if not isinstance(config, SinkConfig):
                continue
            node = self.nodes[name]
            if config.authoritative and config.best_effort:
                message = f"{node.label} is authoritative and best effort at once"
                hint = "an event waits for the one and never for the other: choose"
                self.problems.append(node.problem("contradiction", message, at="best_effort", hint=hint))
            signs = config.best_effort or (config.buffer is not None and config.buffer.acknowledgements)
            if signs and config.on_failure == "refuse":
                message = f"{node.label} cannot refuse events that are acknowledged before it has seen them"
                hint = (
                    "use on_failure: dead_letter, or let events wait for it (buffer.acknowledgements: false)"
                )
                self.problems.append(node.problem("cannot-refuse", message, at="on_failure", hint=hint))
            if config.type == "pipeline" and (config.buffer or config.best_effort or config.ordered_by):
                message = f"{node.label} is a log already, and needs no buffer"
                at = "buffer" if config.buffer else "best_effort" if config.best_effort else "ordered_by"
                self.problems.append(node.problem("no-buffer", message, at=at, hint="remove the field"))
            buffer = config.buffer.name if config.buffer and config.buffer.name else name
            step = self.nodes.get(buffer)
            other = step if step is not None and step.kind == "transform" else taken.setdefault(buffer, node)
            if other is not node:
                message = f'{node.label} has the same buffer as {other.label}: "{buffer}"'
                at = "buffer.name" if config.buffer and config.buffer.name else ""
                self.problems.append(node.problem("same-buffer", message, at=at, hint="give it another name"))

    def expiry(self, settings: Settings | None) -> None:
        """`acknowledge_within` is of use only where the source hears what becomes of its events."""
        for name, config in self.configs.items():
            if not isinstance(config, SourceConfig):
                continue
            node, wanted = self.nodes[name], config.acknowledgements
            if wanted is None:
                wanted = settings is None or settings.acknowledgements
            if config.expires_in_vain(wanted and config.can_acknowledge):
                why = "its acknowledgements are off" if config.can_acknowledge else "cannot be acknowledged"
                message = f"{node.label} ({config.type}) has acknowledge_within, but {why}"
                hint = "nobody would get the negative answer; remove the field"
                self.problems.append(
                    node.problem("cannot-expire", message, at="acknowledge_within", hint=hint)
                )

    def refusals(self, graph: Graph) -> None:
        """A sink beside an authoritative one gets events that may be acknowledged already."""
        sinks = {
            name: node.config for name, node in graph.sinks.items() if isinstance(node.config, SinkConfig)
        }
        leading = {name for name, config in sinks.items() if config.authoritative}
        for name, config in sinks.items():
            if config.on_failure != "refuse" or name in leading or config.type == "pipeline":
                continue
            for source in graph.upstream_sources(name):
                if others := sorted(graph.downstream(source) & leading):
                    node = self.nodes[name]
                    message = f'{node.label} cannot refuse events of "{source}", which "{others[0]}" settles'
                    hint = "use on_failure: dead_letter"
                    self.problems.append(node.problem("cannot-refuse", message, at="on_failure", hint=hint))

    def one_machine(self, graph: Graph) -> None:
        """What a step that knows events again remembers is in SQLite, which several machines cannot share."""
        if graph.settings.spark.is_local:
            return
        for node in graph.transforms.values():
            if getattr(node.config, "follows", False):
                message = "keeps its keys in a file that workers on other machines cannot share"
                hint = "use a local master, or dedupe in a pipeline of its own that has one"
                self.problems.append(node.problem("one-machine", message, hint=hint))

    def shared_disk(self, graph: Graph) -> None:
        """On a cluster executors use the driver's paths: somebody must say that they see its disk."""
        spark = graph.settings.spark
        if spark.is_local or spark.shared:
            return
        places = [f"the state directory ({graph.state})"]
        places += [f"{node.label} ({path})" for node, path in graph.local_directories()]
        message = f"Spark runs on {spark.effective_master}, where each executor would use its own disk: "
        hint = (
            "put them on a file system that every worker mounts at the same path, and set spark.shared: true "
            "(a run proves it on every worker before it begins); or use a local master"
        )
        lines = self.draft.settings_lines
        line = next((lines[at] for at in ("spark.master", "spark.config", "spark") if at in lines), 0)
        self.problems.append(Problem("not-shared", message + ", ".join(places), hint, self.draft.file, line))

    def settled_before(self, graph: Graph) -> None:
        """Behind a step that settles events nothing can be refused: nobody would hear of it."""
        for name, step in graph.transforms.items():
            if not isinstance(step.config, TransformConfig) or not step.config.settles:
                continue
            behind = {
                other
                for reader in graph.readers(name)
                if Port(name) in reader.inputs
                for other in ({reader.name} | graph.downstream(reader.name))
            }
            for other in sorted(behind):
                config, node = self.configs[other], self.nodes[other]
                field = "on_failure" if isinstance(config, SinkConfig) else "on_error"
                if getattr(config, field, None) == "refuse":
                    message = f'{node.label} cannot refuse what is made of events that "{name}" has settled'
                    hint = f"use {field}: dead_letter, or acknowledge: delivered"
                    self.problems.append(node.problem("cannot-refuse", message, at=field, hint=hint))

    def holding(self, graph: Graph) -> None:
        """What holds events must let go of them before their source, or its broker, stops waiting."""
        for name, step in graph.transforms.items():
            assert isinstance(step.config, TransformConfig)
            if not step.config.holds:
                continue
            for source in sorted(graph.upstream_sources(name)):
                config = graph.nodes[source].config
                assert isinstance(config, SourceConfig)
                self._may_deadlock(name, step.config, source, config)
                if step.config.lets_go and graph.acknowledges(source):
                    self._held_too_long(name, step.config, source, config)

    def _may_deadlock(self, name: str, step: TransformConfig, source: str, config: SourceConfig) -> None:
        held, limit = sum(step.holds.values()), config.most_unacknowledged
        sums = " + ".join(f"{field} {seconds:g} s" for field, seconds in step.holds.items() if seconds)
        room = f"{config.log.max_bytes} bytes of its log"
        room = room if limit is None else f"{limit} events (prefetch) or {room}"
        rate = f", that is {limit} / {held:g} s = {limit / held:.4g} a second" if limit and held else ""
        least = f": {sums} = {held:g} s" if held else ""
        message = (
            f'{self.nodes[name].label} holds events until later ones come{least}. "{source}" '
            f"delivers none while {room} are unacknowledged{rate}: with more than that nobody lets go"
        )
        if not step.lets_go:
            hint = f"set {step.lets_go_by}, or use acknowledge: save_point"
            self.problems.append(
                self.nodes[name].problem("may-deadlock", message, at="acknowledge", hint=hint)
            )
        elif step.needs_later_events:
            hint = "raise the limits so that the events of that time fit, or use acknowledge: save_point"
            self.warnings.append(
                self.nodes[name].problem("may-deadlock", message, at="acknowledge", hint=hint)
            )

    def _held_too_long(self, name: str, step: TransformConfig, source: str, config: SourceConfig) -> None:
        held = sum(step.holds.values())
        sums = " + ".join(f"{field} {seconds:g} s" for field, seconds in step.holds.items() if seconds)
        limits = []
        if config.patience_s is not None:
            limit = _LEASE * config.patience_s
            limits.append((limit, f"{_LEASE} x {config.patience_s:g} s = {limit:g} s (its consumer timeout)"))
        if config.acknowledge_within is not None:
            limits.append(
                (config.acknowledge_within, f"{config.acknowledge_within:g} s (acknowledge_within)")
            )
        short = min(limits, default=None)
        if short is not None and held >= short[0]:
            message = (
                f'{self.nodes[name].label} may hold an event for {sums} = {held:g} s, but "{source}" waits '
                f"{short[1]} for it"
            )
            hint = "use acknowledge: save_point, hold less long, or raise the timeout at the broker and here"
            self.problems.append(
                self.nodes[name].problem("held-too-long", message, at="acknowledge", hint=hint)
            )

    def patience(self, graph: Graph) -> None:
        """Compare how long a source's other side waits for an answer with how long a sink may retry.

        Only a warning: what is delivered again is recognised. That a sink asks for ever is said only
        where the source names its patience, or every pipeline would be warned.
        """
        for name, source in graph.sources.items():
            config = source.config
            assert isinstance(config, SourceConfig)
            patience, within = config.patience_s, config.acknowledge_within
            if patience is None or not graph.acknowledges(name):
                continue
            if within is not None:
                self._compare_expiry(self.nodes[name], patience, within)
                continue  # a sink may retry for as long as it likes: the event expires
            for sink in sorted(graph.downstream(name) & graph.sinks.keys()):
                self._compare(self.nodes[name], patience, sink, config.patience_named)

    def _compare_expiry(self, source: DraftNode, patience: float, within: float) -> None:
        if within >= patience:
            message = f"{source.label} waits {within:g} s, but gets its events again after {patience:g} s"
            hint = "make acknowledge_within shorter, or raise the timeout at the broker and here"
            self.warnings.append(
                source.problem("consumer-timeout", message, at="acknowledge_within", hint=hint)
            )

    def _compare(self, source: DraftNode, patience: float, sink: str, named: bool) -> None:
        config, node = self.configs[sink], self.nodes[sink]
        assert isinstance(config, SinkConfig)
        longest, retry = config.retry.longest_s, config.retry
        if longest is None and named:
            may = "asks for ever (retry.attempts: null)"
        elif longest is not None and longest > patience:
            may = f"may retry for {longest:g} s ({retry.attempts} attempts, waits up to {retry.max_ms} ms)"
        else:
            return
        message = f"{node.label} {may}, but {source.label} gets its events again after {patience:g} s"
        hint = (
            "raise the timeout at the broker and here, or retry less; messages with an id are not taken twice"
        )
        self.warnings.append(node.problem("consumer-timeout", message, at="retry", hint=hint))

    def ordered(self) -> dict[str, Node]:
        """The nodes, each after those it reads, else in the order of the file."""
        places = {name: place for place, name in enumerate(self.nodes)}
        waits = {name: len({port.node for port in self.inputs.get(name, [])}) for name in self.nodes}
        readers: dict[str, list[str]] = {}
        for name, ports in self.inputs.items():
            for read in {port.node for port in ports}:
                readers.setdefault(read, []).append(name)
        free = [(place, name) for name, place in places.items() if not waits[name]]
        heapq.heapify(free)
        done: dict[str, Node] = {}
        while free:
            _, name = heapq.heappop(free)
            done[name] = self._node(name)
            for reader in readers.get(name, []):
                waits[reader] -= 1
                if not waits[reader]:
                    heapq.heappush(free, (places[reader], reader))
        return done

    def _node(self, name: str) -> Node:
        node, ports = self.nodes[name], tuple(self.inputs.get(name, []))
        return Node(name, node.kind, self.configs[name], ports, node.line, dict(node.field_lines), node.file)
