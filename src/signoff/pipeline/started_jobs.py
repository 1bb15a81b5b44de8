"""Sinks that start jobs: what of the job's file they must fit, found out when the pipeline is loaded.

The parameters of the job give the expressions of the sink their types: what does not fit is found by `check`,
and for a row that does not fit it is that row's error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, Field, PrivateAttr

from signoff.errors import PipelineError, Problem
from signoff.pipeline.graph import Graph, Node
from signoff.pipeline.job_settings import Parameter
from signoff.pipeline.model import SinkConfig
from signoff.pipeline.suggestions import suggestion

KEY, GIVEN = "__key_", "__parameter_"
"""Begin the columns that bring the parts of the key, and the values of the parameters."""


def _as_sql(value: object) -> object:
    """YAML makes a number or a truth value of what is an expression all the same."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Expression = Annotated[str, BeforeValidator(_as_sql), Field(min_length=1)]


class StartsJob(SinkConfig):
    """A sink that has rows start runs of a job."""

    job: str
    """The job's file; relative to the pipeline file."""
    parameters: Mapping[str, Expression] = {}
    """Values of the job's parameters, as Spark SQL over the row. One without an entry, or null, has its
    default."""
    key: Annotated[tuple[Expression, ...], BeforeValidator(_as_list), Field(min_length=1)] | None = None
    """Spark SQL over the row: rows in which all of these are the same ask for the same run. By default the
    values of the parameters."""

    _declared: Mapping[str, Parameter] = PrivateAttr(default_factory=dict)

    def of_job(self, declared: Mapping[str, Parameter]) -> StartsJob:
        """The same, knowing the parameters of its job."""
        found = self.model_copy()
        found._declared = dict(declared)
        return found

    def misfit(self, declared: Mapping[str, Parameter]) -> str:
        """Why the parameters of the job, as it is now, are not those that this sink gives; '' if they are."""
        for name in self.parameters:
            if name not in declared:
                return f'it has no parameter "{name}" any more, which this sink gives'
            if name in self._declared and declared[name].type != self._declared[name].type:
                return f'its parameter "{name}" is {declared[name].type} now: start the pipeline again'
        for name, parameter in declared.items():
            if parameter.required and name not in self.parameters:
                return f'its parameter "{name}" needs a value by now, and this sink gives none'
        return ""

    def belongs_to_project(self, base: Path) -> bool:
        return (base / self.job).resolve().is_relative_to(base.resolve())

    def expressions(self) -> Mapping[str, str]:
        keys = self.key if self.key is not None else ()
        found = {f"{KEY}{number}": sql for number, sql in enumerate(keys)}
        return found | {GIVEN + name: self._typed(name, sql) for name, sql in self.parameters.items()}

    def field_of(self, expression: str) -> str:
        if expression.startswith(GIVEN):
            return f"parameters.{expression.removeprefix(GIVEN)}"
        return f"key.{expression.removeprefix(KEY)}"

    def _typed(self, name: str, sql: str) -> str:
        declared = self._declared.get(name)
        return sql if declared is None else f"CAST(({sql}\n) AS {declared.type.upper()})"


def with_jobs(graph: Graph, load_job: Callable[[Path], Graph], *, lenient: bool = False) -> Graph:
    """The pipeline, each of its sinks that start jobs knowing the parameters of its job, and the texts of
    these jobs. Raises PipelineError with all that does not fit. `lenient`: for looking at a pipeline, not for
    running it; a job that cannot be read is passed over."""
    starting = {name: node for name, node in graph.sinks.items() if isinstance(node.config, StartsJob)}
    if not starting:
        return graph
    nodes, texts, problems = dict(graph.nodes), dict(graph.texts), list[Problem]()
    for name, node in starting.items():
        config = node.config
        assert isinstance(config, StartsJob)
        try:
            job = load_job(graph.base / config.job)
        except PipelineError as error:
            problems += _of_file(node, config, error)
            continue
        texts |= job.texts
        problems += _misfits(node, config, job)
        nodes[name] = replace(node, config=config.of_job(job.settings.parameters))
    if problems and not lenient:
        raise PipelineError(problems)
    return replace(graph, nodes=nodes, texts=texts)


def _of_file(node: Node, config: StartsJob, error: PipelineError) -> Iterator[Problem]:
    """What is wrong with the file is said at its own lines; that there is none, where it is named."""
    for problem in error.problems:
        if problem.code == "no-file":
            yield node.problem(
                "no-file", f'job "{config.job}": {problem.message}', at="job", hint=problem.hint
            )
        else:
            yield problem


def _misfits(node: Node, config: StartsJob, job: Graph) -> Iterator[Problem]:
    if not job.is_job:
        message = f'starts "{config.job}", which is a pipeline, and no job'
        hint = "a job has parameters, or reads a table"
        yield node.problem("not-a-job", message, at="job", hint=hint)
        return
    declared = job.settings.parameters
    for name in config.parameters:
        if name not in declared:
            message = f'gives job "{job.name}" the parameter "{name}", which it does not have'
            hint = suggestion(name, declared, "it has")
            yield node.problem("unknown-parameter", message, at=f"parameters.{name}", hint=hint)
    for name, parameter in declared.items():
        if parameter.required and name not in config.parameters:
            message = f'gives no value for the parameter "{name}" ({parameter.type}) of job "{job.name}"'
            hint = "add it to parameters, or give it a default in the job"
            yield node.problem("unknown-parameter", message, at="parameters", hint=hint)


def jobs_started(graph: Graph) -> dict[str, StartsJob]:
    """By sink, the configs of those that start jobs."""
    return {name: node.config for name, node in graph.sinks.items() if isinstance(node.config, StartsJob)}
