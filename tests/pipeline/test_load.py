"""From YAML to a graph, and everything that can be wrong with the fields of a file."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from signoff.errors import PipelineError
from signoff.pipeline.graph import Port
from signoff.pipeline.load import load
from tests.pipeline.toys import CATALOG, GOOD, graph_of, only_problem, problems_of, said


def test_a_good_file_becomes_a_graph_in_the_order_of_the_data(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, GOOD)
    assert graph.name == "alarms"
    assert list(graph.nodes) == ["incoming", "parsed", "kinds", "all", "some"]
    assert graph.nodes["some"].inputs == (Port("kinds", "high"), Port("kinds", "low"))
    assert graph.state == tmp_path / "state"
    assert graph.downstream("parsed") == {"kinds", "all", "some"}
    assert graph.upstream_sources("some") == {"incoming"}
    assert graph.warnings == ()


def test_nodes_may_be_written_in_any_order(tmp_path: Path) -> None:
    text = GOOD.replace("input: incoming\n    schema", "input: late\n    schema") + ("x-note: ignored\n")
    text = text.replace("  kinds:\n", "  late: {type: keep, input: incoming, where: a}\n  kinds:\n")
    assert list(graph_of(tmp_path, text).nodes) == ["incoming", "late", "parsed", "kinds", "all", "some"]


def test_every_node_knows_the_lines_of_its_fields(tmp_path: Path) -> None:
    node = graph_of(tmp_path, GOOD).nodes["all"]
    assert (node.line, node.line_of("table"), node.line_of("retry.attempts")) == (16, 19, 20)
    assert node.line_of("on_failure") == 16
    problem = node.problem("bad-expression", "is odd", at="retry.initial_ms")
    assert said(problem) == 'alarms.yaml:20 [bad-expression] sink "all" is odd'


def test_a_graph_survives_pickling(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, GOOD)
    assert pickle.loads(pickle.dumps(graph)) == graph


def test_a_misspelt_field_is_reported_with_line_and_suggestion(tmp_path: Path) -> None:
    problem = only_problem(tmp_path, GOOD.replace("table: everything", "tabel: everything"))
    assert (
        said(problem)
        == 'alarms.yaml:19 [unknown-field] sink "all" has no field "tabel"; did you mean "table"?'
    )


def test_a_field_like_no_other_is_reported_with_the_fields_there_are(tmp_path: Path) -> None:
    problem = only_problem(tmp_path, GOOD.replace("retry: {attempts: 5}", "retry: {zzz: 5}"))
    assert problem.message == 'sink "all" field "retry" has no field "zzz"'
    assert problem.hint == "its fields are: attempts, initial_ms, max_ms"


def test_a_missing_field_is_reported_with_what_it_means(tmp_path: Path) -> None:
    problem = only_problem(tmp_path, GOOD.replace('schema: "a INT, b STRING"', "on_error: drop"))
    assert said(problem) == (
        'alarms.yaml:7 [missing-field] transform "parsed" needs the field "schema"; Columns and their types'
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "retry: {attempts: 5}",
            "retry: {attempts: five}",
            '[wrong-type] sink "all" field "retry.attempts" must be a valid integer, not "five"',
        ),
        (
            "retry: {attempts: 5}",
            "retry: {attempts: 0}",
            '[bad-value] sink "all" field "retry.attempts" must be greater than or equal to 1, not 0',
        ),
        (
            "path: ./in",
            "path: ./in\n    on_acknowledge: archive",
            "[bad-value] source \"incoming\" field \"on_acknowledge\" must be 'keep', 'move' or 'delete', "
            'not "archive"',
        ),
        (
            "table: everything",
            "table: 303",
            '[wrong-type] sink "all" field "table" must be a valid string, not 303; put it in quotes: "303"',
        ),
        (
            "table: everything",
            "table: t\n    sizes: many",
            '[wrong-type] sink "all" field "sizes" must be a valid integer or a valid list, not "many"',
        ),
        (
            "table: everything",
            "table: t\n    sizes: [1, x]",
            '[wrong-type] sink "all" field "sizes.1" must be a valid integer, not "x"',
        ),
        (
            "input: parsed\n    table",
            "input: [parsed]\n    table",
            '[wrong-type] sink "all" field "input" must be a valid string, not a list; '
            "for several write inputs: [parsed]",
        ),
        (
            "table: everything",
            "table: t\n    last: 3\n    first: 5",
            '[bad-value] sink "all": `first` must not be above `last`',
        ),
        ("name: alarms", "name: a b", '[bad-value] the pipeline field "name" must be'),
        ("name: alarms", "name: alarms\nstat: x", '[unknown-field] the pipeline has no field "stat"'),
        ("name: alarms\n", "", '[missing-field] the pipeline needs the field "name"'),
        ("table\n    input", "tabel\n    input", '[unknown-type] sink "all" has the unknown type "tabel"'),
        ("    type: table\n", "", '[missing-field] sink "all" needs the field "type"'),
    ],
)  # fmt: skip
def test_wrong_values_say_what_was_wanted_and_what_was_got(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert old in GOOD
    assert expected in said(problems_of(tmp_path, GOOD.replace(old, new, 1))[0])


def test_a_check_over_several_fields_points_at_the_field_it_names(tmp_path: Path) -> None:
    text = GOOD.replace("table: everything", "table: t\n    last: 3\n    first: 5")
    assert only_problem(tmp_path, text).line == 21


def test_a_type_in_the_wrong_section_is_told_where_it_belongs(tmp_path: Path) -> None:
    text = GOOD + "  extra: {type: keep, input: parsed, where: a}\n"
    assert "keep is a transform; move it to transforms:" in str(only_problem(tmp_path, text))


def test_all_problems_of_a_file_come_in_one_run_and_in_its_order(tmp_path: Path) -> None:
    text = (
        GOOD.replace("path: ./in", "pth: ./in")
        .replace("routes: {high: a > 5, low: a <= 5}", "routes: []")
        .replace("attempts: 5", "attempts: five")
        .replace("table: some", "table: ${NOT_SET}")
    )
    problems = problems_of(tmp_path, text)
    assert [problem.code for problem in problems] == [
        "unknown-field",
        "wrong-type",
        "wrong-type",
        "secret-not-set",
    ]
    assert [problem.line for problem in problems] == [5, 14, 20, 24]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("name: a\n\tstate: b\n", 2, "a tab is where only spaces may be"),
        ("name: a\nsources: [\n", 3, "this is not YAML"),
        ("name: a: b\n", 1, 'a ": " is inside a value'),
        ("", 1, "the file is empty"),
        ("- a\n- b\n", 1, "the file is not a mapping"),
        ("name: a\n---\nname: b\n", 2, "more than one document"),
        ("name: !env X\n", 1, "a tag such as !name"),
        ("name: !!python/object/apply:os.system [ls]\n", 1, "a tag such as"),
        ("a: &a [*a]\n", 1, "contains itself"),
        ("? [a, b]\n: c\n", 1, "a key must be a plain text"),
        ("name: \x00\n", 1, "the character U+0000 may not be in a file"),
        ("[" * 1200, 0, "nested too deeply"),
    ],
)
def test_what_is_not_yaml_is_one_problem_with_its_line(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    problem = only_problem(tmp_path, text)
    assert (problem.code, problem.line) == ("bad-yaml", line)
    assert message in problem.message


def test_anchors_that_explode_are_refused(tmp_path: Path) -> None:
    lines = ["x-0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"x-{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "too many values" in only_problem(tmp_path, "\n".join(lines)).message


def test_anchors_and_merges_work(tmp_path: Path) -> None:
    text = GOOD.replace("  all:\n    type: table\n", "  all:\n    <<: &t {type: table, last: 7}\n")
    text = text.replace("  some:\n    type: table\n", "  some:\n    <<: *t\n    last: 8\n")
    graph = graph_of(tmp_path, text)
    assert [graph.nodes[name].config.last for name in ("all", "some")] == [7, 8]  # type: ignore[attr-defined]


def test_words_that_old_yaml_takes_for_booleans_and_numbers_stay_texts(tmp_path: Path) -> None:
    text = GOOD.replace("table: everything", "table: no").replace("high: a > 5", "on: 12:30")
    graph = graph_of(tmp_path, text.replace("kinds.high", "kinds.on"))
    assert graph.nodes["all"].config.table == "no"  # type: ignore[attr-defined]
    assert graph.nodes["kinds"].config.routes["on"] == "12:30"  # type: ignore[attr-defined]


def test_spark_properties_may_be_written_without_quotes(tmp_path: Path) -> None:
    text = GOOD + "spark: {config: {spark.ui.enabled: false, spark.sql.shuffle.partitions: 2}}\n"
    config = graph_of(tmp_path, text).settings.spark.config
    assert config == {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}


def test_a_key_written_twice_is_a_problem(tmp_path: Path) -> None:
    problem = only_problem(tmp_path, GOOD.replace("path: ./in", "path: ./in\n    path: ./other"))
    assert said(problem) == (
        'alarms.yaml:6 [duplicate-field] source "incoming" has the field "path" twice; the first is in line 5'
    )


def test_a_node_written_twice_is_a_problem(tmp_path: Path) -> None:
    problem = only_problem(tmp_path, GOOD + "  some: {type: table, input: parsed, table: x}\n")
    assert (problem.code, problem.line) == ("duplicate-name", 25)


@pytest.mark.parametrize("section", ["sources: []", "sources: text", "sources: {incoming: text}"])
def test_a_section_of_the_wrong_shape_is_a_problem(tmp_path: Path, section: str) -> None:
    problems = problems_of(tmp_path, f"name: a\n{section}\nsinks: {{}}\n")
    assert problems[0].code in ("wrong-type", "missing-source")
    assert {"missing-source", "missing-sink"} <= {problem.code for problem in problems}


def test_a_missing_file_suggests_the_one_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "alarms.yaml").write_text(GOOD)
    with pytest.raises(PipelineError, match=r'no such file; did you mean "alarms.yaml"\?'):
        load(tmp_path / "alarms.yml", CATALOG, {})


def test_a_directory_or_bytes_instead_of_text_are_problems(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"\[no-file\] the file cannot be read: Is a directory"):
        load(tmp_path, CATALOG, {})
    (tmp_path / "b.yaml").write_bytes(b"name: a\nstate: \xff\n")
    with pytest.raises(PipelineError, match=r"b.yaml:2 \[bad-yaml\] the file is not UTF-8"):
        load(tmp_path / "b.yaml", CATALOG, {})


_keys = st.sampled_from(
    [
        "name",
        "sources",
        "sinks",
        "transforms",
        "type",
        "input",
        "inputs",
        "table",
        "retry",
        "url",
        "a",
        "b.c",
        "",
    ]
)
_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from(["${X}", "parsed", "table"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=4),
    max_leaves=15,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(document=st.dictionaries(_keys, _values, max_size=5))
def test_whatever_a_file_holds_only_a_pipeline_error_comes_out(
    tmp_path: Path, document: dict[str, object]
) -> None:
    import yaml

    problems = problems_of(tmp_path, yaml.safe_dump(document, allow_unicode=True))
    assert problems
    assert all(problem.code and problem.message for problem in problems)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, len(GOOD)), junk=st.text(max_size=5))
def test_a_damaged_file_never_raises_anything_else(tmp_path: Path, cut: int, junk: str) -> None:
    file = tmp_path / "alarms.yaml"
    file.write_bytes((GOOD[:cut] + junk + GOOD[cut:]).encode("utf-8", "surrogatepass"))
    try:
        load(file, CATALOG, {})
    except PipelineError as error:
        assert error.problems
