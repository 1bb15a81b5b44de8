"""What a user writes of a report: its title, facts, texts, tables and charts, over inputs and their columns.

In texts, `{count(failures)}` or `{max(failures.voltage)}` stands for a number of the rows, and
`{max(failures.voltage):2}` for one with two decimals. What is wrong in a
template without looking at rows is a ValueError here; `unknown_columns` says what is wrong for given rows.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from signoff.reports.model import ChartKind

Name = Annotated[str, Field(min_length=1)]
Combine = Literal["sum", "mean", "min", "max", "count"]

FUNCTIONS = ("count", "sum", "mean", "min", "max", "first")
_PLACEHOLDER = re.compile(r"\{(\w+)\(\s*([^(){}]*?)\s*\)(?::(\d+))?\}")
_MOST_DECIMALS = 12


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ColumnTemplate(_Model):
    """A column of a table."""

    column: Name
    """Its name in the rows."""
    title: str | None = None
    """Heading; by default made from the name."""
    unit: str = ""
    """Shown with the heading, as in `Voltage (V)`."""
    decimals: int | None = Field(default=None, ge=0, le=_MOST_DECIMALS)
    """Digits behind the point; by default as many as the values need."""
    grouped: bool | None = None
    """Whether thousands are set off (12,345); by default for all numbers but those called `…Id` or `year`."""


def _column(value: object) -> object:
    return {"column": value} if isinstance(value, str) else value


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


class TextTemplate(_Model):
    """Paragraphs; an empty line begins a new one."""

    text: Name
    """The text, with numbers of the rows as in `{count(failures)}`."""
    heading: str = ""
    """Stands above it."""


class TableTemplate(_Model):
    """Rows of one input."""

    table: Name
    """The input."""
    title: str | None = None
    """By default the name of the input."""
    columns: tuple[Annotated[ColumnTemplate, BeforeValidator(_column)], ...] = ()
    """Names, or names with `title`, `unit`, `decimals`, `grouped`; by default all columns."""
    order_by: Annotated[tuple[Name, ...], BeforeValidator(_listed)] = ()
    """Columns, `-name` for the largest first; rows that are equal in them follow by all columns."""
    rows: int = Field(default=100, ge=1)
    """Most rows on the pages of PDF and HTML; a line says how many more there are."""


class ChartTemplate(_Model):
    """A chart of one input."""

    chart: ChartKind
    """`bar` compares amounts, `line` shows how something changes."""
    of: Name
    """The input."""
    title: Name
    """What the chart says."""
    x: Name
    """Column of the x axis: times, numbers or names."""
    x_order: tuple[str, ...] = ()
    """Names on the x axis in the order in which they are to stand; others follow in theirs."""
    y: Annotated[tuple[Name, ...], BeforeValidator(_listed)] = Field(min_length=1, max_length=5)
    """Column of numbers, or several, each a series."""
    by: Name | None = None
    """Column whose values are series of their own."""
    unit: str = ""
    """Of the y axis."""
    x_title: str | None = None
    """By default made from the column's name."""
    y_title: str | None = None
    """By default made from the column's name."""
    combine: Combine = "sum"
    """What rows of the same place and series become."""
    largest_first: bool = False
    """bar: order by value rather than by place."""
    stacked: bool = False
    """bar: series stand on each other, where their sum means something."""
    most: int = Field(default=20, ge=1, le=500)
    """bar: most places shown, the largest; a line says how many more there are."""

    @model_validator(mode="after")
    def _one_way_to_series(self) -> Self:
        if self.by is not None and len(self.y) > 1:
            raise ValueError("a chart has several columns in y, or series by a column, not both")
        if self.stacked and self.chart != "bar":
            raise ValueError("only a bar chart can be stacked")
        return self


def _which(value: Any) -> str:
    fields = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
    return next((name for name in ("table", "chart", "text") if name in fields), "text")


PartTemplate = Annotated[
    Annotated[TextTemplate, Tag("text")]
    | Annotated[TableTemplate, Tag("table")]
    | Annotated[ChartTemplate, Tag("chart")],
    Discriminator(_which),
]


