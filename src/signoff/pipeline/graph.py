"""The checked pipeline: what the engine compiles, the CLI draws, and the ledger names stages after.

Invariants of a Graph: every input names a node that exists and comes earlier in `nodes`, every
transform and source is read by somebody, node names are unique over all kinds, and each config has
been validated. A Graph pickles, and its `repr` shows no secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from signoff.errors import Problem
from signoff.pipeline.model import Kind, NodeConfig, SourceConfig
from signoff.pipeline.overlays import Layers
from signoff.pipeline.settings import Settings
from signoff.pipeline.tests_block import Cases


@dataclass(frozen=True, slots=True)
class Port:
    """Where rows come from: a node, or one named output of a `route`."""

    node: str
    output: str | None = None

    def __str__(self) -> str:
        return f"{self.node}.{self.output}" if self.output else self.node


@dataclass(frozen=True)
class Node:
    """One source, transform or sink, with its place in the file."""

    name: str
    kind: Kind
    config: NodeConfig
    inputs: tuple[Port, ...] = ()
    line: int = 0
    field_lines: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Line of each field the user wrote; nested ones as `retry.attempts`, `inputs.0`."""
    file: str = ""
    stands_for: str = ""
    """Of a node that nobody wrote: the one in whose place others read it. A sink that tells its inputs apart
    knows them by the names its config gives them."""

    @property
    def label(self) -> str:
        """How messages call it: `sink "warehouse"`."""
        return f'{self.kind} "{self.name}"'

    def line_of(self, path: str = "") -> int:
        """Line of a field, or of what encloses it where the field is not in the file."""
        while path and path not in self.field_lines:
            path = path.rpartition(".")[0]
        return self.field_lines.get(path, self.line)

    def problem(self, code: str, message: str, *, at: str = "", hint: str = "") -> Problem:
        """A problem with this node, placed at its field `at`."""
        return Problem(code, f"{self.label} {message}", hint, self.file, self.line_of(at))


@dataclass(frozen=True)
class Graph:
    """The whole pipeline."""

    settings: Settings
    file: str
    """The pipeline file as the user named it; for messages."""
    base: Path
    """Directory relative paths start at."""
    nodes: Mapping[str, Node]
    """By name, each after the nodes it reads."""
    warnings: tuple[Problem, ...] = ()
    """What is not wrong but probably not meant either."""
    layers: Layers = field(default_factory=Layers, repr=False)
    """What was laid over the file: another process that loads it needs the same."""
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What stood in its files when they were read, by absolute path; that process gets them too."""
    in_paths: frozenset[str] = frozenset()
    """Parameters that stand in a path: no value may lead out of it."""
    tests: Cases = field(default_factory=Cases, repr=False)
    """The `tests:` of the file; nobody but `signoff test` looks at them."""

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def sources(self) -> dict[str, Node]:
        return self._of("source")

    @property
    def transforms(self) -> dict[str, Node]:
        return self._of("transform")

    @property
    def sinks(self) -> dict[str, Node]:
        return self._of("sink")

    @property
    def state(self) -> Path:
        """Directory of log, ledger, checkpoints and dead letters."""
        return (self.base / self.settings.state).resolve()

    @property
    def is_job(self) -> bool:
        """Whether it is a job: a pipeline over tables as they are at one moment, with parameters."""
        return bool(self.settings.parameters or self.settings.schedule) or any(
            getattr(node.config, "bounded", False) for node in self.nodes.values()
        )

    def local_directories(self) -> list[tuple[Node, Path]]:
        """The directories, besides the state, in which executors read or write, and for which node."""
        return [
            (node, path.resolve())
            for node in self.nodes.values()
            for path in node.config.local_directories(self.base)
        ]

    def readers(self, name: str) -> list[Node]:
        """The nodes that name this one as an input."""
        return [node for node in self.nodes.values() if any(port.node == name for port in node.inputs)]

    def downstream(self, name: str) -> set[str]:
        """Every node that rows of this one can reach, without itself."""
        found: set[str] = set()
        for node in self.nodes.values():  # topological order: one pass is enough
            if any(port.node == name or port.node in found for port in node.inputs):
                found.add(node.name)
        return found

    def upstream(self, name: str) -> set[str]:
        """Every node whose rows can reach this one, without itself."""
        found = {port.node for port in self.nodes[name].inputs}
        for node in reversed(list(self.nodes.values())):
            if node.name in found:
                found.update(port.node for port in node.inputs)
        return found

    def upstream_sources(self, name: str) -> set[str]:
        """The sources whose events reach this node; of a source, itself."""
        if self.nodes[name].kind == "source":
            return {name}
        return {node for node in self.upstream(name) if self.nodes[node].kind == "source"}

    def acknowledges(self, source: str) -> bool:
        """Whether this source is told only after settlement."""
        config = self.nodes[source].config
        assert isinstance(config, SourceConfig)
        wanted = config.acknowledgements
        return config.can_acknowledge and (self.settings.acknowledgements if wanted is None else wanted)

    def _of(self, kind: Kind) -> dict[str, Node]:
        return {name: node for name, node in self.nodes.items() if node.kind == kind}
