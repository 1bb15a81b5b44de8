"""What a report is once it is composed: every form shows the same titles, columns, rows and series.

Values stay values here (numbers, dates); each form decides how it writes them, with `texts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, Literal
from zoneinfo import ZoneInfo

import pyarrow as pa

Kind = Literal["text", "integer", "number", "boolean", "date", "time"]
ChartKind = Literal["bar", "line"]


@dataclass(frozen=True)
class Column:
    """A column of a table, or an axis of a chart."""

    name: str
    title: str
    kind: Kind = "text"
    unit: str = ""
    decimals: int | None = None
    """Digits behind the point; None: a number is shown with as many as it takes."""
    grouped: bool = True
    """12,345 rather than 12345; not for what only looks like a number, such as the number of a station."""

    @property
    def heading(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title

    @property
    def is_number(self) -> bool:
        return self.kind in ("integer", "number")


@dataclass(frozen=True)
class Text:
    """Paragraphs, under a heading if there is one."""

    paragraphs: tuple[str, ...]
    heading: str = ""


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Any, ...], ...]
    """All of them, in order."""
    shown: int
    """How many of them a page shows at most; XLSX and JSON hold all."""

    @property
    def hidden(self) -> int:
        return max(len(self.rows) - self.shown, 0)


@dataclass(frozen=True)
class Series:
    name: str
    values: tuple[float | None, ...]
    """One for each place on the x axis; None: there is no row for it."""


@dataclass(frozen=True)
class Chart:
    kind: ChartKind
    title: str
    x: Column
    y: Column
    places: tuple[Any, ...]
    """Values on the x axis, in order."""
    series: tuple[Series, ...]
    stacked: bool = False
    note: str = ""
    """What the chart does not show."""

    @property
    def empty(self) -> bool:
        return all(value is None for one in self.series for value in one.values)


Part = Text | Table | Chart


@dataclass(frozen=True)
class Report:
    title: str
    parts: tuple[Part, ...]
    inputs: Mapping[str, pa.Table]
    """The rows themselves, in order, by the name of their input."""
    about: tuple[tuple[str, str], ...] = ()
    """Facts that stand under the title: names and texts."""
    created: datetime | None = None
    """The stamp. All that differs between two reports of the same rows."""
    zone: tzinfo = field(default=ZoneInfo("UTC"))
    """In which times are shown."""
    font: Path | None = None
    """A TrueType font for the PDF, for scripts that the built-in one does not have."""

    @property
    def zone_name(self) -> str:
        return str(getattr(self.zone, "key", self.zone))

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(part for part in self.parts if isinstance(part, Table))

    @property
    def charts(self) -> tuple[Chart, ...]:
        return tuple(part for part in self.parts if isinstance(part, Chart))