class Template(_Model):
    """A report, but for its rows."""

    title: Name
    """The first thing on it."""
    about: Mapping[str, str] = {}
    """Facts that stand under the title, by name; may hold numbers of the rows as texts do."""
    content: tuple[PartTemplate, ...] = ()
    """Texts, tables and charts in order; by default a table of each input."""
    timezone: str = "UTC"
    """In which times are shown, as in `Europe/Helsinki`."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f'timezone "{self.timezone}" is unknown; write it as Europe/Helsinki') from None
        for text in self._texts():
            for match in _PLACEHOLDER.finditer(text):
                if match[1] not in FUNCTIONS:
                    raise ValueError(f"{match[0]}: there is no {match[1]}; known are {', '.join(FUNCTIONS)}")
                if match[3] and int(match[3][:3]) > _MOST_DECIMALS:
                    raise ValueError(f"{match[0]}: a number has at most {_MOST_DECIMALS} decimals")
        return self

    def _texts(self) -> Iterator[str]:
        yield self.title
        yield from self.about.values()
        for part in self.content:
            if isinstance(part, TextTemplate):
                yield from (part.heading, part.text)
            elif part.title:
                yield part.title

    def uses(self) -> Iterator[tuple[str, str, str]]:
        """What is named of the rows: the field that names it, the input, and the column; '' for none."""
        for place, part in enumerate(self.content):
            at = f"content.{place}"
            if isinstance(part, TableTemplate):
                yield f"{at}.table", part.table, ""
                yield from ((f"{at}.columns", part.table, each.column) for each in part.columns)
                yield from ((f"{at}.order_by", part.table, name.removeprefix("-")) for name in part.order_by)
            elif isinstance(part, ChartTemplate):
                yield f"{at}.of", part.of, ""
                yield from ((f"{at}.{field}", part.of, name) for field, name in _axes(part))

    def unknown_inputs(self, inputs: Collection[str]) -> list[tuple[str, str]]:
        """The fields that name no input, and the name; in texts as well."""
        named = [(field, name) for field, name, _ in self.uses()]
        for text in self._texts():
            for function, named_input, _ in placeholders(text, inputs):
                named.append(("content", named_input if function else ""))
        return [(field, name) for field, name in named if name not in inputs]

    def unknown_columns(self, columns: Mapping[str, Collection[str]]) -> list[tuple[str, str, str]]:
        """The fields that name no column of an input, the input, and the name."""
        named = list(self.uses())
        for text in self._texts():
            named += [("content", name, column) for _, name, column in placeholders(text, columns)]
        return [
            (field, name, column)
            for field, name, column in named
            if column and name in columns and column not in columns[name]
        ]


def _axes(part: ChartTemplate) -> Iterator[tuple[str, str]]:
    yield "x", part.x
    yield from (("y", name) for name in part.y)
    if part.by is not None:
        yield "by", part.by


def placeholders(text: str, inputs: Collection[str]) -> Iterator[tuple[str, str, str]]:
    """Function, input and column ('' for none) of each number that a text asks for."""
    for match in _PLACEHOLDER.finditer(text):
        yield match[1], *split_name(match[2], inputs)


def split_name(name: str, inputs: Collection[str]) -> tuple[str, str]:
    """`failures.voltage` as input and column; an input may itself be `name.output`."""
    for known in sorted(inputs, key=len, reverse=True):
        if name == known or name.startswith(known + "."):
            return known, name[len(known) + 1 :]
    head, _, rest = name.partition(".")
    return head, rest


Asked = tuple[str, str, int | None]
"""Function, name and decimals of a placeholder; None: as many as the values need."""


def filled(text: str, number: Mapping[Asked, str]) -> str:
    """A text with what stands for its placeholders."""
    return _PLACEHOLDER.sub(lambda match: number.get(_asked(match), match[0]), text)


def asked(text: str) -> list[Asked]:
    """What each placeholder asks for."""
    return [_asked(match) for match in _PLACEHOLDER.finditer(text)]


def _asked(match: re.Match[str]) -> Asked:
    return match[1], match[2], None if match[3] is None else int(match[3])
