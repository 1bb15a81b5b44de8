"""docs/reports.md: its pipeline, run as it is, and what a reader of each form finds."""

from __future__ import annotations

import io
import json
import re
import sqlite3
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import openpyxl
import pypdfium2
import pytest

from signoff.jobs.check import check
from signoff.jobs.run import load_job
from signoff.sinks.report.edition import COLUMNS
from tests.jobs.scenes import job_run
from tests.promises.product import Inline

PAGE = Path(__file__).parents[2] / "docs" / "reports.md"
_BLOCK = re.compile(r"^```\w+ (?P<kind>[\w=/.]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = {block["kind"]: block["text"] for block in _BLOCK.finditer(PAGE.read_text())}


@pytest.fixture
def product(tmp_path: Path, spark: Any) -> Iterator[Inline]:
    made = Inline(tmp_path, spark)
    yield made
    made.close()


@pytest.mark.spark
def test_report_of_the_docs_is_made_at_the_end_and_replaced_by_the_next_run(product: Inline) -> None:
    product.write(BLOCKS["pipeline"])
    day = product.directory / "in" / "day.csv"
    day.parent.mkdir()
    day.write_text(BLOCKS["file=in/day.csv"])
    assert product.run_once().code == 0, product.file

    reports = product.directory / "reports"
    assert sorted(path.name for path in reports.glob("daily.*")) == [
        "daily.html", "daily.json", "daily.pdf", "daily.xlsx",
    ]  # fmt: skip
    pdf = pypdfium2.PdfDocument((reports / "daily.pdf").read_bytes())
    text = " ".join(pdf[0].get_textpage().get_text_bounded().split())
    page = re.sub(r"<[^>]+>", " ", (reports / "daily.html").read_text())
    for said in BLOCKS["said"].splitlines():
        assert said in text
        assert said in " ".join(page.split())
    book = openpyxl.load_workbook(io.BytesIO((reports / "daily.xlsx").read_bytes()))
    assert [cell.value for cell in book["Low voltage"][1]] == ["At", "Station", "Voltage (V)"]
    assert [cell.value for cell in book["Low voltage"]["C"][1:]] == [196.2, 198.5, 201.0]
    found = json.loads((reports / "daily.json").read_bytes())["inputs"]
    assert found["low_voltage"]["columns"][0] == {"name": "station", "type": "string"}
    assert [row["failures"] for row in found["failures"]["rows"]] == [0, 0, 0, 1, 1]

    (day.parent / "next.csv").write_text("station,at,kind,value\nHill,2026-11-19T06:00:00Z,low voltage,190\n")
    assert product.run_once().code == 0
    found = json.loads((reports / "daily.json").read_bytes())["inputs"]
    assert [row["value"] for row in found["low_voltage"]["rows"]] == [190.0]
    assert len(found["failures"]["rows"]) == 1


def test_python_of_the_docs_runs() -> None:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    exec(textwrap.dedent(code[1]), names)
    assert b"<td>Harbour</td>" in names["page"]


def test_job_of_the_docs_that_hands_its_report_on_has_no_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMTP_PASSWORD", "p")
    monkeypatch.setenv("SLACK_WEBHOOK", "https://hooks.example.com/services/T/B/x")
    monkeypatch.setenv("RABBITMQ_URL", "amqp://user:password@broker.example/")
    (tmp_path / "job.yaml").write_text(BLOCKS["handed"])
    graph = load_job(tmp_path / "job.yaml")
    shown = re.findall(r"^\| (`.*?) \|", PAGE.read_text().partition("## Handed over")[2], re.MULTILINE)
    columns = [field["name"] for field in json.loads(COLUMNS)["fields"]]
    assert sorted(name for cell in shown for name in re.findall(r"`(\w+)`", cell)) == sorted(columns)
    assert not graph.warnings and graph.nodes["worth_a_mail"].inputs[0].node == "daily"


@pytest.mark.spark
def test_spark_knows_the_columns_of_a_report_that_is_handed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: Any
) -> None:
    for name in ("SMTP_PASSWORD", "SLACK_WEBHOOK", "RABBITMQ_URL"):
        monkeypatch.setenv(name, "amqp://b.example/" if name == "RABBITMQ_URL" else "https://h.example/x")
    file = tmp_path / "job.yaml"
    file.write_text(BLOCKS["handed"])
    assert check(load_job(file), spark)[1] == []
    file.write_text(BLOCKS["handed"].replace("{{ title }}*", "{{ titel }}*").replace("rows > 0", "row > 0"))
    problems = check(load_job(file), spark)[1]
    assert [each.line for each in problems] == [
        number
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if "titel" in line or "row > " in line
    ]


@pytest.mark.spark
def test_job_of_the_docs_with_two_queries_makes_one_report_of_both(tmp_path: Path, spark: Any) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.execute("CREATE TABLE orders (day TEXT, shop TEXT, hour INTEGER, amount INTEGER)")
        orders = [("Harbour", 9, 5), ("Harbour", 10, 7), ("Hill", 9, 3)]
        db.executemany("INSERT INTO orders VALUES ('2026-11-18', ?, ?, ?)", orders)
        db.commit()
    (tmp_path / "job.yaml").write_text(BLOCKS["queries"])
    assert job_run(tmp_path / "job.yaml", spark, {"day": "2026-11-18"}).execute() == 0
    page = (tmp_path / "reports/sales-2026-11-18.html").read_text()
    assert "15 EUR in 2 shops." in page and "Sales by hour" in page
    found = json.loads((tmp_path / "reports/sales-2026-11-18.json").read_bytes())["inputs"]
    assert found["by_shop"]["rows"] == [{"shop": "Harbour", "amount": 12}, {"shop": "Hill", "amount": 3}]
    assert found["by_hour"]["rows"] == [{"hour": 9, "amount": 8}, {"hour": 10, "amount": 7}]
