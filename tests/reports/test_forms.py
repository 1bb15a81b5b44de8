"""Reports in each form: what a reader finds in it."""

from __future__ import annotations

import datetime as dt
import io
import json
import xml.etree.ElementTree as ElementTree
import zipfile
from itertools import pairwise
from typing import Any, get_args

import openpyxl
import pyarrow as pa
import pypdfium2
import pytest

from signoff.reports import Format, Template, compose, render
from signoff.reports.scene import COLOURS
from tests.reports.rows import CREATED, failures, report

FORMS: tuple[Format, ...] = get_args(Format)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_rows_in_another_order_give_the_same_bytes(form: Format) -> None:
    assert render(report(seed=1), form) == render(report(seed=2), form)


@pytest.mark.parametrize("form", FORMS)
def test_only_the_stamp_differs_between_reports_of_the_same_rows(form: Format) -> None:
    first, second = render(report(), form), render(report(CREATED + dt.timedelta(days=1)), form)
    assert first != second
    assert _without_stamps(first, form) == _without_stamps(second, form)
    assert render(report(None), form) == render(report(None, seed=5), form)


def _without_stamps(content: bytes, form: Format) -> object:
    if form == "pdf":
        document = pypdfium2.PdfDocument(content)
        return [_bare(text) for text in _page_texts(document)]
    if form == "xlsx":
        with zipfile.ZipFile(io.BytesIO(content)) as book:
            return {name: _bare(book.read(name).decode()) for name in book.namelist()}
    return _bare(content.decode())


def _bare(text: str) -> str:
    for day in ("15", "16"):
        for form in (f"2021-05-{day} 09:00", f"2021-05-{day}T06:00:00Z"):
            text = text.replace(form, "STAMP")
    return text


def test_pdf_has_titles_texts_tables_and_charts_and_numbers_its_pages() -> None:
    document = pypdfium2.PdfDocument(render(report(), "pdf"))
    pages = _page_texts(document)
    text = "\n".join(pages)
    for said in ("Failed equipment", "420 rows.", "Nothing at all", "No rows.", "20 of 420 rows"):
        assert said in text
    for said in ("Ten stations have most", "Failures (in 14 days)", "Voltage (V), by at", "10 of 30 shown"):
        assert said in text
    assert all(f"Page {number} of {len(pages)}" in page for number, page in enumerate(pages, 1))
    assert "=1+1 <b>&</b>" in text  # as it is, not as markup
    assert document.get_metadata_value("CreationDate").startswith("D:20210515060000")


def _page_texts(document: pypdfium2.PdfDocument) -> list[str]:
    pages = [document[number].get_textpage().get_text_bounded() for number in range(len(document))]
    return [page.replace("\r\n", "\n") for page in pages]


def test_header_of_a_long_table_is_on_every_page_of_it() -> None:
    long = Template.model_validate({"title": "Long", "content": [{"table": "failures", "rows": 300}]})
    pages = _page_texts(
        pypdfium2.PdfDocument(render(compose(long, {"failures": pa.Table.from_pylist(failures())}), "pdf"))
    )
    assert len(pages) > 4
    assert all("Station id" in page for page in pages)


def test_xlsx_holds_real_numbers_and_dates_under_frozen_headers() -> None:
    book = openpyxl.load_workbook(io.BytesIO(render(report(), "xlsx")))
    assert book.sheetnames == [
        "Report",
        "Failures  by station day",
        "Voltages",
        "Nothing at all",
        "Chart data",
    ]
    sheet = book["Failures  by station day"]
    assert [cell.value for cell in sheet[1]] == ["Day", "Station id", "Failures (per day)", "Note"]
    assert sheet.freeze_panes == "A2" and sheet.auto_filter.ref == "A1:D421"
    assert sheet.max_row == 421  # all rows, not only those that fit on a page
    day, station, number, _ = (sheet.cell(2, column) for column in range(1, 5))
    assert day.value == dt.datetime(2021, 5, 14) or day.is_date
    assert (station.data_type, number.data_type) == ("n", "n")
    assert station.number_format == "0" and number.number_format == "#,##0"
    at = book["Voltages"].cell(2, 1)
    assert at.is_date and at.value == dt.datetime(2021, 5, 1, 3)  # in Helsinki
    notes = {cell.value for cell in sheet["D"]} - {None, "Note"}
    assert notes == {"=1+1 <b>&</b>"} and all(cell.data_type == "s" for cell in sheet["D"] if cell.value)


def test_xlsx_has_native_charts_with_titles_and_units() -> None:
    with zipfile.ZipFile(io.BytesIO(render(report(), "xlsx"))) as book:
        charts = [book.read(name).decode() for name in book.namelist() if "charts/chart" in name]
    assert len(charts) == 2
    assert "<c:barChart>" in charts[0] and "Ten stations have most failures" in charts[0]
    assert "Failures (in 14 days)" in charts[0]
    assert '<c:tickLblSkip val="1"/>' in charts[0], "each bar has its name"
    assert "<c:scatterChart>" in charts[1] and "Voltage (V)" in charts[1]


