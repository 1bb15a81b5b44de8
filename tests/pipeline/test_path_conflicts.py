"""Sources, sinks and the state directory that are in each other's way, however their paths are spelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from signoff.catalog import default
from signoff.errors import PipelineError, Problem
from signoff.pipeline.load import load

FILE = """\
name: t
state: {state}
sources:
  s: {{type: files, path: "{source}"}}
sinks:
  k:
    type: files
    input: s
    path: {sink}
"""


def problems(
    tmp_path: Path, source: str, sink: str = "./out", state: str = "./state", more: str = ""
) -> list[Problem]:
    path = tmp_path / "alarms.yaml"
    path.write_text(FILE.format(source=source, sink=sink, state=state) + more)
    try:
        load(path, default())
    except PipelineError as error:
        return list(error.problems)
    return []


def codes(tmp_path: Path, *args: str) -> list[tuple[str, int]]:
    return [(problem.code, problem.line) for problem in problems(tmp_path, *args)]


@pytest.mark.parametrize(
    ("source", "sink"),
    [
        ("./in/*.jsonl", "./in"),
        ("./in", "in/"),
        ("in/*", "./x/../in"),
        ("in/**", "in/deep/er"),
        ("in/**/*.jsonl", "in/deep"),
        ("./**/*.jsonl", "out"),
        ("./*/*.json?", "out"),
        ("in/*.jsonl", "other"),  # a symlink to in
        ("other/*.jsonl", "in"),
        ("in/**/*.jsonl", "elsewhere"),  # in/link leads there
    ],
)
def test_a_sink_that_writes_where_a_source_reads_is_refused(tmp_path: Path, source: str, sink: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "other").symlink_to("in")
    (tmp_path / "in" / "link").symlink_to(tmp_path / "elsewhere")
    assert ("own-output", 9) in codes(tmp_path, source, sink)


@pytest.mark.parametrize(
    ("source", "sink"),
    [
        ("in/*.jsonl", "out"),
        ("in/*.jsonl", "in/out"),
        ("in/*.csv", "in"),
        ("in/a.jsonl", "in/other"),
        ("./*.jsonl", "out"),
        ("**/*.csv", "out"),
        ("in/**/*.jsonl", ".hidden"),
        ("./**/*.jsonl", ".hidden"),
    ],
)
def test_a_sink_next_to_a_source_is_fine(tmp_path: Path, source: str, sink: str) -> None:
    (tmp_path / "in").mkdir()
    assert codes(tmp_path, source, sink) == []


def test_a_database_among_the_files_that_are_read_is_refused(tmp_path: Path) -> None:
    more = "  d: {type: sqlite, input: s, path: ./in/a.db, table: t}\n"
    (problem,) = problems(tmp_path, "in/*", more=more)
    assert (problem.code, problem.line) == ("own-output", 10)
    assert problems(tmp_path, "in/*.jsonl", more=more) == []


@pytest.mark.parametrize("sink", ["./state", "./state/log/x", "link/there"])
def test_a_sink_in_the_state_directory_is_refused(tmp_path: Path, sink: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "link").symlink_to("state")
    assert codes(tmp_path, "in/*", sink) == [("in-state", 9)]


@pytest.mark.parametrize(
    ("source", "state"),
    [
        ("in/**", "in/state"),
        ("in", "in"),
        ("in/*/*", "in/state"),
        ("./**/*", "state"),
        ("./**/*.json", "state"),
    ],
)
def test_a_state_directory_in_what_a_source_reads_is_refused(tmp_path: Path, source: str, state: str) -> None:
    (tmp_path / "in").mkdir()
    found = codes(tmp_path, source, "/nowhere/out", state)
    assert found == [("in-state", 4)]


def test_lines_next_to_the_state_directory_are_fine(tmp_path: Path) -> None:
    assert codes(tmp_path, "./**/*.jsonl", "/nowhere/out") == []


def test_a_table_spelled_two_ways_is_one_table(tmp_path: Path) -> None:
    more = (
        "  a: {type: sqlite, input: s, path: ./db/a.db, table: Alarms}\n"
        "  b: {type: sqlite, input: s, path: ./x/../db/a.db, table: alarms}\n"
        "  c: {type: postgres, input: s, url: 'postgresql://u:1@HOST/db', table: public.alarms}\n"
        "  d: {type: postgres, input: s, url: 'postgres://v:2@host:5432/db', table: '\"public\".ALARMS'}\n"
        "  e: {type: postgres, input: s, url: 'postgres://v:2@host:5432/db', table: others}\n"
    )
    found = [(problem.code, problem.line) for problem in problems(tmp_path, "in/*", more=more)]
    assert found == [("same-target", 11), ("same-target", 13)]


@pytest.mark.parametrize(
    ("source", "sink"),
    [("in/*.jsonl", "in"), ("in", "in"), ("**/*.jsonl", "in"), ("in[1]", "in[1]"), ("*/*.jsonl", "x[2]")],
)
def test_brackets_in_the_name_of_a_directory_hide_no_loop(tmp_path: Path, source: str, sink: str) -> None:
    base = tmp_path / "proj[1]"
    (base / source.partition("/")[0]).mkdir(parents=True)
    assert codes(base, source, f"'{sink}'") == [("own-output", 9)]


def test_a_project_with_brackets_in_its_name_may_write_next_to_what_it_reads(tmp_path: Path) -> None:
    base = tmp_path / "proj[1]"
    (base / "in").mkdir(parents=True)
    assert codes(base, "in/*.jsonl", "out") == []


def test_a_directory_that_is_not_there_yet_is_not_both_read_and_written(tmp_path: Path) -> None:
    assert [code for code, _ in codes(tmp_path, "./loop", "./loop")] == ["own-output"]
    assert codes(tmp_path, "./loop", "./loop2") == []


def test_many_wildcards_against_a_deep_directory_are_compared_at_once(tmp_path: Path) -> None:
    deep = "/".join(f"d{n}" for n in range(24))
    assert codes(tmp_path, "./in/" + "**/" * 14 + "zz/*.jsonl", f"./in/{deep}") == []
    assert [code for code, _ in codes(tmp_path, "./in/" + "**/" * 14 + "*.jsonl", f"./in/{deep}")] == [
        "own-output"
    ]


MOVED = """\
name: t
sources:
  s:
    type: files
    path: "{path}"
    on_acknowledge: {action}
    {more}
