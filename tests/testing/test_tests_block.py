"""The `tests:` block is checked with the pipeline: every mistake in it has a file and a line."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from signoff.catalog import default
from signoff.errors import PipelineError, Problem
from signoff.pipeline.graph import Graph
from signoff.pipeline.load import load
from signoff.testing import run_pipeline

PIPELINE = """\
name: alarms
sources:
  incoming: {type: stdin}
transforms:
  parsed: {type: parse_json, input: incoming, schema: "id BIGINT"}
  kinds: {type: route, input: parsed, routes: {high: id > 10}}
  named: {type: enrich, input: kinds.high, url: "${URL}/{id}", into: answer}
sinks:
  table: {type: postgres, input: named, url: "${DB}", table: alarms}
tests:
"""
FIRST = PIPELINE.count("\n") + 1


def written(directory: Path, tests: str) -> Path:
    file = directory / "p.yaml"
    file.write_text(PIPELINE + tests)
    return file


def loaded(file: Path) -> Graph:
    return load(file, default(), {}, require_secrets=False)


def problems(directory: Path, tests: str) -> list[Problem]:
    with pytest.raises(PipelineError) as raised:
        loaded(written(directory, tests))
    return list(raised.value.problems)


def test_a_test_is_read_with_its_steps_its_times_and_its_place(tmp_path: Path) -> None:
    text = """\
  late ones:
    now: 2026-05-01T10:00:00Z
    given:
      - incoming: ["${not a reference}", {id: 5}, {payload: {payload: 1}}]
      - after: 10m
        incoming: [{payload: x, headers: {a: b}, received_at: 2026-05-01T10:03:00Z}]
    expect: {table: [{id: 5}], kinds.high: 1}
"""
    tests = loaded(written(tmp_path, text)).tests
    (case,) = tests.cases
    first, second = case.steps()
    assert [event.payload for event in first.events["incoming"]] == [
        "${not a reference}",
        {"id": 5},
        {"payload": 1},
    ]
    assert (first.after, second.after) == (0, 600)
    assert second.events["incoming"][0].received_at == datetime(2026, 5, 1, 10, 3, tzinfo=UTC)
    assert case.now == datetime(2026, 5, 1, 10, tzinfo=UTC)
    assert (tests.lines["late ones"].file, int(tests.lines["late ones"])) == (str(tmp_path / "p.yaml"), FIRST)


@pytest.mark.parametrize(
    ("fields", "line", "code", "said"),
    [
        ("    given: {incomming: [1]}", 1, "unknown-node", 'did you mean "incoming"?'),
        ("    given: {kinds: [{id: 1}]}", 1, "unknown-node", "it may be"),
        ("    given: {incoming: [1]}\n    expect: {tabel: []}", 2, "unknown-node", 'did you mean "table"?'),
        ("    given: {incoming: [1]}\n    expect:\n      kinds.hihg: 1", 3, "unknown-node", '"kinds.high"?'),
        ("    given: {incoming: [1]}\n    letters: [{stage: parsd}]", 2, "unknown-node", 'mean "parsed"?'),
        ("    given: {incoming: [1]}\n    answers: {parsed: []}", 2, "unknown-node", "named"),
        ("    given: {incoming: [1]}\n    failing: {parsed: x}", 2, "unknown-node", "table"),
        ("    given: {incoming: [1]}\n    expects: {}", 2, "unknown-field", 'did you mean "expect"?'),
        ("    given: {incoming: [1]}\n    drops: {parsed: many}", 2, "wrong-type", "integer"),
        ("    given: {incoming: []}", 1, "bad-value", "no event is given"),
        ("    given: {incoming: 5}", 1, "bad-value", "must be a list of events"),
        ("    given: {incoming: [1]}\n    expect: {table: [5]}", 2, "bad-value", "mapping of columns"),
        ("    given: {incoming: [1]}\n    now: noon", 2, "bad-value", "is not a time"),
        ("    expect: {table: []}", 0, "missing-field", '"given"'),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_test_is_told_with_its_line(
    tmp_path: Path, fields: str, line: int, code: str, said: str
) -> None:
    (found,) = problems(tmp_path, f"  one:\n{fields}\n")
    assert (found.code, found.file, found.line) == (code, str(tmp_path / "p.yaml"), FIRST + line)
    assert said in str(found) and 'test "one"' in found.message


CSV = """\
name: orders
sources:
  incoming: {type: files, path: "in/*.csv", delimiter: ";", schema: "id BIGINT NOT NULL, day DATE"}
sinks:
  table: {type: console, input: incoming}
tests:
  one:
    given: GIVEN
"""


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ('{incoming: [{id: "1"}, "3;18.11.2026"]}', True),
        ('[{incoming: [{id: "1"}]}, {incoming: [{payload: "3;18.11.2026", headers: {a: b}}]}]', True),
        ("{incoming: ['[3]']}", True),
        ('{incoming: [{id: "1", day: "2026-11-18"}, {payload: {id: "2"}, message_id: a}]}', False),
        ('{incoming: [\'{"id": "3"}\']}', False),
    ],
)
def test_a_csv_source_with_columns_is_given_columns_and_no_line_of_its_file(
    tmp_path: Path, given: str, wrong: bool
) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(CSV.replace("GIVEN", given))
    if not wrong:
        assert loaded(file).tests.cases
        return
    with pytest.raises(PipelineError) as raised:
        loaded(file)
    (found,) = raised.value.problems
    assert (found.code, found.file, found.line) == ("bad-value", str(file), 8)
    assert "mapping of its columns, as texts in the file's format" in found.message
    graph = loaded_without_tests(file)
    with pytest.raises(PipelineError, match="mapping of its columns"):
        run_pipeline(graph, {"incoming": ["3;18.11.2026"]})


def loaded_without_tests(file: Path) -> Graph:
    file.write_text(CSV.partition("tests:")[0])
    return loaded(file)


def test_tests_stand_in_a_file_of_their_own_that_names_the_pipeline(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    pipeline = written(tmp_path, "  own: {given: {incoming: [1]}}\n")
    file = tmp_path / "below" / "tests.yaml"
    file.write_text(
        "pipeline: ../p.yaml\ntests:\n  other:\n    given: {incoming: [1]}\n    expect: {tabel: []}\n"
    )
    with pytest.raises(PipelineError) as raised:
        loaded(file)
    (found,) = raised.value.problems
    assert (found.code, found.file, found.line) == ("unknown-node", str(file), 5)
    file.write_text(file.read_text().replace("tabel", "table"))
    graph = loaded(file)
    assert [case.name for case in graph.tests.cases] == ["other"]
    assert graph.base == pipeline.parent
    file.write_text("pipeline: tests.yaml\ntests: {}\n")
    with pytest.raises(PipelineError, match="must name the file of the pipeline"):
        loaded(file)


def test_a_python_pipeline_is_tested_from_a_file_as_well(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(
        "from signoff import Pipeline\n"
        "p = Pipeline('alarms')\n"
        "p.source('incoming', 'stdin')\n"
        "p.sink('table', 'console', input='incoming')\n"
    )
    file = tmp_path / "tests.yaml"
    file.write_text(
        "pipeline: p.py\ntests:\n  one: {given: {incoming: [a]}, expect: {table: [{payload: a}]}}\n"
    )
    assert [case.name for case in loaded(file).tests.cases] == ["one"]
