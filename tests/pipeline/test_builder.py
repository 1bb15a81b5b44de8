"""The same graph from Python, and pipelines that are Python files."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from signoff.builder import Pipeline
from signoff.errors import PipelineError
from signoff.pipeline.graph import Port
from signoff.pipeline.load import load
from tests.pipeline.toys import CATALOG, Keep, Lines, Table


def small() -> Pipeline:
    pipeline = Pipeline("small")
    pipeline.source("lines", "lines", path="./in")
    return pipeline


def test_types_by_name_configs_and_functions_make_one_graph() -> None:
    pipeline = Pipeline("alarms", state="./s", spark={"master": "local[1]"})
    lines = pipeline.source("lines", Lines(path="./in"))
    pipeline.transform("parsed", "parse", input=lines, schema="a INT")
    pipeline.transform("kept", Keep(where="a > 1"), input="parsed")

    @pipeline.transform(input="kept", mode="rows")
    def doubled(row: Any) -> Any:
        return row

    pipeline.transform("again", doubled, inputs=[doubled, "parsed"])
    pipeline.sink("t", Table(table="t"), inputs=["again", "kept"])
    graph = pipeline.graph(CATALOG)
    assert list(graph.nodes) == ["lines", "parsed", "kept", "doubled", "again", "t"]
    assert graph.nodes["doubled"].config.function is doubled  # type: ignore[attr-defined]
    assert graph.nodes["doubled"].config.mode == "rows"  # type: ignore[attr-defined]
    assert graph.nodes["again"].inputs == (Port("doubled"), Port("parsed"))
    assert graph.settings.spark.master == "local[1]"
    assert graph.state == Path(__file__).parent / "s"
    assert doubled(1) == 1


def test_problems_have_the_line_of_the_call() -> None:
    pipeline = small()
    here = inspect.currentframe()
    assert here
    line = here.f_lineno + 1
    pipeline.sink("t", "table", input="lines", tabel="x")
    with pytest.raises(PipelineError) as caught:
        pipeline.graph(CATALOG)
    assert str(caught.value) == (
        f'{__file__}:{line} [unknown-field] sink "t" has no field "tabel"; did you mean "table"?'
    )


def test_all_problems_come_at_once() -> None:
    pipeline = Pipeline("not a name")
    pipeline.transform("a", "keep", input="b", where=3)
    with pytest.raises(PipelineError) as caught:
        pipeline.graph(CATALOG)
    codes = {problem.code for problem in caught.value.problems}
    assert codes >= {
        "bad-value",
        "wrong-type",
        "unknown-input",
        "unreachable",
        "missing-sink",
        "missing-source",
    }


def test_references_are_expanded_as_in_yaml() -> None:
    pipeline = small()
    pipeline.sink("t", "table", input="lines", table="${NAME}")
    assert pipeline.graph(CATALOG, {"NAME": "x"}).nodes["t"].config.table == "x"  # type: ignore[attr-defined]


def test_what_cannot_be_a_node_is_refused_at_once() -> None:
    pipeline = small()
    with pytest.raises(TypeError, match='source "x" cannot be made of a Table'):
        pipeline.source("x", Table(table="t"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match='sink "x" needs a type'):
        pipeline.sink("x", 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match='sink "x" is given as a config; put table into it'):
        pipeline.sink("x", Table(table="t"), table="u")


FILE = """\
from dataclasses import dataclass
from signoff import Pipeline
import neighbour

pipeline = Pipeline("from_file")
pipeline.source("lines", "lines", path="./in")

@dataclass
class Helper:
    value: int = neighbour.VALUE

@pipeline.transform(input="lines", mode="rows")
def doubled(row):
    return Helper().value

pipeline.sink("t", "table", input=doubled, table="t")

if __name__ == "__main__":
    pipeline.run()
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "neighbour.py").write_text("VALUE = 7\n")
    path = tmp_path / "flow.py"
    path.write_text(FILE)
    return path


def test_a_python_file_is_a_pipeline_file(file: Path) -> None:
    graph = load(file, CATALOG, {})
    assert (graph.name, graph.base) == ("from_file", file.parent)
    assert graph.nodes["doubled"].config.function({}) == 7  # type: ignore[attr-defined]
    assert (graph.nodes["doubled"].line, graph.nodes["doubled"].file) == (12, str(file))


def test_functions_of_a_pipeline_file_are_pickled_by_value(file: Path) -> None:
    from pyspark import cloudpickle

    function = load(file, CATALOG, {}).nodes["doubled"].config.function  # type: ignore[attr-defined]
    assert b"Helper" in cloudpickle.dumps(function)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('table="t"', 'tabel="t"', r"flow.py:16 \[unknown-field\]"),
        ("class Helper:", "class Helper(Unknown):", r"flow.py:9 \[bad-python\] NameError: name 'Unknown'"),
        ("def doubled(row):", "def doubled(row:", r"flow.py:13 \[bad-python\] SyntaxError"),
        ("pipeline = Pipeline(", "pipeline = other = Pipeline(", None),
        ("import neighbour", "import neighbour\nsecond = Pipeline('b')", "the file holds 2 Pipeline objects"),
        (FILE, "x = 1\n", "the file holds no Pipeline object"),
        ('if __name__ == "__main__":', "if True:", r"run\(\) is called while the file is being loaded"),
        (FILE, "raise SystemExit(3)\n", r"flow.py:1 \[bad-python\] SystemExit: 3"),
    ],
)
def test_what_is_wrong_with_a_python_file_has_its_line(
    file: Path, old: str, new: str, expected: str | None
) -> None:
    file.write_text(FILE.replace(old, new))
    if expected is None:
        load(file, CATALOG, {})
        return
    with pytest.raises(PipelineError, match=expected):
        load(file, CATALOG, {})
