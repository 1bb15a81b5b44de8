"""Values that cannot be combined, drawn or shown as usual: the report is made, and says what they are."""

from __future__ import annotations

import importlib
import io
import math
import re
import time
import xml.etree.ElementTree as ElementTree
import zipfile
from datetime import UTC, datetime
from typing import Any, get_args

import openpyxl
import pyarrow as pa
import pypdfium2
import pytest

from signoff.reports import Format, Template, compose, render
from signoff.reports.model import Chart, Text

FORMS: tuple[Format, ...] = get_args(Format)
UTC_TIMES = pa.timestamp("us", "UTC")
FOR_EVER = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
CHARTS = [
    {"chart": kind, "of": "t", "title": "t", "x": x, "y": y, **more}
    for kind in ("line", "bar")
    for x, y, more in [
        ("v", "n", {}),
        ("n", "v", {}),
        ("g", "v", {"combine": "mean"}),
        ("n", "n", {"by": "v"}),
        ("n", ["v", "n"], {}),
    ]
] + [{"chart": "bar", "of": "t", "title": "t", "x": "g", "y": ["v", "w"], "stacked": True}]
EVERYTHING = [
    {"text": "{min(t.v)} {max(t.v)} {sum(t.v)} {mean(t.v)} {first(t.v)} {count(t.v)}"},
    {"table": "t", "order_by": ["-v"]},
    *CHARTS,
]

ODD: dict[str, pa.Array] = {
    "numbers near the largest": pa.array([1.7e308, 1.7e308]),
    "numbers from end to end": pa.array([1.7e308, -1.7e308]),
    "numbers near zero": pa.array([5e-324, 0.0]),
    "infinities": pa.array([math.inf, -math.inf]),
    "no number": pa.array([1.0, math.nan]),
    "lists with a null": pa.array([[1], [None]]),
    "structs": pa.array([{"a": 1}, {"a": 2}]),
    "for ever": pa.array([datetime(2021, 1, 1, tzinfo=UTC), FOR_EVER], UTC_TIMES),
    "the first and the last time": pa.array([datetime(1, 1, 1, tzinfo=UTC), FOR_EVER], UTC_TIMES),
    "long texts": pa.array(["x" * 20_000, "y"]),
}


def made(values: pa.Array, content: list[Any], zone: str = "UTC") -> Any:
    template = Template.model_validate({"title": "Odd", "content": content, "timezone": zone})
    numbers = range(1, len(values) + 1)
    given = {"v": values, "w": values, "n": pa.array(numbers), "g": ["x"] * len(values)}
    return compose(template, {"t": pa.table(given)})


@pytest.mark.parametrize("zone", ["Europe/Helsinki", "America/New_York"])
@pytest.mark.parametrize("values", ODD.values(), ids=ODD)
def test_every_form_of_every_part_is_made_of_odd_values(values: pa.Array, zone: str) -> None:
    began = time.process_time()
    report = made(values, EVERYTHING, zone)
    assert "could not be" not in str([part for part in report.parts if isinstance(part, Text)])
    for form in FORMS:
        content = render(report, form)
        if form == "html":
            assert not re.search(r'(points|x|y|width|height)="[^"]*(nan|inf)', content.decode())
    assert time.process_time() - began < 20, "not a time that grows with the square of a text's length"


@pytest.mark.parametrize(
    ("values", "text", "shown"),
    [
        (pa.array([1.7e308, 1.7e308]), "{mean(t.v)}, {sum(t.v)}", "1.7e+308, ∞"),
        (pa.array([math.inf, -math.inf]), "{mean(t.v)} {max(t.v)}", "not a number ∞"),
        (pa.array([[1], [None]]), "{max(t.v)}", "[null]"),
        (pa.array([[9], [10]]), "{max(t.v)}", "[10]"),
        (pa.array([{"a": 1}, {"a": 2}]), "{min(t.v)}", '{"a":1}'),
        (pa.array([FOR_EVER], UTC_TIMES), "{max(t.v)}", "9999-12-31 23:59:59"),
    ],
)
def test_what_cannot_be_combined_or_moved_is_shown_as_what_it_is(
    values: pa.Array, text: str, shown: str
) -> None:
    assert made(values, [{"text": text}], "Europe/Helsinki").parts[0].paragraphs == (shown,)


