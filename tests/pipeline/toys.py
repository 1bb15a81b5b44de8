"""A catalog of small node types, so that these tests depend on no real one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from pydantic import Field, SecretStr, model_validator

from signoff.errors import PipelineError, Problem
from signoff.pipeline.graph import Graph
from signoff.pipeline.load import load
from signoff.pipeline.model import Catalog, Config, SinkConfig, SourceConfig, TransformConfig
from signoff.pipeline.secrets import SecretUrl


class Lines(SourceConfig):
    summary: ClassVar[str] = "Lines of files."
    type: Literal["lines"] = "lines"
    path: str
    """A file or a glob."""
    on_acknowledge: Literal["keep", "move", "delete"] = "keep"


class Dice(SourceConfig):
    can_acknowledge: ClassVar[bool] = False
    type: Literal["dice"] = "dice"
    count: int = Field(default=10, ge=1)


class Parse(TransformConfig):
    type: Literal["parse"] = "parse"
    schema_: str = Field(alias="schema")
    """Columns and their types. In DDL."""


class Keep(TransformConfig):
    type: Literal["keep"] = "keep"
    where: str


class Split(TransformConfig):
    type: Literal["split"] = "split"
    routes: dict[str, str] = Field(min_length=1)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.routes)


class Run(TransformConfig):
    type: Literal["python"] = "python"
    function: str | Callable[..., Any]
    mode: Literal["frame", "rows"] = "frame"


class Login(Config):
    user: str = "me"
    password: SecretStr | None = None


class Table(SinkConfig):
    summary: ClassVar[str] = "A table."
    type: Literal["table"] = "table"
    table: str
    url: SecretUrl | None = None
    token: SecretStr | None = None
    headers: dict[str, SecretStr] = Field(default={})
    login: Login = Login()
    sizes: int | list[int] = 1
    first: int = 0
    last: int = 9

    @model_validator(mode="after")
    def _in_order(self) -> Table:
        if self.first > self.last:
            raise ValueError("`first` must not be above `last`")
        return self

    def target(self, base: Path) -> str | None:
        return f"table {self.table}" if self.url is None else None


CATALOG = Catalog(
    sources={"lines": Lines, "dice": Dice},
    transforms={"parse": Parse, "keep": Keep, "split": Split, "python": Run},
    sinks={"table": Table},
)

GOOD = """\
name: alarms
sources:
  incoming:
    type: lines
    path: ./in
transforms:
  parsed:
    type: parse
    input: incoming
    schema: "a INT, b STRING"
  kinds:
    type: split
    input: parsed
    routes: {high: a > 5, low: a <= 5}
sinks:
  all:
    type: table
    input: parsed
    table: everything
    retry: {attempts: 5}
  some:
    type: table
    inputs: [kinds.high, kinds.low]
    table: some
"""


def graph_of(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> Graph:
    file = folder / "alarms.yaml"
    file.write_text(text, encoding="utf-8")
    return load(file, CATALOG, environ or {})


def problems_of(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> list[Problem]:
    with pytest.raises(PipelineError) as caught:
        graph_of(folder, text, environ)
    return list(caught.value.problems)


def only_problem(folder: Path, text: str, environ: Mapping[str, str] | None = None) -> Problem:
    problems = problems_of(folder, text, environ)
    assert len(problems) == 1, "\n".join(map(str, problems))
    return problems[0]


def said(problem: Problem) -> str:
    """The problem as a user reads it, without the directory of the test."""
    return str(problem).replace(problem.file, Path(problem.file).name)
