"""What the check of a pipeline has found so far; its rules add to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from signoff.errors import Problem
from signoff.pipeline.draft import DraftNode


@dataclass
class Findings:
    """Problems keep a pipeline from being run; warnings do not."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


def place_of_output(node: DraftNode, output: str) -> str:
    """The field an output is declared in: `routes.high`."""
    return next((place for place in node.field_lines if place.endswith(f".{output}")), "")
