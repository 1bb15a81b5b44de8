"""One pipeline of several texts: include, profiles, overlays, for_each, --set; errors keep their places."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from signoff.catalog import default
from signoff.cli import app
from signoff.engine.plan.fingerprint import form_of
from signoff.errors import PipelineError, Problem
from signoff.pipeline.graph import Graph
from signoff.pipeline.load import load
from signoff.pipeline.overlays import Layers
from signoff.run.supervisor import Run, RunOptions

MAIN = """\
name: alarms
sources:
  incoming: {type: files, path: "./in/*.jsonl"}
transforms:
  parsed:
    type: parse_json
    input: incoming
    schema: "id BIGINT, region STRING"
sinks:
  table:
    type: sqlite
    input: parsed
    path: ./out/alarms.db
    table: alarms
    retry: {attempts: 5, max_ms: 1000}
"""


def write(directory: Path, **files: str) -> Path:
    for name, text in files.items():
        path = directory / name.replace("__", "/")
        path = path.with_suffix(".yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory / "main.yaml"


def loaded(file: Path, *overlays: str, sets: tuple[str, ...] = (), profiles: tuple[str, ...] = ()) -> Graph:
    paths = tuple(str(file.parent / name) for name in overlays)
    return load(file, default(), {}, layers=Layers(paths, sets, profiles))


def problems(file: Path, *overlays: str, **layers: Any) -> list[Problem]:
    with pytest.raises(PipelineError) as raised:
        loaded(file, *overlays, **layers)
    return list(raised.value.problems)


def places(found: list[Problem]) -> list[tuple[str, int, str]]:
    return [(Path(problem.file).name, int(problem.line), problem.code) for problem in found]


# -- include


def split(directory: Path) -> Path:
    """`MAIN` in three files, two of them in a directory below."""
    content = yaml.safe_load(MAIN)
    return write(
        directory,
        main="name: alarms\ninclude: [parts/input.yaml, parts/output.yaml]\n",
        parts__input=yaml.safe_dump({key: content[key] for key in ("sources", "transforms")}),
        parts__output=yaml.safe_dump({"sinks": content["sinks"]}),
    )


def test_a_pipeline_that_is_split_into_includes_is_the_same_pipeline(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = loaded(write(tmp_path / "one", main=MAIN)), loaded(split(tmp_path / "two"))
    assert one.settings == two.settings
    assert {n: (x.kind, x.config, x.inputs) for n, x in one.nodes.items()} == {
        n: (x.kind, x.config, x.inputs) for n, x in two.nodes.items()
    }
    assert form_of(one, "table") == form_of(two, "table")  # receipts of a run before the split still count
    assert two.state == tmp_path / "two" / "state"


def test_paths_in_an_included_file_are_relative_to_the_file_that_is_run(tmp_path: Path) -> None:
    graph = loaded(split(tmp_path))
    assert graph.nodes["incoming"].config.reads(graph.base) == str(tmp_path / "in" / "*.jsonl")  # type: ignore[attr-defined]
    directory, _ = graph.nodes["table"].config.writes(graph.base)[0]
    assert directory == tmp_path / "out"


def test_includes_are_found_from_the_file_that_names_them(tmp_path: Path) -> None:
    content = yaml.safe_load(MAIN)
    file = write(
        tmp_path,
        main="name: alarms\ninclude: deep/all.yaml\nsources:\n  incoming: {type: stdin}\n",
        deep__all="include: [more/sinks.yaml]\n" + yaml.safe_dump({"transforms": content["transforms"]}),
        deep__more__sinks=yaml.safe_dump({"sinks": content["sinks"]}),
    )
    assert list(loaded(file).nodes) == ["incoming", "parsed", "table"]


def test_a_mistake_in_an_included_file_is_told_with_that_file_and_line(tmp_path: Path) -> None:
    file = split(tmp_path)
    (tmp_path / "parts/output.yaml").write_text(
        "sinks:\n  table:\n    type: sqlite\n    input: parssed\n    path: x.db\n    tabel: alarms\n"
    )
    found = problems(file)
    assert ("output.yaml", 4, "unknown-input") in places(found)
    assert ("output.yaml", 6, "unknown-field") in places(found)
    assert str(found[0]).startswith(f"{tmp_path}/parts/output.yaml:")


def test_what_two_files_say_is_a_conflict_with_both_places(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        main=MAIN + "include: [more.yaml]\n",
        more="name: other\nsinks:\n  table: {type: console, input: parsed}\n",
    )
    found = problems(file)
    assert [(p.code, Path(p.file).name, int(p.line)) for p in found] == [
        ("include-conflict", "more.yaml", 1),
        ("include-conflict", "more.yaml", 3),
    ]
    assert f'"sinks.table" is in two files of the pipeline; the other is {file}:10' in found[1].message


def test_a_circle_of_includes_is_refused_and_a_shared_part_is_not(tmp_path: Path) -> None:
    file = write(
        tmp_path, main=MAIN + "include: [a.yaml]\n", a="include: [b.yaml]\n", b="include: [a.yaml]\n"
    )
    (found,) = problems(file)
    assert (Path(found.file).name, found.line, found.code) == ("b.yaml", 1, "include-cycle")
    assert "a.yaml → b.yaml → a.yaml" in found.message
    write(tmp_path, a="include: [c.yaml]\n", b="include: [c.yaml]\n", c="acknowledgements: false\n")
    file.write_text(MAIN + "include: [a.yaml, b.yaml]\n")
    assert loaded(file).settings.acknowledgements is False


def test_a_file_that_is_not_there_is_told_where_it_is_included(tmp_path: Path) -> None:
    (found,) = problems(write(tmp_path, main=MAIN + "include: [parst.yaml]\n", parts="{}"))
    assert (Path(found.file).name, found.line, found.code) == ("main.yaml", 16, "no-file")
    assert "parst.yaml" in found.message and 'did you mean "parts.yaml"?' in found.hint


# -- overlays and profiles


def test_an_overlay_changes_fields_replaces_lists_and_takes_away_what_is_null(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        main=MAIN,
        over="sinks:\n  table:\n    retry: {attempts: 2}\n  copy: {type: console, input: parsed}\n",
        later="sinks:\n  table:\n    retry: {max_ms: null}\n  copy: null\n",
    )
    table = loaded(file, "over.yaml").nodes["table"].config
    assert (table.retry.attempts, table.retry.max_ms) == (2, 1000)  # type: ignore[attr-defined]
    both = loaded(file, "over.yaml", "later.yaml")
    assert list(both.sinks) == ["table"]
    assert both.nodes["table"].config.retry.max_ms == 30_000  # type: ignore[attr-defined]


def test_a_node_of_another_type_keeps_only_its_inputs(tmp_path: Path) -> None:
    file = write(tmp_path, main=MAIN, over="sinks:\n  table: {type: console, max_rows: 3}\n")
    node = loaded(file, "over.yaml").nodes["table"]
    assert (node.config.type, [str(port) for port in node.inputs]) == ("console", ["parsed"])


def test_mistakes_of_an_overlay_are_told_where_they_stand(tmp_path: Path) -> None:
    file = write(tmp_path, main=MAIN, over="sinks:\n  table:\n    retry:\n      attempts: many\n")
    assert places(problems(file, "over.yaml")) == [("over.yaml", 4, "wrong-type")]


PROFILES = """\
profiles:
  dev:
    state: ./state-dev
    sinks:
      table: {type: console}
  small:
    sinks:
      table: {retry: {attempts: 1}}
