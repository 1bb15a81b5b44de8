"""A renamed source reads kept files again, and the run says so before it does. Without Spark."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from signoff import load
from signoff.engine.state_dir.renamed_sources import read_again
from signoff.ledger import Ledger
from signoff.sources.files.registry import DATABASE, FileRegistry, Found

PIPELINE = """
name: alarms
sources:
  {name}: {{type: files, path: "{path}"}}
sinks:
  out: {{type: files, input: {name}, path: ./out}}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """`incoming` has read three files, of which one is not there any more, and has found a fourth."""
    for name in ("in/a.jsonl", "in/b.jsonl", "in/sub/c.jsonl", "in/new.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}\n")
    notes = tmp_path / "state" / "intake" / "incoming"
    notes.mkdir(parents=True)
    registry = FileRegistry(notes / DATABASE, tmp_path)
    registry.add(Found(name, 1) for name in ("in/a.jsonl", "in/b.jsonl", "in/gone.jsonl", "in/new.jsonl"))
    registry.close()
    with closing(sqlite3.connect(notes / DATABASE)) as db, db:
        db.execute("UPDATE files SET first_seq = unit WHERE path <> 'in/new.jsonl'")
    return tmp_path


def said(project: Path, name: str, path: str) -> list[str]:
    file = project / "alarms.yaml"
    file.write_text(PIPELINE.format(name=name, path=path))
    with Ledger(project / "state" / "ledger.db") as ledger:
        return list(read_again(load(file), ledger))


@pytest.mark.parametrize("path", ["./in/*.jsonl", "./in", "./in/**/*.jsonl"])
def test_files_that_a_source_of_another_name_has_read_are_counted(project: Path, path: str) -> None:
    (sentence,) = said(project, "renamed", path)
    assert 'source "renamed" is new, and 2 of the files it reads were read by "incoming"' in sentence


@pytest.mark.parametrize("path", ["./in/sub/*.jsonl", "./in/new.jsonl", "./in/*.csv"])
def test_other_files_are_not(project: Path, path: str) -> None:
    assert said(project, "renamed", path) == []


def test_one_file_is(project: Path) -> None:
    assert len(said(project, "renamed", "./in/a.jsonl")) == 1


def test_nothing_is_said_of_a_source_that_keeps_its_name_or_has_begun(project: Path) -> None:
    assert said(project, "incoming", "./in/*.jsonl") == []
    with Ledger(project / "state" / "ledger.db") as ledger:
        ledger.open_batch("renamed", 0, 1, ["out"])
    assert said(project, "renamed", "./in/*.jsonl") == []


def test_notes_that_cannot_be_read_stop_no_run(project: Path) -> None:
    (project / "state" / "intake" / "incoming" / DATABASE).write_bytes(b"no database" * 1000)
    assert said(project, "renamed", "./in/*.jsonl") == []
