"""From a draft to a checked graph: every structural problem at once, or a Graph that keeps its invariants.

What needs Spark to find (a wrong column, a lost origin) is found by `signoff.engine.spark_check`, which
takes the graph made here. A problem that only follows from another is not reported: a sink that
reads "parsd" does not also make "parsed" unreachable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from signoff.errors import PipelineError, PluginError, Problem
from signoff.pipeline import address_conflicts
from signoff.pipeline.csv_types import problems_of_csv
from signoff.pipeline.disk_rules import DiskRules
from signoff.pipeline.draft import Draft, DraftNode
from signoff.pipeline.edition_rules import problems_of_editions
from signoff.pipeline.findings import Findings, place_of_output
from signoff.pipeline.graph import Graph
from signoff.pipeline.job_check import problems_of_job, with_parameters
from signoff.pipeline.model import KINDS, NAME_PATTERN, Catalog, NodeConfig, SourceConfig, TransformConfig
from signoff.pipeline.parameter_places import in_paths, texts_out_of_place
from signoff.pipeline.path_conflicts import problems_of
from signoff.pipeline.secrets import excerpt, redact
from signoff.pipeline.settings import Settings
from signoff.pipeline.sink_rules import SinkRules
from signoff.pipeline.suggestions import suggestion
from signoff.pipeline.tests_block import read_cases
from signoff.pipeline.validate import validate
from signoff.pipeline.variables import Expansion
from signoff.pipeline.waiting_rules import WaitingRules
from signoff.pipeline.wiring import Wiring

_LONGEST = 300


def check(draft: Draft, catalog: Catalog, environ: Mapping[str, str]) -> Graph:
    """The graph of a draft; raises PipelineError with all problems, in the order of the file."""
    findings = Findings(list(draft.problems))
    checker = _Checker(draft, catalog, Expansion(_with_parameters(draft, environ), draft.base), findings)
    settings = checker.settings()
    checker.names()
    for node in draft.nodes:
        checker.configure(node)
    nodes, configs = checker.nodes, checker.configs
    wiring = Wiring(nodes, configs, findings)
    disks = DiskRules(draft, nodes, configs, findings)
    sinks = SinkRules(nodes, configs, draft.base, findings)
    waiting = WaitingRules(nodes, configs, findings)
    wiring.wire()
    wiring.reached()
    disks.paths(settings)
    sinks.targets()
    sinks.buffers()
    waiting.expiry(settings)
    if findings.problems or settings is None:
        raise PipelineError(_in_order(findings.problems, draft.file))
    written = [draft.settings, *(node.fields for node in draft.nodes)]
    named = in_paths(written) & settings.parameters.keys()
    graph = Graph(settings, draft.file, draft.base, wiring.ordered(), in_paths=frozenset(named))
    sinks.refusals(graph)
    sinks.settled_before(graph)
    disks.shared_disk(graph)
    disks.one_machine(graph)
    findings.problems += problems_of(nodes, configs, draft.base, graph.state)
    findings.problems += address_conflicts.problems_of(nodes, configs)
    waiting.holding(graph)
    tests, wrong = read_cases(draft, graph)
    findings.problems += wrong
    findings.problems += problems_of_job(replace(graph, tests=tests), draft.settings_lines)
    findings.problems += problems_of_editions(graph)
    findings.problems += problems_of_csv(graph)
    findings.problems += texts_out_of_place(draft, settings.parameters, configs)
    if findings.problems:
        raise PipelineError(_in_order(findings.problems, draft.file))
    waiting.patience(graph)
    return replace(graph, warnings=tuple(_in_order(findings.warnings, draft.file)), tests=tests)


def _with_parameters(draft: Draft, environ: Mapping[str, str]) -> Mapping[str, str]:
    parameters = with_parameters(draft.settings, environ)
    if not parameters:
        return environ
    return (
        type(environ)({**environ, **parameters}) if isinstance(environ, dict) else {**environ, **parameters}
    )


def _in_order(problems: list[Problem], file: str) -> list[Problem]:
    unique = dict.fromkeys(problems)
    return sorted(unique, key=lambda problem: (problem.file != file, problem.file, problem.line))


@dataclass
class _Checker:
    draft: Draft
    catalog: Catalog
    expansion: Expansion
    findings: Findings
    nodes: dict[str, DraftNode] = field(default_factory=dict)
    configs: dict[str, NodeConfig] = field(default_factory=dict)

    def settings(self) -> Settings | None:
        pseudo = DraftNode(
            "source", "", self.draft.settings, 0, self.draft.settings_lines, file=self.draft.file
        )
        settings, problems = validate(Settings, pseudo, "the pipeline", self.expansion)
        self.findings.problems += problems
        return settings

    def names(self) -> None:
        for node in self.draft.nodes:
            if not re.match(NAME_PATTERN, node.name):
                message = f"{node.label} may not be called that"
                hint = "begin with a letter and use letters, digits and _ only"
                self.findings.problems.append(node.problem("bad-name", message, hint=hint))
            earlier = self.nodes.setdefault(node.name, node)
            if earlier is not node:
                place = f" in line {earlier.line}" if earlier.line else ""
                message = f"{node.label} has the name of a {earlier.kind}{place}"
                self.findings.problems.append(
                    node.problem("duplicate-name", message, hint="rename one of them")
                )
        for kind in KINDS:
            if kind != "transform" and not any(node.kind == kind for node in self.draft.nodes):
                message = f"the pipeline has no {kind}"
                problem = Problem(f"missing-{kind}", message, f"add one under {kind}s:", self.draft.file)
                self.findings.problems.append(problem)

    def configure(self, node: DraftNode) -> None:
        """Validate one node; a second node of the same name is validated but not wired."""
        config = node.config or self._validated(node)
        if config is None:
            return
        if isinstance(config, SourceConfig) and config.acknowledgements and not config.can_acknowledge:
            message = f"{node.label} ({config.type}) cannot be acknowledged"
            hint = "remove the field; such a source takes part without"
            self.findings.problems.append(
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
            self.findings.problems.append(
                node.problem("missing-field", f'{node.label} needs the field "type"', hint=hint)
            )
            return None
        try:
            model = types.get(type_name) if isinstance(type_name, str) else None
        except PluginError as error:
            message = f"{node.label}: {error.message}"
            self.findings.problems.append(node.problem(error.code, message, at="type", hint=error.hint))
            return None
        if model is None:
            message = f'{node.label} has the unknown type "{type_name}"'
            self.findings.problems.append(
                node.problem("unknown-type", message, at="type", hint=self._other_type(node, str(type_name)))
            )
            return None
        try:
            config, problems = validate(model, node, node.label, self.expansion)
        except Exception as error:
            package = model.__module__.partition(".")[0]
            if package in ("signoff", "builtins"):
                raise
            why = excerpt(redact(f"{type(error).__name__}: {error}"), _LONGEST)
            message = f'{node.label}: the type "{type_name}" of package {package} cannot be used: {why}'
            hint = f"repair or uninstall the package {package}"
            self.findings.problems.append(node.problem("broken-plugin", message, at="type", hint=hint))
            return None
        self.findings.problems += problems
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
                self.findings.problems.append(
                    node.problem("bad-name", message, at=place_of_output(node, output), hint=hint)
                )
