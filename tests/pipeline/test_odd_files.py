"""Pipeline files and arguments that nobody writes on purpose get an answer, and no traceback."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from signoff.catalog import default
from signoff.cli import app
from signoff.errors import PipelineError, Problem, SignoffError
from signoff.pipeline.load import load

GOOD = "name: t\nsources:\n  s: {type: files, path: ./in}\nsinks:\n  k: {type: console, input: s}\n"


def problems(path: Path) -> list[Problem]:
    with pytest.raises(PipelineError) as raised:
        load(path, default())
    return list(raised.value.problems)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("!!int abc", "is not a value of the type !!int"),
        ('!!int ""', "is not a value of the type !!int"),
        ("!!float x", "is not a value of the type !!float"),
        ("!!bool maybe", "is not a value of the type !!bool"),
        ("!!timestamp never", "is not a value of the type !!timestamp"),
        ("!!timestamp 2021-01-01", "a tag such as !name"),
        ("!!binary aGVsbG8=", "a tag such as !name"),
        ("!!null x", "must be"),
        ("9" * 5000, "a number of 5000 digits"),
        ("1." + "9" * 5000, "a number of 5002 digits"),
        ('"./in\\0"', "the character U+0000 may not be in a value"),
        ('"./in\\ud800"', "U+D800"),
        ("!!python/name:os.system x", "a tag such as !name"),
    ],
)
def test_a_value_that_cannot_be_one_has_its_line(tmp_path: Path, value: str, says: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(GOOD.replace("./in", value))
    (problem,) = problems(path)
    assert (problem.line, problem.file) == (3, str(path))
    assert says in str(problem)


def test_a_huge_file_is_answered_at_once(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    with path.open("wb") as file:
        file.truncate(300 * 1024**2)
    (problem,) = problems(path)
    assert (problem.code, problem.message) == (
        "bad-yaml",
        "the file is larger than 1024 KiB, which no pipeline is",
    )
    assert problems(Path("/dev/zero"))[0].code == "bad-yaml"


def test_many_nodes_are_answered_in_a_time_that_grows_with_them(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("name: t\nsources:\n" + "".join(f"  n{number}: {{}}\n" for number in range(3000)))
    assert len(problems(path)) > 3000


@pytest.mark.parametrize(
    "name", ["", "folder", "nowhere.yaml", "file/x.yaml", "x" * 300, "nul\0", "\udcff.yaml"]
)
def test_a_path_that_is_no_pipeline_file_is_a_problem(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    assert problems(tmp_path / name)[0].code == "no-file"


@pytest.mark.parametrize(
    "command", [["explain"], ["dead-letters", "show"], ["dead-letters", "drop"], ["buffers", "drop"]]
)
@pytest.mark.parametrize(
    "event",
    [
        "s/0",
        "s/-1",
        f"s/{9 * 10**30}",
        "s",
        "/",
        "",
        "x/1",
        "s/1/2",
        "s/0x1",
        "-1",
        "s/ 1",
        "k/1",
        "s/\udcff",
    ],
)
def test_no_event_id_is_answered_with_a_traceback(tmp_path: Path, command: list[str], event: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(GOOD)
    result = CliRunner().invoke(app, [*command, str(path), event])
    assert result.exception is None or isinstance(result.exception, SystemExit | SignoffError)


@pytest.mark.parametrize("where", ["/proc/x", "file/x", "x" * 300, "file"])
def test_a_project_that_cannot_be_written_is_wrong_usage(tmp_path: Path, where: str) -> None:
    (tmp_path / "file").write_text("")
    before = Path.cwd()
    os.chdir(tmp_path)
    try:
        assert CliRunner().invoke(app, ["new", where]).exit_code == 2
    finally:
        os.chdir(before)


@pytest.mark.parametrize(
    "text", ['\nname: "\\UFFFFFFFF"', '\nname: "\\U00110000"', f"%YAML 1.{'9' * 5000}\n--- {{}}"]
)
def test_a_number_that_yaml_cannot_hold_is_a_problem_of_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    (problem,) = problems(path)
    assert "too large" in problem.message and problem.line == (1 if "%" in text else 2)


def test_a_secret_is_not_waited_for_in_a_named_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / "p.yaml"
    path.write_text(GOOD.replace("./in", "'${file:pipe}'"))
    (problem,) = problems(path)
    assert (problem.line, problem.code) == (3, "secret-not-set")
    assert "${file:pipe} cannot be read: it is a named pipe" in str(problem)


@pytest.mark.parametrize(("name", "says"), [("/dev/zero", "a device"), ("..", "a directory")])
def test_a_secret_is_a_file(tmp_path: Path, name: str, says: str) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(GOOD.replace("./in", f"'${{file:{name}}}'"))
    assert f"it is {says}" in str(problems(path)[0])


def test_a_secret_may_come_from_a_command_of_the_shell(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    reader, writer = os.pipe()
    with os.fdopen(reader), os.fdopen(writer, "w") as command:
        later = threading.Timer(0.2, lambda: (command.write("./from-a-pipe\n"), command.close()))
        later.start()
        path.write_text(GOOD.replace("./in", f"'${{file:/dev/fd/{reader}}}'"))
        assert load(path, default()).nodes["s"].config.path == "./from-a-pipe"  # type: ignore[attr-defined]
        later.join()


def test_a_path_from_a_secret_file_is_checked_like_one_that_is_written_down(tmp_path: Path) -> None:
    (tmp_path / "where").write_bytes(b"out\0side")
    path = tmp_path / "p.yaml"
    path.write_text(GOOD.replace("type: console", "type: files, path: '${file:where}'"))
    (problem,) = problems(path)
    assert (problem.line, problem.file) == (5, str(path)) and "U+0000" in str(problem)


@pytest.mark.parametrize("written", ["loop", "loop/further", "x" * 5000, "x" * 300, "new/" + "x" * 300])
@pytest.mark.parametrize(
    ("line", "node"),
    [
        (3, "  s: {type: files, path: WRITTEN}"),
        (3, "  s: {type: files, path: ./in, on_acknowledge: move, move_to: WRITTEN}"),
        (5, "  k: {type: files, path: WRITTEN, input: s}"),
        (5, "  k: {type: sqlite, path: WRITTEN, table: t, input: s}"),
        (5, "  k: {type: pipeline, path: WRITTEN, input: s}"),
        (6, "state: WRITTEN"),
    ],
)
def test_a_path_that_no_disk_can_hold_has_its_line(
    tmp_path: Path, line: int, node: str, written: str
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    lines = [*GOOD.splitlines(), ""]
    lines[line - 1] = node.replace("WRITTEN", written)
    path = tmp_path / "p.yaml"
    path.write_text("\n".join(lines))
    (problem,) = problems(path)
    assert (problem.code, problem.line, problem.file) == ("bad-path", line, str(path))


def test_a_long_chain_of_steps_is_checked_at_once(tmp_path: Path) -> None:
    steps = "".join(
        f"  t{n}: {{type: filter, input: {f't{n + 1}' if n < 1999 else 's'}, where: 'true'}}\n"
        for n in range(2000)
    )
    path = tmp_path / "p.yaml"
    text = GOOD.replace("sinks:", f"transforms:\n{steps}sinks:").replace("input: s}\n", "input: t0}\n")
    path.write_text(text)
    began = time.process_time()
    assert len(load(path, default()).nodes) == 2002
    path.write_text(text.replace("input: s,", "input: t0,"))  # a circle of all of them, and nobody reads s
    assert {problem.code for problem in problems(path)} == {"cycle", "unreachable"}
    assert time.process_time() - began < 12  # it takes 2 to 3; with the cube of their number 25
