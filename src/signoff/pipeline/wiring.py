"""Which node reads which: inputs become ports, cycles and unread nodes are found, nodes are sorted."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from signoff.pipeline.draft import DraftNode
from signoff.pipeline.findings import Findings, place_of_output
from signoff.pipeline.graph import Node, Port
from signoff.pipeline.model import InputsConfig, NodeConfig, SinkConfig, TransformConfig
from signoff.pipeline.suggestions import did_you_mean, suggestion


@dataclass
class Wiring:
    """Of the nodes of one draft."""

    nodes: Mapping[str, DraftNode]
    configs: Mapping[str, NodeConfig]
    findings: Findings
    inputs: dict[str, list[Port]] = field(default_factory=dict, init=False)
    read: set[str] = field(default_factory=set, init=False)
    """Nodes and outputs somebody reads, or tried to read under a misspelt name."""

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
            self.findings.problems.append(
                node.problem("missing-input", f"{node.label} has no input", hint=hint)
            )
        for text, at in written or []:
            port = self._port(node, text, at)
            if port in ports:
                message = f'{node.label} reads "{port}" twice'
                self.findings.problems.append(
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
        config = self.configs.get(name)
        ends = isinstance(config, SinkConfig) and not config.edition_columns
        if name not in self.nodes or ends:
            self._unknown_input(node, text, name, at)
            return None
        self.read.add(name)
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
        self.findings.problems.append(node.problem("unknown-output", message, at=at, hint=hint))
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
        self.findings.problems.append(node.problem("unknown-input", message, at=at, hint=hint))

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
                self.findings.problems.append(node.problem("cycle", message, at="input", hint=hint))

    def _feeds(self) -> dict[str, list[str]]:
        """Who reads each node."""
        feeds: dict[str, list[str]] = {}
        for name, ports in self.inputs.items():
            for port in ports:
                feeds.setdefault(port.node, []).append(name)
        return feeds

    def _not_in_order(self, feeds: Mapping[str, list[str]]) -> list[str]:
        """The nodes that cannot be sorted after all they read: those in cycles, and those downstream of
        one."""
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
                self.findings.problems.append(
                    node.problem("unreachable", f"nothing reads {node.label}", hint=hint)
                )
                continue
            config = self.configs.get(name)
            needed = config.needed_outputs if isinstance(config, TransformConfig) else ()
            for output in needed:
                if f"{name}.{output}" not in self.read:
                    message = f'nothing reads the output "{output}" of {node.label}'
                    hint = "events that go only there count as dropped"
                    self.findings.warnings.append(
                        node.problem("unused-output", message, at=place_of_output(node, output), hint=hint)
                    )

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
