"""Reports as part of a run: when a run is done, what is in its report, and that nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from signoff.engine.spark_check import check
from tests.promises.product import Inline

PIPELINE = """
name: counted
sources:
  incoming: {type: files, path: ./in/*.txt, format: text, on_acknowledge: move}
transforms:
  numbers: {type: select, input: incoming, columns: ["CAST(payload AS INT) AS value", "'n' AS only_here"]}
  texts: {type: select, input: incoming, columns: ["concat('<', payload, '>') AS value"]}
sinks:
  report:
    type: report
    inputs: [numbers, texts]
    path: ./out/report
    formats: [json]
    title: "{count(numbers)} numbers"
    content:
      - {table: numbers, columns: [COLUMN]}
"""


@pytest.fixture
def product(tmp_path: Path, spark: Any) -> Iterator[Inline]:
    made = Inline(tmp_path, spark)
    made.write(PIPELINE.replace("COLUMN", "value"))
    (tmp_path / "in").mkdir()
    yield made
    made.close()


def read(product: Inline) -> dict[str, list[Any]]:
    found = json.loads((product.directory / "out/report.json").read_bytes())
    return {name: [row["value"] for row in one["rows"]] for name, one in found["inputs"].items()}


@pytest.mark.spark
def test_run_is_not_done_before_its_report_is_written_and_the_next_one_writes_it(product: Inline) -> None:
    (product.directory / "in/a.txt").write_text("3\n1\n2\n")
    blocked = product.directory / "out/report.json"
    (blocked / "in the way").mkdir(parents=True)
    first = product.run_once(patience_s=1.0)
    assert first.code == 3
    assert 'sink "report" could not finish: cannot write to' in first.output

    (blocked / "in the way").rmdir()
    blocked.rmdir()
    second = product.run_once()  # no event is left, but their rows wait for the report
    assert second.code == 0, second.output
    # Two inputs with a column of the same name and different types, each with its own columns.
    assert read(product) == {"numbers": [1, 2, 3], "texts": ["<1>", "<2>", "<3>"]}

    running = product.start()  # without an end: a batch and the report of it
    (product.directory / "in/b.txt").write_text("7\n")
    running.wait_for(lambda: read(product) == {"numbers": [7], "texts": ["<7>"]})
    assert running.terminate().code == 0


@pytest.mark.spark
def test_column_that_an_input_does_not_have_is_found_by_check(product: Inline, spark: Any) -> None:
    product.write(PIPELINE.replace("COLUMN", "valeu"))
    (problem,) = check(product.graph(), spark)
    assert problem.code == "unresolved-column"
    assert 'names "numbers.valeu", which is no column of that input' in problem.message
    assert "there is: value, only_here" in problem.hint
    assert PIPELINE.splitlines()[problem.line - 1].strip().startswith("- {table: numbers")
