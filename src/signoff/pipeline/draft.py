"""A pipeline as it was written, before anything is known to be right: the common form of YAML and Python.

`load` and `builder` make a Draft; `check` makes a Graph of it or says everything that is wrong.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from signoff.errors import Problem
from signoff.pipeline.model import Kind, NodeConfig

loading: ContextVar[bool] = ContextVar("loading", default=False)
"""Set while a pipeline file is being run to find its pipeline."""


@dataclass(frozen=True)
class DraftNode:
    """A node whose fields are as the user wrote them, references not expanded."""

    kind: Kind
    name: str
    fields: Mapping[str, Any]
    line: int = 0
    field_lines: Mapping[str, int] = field(default_factory=dict)
    file: str = ""
    config: NodeConfig | None = None
    """Set where a Python program handed over a config that is validated already."""

    @property
    def label(self) -> str:
        return f'{self.kind} "{self.name}"'

    def problem(self, code: str, message: str, *, at: str = "", hint: str = "") -> Problem:
        while at and at not in self.field_lines:
            at = at.rpartition(".")[0]
        return Problem(code, message, hint, self.file, self.field_lines.get(at, self.line))


@dataclass
class Draft:
    """All of a pipeline, and what was found wrong while reading it."""

    file: str
    base: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    settings_lines: Mapping[str, int] = field(default_factory=dict)
    nodes: list[DraftNode] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    tests: dict[str, DraftNode] = field(default_factory=dict)
    """The `tests:` block: each as if it were a node (see `tests_block`)."""


class WrittenInPython(ABC):
    """A pipeline that a Python program has put together; `load` finds it in the program's file."""

    @abstractmethod
    def draft(self, file: Path | None = None) -> Draft:
        """The pipeline as it was written."""
