"""The report as a workbook: numbers and dates that can be computed with, native charts, frozen headers.

    Report          title, facts, texts and charts
    <table>         one sheet for each table, with all its rows
    Chart data      what the charts are drawn from

What Excel cannot hold as a number is a text: integers beyond 15 digits, times before 1900, infinities. A text
is never a formula or a link, whatever it begins with.
"""

from __future__ import annotations

import io
import math
import re
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import xlsxwriter
from xlsxwriter.format import Format
from xlsxwriter.worksheet import Worksheet

from signoff.reports.axes import seconds, time_step
from signoff.reports.charts import caption, lies
from signoff.reports.html import facts
from signoff.reports.model import Chart, Column, Report, Table, Text
from signoff.reports.scene import COLOURS, GRID, text_width
from signoff.reports.texts import local, shown

_MOST_ROWS = 1_048_575
"""Of a sheet, less its header."""
_MOST_TEXT, _MOST_NAME = 32_767, 31
"""Of a cell, and of the name of a sheet."""
_EXACT = 10**15
_FIRST_DAY = datetime(1900, 3, 1)
"""Excel's calendar is wrong before."""
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
_DASHES = ("solid", "dash", "square_dot", "dash_dot", "round_dot")
_MARKERS = ("circle", "square", "diamond", "triangle", "x")
_CHART_ROWS = 17
_DATA = "Chart data"


def render(report: Report) -> bytes:
    out = io.BytesIO()
    options = {
        "in_memory": True,
        "strings_to_formulas": False,
        "strings_to_urls": False,
        "strings_to_numbers": False,
        "default_date_format": "yyyy-mm-dd hh:mm",
    }
    book = xlsxwriter.Workbook(out, options)
    stamp = datetime(2000, 1, 1) if report.created is None else report.created.replace(tzinfo=None)
    book.set_properties({"title": report.title, "created": stamp})
    _Book(book, report).write()
    book.close()
    return out.getvalue()


