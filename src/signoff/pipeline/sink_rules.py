"""What sinks may not do: write to one place, contradict themselves, refuse what was acknowledged before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from signoff.pipeline.draft import DraftNode
from signoff.pipeline.findings import Findings
from signoff.pipeline.graph import Graph, Port
from signoff.pipeline.model import NodeConfig, SinkConfig, TransformConfig


@dataclass(frozen=True)
class SinkRules:
    """Of the sinks of one draft."""

    nodes: Mapping[str, DraftNode]
    configs: Mapping[str, NodeConfig]
    base: Path
    findings: Findings

    def targets(self) -> None:
        taken: dict[str, DraftNode] = {}
        for name, config in self.configs.items():
            target = config.target(self.base) if isinstance(config, SinkConfig) else None
            if target is None:
                continue
            node = self.nodes[name]
            other = taken.setdefault(target, node)
            if other is not node:
                message = f"{node.label} writes to the same place as {other.label}"
                hint = "give each its own, or make them one sink with several inputs"
                self.findings.problems.append(node.problem("same-target", message, hint=hint))

    def buffers(self) -> None:
        """What a sink says about waiting must not contradict itself, and each buffer belongs to one sink."""
        taken: dict[str, DraftNode] = {}
        for name, config in self.configs.items():
            if isinstance(config, SinkConfig):
                self._contradictions(self.nodes[name], config)
                self._one_buffer_each(name, config, taken)

    def _contradictions(self, node: DraftNode, config: SinkConfig) -> None:
        def found(code: str, message: str, at: str, hint: str) -> None:
            self.findings.problems.append(node.problem(code, f"{node.label} {message}", at=at, hint=hint))

        if config.authoritative and config.best_effort:
            hint = "an event waits for the one and never for the other: choose"
            found("contradiction", "is authoritative and best effort at once", "best_effort", hint)
        signs = config.best_effort or (config.buffer is not None and config.buffer.acknowledgements)
        if signs and config.on_failure == "refuse":
            message = "cannot refuse events that are acknowledged before it has seen them"
            hint = "use on_failure: dead_letter, or let events wait for it (buffer.acknowledgements: false)"
            found("cannot-refuse", message, "on_failure", hint)
        if config.type in ("pipeline", "job") and (config.buffer or config.best_effort or config.ordered_by):
            at = "buffer" if config.buffer else "best_effort" if config.best_effort else "ordered_by"
            found("no-buffer", "is a log already, and needs no buffer", at, "remove the field")

    def _one_buffer_each(self, name: str, config: SinkConfig, taken: dict[str, DraftNode]) -> None:
        node = self.nodes[name]
        buffer = config.buffer.name if config.buffer and config.buffer.name else name
        step = self.nodes.get(buffer)
        other = step if step is not None and step.kind == "transform" else taken.setdefault(buffer, node)
        if other is not node:
            message = f'{node.label} has the same buffer as {other.label}: "{buffer}"'
            at = "buffer.name" if config.buffer and config.buffer.name else ""
            self.findings.problems.append(
                node.problem("same-buffer", message, at=at, hint="give it another name")
            )

    def refusals(self, graph: Graph) -> None:
        """A sink beside an authoritative one gets events that may be acknowledged already."""
        sinks = {
            name: node.config for name, node in graph.sinks.items() if isinstance(node.config, SinkConfig)
        }
        leading = {name for name, config in sinks.items() if config.authoritative}
        for name, config in sinks.items():
            if config.on_failure != "refuse" or name in leading or config.type in ("pipeline", "job"):
                continue
            for source in graph.upstream_sources(name):
                if others := sorted(graph.downstream(source) & leading):
                    node = self.nodes[name]
                    message = f'{node.label} cannot refuse events of "{source}", which "{others[0]}" settles'
                    hint = "use on_failure: dead_letter"
                    self.findings.problems.append(
                        node.problem("cannot-refuse", message, at="on_failure", hint=hint)
                    )

    def settled_before(self, graph: Graph) -> None:
        """Downstream of a step that settles events nothing can be refused: the source could not be told."""
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
                    message = f'{node.label} cannot refuse rows of events that "{name}" has settled'
                    hint = f"use {field}: dead_letter, or acknowledge: delivered"
                    self.findings.problems.append(node.problem("cannot-refuse", message, at=field, hint=hint))