def test_what_excel_would_change_is_a_text() -> None:
    long, early = 2**62 + 1, dt.datetime(1850, 1, 1, tzinfo=dt.UTC)
    given = pa.table({"id": [long], "at": pa.array([early]), "far": [float("inf")], "text": ["@SUM(1)"]})
    book = openpyxl.load_workbook(io.BytesIO(render(compose(Template(title="Odd"), {"odd": given}), "xlsx")))
    assert [cell.value for cell in book["Odd"][2]] == [str(long), "1850-01-01 00:00", "∞", "@SUM(1)"]


def test_sheets_of_tables_with_the_same_long_or_odd_titles_are_told_apart() -> None:
    titles = ["History", "a" * 40, "A" * 40, "[x]:*?/\\", "''", "Report"]
    content = [{"table": "t", "title": title} for title in titles]
    template = Template.model_validate({"title": "Names", "content": content})
    book = openpyxl.load_workbook(io.BytesIO(render(compose(template, {"t": pa.table({"x": [1]})}), "xlsx")))
    assert len(book.sheetnames) == 7


def test_html_is_one_page_without_scripts_in_which_rows_stay_text() -> None:
    hostile = "<script>alert(1)</script>\"'&"
    given = {"t": pa.table({hostile: [hostile], "n": [1]})}
    chart = {"chart": "bar", "of": "t", "title": hostile, "x": hostile, "y": "n"}
    template = Template.model_validate(
        {"title": hostile, "about": {hostile: hostile}, "content": [{"text": hostile}, {"table": "t"}, chart]}
    )
    page = render(compose(template, given), "html").decode()
    assert "<script" not in page and "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert page.count("&lt;script&gt;") >= 8
    body = page[page.index("<body>") : page.index("</html>")]
    ElementTree.fromstring(body.replace("<br>", ""))  # every element is closed


def test_json_holds_all_rows_with_the_types_of_their_columns() -> None:
    found = json.loads(render(report(), "json"))
    assert found["title"] == "Failed equipment" and found["created"] == "2021-05-15T06:00:00Z"
    assert found["about"]["From"] == "2021-05-01"
    told = found["inputs"]["failures"]
    assert told["columns"][0] == {"name": "day", "type": "date32[day]"}
    expected = sorted(failures(), key=lambda row: (row["day"], row["stationId"]))
    assert told["rows"] == [{**row, "day": row["day"].isoformat()} for row in expected]
    assert found["inputs"]["nothing"] == {"columns": [], "rows": []}


def test_amounts_of_money_are_not_rounded_in_texts_and_tables() -> None:
    template = Template(title="{sum(shops.total)} EUR", content=[{"table": "shops"}])  # type: ignore[list-item]
    totals = pa.table({"shop": ["a", "b"], "total": [24_000.66, 621.0]})
    page = render(compose(template, {"shops": totals}), "html").decode()
    assert "24,621.66 EUR" in page
    assert "24,000.66" in page and "621.00" in page


@pytest.mark.parametrize("form", FORMS)
def test_report_of_no_rows_says_so_in_every_form(form: Format) -> None:
    template = Template.model_validate(
        {
            "title": "Empty",
            "content": [
                {"text": "{count(t)} rows, {sum(t.n)} in all, {max(t.n)} at most"},
                {"table": "t", "columns": ["n"]},
                {"chart": "line", "of": "t", "title": "Empty", "x": "n", "y": "n"},
            ],
        }
    )
    for rows in ({"t": pa.table({})}, {}, {"t": pa.table({"n": pa.array([], pa.int64())})}):
        content = render(compose(template, rows), form)
        if form == "html":
            assert "0 rows, 0 in all, – at most" in content.decode()
            assert content.decode().count("No rows.") == 2
        assert content


@pytest.mark.parametrize("form", FORMS)
def test_rows_of_every_type_can_be_reported(form: Format) -> None:
    from signoff.testing.conformance.rows import every_type

    given = pa.Table.from_batches([every_type()])
    assert render(compose(Template(title="All"), {"all": given}), form)


def test_tables_that_are_too_wide_or_have_endless_texts_still_fit_on_their_pages() -> None:
    wide = pa.table(
        {f"a column with a long name {number}": ["word " * 50, "x" * 5000] for number in range(40)}
    )
    tall = pa.table({"text": ["line\n" * 500], "other": [1]})
    content = render(compose(Template(title="Large"), {"wide": wide, "tall": tall}), "pdf")
    assert "…" in _page_texts(pypdfium2.PdfDocument(content))[-1]


def test_letters_the_font_does_not_have_are_question_marks_in_the_pdf() -> None:
    given = pa.table({"name": ["Äänekoski", "Čepelare", "Ωmega", "漢字"]})
    text = _page_texts(pypdfium2.PdfDocument(render(compose(Template(title="Names"), {"t": given}), "pdf")))[
        0
    ]
    assert "Äänekoski" in text and "Čepelare" in text and "??" in text


def test_colours_of_series_are_told_apart_in_grey() -> None:
    lightness = sorted(_lightness(colour) for colour in COLOURS)
    assert min(b - a for a, b in pairwise(lightness)) >= 10


def _lightness(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance: Any = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return float(116 * luminance ** (1 / 3) - 16)
