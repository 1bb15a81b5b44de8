"""The form of a pipeline is the same in every process, and another one whenever other rows may come."""

from __future__ import annotations

from pathlib import Path

import pytest

from signoff.catalog import default
from signoff.engine.plan.fingerprint import _plain, form_of
from signoff.pipeline.load import load

PIPELINE = """
name: shop
sources:
  incoming: {type: files, path: "in/*.jsonl"}
transforms:
  parsed: {type: parse_json, input: incoming, schema: "n BIGINT"}
  few: {type: filter, input: parsed, where: "n < 5"}
  made: {type: python, input: few, function: "mine:work", mode: rows, schema: "n BIGINT"}
  other: {type: filter, input: parsed, where: "n > 5"}
sinks:
  table: {type: sqlite, input: made, path: rows.db, table: events}
  rest: {type: files, input: other, path: rest}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text("from helper import double\n\ndef work(row):\n    return double(row)\n")
    (tmp_path / "helper.py").write_text("def double(row):\n    return row\n")
    return tmp_path


def forms(place: Path, text: str = PIPELINE) -> dict[str, str]:
    (place / "pipeline.yaml").write_text(text)
    graph = load(place / "pipeline.yaml", default())
    return {name: form_of(graph, name) for name in graph.sinks}


def changed(place: Path, text: str) -> set[str]:
    before, after = forms(place), forms(place, text)
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("old", "new", "sinks"),
    [
        ("n < 5", "n < 6", {"table"}),
        ("n > 5", "n > 6", {"rest"}),
        ('n BIGINT"}', 'n INT"}', {"table", "rest"}),
        ("input: made", "input: few", {"table"}),
        ("path: rest}", "path: elsewhere}", {"rest"}),
        ("name: shop", "# a remark\nname: shop", set()),
    ],
)
def test_a_sink_has_another_form_if_something_in_front_of_it_is_changed(
    place: Path, old: str, new: str, sinks: set[str]
) -> None:
    assert PIPELINE.count(old) >= 1
    text = PIPELINE.replace(old, new, 1)
    if old == "input: made":
        text = text.replace("sinks:", "sinks:\n  unused: {type: files, input: made, path: unused}")
    assert changed(place, text) == sinks


@pytest.mark.parametrize("file", ["mine.py", "helper.py"])
def test_a_function_that_is_repaired_is_another_form(place: Path, file: str) -> None:
    before = forms(place)
    (place / file).write_text((place / file).read_text() + "# repaired\n")
    after = forms(place)
    assert after["table"] != before["table"] and after["rest"] == before["rest"]


def test_a_set_is_the_same_in_any_order_and_an_object_without_a_name_at_any_address() -> None:
    names = [f"name {number}" for number in range(100)]
    assert _plain(frozenset(names)) == _plain(frozenset(reversed(names)))
    assert _plain(object()) == _plain(object())