"""


def test_a_profile_is_laid_over_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, main=MAIN + PROFILES)
    assert loaded(file).nodes["table"].config.type == "sqlite"
    dev = loaded(file, profiles=("dev",))
    assert (dev.nodes["table"].config.type, dev.state.name) == ("console", "state-dev")
    monkeypatch.setenv("SIGNOFF_PROFILE", "small")
    assert load(file, default(), {}).nodes["table"].config.retry.attempts == 1  # type: ignore[attr-defined]


def test_a_profile_that_is_not_there_is_refused(tmp_path: Path) -> None:
    (found,) = problems(write(tmp_path, main=MAIN + PROFILES), profiles=("dve",))
    assert (found.code, found.hint) == ("unknown-profile", 'did you mean "dev"?')


def test_a_mistake_in_a_profile_is_told_with_its_line(tmp_path: Path) -> None:
    text = MAIN + PROFILES.replace("attempts: 1", "atempts: 1")
    assert places(problems(write(tmp_path, main=text), profiles=("small",))) == [
        ("main.yaml", 23, "unknown-field")
    ]


# -- --set


def test_single_values_are_set_as_yaml(tmp_path: Path) -> None:
    file = write(tmp_path, main=MAIN)
    sets = ("sinks.table.retry.attempts=null", "sinks.table.table=other", "acknowledgements=false",
            "spark.config.spark.driver.memory=2g", "transforms.parsed.keep=[headers]")  # fmt: skip
    graph = loaded(file, sets=sets)
    table = graph.nodes["table"].config
    assert (table.retry.attempts, table.retry.max_ms, table.table) == (None, 1000, "other")  # type: ignore[attr-defined]
    assert graph.settings.acknowledgements is False
    assert graph.settings.spark.config == {"spark.driver.memory": "2g"}
    assert graph.nodes["parsed"].config.keep == ("headers",)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("assignment", "code", "hint"),
    [
        ("sinks.tabel.path=x", "bad-set", 'did you mean "table"?'),
        ("sinks.table.pth=x", "unknown-field", 'did you mean "path"?'),
        ("sink.table.path=x", "unknown-field", 'did you mean "sinks"?'),
        ("sinks.table.path.more=x", "bad-set", "it has no fields"),
        ("sinks.table.retry.attempts=many", "wrong-type", ""),
        ("nonsense", "bad-set", "write --set"),
        ("sinks.table.table=#hunter2", "bad-set", "quotes"),
        ("sinks.table.table=abc #hunter2", "bad-set", "quotes"),
        ("sinks.table.table=&hunter2 abc", "bad-set", "quotes"),
        ("include=[more.yaml]", "bad-set", "--overlay"),
        ("profiles.small.name=x", "bad-set", "--overlay"),
        ("x-shared=1", "bad-set", "--overlay"),
        ("transforms.parsed.keep.²=x", "bad-set", ""),
        ("sinks.table.retry." + "a." * 3000 + "b=1", "bad-set", "deeper"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path, assignment: str, code: str, hint: str) -> None:
    main = MAIN.replace("schema:", "keep: [headers]\n    schema:")
    found = problems(write(tmp_path, main=main), sets=(assignment,))
    assert [problem.code for problem in found] == [code]
    assert hint in found[0].hint
    assert str(found[0]).startswith(f"--set {assignment.partition('=')[0]} [{code}]")


# -- for_each

REPEATED = """\
name: alarms
sources:
  incoming: {type: stdin}
