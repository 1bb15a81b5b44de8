"""Paths that can be used, and are the same place for every process that uses them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from signoff.errors import Problem
from signoff.pipeline.draft import Draft, DraftNode
from signoff.pipeline.findings import Findings
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import NodeConfig
from signoff.pipeline.paths import unusable, unusable_paths_of
from signoff.pipeline.settings import Settings


@dataclass(frozen=True)
class DiskRules:
    """Of one draft."""

    draft: Draft
    nodes: Mapping[str, DraftNode]
    configs: dict[str, NodeConfig]
    findings: Findings

    def paths(self, settings: Settings | None) -> None:
        """Paths that no disk can hold are said here, and not looked at again."""
        for name, config in list(self.configs.items()):
            if why := unusable_paths_of(config, self.draft.base):
                node = self.nodes[name]
                message = f"{node.label} has a path that cannot be used: {why}"
                self.findings.problems.append(node.problem("bad-path", message, at="path", hint="correct it"))
                del self.configs[name]
        if settings is not None and (why := unusable([self.draft.base / settings.state])):
            line = self.draft.settings_lines.get("state", 0)
            message = f"the state directory cannot be used: {why}"
            self.findings.problems.append(Problem("bad-path", message, "correct it", self.draft.file, line))

    def one_machine(self, graph: Graph) -> None:
        """What a step that knows events again remembers is in SQLite, which several machines cannot share."""
        if graph.settings.spark.is_local:
            return
        for node in graph.transforms.values():
            if getattr(node.config, "follows", False):
                message = "keeps its keys in a file that workers on other machines cannot share"
                hint = "use a local master, or a pipeline of its own for the step that has one"
                self.findings.problems.append(node.problem("one-machine", message, hint=hint))

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
        self.findings.problems.append(
            Problem("not-shared", message + ", ".join(places), hint, self.draft.file, line)
        )
