"""The command line, whatever is typed: an answer or a sentence, a documented exit code, no file elsewhere.

Each command line is given to `signoff.cli.main`, as the entry point of the command does, over a state with
events in every condition. What would start Spark or processes is replaced: the arguments are tried, only.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa

from signoff import cli
from signoff.errors import EngineError
from signoff.ledger import DeadLetter, DeadLetters, Ledger, RowRef
from signoff.ledger.batch_state import OwesRows
from signoff.log import LogWriter
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.model import LogSettings
from tests.fuzz.targets import target
from tests.ledger.attempts import attempt

PIPELINE = """
name: alarms
sources:
  incoming: {type: files, path: "./in/*.jsonl"}
sinks:
  table: {type: sqlite, input: incoming, path: ./out.db, table: alarms}
  archive: {type: files, input: incoming, path: ./out, format: jsonl}
"""
WRITES = {"new", "drop", "reset", "replay", "run"}
"""Commands that may change something; the others leave every file as it is."""
ODD = (
    "", " ", "-", "--", "0", "-1", "1", "1e9", "99999999999999999999", "nan", "inf", "é", "\udcff", "\n",
    "x" * 300,
    "a/b", "..", ".", "~", "${A}", "%s", "{}", "[bold]", "'", '"', ";", "*", "\x1b[31m", "null", "text",
    "json",
)  # fmt: skip
IDS = (
    "incoming/0", "incoming/1", "incoming/6", "incoming/6/0", "incoming/9", "incoming/10", "elsewhere/1",
    "incoming", "incoming/", "/1", "incoming/-1", "incoming/1/~", "incoming/999999999999999999",
    "incoming/9999999999999999999", "incoming/٣", "incoming/1/\udcff", "incoming/01",
)  # fmt: skip
NAMES = (
    "incoming",
    "table",
    "archive",
    "incoming.buffer",
    "table.buffer",
    "gone",
    "files",
    "parse_json",
    "http",
)


class World:
    """A folder with a pipeline and its state, and what was written elsewhere."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="signoff-fuzz-")).resolve()
        self.pristine, self.folder = self.root / "pristine", self.root / "world"
        self.pristine.mkdir()
        (self.pristine / "cwd").mkdir()
        (self.pristine / "alarms.yaml").write_text(PIPELINE)
        (self.pristine / "fresh.yaml").write_text(PIPELINE + "state: ./fresh\n")
        (self.pristine / "wrong.yaml").write_text(PIPELINE.replace("table: alarms", "tabel: alarms"))
        (self.pristine / "bytes.yaml").write_bytes(b"\xff\x00{")
        _fill(self.pristine / "state")
        self.files = [
            *["../alarms.yaml"] * 12, "../fresh.yaml", "../wrong.yaml", "../bytes.yaml", "..", "/dev/null",
            "missing.yaml",
            "../alarms.yaml/x", "x" * 300 + ".yaml", "",
        ]  # fmt: skip
        self.watching = False
        self.elsewhere: list[str] = []
        self.restore()
        sys.addaudithook(self._see)

    def restore(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.pristine, self.folder)

    def listing(self) -> list[tuple[Path, int]]:
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(
            (path, path.stat().st_size) for path in files if not path.name.endswith(("-wal", "-shm"))
        )

    def _see(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.watching or event not in ("open", "os.mkdir", "os.rename", "os.link", "os.symlink"):
            return
        if event == "open" and not arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
        place = arguments[0] if event in ("open", "os.mkdir") else arguments[1]
        if isinstance(place, int) or os.fsdecode(place) == os.devnull or "__pycache__" in os.fsdecode(place):
            return
        if not os.path.realpath(os.fsdecode(place)).startswith(str(self.folder)):
            self.elsewhere.append(f"{event} {os.fsdecode(place)!r}")
            raise AssertionError(f"writes elsewhere: {self.elsewhere[-1]}")


def _fill(state: Path) -> None:
    """Ten events: 1 dead-lettered, 2 refused, 3 dropped, 6 owed by `table`, 8 and 9 not in a batch."""
    log = LogWriter(state / "log" / "incoming", LogSettings())
    rows = [
        {"payload": b'{"n": %d}' % n if n != 7 else b"\xff", "received_at": datetime(2026, 1, 1, tzinfo=UTC)}
        for n in range(10)
    ]
    log.append(pa.RecordBatch.from_pylist(rows, schema=EVENT_SCHEMA))
    log.close()
    with DeadLetters(state / "dead_letters.db") as letters, Ledger(state / "ledger.db") as ledger:
        letters.add([DeadLetter("incoming/1", "table", "no such column\nat all", b"\xff", {"file": "a"})])
        attempt(ledger, 0, 4, delivered=[0], dead_lettered=[1], refused=[2], rows={"table": 1})
        owing = OwesRows((RowRef(6),), attempts=3, error="locked", since=900.0)
        attempt(ledger, 4, 8, delivered=[4, 5, 6, 7], owed=[6], sinks={"table": owing})


@cache
def world() -> World:
    return World()


@cache
def commands() -> dict[tuple[str, ...], Any]:
    """Every command with its parameters, as Click knows them."""
    found: dict[tuple[str, ...], Any] = {}
    for name in cli.COMMANDS:
        command: Any = cli._command(name)
        if hasattr(command, "commands"):
            found |= {(name, inner): made for inner, made in command.commands.items()}
        else:
            found[name,] = command
    return found


def _value(generator: random.Random, parameter: Any) -> str:
    name = parameter.name
    if name == "directory":
        return generator.choice(("project", "a/b", *ODD))
    if generator.random() < 0.3:
        return generator.choice((*ODD, *IDS, *NAMES))
    if name == "file":
        return generator.choice(world().files)
    if name.startswith("event_id"):
        return generator.choice(IDS)
    if name in ("stage", "name", "type_name"):
        return generator.choice(NAMES)
    return generator.choice(ODD)


def _line(generator: random.Random) -> list[str]:
    words = generator.choice(list(commands()))
    line: list[str] = []
    for parameter in commands()[words].params:
        if parameter.param_type_name == "argument":
            count = generator.choice((0, 1, 1, 1, 1, 1, 1, 2))
            line += [_value(generator, parameter) for _ in range(count)]
        elif generator.random() < 0.3:
            line.append(generator.choice([*parameter.opts, *parameter.secondary_opts]))
            if not parameter.is_flag:
                line.append(_value(generator, parameter))
    if generator.random() < 0.1:
        line.insert(
            generator.randrange(len(line) + 1), generator.choice(("--help", "-x", "--", "--json", *ODD))
        )
    if generator.random() < 0.1:
        generator.shuffle(line)
    start = [*words]
    if generator.random() < 0.05:
        start[generator.randrange(len(start))] = generator.choice(ODD)
    return [*start, *line]


_made = cache(cli._command)


@contextmanager
def _without_spark() -> Iterator[None]:
    """Nothing is started: the arguments have been read by then."""
    from signoff import logs
    from signoff.engine import spark_check
    from signoff.engine.replay import replayer
    from signoff.engine.spark import class_archive
    from signoff.run import supervisor
    from signoff.service import server
    from signoff.watch import live
    from signoff.watch.tap import taps

    ended = SimpleNamespace(stop_requested=False, execute=lambda _: 0)
    with (
        mock.patch.object(cli, "_command", _made),  # making it takes longer than all the rest
        mock.patch.object(live, "Child", mock.Mock()),
        mock.patch.object(supervisor, "Run", lambda *_: ended),
        mock.patch.object(server, "Service", mock.Mock()),
        mock.patch.object(class_archive, "make_later", lambda: None),
        mock.patch.object(logs, "set_up_logging", lambda _: None),
        mock.patch.object(live.signal, "signal", lambda *_: None),
        mock.patch.object(spark_check, "check", lambda _: ()),
        mock.patch.object(replayer, "replay_now", side_effect=EngineError("there is no Spark here")),
        mock.patch.object(taps, "checking_session", side_effect=EngineError("there is no Spark here")),
        mock.patch("signoff.cli.tap.time.sleep", side_effect=KeyboardInterrupt),  # nobody waits for rows
    ):
        yield


def called(line: list[str]) -> tuple[int, str]:
    """What a command line answers: exit code and standard output."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    place = world()
    place.elsewhere.clear()
    before = Path.cwd()
    os.chdir(place.folder / "cwd")
    try:
        with _without_spark(), redirect_stdout(out), redirect_stderr(err), mock.patch.multiple(
            sys, argv=["signoff", *line], stdin=io.StringIO("")
        ):  # fmt: skip
            place.watching = True
            code: Any = 0
            try:
                cli.main()
            except SystemExit as end:
                code = end.code
    finally:
        place.watching = False
        os.chdir(before)
    assert not place.elsewhere, place.elsewhere
    said = err.buffer.getvalue() if isinstance(err.buffer, io.BytesIO) else b""
    assert b"Traceback" not in said, said.decode()
    answer = out.buffer.getvalue().decode() if isinstance(out.buffer, io.BytesIO) else ""
    assert code in (None, 0) or said or answer, "an error without a word"
    return int(code or 0), answer


@target("commands", weight=4)
def command_lines(generator: random.Random) -> None:
    line = _line(generator)
    writes = bool(WRITES & set(line))
    before = None if writes else world().listing()
    try:
        code, answer = called(line)
    except BaseException as error:
        error.add_note(f"signoff {line}")
        raise
    finally:
        if writes:
            world().restore()
    assert code in (0, 1, 2), (code, line)
    assert before is None or world().listing() == before, line
    if code == 0 and "--json" in line and not {"--help", "--errors"} & {*line} and "-h" not in line:
        for text in answer.splitlines():
            json.loads(text)
