"""`signoff check FILE`: everything that is wrong with a pipeline, without running it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from signoff.errors import PipelineError, Problem
from signoff.pipeline.graph import Graph
from signoff.terminal import say


def command(
    file: Annotated[Path, typer.Argument(help="The pipeline: YAML, or Python with one Pipeline object.")],
    spark: Annotated[
        bool, typer.Option(help="Ask Spark about expressions, schemas and functions (takes some seconds).")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Report every problem of a pipeline at once.

    One a line: file and line, code, what is wrong, what to do. Exits with 0 when it is fine
    (warnings do not count), 1 when it is not, 2 when there is no such file.
    """
    graph, problems = _checked(file, spark)
    if as_json:
        say(json.dumps(_as_json(file, graph, problems), ensure_ascii=False))
    else:
        for problem in problems:
            say(str(problem))
        for warning in graph.warnings if graph else ():
            say(f"warning: {warning}")
        if graph and not problems:
            say(f"{file} is fine: {_counts(graph)}{'' if spark else ' (expressions not checked)'}")
    if problems:
        raise typer.Exit(2 if problems[0].code == "no-file" else 1)


def _checked(file: Path, spark: bool) -> tuple[Graph | None, list[Problem]]:
    from signoff.catalog import default
    from signoff.pipeline.load import load

    try:
        graph = load(file, default())
    except PipelineError as error:
        return None, list(error.problems)
    if not spark:
        return graph, []
    if graph.is_job:
        from signoff.jobs.check import check as check_job

        return check_job(graph)
    from signoff.engine.spark import class_archive
    from signoff.engine.spark_check import asks_spark, check

    problems = list(check(graph))
    if asks_spark(graph):
        class_archive.make_later()
    return graph, problems


def _counts(graph: Graph) -> str:
    counted = (("source", graph.sources), ("transform", graph.transforms), ("sink", graph.sinks))
    return ", ".join(f"{len(nodes)} {kind}{'' if len(nodes) == 1 else 's'}" for kind, nodes in counted)


def _as_json(file: Path, graph: Graph | None, problems: list[Problem]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "file": str(file),
        "fine": not problems,
        "problems": [asdict(problem) for problem in problems],
        "warnings": [asdict(warning) for warning in graph.warnings] if graph else [],
    }
    if graph:
        result["nodes"] = {name: {"kind": n.kind, "type": n.config.type} for name, n in graph.nodes.items()}
    return result
