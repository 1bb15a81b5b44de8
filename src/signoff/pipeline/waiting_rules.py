"""How long events may wait: for sinks, in steps that hold them, and until their source stops waiting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from signoff.pipeline.draft import DraftNode
from signoff.pipeline.findings import Findings
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import NodeConfig, SinkConfig, SourceConfig, TransformConfig
from signoff.pipeline.settings import Settings

_LEASE = 0.9
"""The share of a broker's patience that may be used up."""


@dataclass(frozen=True)
class WaitingRules:
    """Of one draft."""

    nodes: Mapping[str, DraftNode]
    configs: Mapping[str, NodeConfig]
    findings: Findings

    def expiry(self, settings: Settings | None) -> None:
        """`acknowledge_within` is of use only where the source is told the outcome of its events."""
        for name, config in self.configs.items():
            if not isinstance(config, SourceConfig):
                continue
            node, wanted = self.nodes[name], config.acknowledgements
            if wanted is None:
                wanted = settings is None or settings.acknowledgements
            if config.expires_in_vain(wanted and config.can_acknowledge):
                why = "its acknowledgements are off" if config.can_acknowledge else "cannot be acknowledged"
                message = f"{node.label} ({config.type}) has acknowledge_within, but {why}"
                hint = "no negative answer could be given; remove the field"
                self.findings.problems.append(
                    node.problem("cannot-expire", message, at="acknowledge_within", hint=hint)
                )

    def holding(self, graph: Graph) -> None:
        """A step that holds events must release them before their source, or its broker, stops waiting."""
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
            f"delivers none while {room} are unacknowledged{rate}: with more than that it waits for ever"
        )
        if not step.lets_go:
            hint = f"set {step.lets_go_by}, or use acknowledge: save_point"
            self.findings.problems.append(
                self.nodes[name].problem("may-deadlock", message, at="acknowledge", hint=hint)
            )
        elif step.needs_later_events:
            hint = "raise the limits so that the events of that time fit, or use acknowledge: save_point"
            self.findings.warnings.append(
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
            self.findings.problems.append(
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
            self.findings.warnings.append(
                source.problem("consumer-timeout", message, at="acknowledge_within", hint=hint)
            )

    def _compare(self, source: DraftNode, patience: float, sink: str, named: bool) -> None:
        config, node = self.configs[sink], self.nodes[sink]
        assert isinstance(config, SinkConfig)
        longest, retry = config.retry.longest_s, config.retry
        if longest is None and named:
            may = "retries for ever (retry.attempts: null)"
        elif longest is not None and longest > patience:
            may = f"may retry for {longest:g} s ({retry.attempts} attempts, waits up to {retry.max_ms} ms)"
        else:
            return
        message = f"{node.label} {may}, but {source.label} gets its events again after {patience:g} s"
        hint = (
            "raise the timeout at the broker and here, or retry less; messages with an id are not taken twice"
        )
        self.findings.warnings.append(node.problem("consumer-timeout", message, at="retry", hint=hint))
