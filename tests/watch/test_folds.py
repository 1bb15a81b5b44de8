"""What `signoff status` says of folds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from signoff import load
from signoff.cli import app
from signoff.stateful.open_groups import OpenGroups
from signoff.transforms.fold.groups import NEVER
from signoff.watch.folds import Fold, read_folds

PIPELINE = """
name: orders
sources:
  incoming: {type: files, path: "./in/*.jsonl"}
transforms:
  by_time: {type: fold, input: incoming, keys: [message_id], timeout: 1m}
  by_count: {type: fold, input: incoming, keys: [message_id], count: 2}
sinks:
  table: {type: console, inputs: [by_time, by_count]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(PIPELINE)
    return path


def test_open_groups_are_shown_and_when_the_next_one_ends(file: Path) -> None:
    for name, changes in (
        ("by_time", {1_619_827_200_000: 2, 1_619_827_300_000: 1}),
        ("by_count", {NEVER: 4}),
    ):
        groups = OpenGroups(file.parent / f"state/links/{name}.buffer/groups.db")
        groups.note(0, changes)
        groups.close_store()
    assert read_folds(load(file)) == {"by_time": Fold(3, 1_619_827_200.0), "by_count": Fold(4, None)}
    told = CliRunner().invoke(app, ["status", str(file)]).stdout.splitlines()
    assert "by_time             3  2021-05-01T00:00:00Z" in told
    assert "by_count            4  -" in told
    found = json.loads(CliRunner().invoke(app, ["status", str(file), "--json"]).stdout)
    assert found["folds"]["by_time"] == {"open_groups": 3, "next_ends_at": "2021-05-01T00:00:00Z"}


def test_before_the_first_run_no_group_is_open(file: Path) -> None:
    assert set(read_folds(load(file)).values()) == {Fold(0, None)}
    assert not (file.parent / "state").exists(), "looking leaves nothing behind"