sinks:
  k: {{type: console, input: s}}
"""


def found_of(tmp_path: Path, text: str) -> list[tuple[str, int]]:
    path = tmp_path / "alarms.yaml"
    path.write_text(text)
    try:
        load(path, default())
    except PipelineError as error:
        return [(problem.code, problem.line) for problem in error.problems]
    return []


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("in/*.jsonl", "move_to: in"),
        ("in", "move_to: ./x/../in/"),
        ("in/a.jsonl", "move_to: in"),
        ("other/*.jsonl", "move_to: in"),  # a symlink to in
        ("in/*", "move_to: other"),
        ("in/deep/*", "move_to: in"),
        ("in/**/*.jsonl", "move_to: in"),
    ],
)
def test_a_source_that_moves_files_to_where_it_reads_is_refused(tmp_path: Path, path: str, more: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "other").symlink_to("in")
    assert found_of(tmp_path, MOVED.format(path=path, action="move", more=more)) == [("own-moves", 7)]


@pytest.mark.parametrize(
    "path", ["in/acknowledged/*", "in/*/acknowledged/*.jsonl", "link/*", "in/acknowledged"]
)
def test_a_source_that_reads_only_what_it_takes_for_done_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "in" / "acknowledged").mkdir(parents=True)
    (tmp_path / "link").symlink_to("in/acknowledged")
    text = MOVED.format(path=path, action="move", more="")
    assert [code for code, _ in found_of(tmp_path, text)] == ["own-moves"]
    assert found_of(tmp_path, text.replace("move", "delete")) == []


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("in/*.jsonl", "move_to: in/done"),
        ("in/**/*.jsonl", "move_to: in/done"),
        ("in/*.jsonl", ""),
        ("in/**", ""),
        ("acknowledged/*", "move_to: done"),
    ],
)
def test_a_source_that_moves_files_elsewhere_is_fine(tmp_path: Path, path: str, more: str) -> None:
    assert found_of(tmp_path, MOVED.format(path=path, action="move", more=more)) == []


TWO = """\
name: t
sources:
  a: {{type: files, path: "{one}", on_acknowledge: {first}}}
  b: {{type: files, path: "{other}", on_acknowledge: {second}}}
sinks:
  k: {{type: console, inputs: [a, b]}}
"""


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("in/*.jsonl", "in/*.jsonl", True),
        ("in/*", "in/a.jsonl", True),
        ("in", "in/a*", True),
        ("in/*a*", "in/*b*", True),
        ("in/**/*.jsonl", "in/x/*/a.jsonl", True),
        ("in/*.jsonl", "other/*.jsonl", True),  # a symlink to in
        ("in/[ab].jsonl", "in/[b-d]*", True),
        ("in/a*.jsonl", "in/b*.jsonl", False),
        ("in/*.jsonl", "in/*.csv", False),
        ("in/*.jsonl", "in/deep/*.jsonl", False),
        ("in/*/a.jsonl", "in/**/b.jsonl", False),
        ("in/a?.jsonl", "in/a.jsonl", False),
    ],
)
def test_two_sources_on_the_same_files_are_refused_if_one_takes_them_away(
    tmp_path: Path, one: str, other: str, same: bool
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "other").symlink_to("in")
    for pair in ((one, other), (other, one)):
        for first, second in (("delete", "keep"), ("keep", "move"), ("delete", "delete")):
            text = TWO.format(one=pair[0], other=pair[1], first=first, second=second)
            codes = [code for code, _ in found_of(tmp_path, text)]
            assert codes == (["shared-files"] if same else []), (pair, first, second)
        assert found_of(tmp_path, TWO.format(one=one, other=other, first="keep", second="keep")) == []


def test_a_sink_that_files_by_value_below_what_a_source_reads_is_refused(tmp_path: Path) -> None:
    more = "    partition_by: [day]\n"
    assert [one.code for one in problems(tmp_path, "in/**/*.jsonl", "in", more=more)] == ["own-output"]
    assert [one.code for one in problems(tmp_path, "in/day=*/*.jsonl", "in", more=more)] == ["own-output"]
    assert problems(tmp_path, "in/*.jsonl", "in", more=more) == []
