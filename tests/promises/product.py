"""The product under test: a pipeline file, runs of it, and everything it says about itself.

    product = Product(tmp_path, sources={...}, transforms={...}, sinks={...})
    running = product.start()                  # the real `signoff run`, in a session of its own
    answer = product.post([{"n": 1}])          # a future: the response is the acknowledgement
    running.wait_for(lambda: product.account()["delivered"] == 1)
    product.kill9(product.engine_pid())
    running.kill9()                            # waits until its children are gone as well
    assert product.balanced

`Inline` is the same, ten times sooner there: its engine runs in a thread of the test, on the tests'
own Spark session. Intakes are processes in both, here forked from one that has everything loaded. Only
`Product` can be killed.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
import yaml
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from signoff.catalog import default
from signoff.cli import app
from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.engine import Engine
from signoff.errors import PipelineError
from signoff.intake import Status, read_status
from signoff.ledger import Ledger
from signoff.ledger.engine_lock import engine_lock
from signoff.ledger.run_lock import RunLock
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.pipeline.load import load
from signoff.run.processes import Child
from signoff.run.supervisor import STILL_OWED, Run, RunOptions
from signoff.sources.http.source import ADDRESS_FILE
from tests.intake.forked import ForkedChild
from tests.servers import PATIENCE_S, wait_until

SIGNOFF = Path(sys.executable).with_name("signoff")
Nodes = Mapping[str, Mapping[str, Any]]
HTTP = {"type": "http", "port": 0, "acknowledge_within": "2m"}
FILES = {"type": "files", "path": "./in/*.jsonl", "on_acknowledge": "move"}
PARSE = {"type": "parse_json", "input": "incoming", "schema": "n INT, parts ARRAY<INT>"}
SPARK: dict[str, Any] = {
    "master": "local[2]",
    "config": {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
}
"""Java does not optimise what runs only for seconds: half the CPU of a start."""
SOON = {"initial_ms": 10, "max_ms": 50}
"""A `retry` that a test has the time to wait for."""
LATER = {"initial_ms": 600_000, "max_ms": 600_000}
"""A `retry` of one try in a run: while the sink is known to owe, no pass to it is under way."""


def books(**counts: int) -> dict[str, int]:
    """The account in which these are the only counts that are not zero."""
    empty = dict.fromkeys(("delivered", "dropped", "dead_lettered", "refused", "expired", "in_flight"), 0)
    return {"received": sum(counts.values()), **empty, **counts}


@dataclass(frozen=True)
class Completed:
    """A run, or another command, that has ended."""

    code: int
    output: str
    answer: str = ""
    """What a command wrote to its standard output: what a run logs meanwhile is not in it."""


def _with_the_tests() -> str:
    """Where a run looks for modules: also here, for the functions that pipelines of tests name."""
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys([str(Path(__file__).parents[2]), *filter(None, known)]))


class Running:
    """A run that goes on: a process, and a file with what it prints."""

    def __init__(self, command: list[str], output: Path, stdin: Any = subprocess.DEVNULL) -> None:
        self._output = output
        with output.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=file,
                stderr=file,
                start_new_session=True,
                cwd=output.parent,
                env={**os.environ, "PYTHONPATH": _with_the_tests()},
            )
        self.pid = self._process.pid

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait_for(self, condition: Callable[[], Any], timeout: float = PATIENCE_S) -> Any:
        """The condition's first true value; fails when the run ends before, or the time is over."""

        def holds() -> Any:
            if value := condition():
                return value
            assert not self.ended, f"the run ended:\n{self.output}"
            return None

        try:
            return wait_until(holds, timeout)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output}") from None

    def wait(self, timeout: float = PATIENCE_S) -> Completed:
        """Wait for its end."""
        try:
            code = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it still runs after {timeout} s:\n{self.output}") from None
        return Completed(code, self.output)

    def terminate(self, timeout: float = PATIENCE_S) -> Completed:
        """SIGTERM, as a service manager sends it; wait for the end."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait(timeout)

    def kill9(self, timeout: float = PATIENCE_S) -> None:
        """SIGKILL the run itself; its children must go away by themselves, and that is awaited."""
        children = _descendants(self.pid)
        self._process.kill()
        self._process.wait()
        _, alive = psutil.wait_procs(children, timeout)
        assert not alive, f"outlived the run: {alive}"

    def clean_up(self) -> None:
        """End it whatever happens, with all its children."""
        children = _descendants(self.pid)
        if not self.ended:
            self._process.kill()
            self._process.wait()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()


class Product:
    """A pipeline in a directory of its own. `sources`, `transforms` and `sinks` as in YAML."""

    def __init__(
        self,
        directory: Path,
        *,
        sources: Nodes | None = None,
        transforms: Nodes | None = None,
        sinks: Nodes | None = None,
        **settings: Any,
    ) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.file = directory / "pipeline.yaml"
        self.state = directory / "state"
        self._runs: list[Any] = []
        self._clients = ThreadPoolExecutor(16, "client")
        if sources is not None and sinks is not None:
            self.write({"sources": sources, "transforms": transforms or {}, "sinks": sinks, **settings})

    def write(self, pipeline: Mapping[str, Any] | str) -> None:
        """Write the pipeline file, as YAML text or as what it holds."""
        if not isinstance(pipeline, str):
            content = {"name": "tested", "state": "./state", "spark": SPARK, **pipeline}
            pipeline = yaml.safe_dump({k: v for k, v in content.items() if v != {}}, sort_keys=False)
        self.file.write_text(pipeline)

    # -- running

    def start(self, *args: str, stdin: Any = subprocess.DEVNULL) -> Any:
        """`signoff run pipeline.yaml`, with further arguments."""
        command = [str(SIGNOFF), "run", str(self.file), "--quiet", *args]
        running = Running(command, self.directory / "output.txt", stdin)
        self._runs.append(running)
        return running

    def run_once(self, timeout: float = PATIENCE_S, *args: str, stdin: Any = subprocess.DEVNULL) -> Completed:
        """`signoff run pipeline.yaml --once`."""
        running = self.start("--once", *args, stdin=stdin)
        done: Completed = running.wait(timeout)
        return done

    def close(self) -> None:
        """End all runs; nothing is left behind."""
        for running in self._runs:
            running.clean_up()
        self._clients.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- giving it events

    def put(self, name: str, events: Iterable[Any], folder: str = "in") -> Path:
        """Put a file of one event a line where a `files` source finds it, whole from the start."""
        path = self.directory / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join((event if isinstance(event, str) else json.dumps(event)) + "\n" for event in events)
        aside = path.with_name(f".{name}.part")
        aside.write_text(text)
        return aside.rename(path)

    def post(
        self, events: Any, source: str = "incoming", headers: Mapping[str, str] | None = None
    ) -> Future[httpx.Response]:
        """POST to an `http` source in the background; a list is sent as JSON array, bytes as they are."""
        address = wait_until(lambda: self._address(source), what=f"the intake of {source}")
        content = events if isinstance(events, bytes) else json.dumps(events).encode()
        return self._clients.submit(
            httpx.post, address, content=content, headers=dict(headers or {}), timeout=900, trust_env=False
        )

    def _address(self, source: str) -> str | None:
        if self.intake_pid(source) is None:
            return None
        return str(json.loads((self.state / "intake" / source / ADDRESS_FILE).read_bytes())["address"])

    def rows(self, folder: str = "out") -> list[dict[str, Any]]:
        """What a `files` sink has made visible, in the order of the ids."""
        files = sorted((self.directory / folder).glob("*.jsonl"))
        found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        return sorted(
            found, key=lambda row: [int(x) if x.isdigit() else x for x in row["event_id"].split("/")]
        )

    def table(self, name: str = "events", file: str = "out.db") -> list[dict[str, Any]]:
        """What a `sqlite` sink has written, in the order of the ids."""
        with closing(sqlite3.connect(self.directory / file)) as database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute(f"SELECT * FROM {name} ORDER BY event_id")]

    # -- what it says, through the commands

    def command(self, *args: str) -> Completed:
        """Another command of the CLI, called in this process."""
        result = CliRunner().invoke(app, list(args))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return Completed(result.exit_code, result.output, result.stdout)

    def audit(self) -> dict[str, Any]:
        """`signoff audit --json`."""
        result = CliRunner().invoke(app, ["audit", str(self.file), "--json"])
        assert result.stdout, (result.exit_code, result.output, result.exception)
        found: dict[str, Any] = json.loads(result.stdout)
        assert (result.exit_code == 0) == found["balanced"]
        return found

    @property
    def balanced(self) -> bool:
        return bool(self.audit()["balanced"])

    def account(self, source: str = "incoming") -> dict[str, int]:
        """The account of one source, of a balanced audit."""
        found = self.audit()
        assert found["balanced"], found
        account: dict[str, int] = found["sources"][source]
        return account

    def dead_letters(self) -> list[dict[str, Any]]:
        """`signoff dead-letters list --json`."""
        done = self.command("dead-letters", "list", str(self.file), "--json")
        return [json.loads(line) for line in done.answer.splitlines()]

    def explain(self, event_id: str) -> dict[str, Any]:
        """`signoff explain --json`."""
        found: dict[str, Any] = json.loads(self.command("explain", str(self.file), event_id, "--json").answer)
        return found

    def status(self) -> dict[str, Any]:
        """`signoff status --json`."""
        # Not the whole output: what a run in this process logs meanwhile goes there, too.
        found: dict[str, Any] = json.loads(
            CliRunner().invoke(app, ["status", str(self.file), "--json"]).stdout
        )
        return found

    # -- what it says, faster

    def graph(self) -> Graph:
        return load(self.file, default())

    def ledger(self) -> Ledger:
        """The ledger, to be closed by the caller."""
        return Ledger(self.state / "ledger.db", readonly=True)

    def received(self, source: str = "incoming") -> int:
        """How many events are durable in a source's log."""
        return LogReader(self.state / "log" / source).head()

    def settled_upto(self, source: str = "incoming") -> int:
        with self.ledger() as ledger:
            return ledger.settled_upto(source)

    def told_upto(self, source: str = "incoming") -> int:
        """All events below are settled, and the source was told so."""
        status = read_status(self.state / "intake" / source)
        return status.settled_sequence if status else 0

    def intake_status(self, source: str = "incoming") -> Status | None:
        return read_status(self.state / "intake" / source)

    # -- its processes

    def engine_pid(self) -> int | None:
        """None while there is none, or it is only about to start."""
        try:
            found = json.loads((self.state / "engine.json").read_text())
        except FileNotFoundError:
            return None
        return found["pid"] if found["state"] != "stopped" and _alive(found["pid"]) else None

    def intake_pid(self, source: str = "incoming") -> int | None:
        status = read_status(self.state / "intake" / source)
        return status.pid if status and status.state != "failed" and _alive(status.pid) else None

    def jvm_pid(self) -> int | None:
        engine = self.engine_pid()
        return next((p.pid for p in _descendants(engine) if _program(p) == "java"), None) if engine else None

    def python_worker_pids(self) -> list[int]:
        """The processes in which Spark runs Python on the rows (not the one that forks them)."""
        jvm = self.jvm_pid()
        return [p.pid for p in _descendants(jvm) if _is_worker(p)] if jvm else []

    @staticmethod
    def kill9(pid: int | None) -> None:
        """SIGKILL one process and wait until it is gone."""
        assert pid is not None, "it is not there"
        process = psutil.Process(pid)
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not _alive(pid), what=f"the end of {process}")


