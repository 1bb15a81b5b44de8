"""The invoker as a process: it starts runs, answers, says what it does, and ends with its run."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from signoff.catalog import default
from signoff.engine.delivery.open_sinks import build_sinks
from signoff.engine.split.division import divide
from signoff.invoker.lookup import asked_for, invocations
from signoff.jobs.records import Records
from signoff.ledger.outcome import EventId
from signoff.ledger.run_lock import RunLock
from signoff.link.handover import HandoverConfig
from signoff.pipeline.load import load
from tests.invoker.scenes import Scene
from tests.servers import wait_until

pytestmark = pytest.mark.servers

PIPELINE: dict[str, Any] = {
    "name": "alerts",
    "sources": {"incoming": {"type": "generate", "count": 1}},
    "sinks": {
        "start": {
            "type": "job", "input": "incoming", "job": "./job.yaml", "parameters": {"station": "7"},
            "key": "payload", "retry": {"attempts": 2, "initial_ms": 10, "max_ms": 10},
        }
    },
}  # fmt: skip


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path)
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump(PIPELINE, sort_keys=False))
    return made


@contextmanager
def process(scene: Scene) -> Iterator[subprocess.Popen[bytes]]:
    graph = load(scene.base / "pipeline.yaml", default())
    job = {"file": str(scene.base / "pipeline.yaml"), "layers": graph.layers.to_json(), "log_format": "text"}
    with subprocess.Popen([sys.executable, "-m", "signoff.invoker"], stdin=subprocess.PIPE) as started:
        try:
            assert started.stdin is not None
            started.stdin.write(json.dumps(job | {"texts": dict(graph.texts)}).encode() + b"\n")
            started.stdin.flush()
            yield started
        finally:
            started.kill()


def await_that(condition: Callable[[], Any]) -> None:
    wait_until(condition, what="what the invoker does")


def test_what_the_engine_is_given_for_it_is_a_way_out_with_its_expressions(scene: Scene) -> None:
    front = divide(load(scene.base / "pipeline.yaml", default())).front
    config = front.nodes["start"].config
    assert isinstance(config, HandoverConfig) and config.outside and config.by_invoker
    assert config.place == scene.place
    assert dict(config.expressions()) == {
        "__key_0": "payload",
        "__parameter_station": "CAST((7\n) AS INT)",
    }
    assert config.field_of("__parameter_station") == "parameters.station"
    assert build_sinks(front)["start"].sink.atomic


def test_a_job_that_is_wrong_is_waited_for_and_all_can_be_explained(scene: Scene) -> None:
    (scene.base / "job_state").mkdir()
    (scene.base / "job_state/pipeline").write_text("another")
    graph = load(scene.base / "pipeline.yaml", default())
    scene.hand_on({"key": "a", "station": 7}, {"key": "a", "station": 7}, {"key": "b", "station": "x"})
    with RunLock(graph.state), process(scene) as invoker:
        await_that(lambda: scene.answered() == [2])
        assert scene.refused()[2] == 'parameter "station": "x" is no int'

        def said() -> str:
            (asked,) = asked_for(graph, EventId.parse("incoming/1"))
            return asked.text

        await_that(lambda: "is not done yet: its process ended with code 2" in said())
        assert said().startswith('waits for a run of ./job.yaml for ["a"], asked for by 2 events')
        assert invocations(graph)["start"] == {
            "waiting": 0, "running": 1, "cooling": 0, "rows": 2, "runs_done": 0, "runs_failed": 0,
        }  # fmt: skip
        assert scene.answered() == [2], "whoever asked is not answered before the job is put right"
        assert invoker.stdin is not None
        invoker.stdin.close()
        assert invoker.wait(30) == 0


def test_a_run_ends_with_its_invoker_and_goes_on_with_the_next(scene: Scene) -> None:
    """A lock on the job's records holds the run before it has a Spark."""
    graph = load(scene.base / "pipeline.yaml", default())
    scene.hand_on({"key": "a", "station": 7})
    Records(scene.base / "job_state").close()
    with closing(sqlite3.connect(scene.base / "job_state/ledger.db", isolation_level=None)) as held:
        held.execute("BEGIN IMMEDIATE")
        with process(scene) as first:
            run = runs_of(first)[0]
            (waiting,) = asked_for(graph, EventId.parse("incoming/0"))
            assert waiting.text.startswith('waits for a run of ./job.yaml for ["a"], asked for by 1 event,')
            with process(scene) as second:  # of another run: it waits until the first has let go
                first.kill()
                first.wait()
                psutil.wait_procs([run], 30)
                assert not run.is_running()
                again = runs_of(second)[0]
                assert name_of(again) == name_of(run)
    assert scene.answered() == []


def runs_of(invoker: subprocess.Popen[bytes]) -> list[psutil.Process]:
    def found() -> list[psutil.Process]:
        return [each for each in psutil.Process(invoker.pid).children() if "jobs" in line(each)]

    runs: list[psutil.Process] = wait_until(found, what="a run")
    for each in runs:
        NAMES[each.pid] = line(each)[line(each).index("--asked-by") + 1]
    return runs


NAMES: dict[int, str] = {}


def name_of(run: psutil.Process) -> str:
    return NAMES[run.pid]


def line(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return list(process.cmdline())
    return []
