"""`signoff test FILE`: run the tests of a pipeline."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from signoff.cli.junit import junit
from signoff.cli.reading import AsJson, PipelineFile, load_for_reading
from signoff.errors import SignoffError
from signoff.pipeline.secrets import redact
from signoff.terminal import say

if TYPE_CHECKING:
    from signoff.pipeline.graph import Graph
    from signoff.pipeline.tests_block import Case


@dataclass(frozen=True)
class Verdict:
    """How one test ended."""

    name: str
    place: str
    """File and line of it."""
    seconds: float
    differences: tuple[tuple[str, str], ...] = ()
    """Where in the test, and the text of the diff."""
    error: str = ""
    """Why it could not be run at all."""

    @property
    def passed(self) -> bool:
        return not self.differences and not self.error


def command(
    file: PipelineFile,
    pattern: Annotated[
        str, typer.Option("-k", metavar="TEXT", help="Only tests whose name contains this text.")
    ] = "",
    as_json: AsJson = False,
    junit_file: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Write the results as JUnit XML, for CI.")
    ] = None,
) -> None:
    """Run the tests of a pipeline, without its servers.

    Exits with 0 when all pass, 1 when one does not, 2 when the file is invalid or no test is selected.
    """
    graph = load_for_reading(file)
    chosen = [case for case in graph.tests.cases if pattern.lower() in case.name.lower()]
    if not chosen:
        there = ", ".join(f'"{case.name}"' for case in graph.tests.cases)
        said = (
            f"no test is called like {pattern!r}; there is: {there}" if there else "there is no tests: block"
        )
        say(f"{file}: {said}", err=True)
        raise typer.Exit(2)
    if not as_json:
        say(f"{file}: {len(chosen)} test{'' if len(chosen) == 1 else 's'}; starting Spark …", err=True)
    verdicts = []
    with _no_log():
        for case in chosen:
            verdicts.append(_run(graph, case))
            if not as_json:
                say(_text(verdicts[-1]))
    if junit_file is not None:
        junit_file.write_text(junit(graph.name, verdicts), encoding="utf-8")
    failed = sum(not verdict.passed for verdict in verdicts)
    if as_json:
        say(json.dumps(_as_json(file, verdicts), ensure_ascii=False))
    else:
        say(f"{len(verdicts) - failed} passed, {failed} failed")
    raise typer.Exit(1 if failed else 0)


@contextmanager
def _no_log() -> Iterator[None]:
    """What a run logs is no news in a test: a dead letter may be what is expected."""
    logger, handler = logging.getLogger("signoff"), logging.NullHandler()
    before, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before


def _run(graph: Graph, case: Case) -> Verdict:
    from signoff.testing import differences, run_case

    line = graph.tests.lines[case.name]
    place = f"{line.file}:{int(line)}"
    began = time.monotonic()
    try:
        found = differences(case, run_case(graph, case))
    except SignoffError as error:
        return Verdict(case.name, place, time.monotonic() - began, error=redact(str(error)))
    shown = tuple((each.at, str(each)) for each in found)
    return Verdict(case.name, place, time.monotonic() - began, shown)


def _text(verdict: Verdict) -> str:
    head = f"{'ok    ' if verdict.passed else 'FAILED'}  {verdict.name}  ({verdict.seconds:.1f} s)"
    if verdict.passed:
        return head
    texts = [verdict.error] if verdict.error else [text for _, text in verdict.differences]
    lines = [f"    {line}" for text in texts for line in text.splitlines()]
    return "\n".join([head, f"    {verdict.place}", *lines])


def _as_json(file: Path, verdicts: list[Verdict]) -> dict[str, Any]:
    return {
        "file": str(file),
        "passed": sum(verdict.passed for verdict in verdicts),
        "failed": sum(not verdict.passed for verdict in verdicts),
        "tests": [
            {
                "name": verdict.name,
                "place": verdict.place,
                "passed": verdict.passed,
                "seconds": round(verdict.seconds, 3),
                "error": verdict.error,
                "differences": [{"at": at, "text": text} for at, text in verdict.differences],
            }
            for verdict in verdicts
        ],
    }
