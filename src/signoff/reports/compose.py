"""From a template and rows to a report: order, columns, series and numbers in texts, the same for all forms.

Rows are sorted here, by what the template says and then by all columns from left to right: rows come from
parallel tasks in any order, and the report must not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from signoff.json_text import json_values
from signoff.pipeline.masking import brief
from signoff.reports.combining import COMBINED, drawable, extreme
from signoff.reports.model import Chart, Column, Kind, Part, Report, Series, Table, Text
from signoff.reports.template import (
    ChartTemplate,
    ColumnTemplate,
    PartTemplate,
    TableTemplate,
    Template,
    TextTemplate,
    asked,
    filled,
    split_name,
)
from signoff.reports.texts import decimals_of, is_label, number, shown, title_of

MOST_SERIES = 5
"""More lines or kinds of bars than this nobody tells apart."""
_MOST_DECIMALS = 6
"""Of a DECIMAL column that is shown with all of them."""
_UNDRAWN = "numbers that are not finite, or too large to draw, are left out"


def compose(
    template: Template,
    rows: Mapping[str, pa.Table],
    created: datetime | None = None,
    font: Path | None = None,
) -> Report:
    """The report. `rows`: by input, in the order of their tables where the template has none."""
    zone = ZoneInfo(template.timezone)
    inputs = {name: _in_order(table, ()) for name, table in rows.items()}
    numbers = _Numbers(inputs, zone)
    content = template.content or [TableTemplate(table=name) for name in rows]
    parts = [_part(each, inputs, numbers) for each in content]
    return Report(
        title=numbers.fill(template.title),
        parts=tuple(parts),
        inputs=inputs,
        about=tuple((name, numbers.fill(text)) for name, text in template.about.items()),
        created=created,
        zone=zone,
        font=font,
    )


def _part(part: PartTemplate, inputs: Mapping[str, pa.Table], numbers: _Numbers) -> Part:
    """One part; what cannot be made of these rows says so in its place, and the others are there."""
    if isinstance(part, TextTemplate):
        paragraphs = [each.strip() for each in numbers.fill(part.text).split("\n\n")]
        return Text(tuple(filter(None, paragraphs)), numbers.fill(part.heading))
    try:
        if isinstance(part, TableTemplate):
            return _table(part, inputs.get(part.table), numbers)
        return _chart(part, inputs.get(part.of), numbers)
    except Exception as error:  # noqa: BLE001 - rows come as they are, and people wait for the rest
        return Text((f"This could not be made of the rows: {brief(error)}.",), part.title or "")


class _Numbers:
    """What stands for the placeholders of texts."""

    def __init__(self, inputs: Mapping[str, pa.Table], zone: tzinfo) -> None:
        self._inputs, self.zone = inputs, zone

    def fill(self, text: str) -> str:
        return filled(text, {each: self._shown(*each) for each in asked(text)})

    def _shown(self, function: str, name: str, decimals: int | None) -> str:
        try:
            return self._of(function, name, decimals)
        except Exception:  # noqa: BLE001 - one strange number is not worth the report
            return "–"

    def _of(self, function: str, name: str, decimals: int | None) -> str:
        input_, column = split_name(name, self._inputs)
        table = self._inputs.get(input_)
        if table is None or not table.num_columns:  # no row has come, to say which columns there are
            return number(0, decimals) if function in ("count", "sum") else "–"
        if column and column not in table.column_names:
            return "–"
        if not column:
            return number(table.num_rows, decimals) if function == "count" else "–"
        about = column_of(ColumnTemplate(column=column, decimals=decimals), table)
        values = [value for value in table[column].to_pylist() if value is not None]
        as_shown = [value for value in _values(table, about) if value is not None]
        if function == "count":
            return number(len(values), decimals)
        if not values or (function in ("sum", "mean") and not about.is_number):
            return number(0, decimals) if function == "sum" and about.is_number else "–"
        if function in ("min", "max"):
            return shown(as_shown[extreme(function, values, as_shown)], about, self.zone)
        about = replace(about, decimals=decimals) if function == "mean" else about
        chosen = as_shown if function == "first" else values
        return shown(COMBINED[function](chosen), about, self.zone)


def _table(part: TableTemplate, rows: pa.Table | None, numbers: _Numbers) -> Table:
    title = numbers.fill(part.title) if part.title is not None else title_of(part.table)
    if rows is None or not rows.num_columns:  # nothing came, so nobody knows which columns would have
        named = tuple(column_of(each, pa.table({})) for each in part.columns)
        return Table(title, named, (), part.rows)
    ordered = _in_order(rows, part.order_by) if part.order_by else rows
    chosen = part.columns or tuple(ColumnTemplate(column=name) for name in rows.column_names)
    columns = tuple(column_of(each, ordered) for each in chosen)
    values = [_values(ordered, column) for column in columns]
    return Table(title, columns, tuple(zip(*values, strict=True)), part.rows)


def _chart(part: ChartTemplate, rows: pa.Table | None, numbers: _Numbers) -> Chart:
    table = rows if rows is not None else pa.table({})
    x = column_of(ColumnTemplate(column=part.x, title=part.x_title), table)
    y = column_of(ColumnTemplate(column=part.y[0], title=part.y_title, unit=part.unit), table)
    several = len(part.y) > 1
    if several or part.combine == "count":
        title = part.y_title or ("Number of rows" if part.combine == "count" else "")
        y = replace(y, title=title, kind="number", grouped=True, decimals=None)
    places, found, whole = _series(part, x, table, numbers.zone)
    left_out = len(found) - MOST_SERIES
    if left_out > 0:
        largest = sorted(found, key=lambda name: -_size(found[name]))[:MOST_SERIES]
        found = {name: values for name, values in found.items() if name in largest}
    notes = [] if whole else [_UNDRAWN]
    notes += [f"{MOST_SERIES} of {MOST_SERIES + left_out} series shown, the largest"] if left_out > 0 else []
    if part.chart == "bar":
        chosen = _places(part, places, found)
        if len(chosen) < len(places):
            notes.append(f"{len(chosen)} of {number(len(places))} shown, the largest")
        places, found = [places[i] for i in chosen], {n: [v[i] for i in chosen] for n, v in found.items()}
    return Chart(
        kind=part.chart,
        title=numbers.fill(part.title),
        x=x,
        y=y,
        places=tuple(places),
        series=tuple(Series(name, tuple(values)) for name, values in found.items()),
        stacked=part.stacked,
        note="; ".join(notes),
    )


def _series(
    part: ChartTemplate, x: Column, table: pa.Table, zone: tzinfo
) -> tuple[list[Any], dict[str, list[float | None]], bool]:
    """The places on the x axis, the values of each series there, and whether they are all that there are."""
    if part.x not in table.column_names or any(name not in table.column_names for name in part.y):
        return [], {}, True
    at = _values(table, x)
    on_axis = _on_axis(part, x, at)
    whole = on_axis == [place is not None for place in at]
    names = [[title_of(name)] * len(at) for name in part.y]
    if part.by is not None and part.by in table.column_names:
        by = column_of(ColumnTemplate(column=part.by), table)
        prefix = f"{by.title} " if by.is_number or by.kind == "boolean" else ""
        names = [[prefix + (shown(value, by, zone) or "none") for value in _values(table, by)]]
    gathered: dict[tuple[str, Any], list[float]] = {}
    for column, series in zip(part.y, names, strict=True):
        amounts = _amounts(table, column, part.combine)
        for place, there, name, value in zip(at, on_axis, series, amounts, strict=True):
            if there and value is not None:
                gathered.setdefault((name, place), []).append(value)
    places = _ordered({place for _, place in gathered}, part.x_order)
    order = dict.fromkeys(name for series in names for name in sorted(set(series)))
    found: dict[str, list[float | None]] = {}
    for name in order:
        united = [_united(part, gathered.get((name, place))) for place in places]
        found[name] = [None if value is None else drawable(value) for value in united]
        whole = whole and [value is None for value in united] == [value is None for value in found[name]]
    drawn = {name: values for name, values in found.items() if any(value is not None for value in values)}
    return places, drawn, whole


def _on_axis(part: ChartTemplate, x: Column, at: Sequence[Any]) -> list[bool]:
    """Which of the places can be found on the axis: for lines, infinity cannot."""
    if part.chart == "line" and x.is_number:
        return [place is not None and drawable(float(place)) is not None for place in at]
    return [place is not None for place in at]


def _united(part: ChartTemplate, values: list[float] | None) -> float | None:
    return COMBINED[part.combine](values) if values else None


def _ordered(places: set[Any], known: Sequence[str]) -> list[Any]:
    """Those that the template names first, as it names them."""
    rank = {name: index for index, name in enumerate(known)}
    return sorted(sorted(places), key=lambda place: rank.get(str(place), len(rank)))


def _amounts(table: pa.Table, name: str, combine: str) -> list[float | None]:
    column = table[name]
    if combine == "count":
        return [None if value is None else 1.0 for value in column.to_pylist()]
    if not _is_amount(column.type):
        return [None] * table.num_rows
    return [None if value is None else float(value) for value in column.to_pylist()]


def _places(part: ChartTemplate, places: Sequence[Any], found: Mapping[str, list[float | None]]) -> list[int]:
    """Which places a bar chart shows, and in which order."""
    totals = [sum(abs(values[i] or 0.0) for values in found.values()) for i in range(len(places))]
    by_size = sorted(range(len(places)), key=lambda i: (-totals[i], i))[: part.most]
    return by_size if part.largest_first else sorted(by_size)


def _size(values: Sequence[float | None]) -> float:
    return sum(abs(value or 0.0) for value in values)


def column_of(part: ColumnTemplate, table: pa.Table) -> Column:
    """A column as the template and its type make it."""
    kind: Kind = "text"
    decimals = part.decimals
    if part.column in table.column_names:
        arrow = table.schema.field(part.column).type
        kind = _kind(arrow)
        if kind == "number" and decimals is None:
            scale = arrow.scale if pt.is_decimal(arrow) else None
            fixed = scale is not None and scale <= _MOST_DECIMALS
            decimals = scale if fixed else decimals_of(table[part.column].to_pylist())
    title = title_of(part.column) if part.title is None else part.title
    grouped = not is_label(part.column) if part.grouped is None else part.grouped
    return Column(part.column, title, kind, part.unit, decimals, grouped)


def _kind(kind: pa.DataType) -> Kind:
    if pt.is_boolean(kind):
        return "boolean"
    if pt.is_integer(kind):
        return "integer"
    if pt.is_floating(kind) or pt.is_decimal(kind):
        return "number"
    if pt.is_date(kind):
        return "date"
    return "time" if pt.is_timestamp(kind) else "text"


def _is_amount(kind: pa.DataType) -> bool:
    return _kind(kind) in ("integer", "number")


def _values(table: pa.Table, column: Column) -> list[Any]:
    """The values of a column; of types that have no form of their own, their text in JSON."""
    found = table[column.name]
    if column.kind != "text" or pt.is_string(found.type) or pt.is_large_string(found.type):
        values: list[Any] = found.to_pylist()
        return values
    return [None if text is None else text.strip('"') for text in _json(found).to_pylist()]


def _in_order(table: pa.Table, order_by: Sequence[str]) -> pa.Table:
    """Sorted by some columns (`-name`: downwards), and by all others."""
    names = list(dict.fromkeys([*(name.removeprefix("-") for name in order_by), *table.column_names]))
    names = [name for name in names if name in table.column_names]
    down = {name[1:] for name in order_by if name.startswith("-")}
    if not names or table.num_rows < 2:
        return table
    keys = pa.table([_sortable(table[name]) for name in names], names=[str(i) for i in range(len(names))])
    order = [(str(i), "descending" if name in down else "ascending") for i, name in enumerate(names)]
    return table.take(pc.sort_indices(keys, sort_keys=order))


def _sortable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    simple = pt.is_primitive(kind) and not pt.is_duration(kind)
    text = pt.is_string(kind) or pt.is_large_string(kind)
    return column if simple or text or pt.is_decimal(kind) else _json(column)


def _json(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([json_values(chunk) for chunk in column.chunks], pa.large_string())