@pytest.mark.parametrize(
    ("values", "text", "shown"),
    [
        (pa.array([7000.2, 349.0]), "{sum(t.v):2} of {count(t):1}", "7,349.20 of 2.0"),
        (pa.array([1.005, 2.0]), "{max( t.v ):0} {mean(t.v):3} {first(t.v):2}", "2 1.502 1.00"),
        (pa.array([1, 2]), "{sum(t.v):2} {sum(t.v)} {count(t.v):2}", "3.00 3 2.00"),
        (pa.array([], pa.float64()), "{sum(t.v):2} {mean(t.v):2}", "0.00 –"),
        (pa.array(["a"]), "{first(t.v):2}", "a"),
    ],
)
def test_a_text_says_how_many_decimals_its_number_has(values: pa.Array, text: str, shown: str) -> None:
    assert made(values, [{"text": text}], "UTC").parts[0].paragraphs == (shown,)


def test_decimals_that_no_number_has_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 12 decimals"):
        made(pa.array([1.0]), [{"text": "{sum(t.v):13}"}], "UTC")


def test_a_chart_says_that_it_leaves_out_what_cannot_be_drawn() -> None:
    for values in (pa.array([1.0, math.inf]), pa.array([1.0, 1.7e308])):
        for x, y in (("v", "n"), ("n", "v")):
            chart = made(values, [{"chart": "line", "of": "t", "title": "t", "x": x, "y": y}]).parts[0]
            assert isinstance(chart, Chart)
            assert chart.note == "numbers that are not finite, or too large to draw, are left out"
            assert [value for one in chart.series for value in one.values if value is not None] == [1.0]


def test_a_part_that_cannot_be_composed_says_so_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("signoff.reports.compose")  # the package has a function of this name
    monkeypatch.setattr(module, "_chart", lambda *_: 1 / 0)
    parts = made(pa.array([1.0, 2.0]), [{"text": "{sum(t.v)}"}, CHARTS[0]]).parts
    assert parts[0].paragraphs == ("3",)
    assert parts[1].paragraphs == ("This could not be made of the rows: division by zero.",)


@pytest.mark.parametrize(
    "title",
    [
        "a\x01b\x0b\ufffe",
        "=Report!$A$1",
        "Fire!T3",
        "=Nowhere!$A$1",
        "a" * 30 + "'b",
        "'",
        "\U0001f525" * 40,
        "=1+1",
    ],
    ids=[
        "no XML",
        "a cell",
        "like a cell",
        "no cell",
        "an apostrophe at the end",
        "an apostrophe",
        "fire",
        "a sum",
    ],
)
def test_whatever_stands_in_a_title_the_workbook_can_be_opened(title: str) -> None:
    """Titles may hold values of rows."""
    said = "{first(t.v)}"
    chart = {"chart": "bar", "of": "t", "title": said, "x": "v", "y": "n", "x_title": title, "y_title": title}
    content = [{"table": "t", "title": said}, chart, {"text": said, "heading": said}]
    book = render(made(pa.array([title]), content), "xlsx")
    openpyxl.load_workbook(io.BytesIO(book))
    with zipfile.ZipFile(io.BytesIO(book)) as parts:
        for name in parts.namelist():
            ElementTree.fromstring(parts.read(name))
        drawn = parts.read("xl/charts/chart1.xml").decode()
    references = re.findall(r"<c:f>(.*?)</c:f>", drawn)
    assert len(references) == 3 and all("Chart data" in one for one in references)


def test_a_title_of_any_length_is_made_in_no_time() -> None:
    report = compose(Template.model_validate({"title": "y" * 50_000}), {"t": pa.table({"v": [1]})})
    began = time.process_time()
    for form in FORMS:
        render(report, form)
    assert time.process_time() - began < 30


def test_a_name_with_a_line_end_is_one_line_in_a_chart() -> None:
    chart = {"chart": "bar", "of": "t", "title": "above\nbelow", "x": "v", "y": "n"}
    book = pypdfium2.PdfDocument(render(made(pa.array(["first\nsecond"]), [chart]), "pdf"))
    text = book[0].get_textpage().get_text_range()
    assert "above below" in text and "first second" in text