class Inline(Product):
    """The same with the engine in a thread of the test."""

    def __init__(self, directory: Path, spark: SparkSession, **nodes: Any) -> None:
        super().__init__(directory, **nodes)
        self._spark = spark

    def start(
        self,
        *args: str,
        stdin: Any = None,
        patience_s: float = 30.0,
        drain_s: float = 10.0,
        engine_when: Callable[[], Any] = lambda: True,
    ) -> InlineRunning:
        """`engine_when`: the engine starts when this holds, so that what came before is one batch."""
        assert stdin is None, "standard input is that of a process: use Product"
        assert set(args) <= {"--once"}, f"only --once can be given, not {args}"
        once = "--once" in args
        options = RunOptions(once, drain_s, patience_s if once else None)
        running = InlineRunning(self, self._spark, options, engine_when)
        self._runs.append(running)
        # A command that finds no run may start one of its own, here, on this very session.
        wait_until(lambda: running.ended or RunLock(self.state).held_by(), what="the run has begun")
        return running

    def run_once(
        self, timeout: float = PATIENCE_S, *args: str, stdin: Any = None, patience_s: float = 30.0
    ) -> Completed:
        return self.start("--once", *args, stdin=stdin, patience_s=patience_s).wait(timeout)


class InlineRunning:
    """A run in this process, with the methods of `Running` except those that kill."""

    def __init__(
        self, product: Inline, spark: SparkSession, options: RunOptions, engine_when: Callable[[], Any]
    ) -> None:
        self._log = product.directory / "output.txt"
        self._code: int | None = None
        self._failure: BaseException | None = None
        graph = product.graph()
        self.engine = InlineEngine(graph, spark, options, engine_when)
        self.run = Run(graph, options, product.file, engine=self.engine, intake=ForkedChild)
        self._thread = threading.Thread(target=self._execute, name="run", daemon=True)
        self._thread.start()

    @property
    def output(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    wait_for = Running.wait_for

    def wait(self, timeout: float = PATIENCE_S) -> Completed:
        self._thread.join(timeout)
        assert self.ended, f"it still runs after {timeout} s:\n{self.output}"
        if self._failure is not None:
            raise self._failure
        assert self._code is not None
        return Completed(self._code, self.output)

    def terminate(self, timeout: float = PATIENCE_S) -> Completed:
        self.run.stop_requested = True
        return self.wait(timeout)

    def clean_up(self) -> None:
        self.engine.ask_to_stop(within_s=0.0)
        self.run.stop_requested = True
        self._thread.join(PATIENCE_S)
        assert self.ended, f"the run does not end:\n{self.output}"

    def _execute(self) -> None:
        try:
            with _logged_to(self._log):
                self._code = self.run.execute()
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            self._failure = error


class InlineEngine(Child):
    """The engine as a thread, for the supervisor the same as a process."""

    def __init__(
        self, graph: Graph, spark: SparkSession, options: RunOptions, when: Callable[[], Any]
    ) -> None:
        super().__init__("the engine", "", b"")
        self._graph, self._spark, self._options, self._when = graph, spark, options, when
        self._control = Interrupts()
        self._thread: threading.Thread | None = None
        self._code: int | None = None

    def start(self) -> None:
        self._started = time.monotonic()
        self._code = None
        self._control = Interrupts(patience_s=self._options.patience_s)
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        return os.getpid()

    def exit_code(self) -> int | None:
        return self._code

    def ask_to_stop(self, within_s: float | None = None) -> None:
        self._control.stop(self._options.drain_s if within_s is None else within_s)

    def release(self) -> None:
        """It has no standard input."""

    def wait(self, seconds: float) -> bool:
        if self._thread is not None:
            self._thread.join(max(seconds, 0.0))
        return self._thread is None or not self._thread.is_alive()

    def kill(self) -> None:
        self.ask_to_stop(within_s=0.0)
        self.wait(PATIENCE_S)

    def _work(self) -> None:
        logger = logging.getLogger("signoff.engine")
        try:
            wait_until(lambda: self._control.stopping or self._when(), what="what the engine waits for")
            with engine_lock(self._graph.state):
                engine = Engine(self._graph, self._control, self._spark)
                try:
                    gave_up = engine.run()
                finally:
                    engine.close()
            if gave_up is not None:
                logger.error("%s", gave_up)
            self._code = 0 if gave_up is None else STILL_OWED
        except PipelineError as error:
            logger.error("%s", error)
            self._code = 2
        except BaseException:  # what ends a process with a traceback
            logger.exception("the engine crashed")
            self._code = 1


_logs: list[logging.Handler] = []
_logs_lock = threading.Lock()


@contextmanager
def _logged_to(file: Path) -> Iterator[None]:
    """What is logged goes into the file meanwhile; two runs may be under way."""
    handler, logger = logging.FileHandler(file), logging.getLogger("signoff")
    with _logs_lock:
        _logs.append(handler)
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    try:
        yield
    finally:
        with _logs_lock:
            logger.removeHandler(handler)
            _logs.remove(handler)
            if not _logs:
                logger.setLevel(logging.NOTSET)
                logger.propagate = True
        handler.close()


def _alive(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def _descendants(pid: int) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return list(psutil.Process(pid).children(recursive=True))
    return []


def _program(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""


def _is_worker(process: psutil.Process) -> bool:
    """Forked from a daemon, so it has the daemon's command line."""
    with suppress(psutil.NoSuchProcess):
        parent, command = process.parent(), process.cmdline()
        is_daemon = "signoff.engine.spark.daemon" in command and "pyspark.worker" in command
        return is_daemon and parent is not None and parent.cmdline() == command
    return False