class _Book:
    def __init__(self, book: xlsxwriter.Workbook, report: Report) -> None:
        self._book, self._report = book, report
        self._names: set[str] = set()
        self._formats: dict[tuple[tuple[str, Any], ...], Format] = {}
        self._data: Worksheet | None = None
        self._data_column = 0

    def write(self) -> None:
        front = self._sheet("Report")
        tables = [(table, self._sheet(table.title)) for table in self._report.tables]
        if self._report.charts:
            self._data = self._sheet(_DATA)
        self._front(front)
        for table, sheet in tables:
            self._table(sheet, table)

    def _sheet(self, title: str) -> Worksheet:
        """Excel takes 31 characters, some not, no apostrophe at an end, and each name once, in any case."""
        plain = re.sub(r"[\[\]:*?/\\]", " ", _in_xml(title)).strip(" '")
        plain = _within(plain, _MOST_NAME).strip(" '") or "Table"
        if plain.lower() == "history":  # kept for itself by Excel
            plain = "History of rows"
        name, again = plain, 2
        while name.lower() in self._names:
            suffix = f" {again}"
            name, again = _within(plain, _MOST_NAME - len(suffix)) + suffix, again + 1
        self._names.add(name.lower())
        return self._book.add_worksheet(name)

    def _format(self, **properties: Any) -> Format:
        key = tuple(sorted(properties.items()))
        if key not in self._formats:
            self._formats[key] = self._book.add_format({"font_name": "Arial", "font_size": 10, **properties})
        return self._formats[key]

    def _front(self, sheet: Worksheet) -> None:
        sheet.hide_gridlines(2)
        sheet.set_column(0, 0, 16)
        sheet.set_column(1, 8, 12)
        sheet.write_string(
            0, 0, self._report.title, self._format(bold=True, font_size=16, font_color=COLOURS[0])
        )
        row = 1
        for name, text in facts(self._report):
            sheet.write_string(row, 0, name, self._format(font_color="#666666"))
            sheet.write_string(row, 1, text, self._format())
            row += 1
        row += 1
        for part in self._report.parts:
            if isinstance(part, Text):
                row = self._text(sheet, row, part)
            elif isinstance(part, Chart):
                row = self._chart(sheet, row, part)
        sheet.set_landscape()
        sheet.fit_to_pages(1, 0)

    def _text(self, sheet: Worksheet, row: int, part: Text) -> int:
        if part.heading:
            sheet.write_string(row, 0, part.heading, self._format(bold=True, font_size=12))
            row += 1
        for paragraph in part.paragraphs:
            wrapped = self._format(text_wrap=True, valign="top")
            sheet.merge_range(row, 0, row, 8, "", wrapped)
            sheet.write_string(row, 0, paragraph[:_MOST_TEXT], wrapped)
            lines = sum(max(1, math.ceil(text_width(line, 10) / 620)) for line in paragraph.split("\n"))
            sheet.set_row(row, 14 * lines + 2)
            row += 1
        return row + 1

    # -- tables

    def _table(self, sheet: Worksheet, table: Table) -> None:
        head = self._format(bold=True, bottom=2, bottom_color=COLOURS[0], text_wrap=True, valign="bottom")
        number_head = self._format(
            bold=True, bottom=2, bottom_color=COLOURS[0], text_wrap=True, valign="bottom", align="right"
        )
        for place, column in enumerate(table.columns):
            sheet.write_string(0, place, column.heading, number_head if column.is_number else head)
            sheet.set_column(place, place, self._width(table, place, column))
        rows = table.rows[:_MOST_ROWS]
        for place, column in enumerate(table.columns):
            form = self._cell_format(column)
            for index, row in enumerate(rows):
                self._cell(sheet, index + 1, place, row[place], column, form)
        if not rows:
            sheet.write_string(1, 0, "No rows.", self._format(font_color="#666666"))
        sheet.freeze_panes(1, 0)
        if rows:
            sheet.autofilter(0, 0, len(rows), len(table.columns) - 1)
        sheet.repeat_rows(0)
        sheet.set_landscape()
        sheet.fit_to_pages(1, 0)

    def _cell_format(self, column: Column) -> Format:
        if column.kind == "date":
            return self._format(num_format="yyyy-mm-dd", align="left")
        if column.kind == "time":
            return self._format(num_format="yyyy-mm-dd hh:mm:ss", align="left")
        if column.is_number:
            return self._format(num_format=_number_format(column))
        return self._format(indent=1)

    def _cell(self, sheet: Worksheet, row: int, place: int, value: Any, column: Column, form: Format) -> None:
        zone = self._report.zone
        if value is None:
            return
        if isinstance(value, bool):
            sheet.write_boolean(row, place, value, form)
        elif isinstance(value, int | float | Decimal) and _is_exact(value):
            sheet.write_number(row, place, float(value), form)
        elif isinstance(value, date) and _is_writable(value, zone):
            here = local(value, zone) if isinstance(value, datetime) else value
            sheet.write_datetime(row, place, here, form)
        else:
            text = str(value) if isinstance(value, int | Decimal) else shown(value, column, zone)
            plain = form if column.kind == "text" else self._format(indent=1)
            sheet.write_string(row, place, text[:_MOST_TEXT], plain)

    def _width(self, table: Table, place: int, column: Column) -> float:
        texts: list[str] = [shown(row[place], column, self._report.zone) for row in table.rows[:200]]
        if column.kind == "time":
            texts.append("2021-05-01 10:00:00")
        lines = [line for text in texts for line in text.split("\n")]
        widest = max([text_width(line, 1) / 0.6 for line in lines], default=0.0)
        words = max([text_width(word, 1) / 0.58 for word in column.heading.split()], default=0.0)
        return min(max(widest, words, min(float(len(column.heading)), 14.0)) + 3, 60.0)

    # -- charts

    def _chart(self, sheet: Worksheet, row: int, part: Chart) -> int:
        if part.empty:
            sheet.write_string(row, 0, part.title, self._format(bold=True, font_size=12))
            sheet.write_string(row + 1, 0, "No rows.", self._format(font_color="#666666"))
            return row + 3
        chart = self._native(part, self._chart_data(part))
        title = {"name": _plain(part.title), "name_font": {"size": 12, "bold": True}, "overlay": False}
        chart.set_title(title)
        chart.set_legend({"none": True} if len(part.series) < 2 else {"position": "top"})
        chart.show_blanks_as("gap")
        chart.set_size({"width": 760, "height": 320})
        sheet.insert_chart(row, 0, chart, {"description": _in_xml(f"{part.title}. {caption(part)}")})
        row += _CHART_ROWS
        if part.note:
            sheet.write_string(row, 0, part.note + ".", self._format(font_color="#666666"))
        return row + 2

    def _native(self, part: Chart, first: int) -> Any:
        """A chart of Excel's own, over the columns of the data that begin at one."""
        lying = part.kind == "bar" and lies(part, self._report.zone)
        subtype = "stacked" if part.stacked else None
        kind = "bar" if lying else "column"
        if part.kind == "line":
            # A chart of Excel's type "line" has its places in a row, however far apart their values are.
            kind, subtype = ("scatter", "straight_with_markers") if _is_scaled(part) else ("line", None)
        chart: Any = self._book.add_chart({"type": kind, **({"subtype": subtype} if subtype else {})})
        last = len(part.places)
        for index, series in enumerate(part.series):
            chart.add_series(
                {
                    "name": [_DATA, 0, first + 1 + index],
                    "categories": [_DATA, 1, first, last, first],
                    "values": [_DATA, 1, first + 1 + index, last, first + 1 + index],
                    **_look(part, index, series.values),
                }
            )
        faint = {"size": 9, "bold": False, "color": "#666666"}
        places: dict[str, Any] = {"name": _plain(part.x.title), "name_font": faint, "num_font": {"size": 9}}
        places |= self._scale(part) if part.kind == "line" else {}
        amounts = {
            "name": _plain(part.y.heading if part.y.title else part.y.unit),
            "name_font": faint,
            "num_font": {"size": 9},
            "major_gridlines": {"visible": True, "line": {"color": GRID, "width": 0.75}},
            "line": {"none": True},
        }
        if lying:  # here the axis of places is called y, and begins at the foot
            every = {"interval_unit": 1, "num_font": {"size": 8}}  # or a program leaves out every other name
            chart.set_y_axis({**places, **every, "reverse": True, "major_gridlines": {"visible": False}})
            chart.set_x_axis({**amounts, "label_position": "high"})
        else:
            chart.set_x_axis(places)
            chart.set_y_axis(amounts)
        return chart

    def _scale(self, part: Chart) -> dict[str, Any]:
        """An axis with marks at round times; Excel's own would be at fractions of a day."""
        if part.x.kind not in ("date", "time"):
            return {"major_gridlines": {"visible": False}}
        at = [seconds(local(p, self._report.zone) if isinstance(p, datetime) else p) for p in part.places]
        step = time_step(min(at), max(at))
        day, epoch = 86400.0, 25569
        low, high = math.floor(min(at) / step) * step, math.ceil(max(at) / step) * step
        return {
            "min": low / day + epoch,
            "max": (high if high > low else low + step) / day + epoch,
            "major_unit": step / day,
            "num_format": "yyyy-mm-dd" if step >= day else "d mmm hh:mm",
            "major_gridlines": {"visible": False},
        }

    def _chart_data(self, part: Chart) -> int:
        """Write what a chart is drawn from; returns the column of its places."""
        sheet, first = self._data, self._data_column
        assert sheet is not None
        head, form = self._format(bold=True), self._cell_format(part.x)
        sheet.write_string(0, first, part.x.heading, head)
        sheet.set_column(first, first, 20)
        for index, place in enumerate(part.places):
            if part.kind == "bar":
                sheet.write_string(index + 1, first, shown(place, part.x, self._report.zone), self._format())
            else:
                self._cell(sheet, index + 1, first, place, part.x, form)
        for offset, series in enumerate(part.series, 1):
            sheet.write_string(0, first + offset, series.name, head)
            sheet.set_column(first + offset, first + offset, 14)
            for index, value in enumerate(series.values):
                self._cell(sheet, index + 1, first + offset, value, part.y, self._cell_format(part.y))
        self._data_column += len(part.series) + 2
        sheet.freeze_panes(1, 0)
        return first


