"""Every task of docs/cookbook.md: its input, its pipeline, and what it says comes out.

A task is a heading with fenced blocks: `file=PATH` is input, `pipeline` the pipeline, `rows=FOLDER`,
`parquet=FOLDER` and `table=FILE:TABLE` the rows that are to be there, `letters` the dead letters. Of a row
only the columns that the page shows are compared, and of a reason its beginning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.promises.product import Inline

PAGE = Path(__file__).parents[2] / "docs" / "cookbook.md"
_BLOCK = re.compile(
    r"^```\w+ (?P<kind>\w+)(?:=(?P<where>\S+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass
class Task:
    title: str
    pipeline: str = ""
    files: dict[str, str] = field(default_factory=dict)
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    parquet: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    letters: list[str] = field(default_factory=list)


def tasks() -> list[Task]:
    found = []
    for section in PAGE.read_text().split("\n## ")[1:]:
        task = Task(section.partition("\n")[0])
        for block in _BLOCK.finditer(section):
            _add(task, block["kind"], block["where"] or "", block["text"])
        found.append(task)
    return found


def _add(task: Task, kind: str, where: str, text: str) -> None:
    if kind == "pipeline":
        task.pipeline = text
    elif kind == "file":
        task.files[where] = text
    elif kind == "letters":
        task.letters = text.splitlines()
    else:
        rows = [json.loads(line) for line in text.splitlines()]
        {"rows": task.rows, "table": task.tables, "parquet": task.parquet}[kind][where] = rows


TASKS = tasks()


def test_the_tasks_are_numbered_and_each_says_what_comes_out() -> None:
    assert [int(task.title.partition(".")[0]) for task in TASKS] == list(range(1, 22))
    for task in TASKS:
        assert task.pipeline and task.files and (task.rows or task.tables), task.title


@pytest.fixture
def product(tmp_path: Path, spark: Any) -> Iterator[Inline]:
    made = Inline(tmp_path, spark)
    yield made
    made.close()


@pytest.mark.spark
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.title)
def test_a_task_of_the_cookbook_does_what_the_page_says(product: Inline, task: Task) -> None:
    product.write(task.pipeline)
    for path, text in task.files.items():
        (product.directory / path).parent.mkdir(exist_ok=True, parents=True)
        (product.directory / path).write_text(text)
    done = product.run_once()
    assert done.code == 0, done.output
    for folder, rows in task.rows.items():
        assert _shown(product.rows(folder), rows) == rows
    for place, rows in task.tables.items():
        file, _, table = place.partition(":")
        assert _shown(product.table(table, file), rows) == rows
    for folder, rows in task.parquet.items():
        assert _shown(pq.read_table(product.directory / folder).to_pylist(), rows) == rows
    letters = [f"{letter['event_id']}: {letter['reason']}" for letter in product.dead_letters()]
    assert len(letters) == len(task.letters), letters
    for letter, said in zip(letters, task.letters, strict=True):
        assert letter.startswith(said)


def _shown(found: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert len(found) == len(rows), found
    return [{name: row[name] for name in shown} for row, shown in zip(found, rows, strict=True)]
