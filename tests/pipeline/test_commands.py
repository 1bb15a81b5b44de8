"""The commands that need no run: check, graph, describe, new; and how the CLI reports errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from signoff import cli
from signoff.engine.plan.analysis_errors import analysis
from signoff.engine.plan.compile import SOURCE_COLUMNS
from signoff.errors import SignoffError, StateError
from signoff.pipeline.describe import COLUMNS
from signoff.pipeline.problem_codes import CODES, errors_markdown

ROOT = Path(__file__).parents[2]


class Result(NamedTuple):
    code: int
    out: str
    err: str


class Signoff:
    """Calls the CLI in this process, as its entry point does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str | Path) -> Result:
        self._monkeypatch.setattr(sys, "argv", ["signoff", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        captured = self._capsys.readouterr()
        code = caught.value.code
        return Result(code if isinstance(code, int) else 0, captured.out, captured.err)


@pytest.fixture
def signoff(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Signoff:
    return Signoff(monkeypatch, capsys)


@pytest.fixture
def project(signoff: Signoff, tmp_path: Path) -> Path:
    assert signoff("new", tmp_path / "my-alarms").code == 0
    return tmp_path / "my-alarms"


def test_a_new_project_is_fine_as_it_is(signoff: Signoff, project: Path) -> None:
    result = signoff("check", project / "pipeline.yaml", "--no-spark")
    assert result == (
        0,
        f"{project / 'pipeline.yaml'} is fine: 1 source, 2 transforms, 2 sinks (expressions not checked)\n",
        "",
    )
    lines = (project / "in" / "alarms.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["alarmId"] == 303
    with pytest.raises(json.JSONDecodeError):
        json.loads(lines[-1])


def test_a_new_project_overwrites_nothing(signoff: Signoff, project: Path) -> None:
    result = signoff("new", project)
    assert result.code == 2
    assert "exists and is not empty; nothing was written" in result.err


def test_check_prints_one_problem_a_line_and_exits_with_one(signoff: Signoff, project: Path) -> None:
    file = project / "pipeline.yaml"
    file.write_text(file.read_text().replace("table: failed", "tabel: failed").replace("where:", "were:"))
    result = signoff("check", file, "--no-spark")
    assert result.code == 1
    assert [line.split("] ")[1] for line in result.out.splitlines()] == [
        'transform "failed_equipment" has no field "were"; did you mean "where"?',
        'sink "table" has no field "tabel"; did you mean "table"?',
    ]


def test_check_speaks_json(signoff: Signoff, project: Path) -> None:
    file = project / "pipeline.yaml"
    assert json.loads(signoff("check", file, "--no-spark", "--json").out)["fine"] is True
    file.write_text(file.read_text().replace("input: parsed", "input: prsed", 1))
    result = signoff("check", file, "--no-spark", "--json")
    answer = json.loads(result.out)
    assert (result.code, answer["fine"]) == (1, False)
    assert answer["problems"][0] == {
        "code": "unknown-input",
        "message": 'transform "failed_equipment" reads "prsed", which does not exist',
        "hint": 'did you mean "parsed"?',
        "file": str(file),
        "line": 20,
    }


def test_check_of_a_missing_file_is_wrong_usage(signoff: Signoff, tmp_path: Path) -> None:
    result = signoff("check", tmp_path / "none.yaml", "--no-spark")
    assert result.code == 2
    assert "[no-file] no such file; signoff new DIR writes a starter project" in result.out


def test_graph_draws_the_pipeline(signoff: Signoff, project: Path) -> None:
    assert "└─ ■ table  sqlite  ./out/alarms.db" in signoff("graph", project / "pipeline.yaml").out
    assert "sink_table" in signoff("graph", project / "pipeline.yaml", "--mermaid").out


def test_a_wrong_pipeline_is_printed_without_traceback(signoff: Signoff, tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("name: 3\n")
    result = signoff("graph", tmp_path / "p.yaml")
    assert (result.code, result.out) == (2, "")
    assert len(result.err.splitlines()) == 3
    assert "Traceback" not in result.err


@pytest.mark.parametrize(("error", "code"), [(StateError, 2), (SignoffError, 1)])
def test_errors_are_printed_without_secrets(
    signoff: Signoff, monkeypatch: pytest.MonkeyPatch, error: type[SignoffError], code: int
) -> None:
    def fail(name: str) -> None:
        raise error("cannot open postgres://me:hunter2@h/db")

    monkeypatch.setattr(cli, "_command", fail)
    assert signoff("describe") == (code, "", "cannot open postgres://me:***@h/db\n")


def test_describe_lists_types_and_shows_one(signoff: Signoff) -> None:
    assert "parse_json" in signoff("describe").out
    shown = signoff("describe", "files").out
    assert "files (source)" in shown and "files (sink)" in shown
    assert "schema: text; required" in signoff("describe", "parse_json").out


def test_describe_of_an_unknown_type_suggests_one(signoff: Signoff) -> None:
    result = signoff("describe", "filtr")
    assert result.code == 2
    assert 'there is no type "filtr"; did you mean "filter"?' in " ".join(result.err.split())


def test_the_schema_of_a_pipeline_file_is_json(signoff: Signoff) -> None:
    schema = json.loads(signoff("describe", "--schema").out)
    assert "transform_route" in schema["$defs"]


@pytest.mark.parametrize(
    ("transforms", "sink", "asks"),
    [
        ("", "input: incoming", False),
        ("", "inputs: [incoming, other]", True),
        ("", "input: incoming, buffer: {}", True),
        ("transforms: {some: {type: filter, input: incoming, where: 'true'}}", "input: some", True),
    ],
)
def test_check_starts_spark_only_where_there_is_a_question_to_it(
    signoff: Signoff, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transforms: str, sink: str, asks: bool
) -> None:
    def start_session(*_: object, **__: object) -> None:
        raise SignoffError("Spark was started")

    monkeypatch.setattr("signoff.engine.spark_check.start_session", start_session)
    sources = "incoming: {type: generate, count: 1}, other: {type: generate, count: 1}"
    sinks = f"out: {{type: files, path: ./out, {sink}}}, rest: {{type: console, input: other}}"
    file = tmp_path / "pipeline.yaml"
    file.write_text(f"name: p\nsources: {{{sources}}}\n{transforms}\nsinks: {{{sinks}}}\n")
    result = signoff("check", file)
    assert ("Spark was started" in result.err) == asks, result
    assert asks or (result.code, "is fine" in result.out) == (0, True)


def test_a_source_is_described_with_the_columns_its_rows_have(signoff: Signoff) -> None:
    assert tuple(COLUMNS) == SOURCE_COLUMNS, "what the documentation says is what the engine gives"
    described = signoff("describe", "files").out
    reference = (ROOT / "docs" / "reference.md").read_text()
    for name, (of_type, _) in COLUMNS.items():
        assert f"  {name} {of_type}: " in described
        assert f"| `{name}` | `{of_type}` | " in reference
    assert "Columns of its rows" not in signoff("describe", "filter").out


def test_an_unknown_column_is_answered_with_all_there_are() -> None:
    class Unresolved:
        def getCondition(self) -> str:  # noqa: N802 - Spark's name
            return "UNRESOLVED_COLUMN.WITH_SUGGESTION"

        def getMessageParameters(self) -> dict[str, str]:  # noqa: N802
            return {"objectName": "`stationld`", "proposal": "`a`, `b`"}

    columns = ["stationId", "alarmId", "a", "b", "c", "d", "e", "f"]
    assert analysis(Unresolved(), columns) == (  # type: ignore[arg-type]
        "unresolved-column",
        'there is no column "stationld"',
        'did you mean "stationId"? there is: stationId, alarmId, a, b, c, d, e, f',
    )
    assert analysis(Unresolved(), ["x"])[2] == "there is: x"  # type: ignore[arg-type]


def test_every_command_has_help(signoff: Signoff) -> None:
    for name in cli.COMMANDS:
        result = signoff(name, "--help")
        assert result.code == 0 and "Usage: signoff" in result.out, name


def test_the_list_of_commands_says_what_each_command_says_of_itself(signoff: Signoff) -> None:
    for name, summary in cli.COMMANDS.items():
        first = signoff(name, "--help").out.split("\n\n")[1]
        assert " ".join(first.split()) == summary


@pytest.mark.parametrize("group", [(), ("dead-letters",), ("sources",), ("buffers",)])
def test_no_help_text_is_cut_off(signoff: Signoff, group: tuple[str, ...]) -> None:
    assert "..." not in signoff(*group, "--help").out.replace("[ARGS]...", "")


def test_help_loads_no_command() -> None:
    code = (
        "import sys; from signoff import cli; sys.argv = ['signoff', '--help']\n"
        "try: cli.main()\nexcept SystemExit: pass\n"
        "print([name for name in ('pydantic', 'yaml', 'pyspark', 'pyarrow', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


def test_importing_signoff_needs_no_spark() -> None:
    program = (
        "import sys, signoff, signoff.cli\n"
        "assert signoff.Pipeline('p') and signoff.PipelineError\n"
        "print([name for name in ('pyspark', 'pyarrow', 'pandas') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_what_a_pipeline_does_not_use_is_not_loaded(tmp_path: Path) -> None:
    """Else most of the time in which a command or an intake starts would be spent on it."""
    sources = "{incoming: {type: files, path: './in/*.jsonl'}, made: {type: generate, count: 1}}"
    sinks = (
        "{table: {type: sqlite, input: incoming, path: a.db, table: t}, out: {type: console, input: made}}"
    )
    (tmp_path / "pipeline.yaml").write_text(f"name: p\nsources: {sources}\nsinks: {sinks}\n")
    program = (
        "import sys, signoff, signoff.intake.__main__\n"
        "assert set(signoff.load('pipeline.yaml').nodes) == {'incoming', 'made', 'table', 'out'}\n"
        "others = ('pyspark', 'pandas', 'pika', 'psycopg', 'httpx', 'uvicorn')\n"
        "print([name for name in others if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert run.stdout == "[]\n"


@pytest.mark.parametrize(
    ("page", "arguments"),
    [("reference.md", ("--all", "--markdown")), ("errors.md", ("--errors", "--markdown"))],
)
def test_generated_pages_are_not_stale(signoff: Signoff, page: str, arguments: tuple[str, ...]) -> None:
    current = signoff("describe", *arguments).out
    command = f"signoff describe {' '.join(arguments)} > docs/{page}"
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == current, f"stale: {command}"


def test_every_code_is_used_and_every_code_used_is_documented() -> None:
    import re

    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "src" / "signoff").rglob("*.py")
        if not path.name.endswith("problem_codes.py")
    )
    used = set(re.findall(r"\bproblem\(\s*\"([a-z-]+)\"", sources))
    used |= set(re.findall(r"\bProblem\(\s*\"([a-z-]+)\"", sources))
    used |= set(re.findall(r"FieldError\(\s*\"\w+\",\s*\"([a-z-]+)\"", sources))
    used |= set(re.findall(r"_report\(node, [^\"]*(?:\"\w+\", )?\"([a-z-]+)\"", sources))
    assert used <= set(CODES), f"not in signoff.pipeline.problem_codes: {used - set(CODES)}"
    unused = [code for code in CODES if f'"{code}"' not in sources and not code.startswith("missing-s")]
    assert unused == []
    assert all(f"## {code}" in errors_markdown() for code in CODES)
