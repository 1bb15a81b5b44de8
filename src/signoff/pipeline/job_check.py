"""What must hold of a job, and of a pipeline that is none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from signoff.errors import Problem
from signoff.pipeline.graph import Graph, Node
from signoff.pipeline.job_settings import Parameter, Value, read_value, text_of
from signoff.pipeline.model import NAME_PATTERN, SinkConfig
from signoff.pipeline.schedule_settings import Schedule

GIVEN = "signoff.parameter."
"""Begins the name under which the value of a parameter stands in the environment a file is read with; no
variable of a shell is called that."""
_SAMPLES = {
    "string": "text", "int": "1", "bigint": "1", "double": "1.0", "boolean": "true", "date": "2021-05-01",
    "timestamp": "2021-05-01T00:00:00Z",
}  # fmt: skip
_UNBOUNDED = ("merge", "dedupe", "throttle", "window", "burst", "fold")
_ONLY_STREAMS = ("buffer", "ordered_by", "best_effort", "authoritative")


def given(values: Mapping[str, Value]) -> dict[str, str]:
    """Values for the environment that a job's file is read with."""
    return {GIVEN + name: text_of(value) for name, value in values.items()}


def with_parameters(settings: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """What `${name}` is for each parameter of a file: the value given, the default, or a sample."""
    declared = settings.get("parameters")
    found: dict[str, str] = {}
    for name, fields in (declared if isinstance(declared, Mapping) else {}).items():
        fields = {"type": fields} if isinstance(fields, str) else fields
        kind = fields.get("type") if isinstance(fields, Mapping) else None
        if kind not in _SAMPLES:
            continue  # said by the model
        sample = _SAMPLES[kind]
        try:
            default = read_value(kind, fields.get("default"))
        except ValueError:
            default = None
        found[str(name)] = environ.get(GIVEN + str(name), sample if default is None else text_of(default))
    return found


def problems_of_job(graph: Graph, lines: Mapping[str, int]) -> Iterator[Problem]:
    """What is wrong with a job as such. `lines`: of the pipeline's own fields."""
    settings = graph.settings

    def problem(code: str, message: str, at: str, hint: str) -> Problem:
        return Problem(code, message, hint, graph.file, lines.get(at, 0))

    for name in settings.parameters:
        if not re.match(NAME_PATTERN, name):
            hint = "begin with a letter and use letters, digits and _ only"
            yield problem("bad-name", f'a parameter may not be called "{name}"', f"parameters.{name}", hint)
    for field, names in (("key", settings.key), ("period", settings.period)):
        for name in names or ():
            if name not in settings.parameters:
                there = f"there is: {', '.join(settings.parameters) or 'none'}"
                yield problem(
                    "unknown-parameter", f'{field} names "{name}", which is no parameter', field, there
                )
    if settings.schedule is not None:
        given_by = {*settings.schedule.parameters, *(settings.period or ())}
        for name in settings.schedule.parameters.keys() - settings.parameters.keys():
            message = f'the schedule gives "{name}", which is no parameter'
            yield problem("unknown-parameter", message, "schedule.parameters", "correct the name")
        for name, each in settings.parameters.items():
            if each.required and name not in given_by:
                message = f'the schedule gives no value for the parameter "{name}"'
                hint = "add it to schedule.parameters, or give it a default"
                yield problem("unknown-parameter", message, "schedule", hint)
        for name, each in settings.parameters.items():
            if wrong := _unfit(settings.schedule, name, each):
                message = f'the schedule gives the parameter "{name}" what does not fit it: {wrong}'
                hint = "write a part of the period, such as {start:%Y-%m-%d} for a date"
                yield problem("bad-parameter", message, f"schedule.parameters.{name}", hint)
    for node in graph.sources.values():
        needed = getattr(node.config, "needed_to", None)
        if needed is not None and getattr(settings.parameters.get(needed), "type", None) != "timestamp":
            message = f'needed_to names "{needed}", which is no parameter of type timestamp'
            yield node.problem("unknown-parameter", message, at="needed_to", hint="declare it, or correct it")
    for name in settings.period or ():
        parameter = settings.parameters.get(name)
        if isinstance(parameter, Parameter) and parameter.type not in ("date", "timestamp"):
            yield problem(
                "bad-value", f'period: parameter "{name}" is no time', "period", "make it a timestamp"
            )
    if graph.is_job:
        if graph.tests.cases:
            yield problem(
                "job-node", "a job cannot have tests: in its file", "tests", "run it over small tables"
            )
        for node in graph.nodes.values():
            yield from _problems_of(graph, node)


def _unfit(schedule: Schedule, name: str, parameter: Parameter) -> str:
    """Why a value that a schedule gives is none of the parameter's type; '' if it is."""
    for sample in schedule.samples():
        try:
            read_value(parameter.type, sample.get(name))
        except ValueError as error:
            return str(error)
    return ""


def _problems_of(graph: Graph, node: Node) -> Iterator[Problem]:
    config = node.config
    bounded = getattr(config, "bounded", False)
    if node.kind == "source" and not bounded:
        message = f"({config.type}) has no end, and this is a job"
        yield node.problem("job-node", message, at="type", hint="a job reads tables (type: table)")
    if node.kind == "transform" and bounded:
        for port in node.inputs:
            if not getattr(graph.nodes[port.node].config, "bounded", False):
                message = f'reads "{port.node}", which is neither a table nor a query'
                yield node.problem(
                    "job-node", message, at="inputs", hint="do in the query what that step does"
                )
    if node.kind == "transform" and config.type in _UNBOUNDED:
        message = f"({config.type}) is for events that keep coming, and this is a job"
        yield node.problem("job-node", message, at="type", hint="use a sql with GROUP BY, DISTINCT or a join")
    if isinstance(config, SinkConfig):
        for field in _ONLY_STREAMS:
            if getattr(config, field):
                message = f'has the field "{field}", which means nothing in a job'
                yield node.problem(
                    "job-node", message, at=field, hint="leave it out: a job waits for all sinks"
                )
        if config.type in ("pipeline", "job"):
            message = "cannot hand rows of a job on to a pipeline, nor start a job"
            yield node.problem("job-node", message, at="type", hint="write them to a table, files or a queue")