transforms:
  parsed: {type: parse_json, input: incoming, schema: "id BIGINT, region STRING"}
  of_{region}:
    for_each: &regions [{region: north, limit: 5}, {region: south, limit: 7}]
    type: filter
    input: parsed
    where: region = '{region}' AND id < {limit}
sinks:
  table_{region}:
    for_each: *regions
    type: sqlite
    input: of_{region}
    path: ./out/{region}.db
    table: alarms
    retry: {attempts: "{limit}"}
  all: {type: console, inputs: ["of_{region}"]}
"""


def test_for_each_makes_a_node_of_every_value(tmp_path: Path) -> None:
    graph = loaded(write(tmp_path, main=REPEATED))
    assert list(graph.nodes) == [
        "incoming",
        "parsed",
        "of_north",
        "of_south",
        "table_north",
        "table_south",
        "all",
    ]
    assert graph.nodes["of_south"].config.where == "region = 'south' AND id < 7"  # type: ignore[attr-defined]
    assert graph.nodes["table_north"].config.retry.attempts == 5  # type: ignore[attr-defined]
    assert [str(port) for port in graph.nodes["all"].inputs] == ["of_north", "of_south"]


def test_mistakes_in_a_repeated_node_have_the_line_where_it_is_written(tmp_path: Path) -> None:
    file = write(tmp_path, main=REPEATED.replace("table: alarms", "tabel: alarms"))
    found = problems(file)
    assert {(problem.line, problem.code) for problem in found} == {(17, "unknown-field")}
    assert [problem.message.split(" has")[0] for problem in found] == [
        'sink "table_north"',
        'sink "table_south"',
    ]
    wrong = write(tmp_path, main=REPEATED.replace("of_{region}:", "of_them:"))
    assert ("main.yaml", 6, "duplicate-name") in places(problems(wrong))
    wrong = write(tmp_path, main=REPEATED.replace("for_each: *regions", "for_each: [1, 2]"))
    assert ("main.yaml", 13, "bad-value") in places(problems(wrong))


def test_one_of_the_repeated_nodes_can_be_set(tmp_path: Path) -> None:
    graph = loaded(write(tmp_path, main=REPEATED), sets=("sinks.table_south.table=other",))
    assert [graph.nodes[f"table_{r}"].config.table for r in ("north", "south")] == ["alarms", "other"]  # type: ignore[attr-defined]


def test_for_each_leaves_references_as_they_are(tmp_path: Path) -> None:
    hook = "{for_each: {R: [a, b]}, type: http, input: parsed, url: 'http://h', token: '${R}/{R}/${T_{R}}'}"
    file = write(tmp_path, main=MAIN + f"  'o_{{R}}': {hook}\n")
    graph = load(file, default(), {"R": "x", "T_a": "1", "T_b": "2"})
    tokens = [graph.nodes[f"o_{r}"].config.token.get_secret_value() for r in "ab"]  # type: ignore[attr-defined]
    assert tokens == ["x/a/1", "x/b/2"]


@pytest.mark.parametrize("values", ["[1, 2]", "[[a], [b]]", "[{x: 1}, {x: 2}]", "[null, true]"])
def test_values_that_are_no_names_are_problems_of_their_line(tmp_path: Path, values: str) -> None:
    text = REPEATED.replace("of_{region}:", "'{region}':").replace(
        "&regions [{region: north, limit: 5}, {region: south, limit: 7}]", f"&regions {{region: {values}}}"
    )
    found = problems(write(tmp_path, main=text))
    assert {problem.code for problem in found} <= {
        "bad-name",
        "bad-value",
        "unknown-input",
        "unreachable",
        "wrong-type",
    }
    assert all(problem.line for problem in found)


def test_a_profile_may_be_named_twice(tmp_path: Path) -> None:
    text = "profiles: {dev: {sinks: {new: {type: http, input: parsed, url: 'http://h', token: null}}}}\n"
    graph = loaded(write(tmp_path, main=MAIN + text), profiles=("dev", "dev"))
    assert graph.nodes["new"].config.token is None  # type: ignore[attr-defined]


# -- the commands


def invoke(*args: str) -> Any:
    return CliRunner().invoke(app, list(args))


def test_config_prints_the_pipeline_that_is_run_and_masks_secrets(tmp_path: Path) -> None:
    text = (
        MAIN + "  hook: {type: http, input: parsed, url: 'https://a:hunter22@b.example', token: '${TOKEN}'}\n"
    )
    file = write(tmp_path, main=text + PROFILES, over="sinks: {table: {table: other}}\n")
    over = ("--overlay", str(tmp_path / "over.yaml"))
    done = invoke("config", str(file), *over, "--set", "acknowledgements=false", "--profile", "small")
    assert done.exit_code == 0, done.output
    shown = yaml.safe_load(done.stdout)
    assert shown["sinks"]["table"]["table"] == "other"
    assert shown["sinks"]["table"]["retry"] == {"attempts": 1, "max_ms": 1000}
    assert shown["acknowledgements"] is False
    assert "profiles" not in shown
    assert "hunter22" not in done.stdout and shown["sinks"]["hook"]["token"] == "${TOKEN}"
    (tmp_path / "printed.yaml").write_text(done.stdout.replace("***", "x"))
    assert loaded_names(tmp_path / "printed.yaml") == ["incoming", "parsed", "table", "hook"]


def loaded_names(file: Path) -> list[str]:
    return list(load(file, default(), {}, require_secrets=False).nodes)


def test_every_command_with_a_file_takes_the_same_options(tmp_path: Path) -> None:
    file = str(write(tmp_path, main=MAIN + PROFILES))
    for command in (
        ["graph"],
        ["status"],
        ["audit"],
        ["sources", "list"],
        ["buffers", "list"],
        ["dead-letters", "list"],
    ):
        assert invoke(*command, file, "--profile", "dev", "--set", "sinks.table.max_rows=1").exit_code == 0, (
            command
        )
        wrong = invoke(*command, file, "--set", "sinks.tabel.path=x")
        assert isinstance(wrong.exception, PipelineError) and wrong.exception.problems[0].code == "bad-set", (
            command
        )
    assert "console" in invoke("graph", file, "--profile", "dev").stdout
    assert "console" not in invoke("graph", file).stdout  # nothing is left of the command before
    checked = invoke("check", file, "--no-spark", "--json", "--set", "sinks.table.pth=x")
    assert json.loads(checked.stdout)["problems"][0]["file"] == "--set sinks.table.pth"


def test_a_python_pipeline_takes_overlays_and_values(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(
        "from signoff import Pipeline\n"
        "p = Pipeline('alarms')\n"
        "p.source('incoming', 'stdin')\n"
        "p.sink('table', 'console', input='incoming', max_rows=5)\n"
    )
    graph = load(tmp_path / "main.py", default(), layers=Layers(sets=("sinks.table.max_rows=7",)))
    assert graph.nodes["table"].config.max_rows == 7  # type: ignore[attr-defined]
    with pytest.raises(PipelineError) as raised:
        load(tmp_path / "main.py", default(), layers=Layers(sets=("sinks.table.max_row=7",)))
    assert raised.value.problems[0].file == "--set sinks.table.max_row"


def test_the_engine_of_a_run_gets_what_the_command_line_says(tmp_path: Path) -> None:
    file = write(tmp_path, main=MAIN, over="sinks: {table: {table: other}}\n")
    graph = loaded(file, "over.yaml", sets=("acknowledgements=false",))
    job = json.loads(Run(graph, RunOptions(), file)._engine_job())
    again = Layers.from_json(job["layers"])
    assert load(file, default(), {}, layers=again).settings == graph.settings
    assert pickle.loads(pickle.dumps(graph)).nodes["table"].line_of("table") == graph.nodes["table"].line_of(
        "table"
    )
