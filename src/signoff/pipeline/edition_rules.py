"""What must hold where a node reads a sink: it gets what that has published in a run of a job.

The row is there when the sink has finished, which is at the end of the run. So only a job can have such
readers; nothing that is to be finished before may wait for it; and no mail of the same run can wait for the
file alone, which is published only when that mail is sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from signoff.errors import Problem
from signoff.pipeline.graph import Graph, Node
from signoff.pipeline.model import SinkConfig

_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)


def publishes(node: Node) -> bool:
    """Whether other nodes may read it although it is a sink."""
    return isinstance(node.config, SinkConfig) and bool(node.config.edition_columns)


def read_publishers(graph: Graph) -> list[str]:
    """The sinks whose editions go on to something else, in the order of the file."""
    return [name for name, node in graph.sinks.items() if publishes(node) and graph.readers(name)]


def problems_of_editions(graph: Graph) -> Iterator[Problem]:
    for name in read_publishers(graph):
        for reader in graph.readers(name):
            if not graph.is_job:
                message = f'reads "{name}", which is a sink, and this is no job'
                hint = "only the run of a job has an end at which its report is handed on; read what it reads"
                yield reader.problem("unknown-input", message, at="input", hint=hint)
        for other in sorted(graph.downstream(name)):
            if publishes(graph.nodes[other]):
                message = f'reads what "{name}" has published, and is published itself'
                hint = "both are made at the end of the run; let a sink that publishes nothing read each"
                yield graph.nodes[other].problem("unknown-input", message, at="input", hint=hint)
    if graph.is_job:
        for node in graph.sinks.values():
            yield from _waiting_for_itself(graph, node)


def _waiting_for_itself(graph: Graph, node: Node) -> Iterator[Problem]:
    """A mail that attaches, by its path, a file which the run publishes only when that mail is sent; until
    then the path has the file of another run, or none."""
    for place, directory, template in _attached(graph, node):
        for other in graph.sinks.values():
            after = {other.name, *graph.downstream(other.name)}
            if not publishes(other) or all(port.node in after for port in node.inputs):
                continue
            for where, name in other.config.writes(graph.base):
                if _may_be(template, where / name, directory):
                    message = (
                        f'attaches {name} of sink "{other.name}", which is written when this mail is sent'
                    )
                    hint = (
                        f"let it read the report: input: {other.name}, with attachments: [{{column: files}}]"
                    )
                    yield node.problem("own-report", message, at=place, hint=hint)


def _attached(graph: Graph, node: Node) -> Iterator[tuple[str, Path, str]]:
    """The fields that say which files a mail has, the directory, and the template of the path."""
    directory = getattr(node.config, "attachments_from", None)
    if directory is not None:
        for number, one in enumerate(getattr(node.config, "attachments", ())):
            if one.path is not None:
                yield f"attachments.{number}.path", (graph.base / directory).resolve(), one.path


def _may_be(template: str, file: Path, directory: Path) -> bool:
    if not file.is_relative_to(directory):
        return False
    pattern, end = "", 0
    for found in _TEMPLATE.finditer(template):
        pattern += re.escape(template[end : found.start()]) + ".*"
        end = found.end()
    pattern += re.escape(template[end:])
    return re.fullmatch(pattern.removeprefix(r"\./"), str(file.relative_to(directory)), re.DOTALL) is not None