def _in_xml(text: str) -> str:
    """Where a text stands in an attribute: XlsxWriter leaves signs there that XML does not allow, and Excel
    opens no such file."""
    return _NOT_IN_XML.sub(" ", text)


def _plain(text: str) -> str:
    """As the name of a chart or an axis: XlsxWriter takes `Fire!T3`, and `=Sheet!A1`, for a reference to a
    cell; behind a word joiner, which nobody sees, it does not."""
    return re.sub(r"^(=?[^!]+!)(?=\$?[A-Z]+\$?\d)", "\\1\u2060", text)


def _within(text: str, most: int) -> str:
    """As much of a text as Excel takes: it counts in UTF-16."""
    return text.encode("utf-16-le")[: 2 * most].decode("utf-16-le", "ignore")


def _is_scaled(part: Chart) -> bool:
    return part.x.is_number or part.x.kind in ("date", "time")


def _look(part: Chart, index: int, values: tuple[float | None, ...]) -> dict[str, Any]:
    colour = COLOURS[index]
    if part.kind == "line":
        mark = {"type": _MARKERS[index], "size": 5, "fill": {"color": colour}, "border": {"color": colour}}
        return {
            "line": {"color": colour, "width": 1.75, "dash_type": _DASHES[index]},
            "marker": mark if len(values) <= 40 else {"type": "none"},
        }
    look: dict[str, Any] = {"fill": {"color": colour}, "border": {"none": True}, "gap": 60}
    if len(part.series) == 1 and len(values) <= 20:
        look["data_labels"] = {"value": True, "font": {"size": 9}}
    return look


def _number_format(column: Column) -> str:
    whole = "#,##0" if column.grouped else "0"
    if column.kind == "integer" or column.decimals == 0:
        return whole
    return "General" if column.decimals is None else f"{whole}.{'0' * column.decimals}"


def _is_exact(value: float | Decimal) -> bool:
    return math.isfinite(value) and -_EXACT < value < _EXACT


def _is_writable(value: date, zone: Any) -> bool:
    moment = (
        local(value, zone) if isinstance(value, datetime) else datetime(value.year, value.month, value.day)
    )
    return moment >= _FIRST_DAY
