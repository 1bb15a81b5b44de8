"""The engine's process is prepared while the pipeline is read; without starting Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from signoff.errors import PipelineError
from signoff.pipeline.graph import Graph
from signoff.run.options import RunOptions
from signoff.run.processes import Child
from signoff.watch.live import run_live

ECHO = "import sys; sys.stderr.write('loaded, then ' + sys.stdin.readline()); sys.stderr.flush()"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that were started: each writes that it is loaded, then its job."""
    found: list[subprocess.Popen[bytes]] = []

    def open_(self: Child) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        found.append(subprocess.Popen([sys.executable, "-c", ECHO], stdin=pipe, stderr=pipe))
        return found[-1]

    monkeypatch.setattr(Child, "_open", open_)
    return found


def test_a_pipeline_that_is_wrong_leaves_no_process_behind(opened: list[subprocess.Popen[bytes]]) -> None:
    def load() -> Graph:
        assert len(opened) == 1, "the engine loads meanwhile"
        raise PipelineError([])

    with pytest.raises(PipelineError):
        run_live(load, Path("pipeline.yaml"), RunOptions(), quiet=True)
    assert [process.poll() is not None for process in opened] == [True]


def test_a_prepared_process_gets_its_job_when_it_is_started_and_a_later_one_is_new(
    opened: list[subprocess.Popen[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    child = Child("the engine", "signoff.engine")
    child.prepare()
    child.job = b"the job\n"
    child.start()
    assert len(opened) == 1 and child.pid == opened[0].pid
    assert child.wait(60)
    child.release()
    child.kill()
    assert capsys.readouterr().err == "loaded, then the job\n"
    child.start()
    assert len(opened) == 2 and child.pid == opened[1].pid
    child.release()
    child.kill()


def test_an_engine_that_gets_no_job_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from io import StringIO

    from signoff.engine import __main__ as engine

    monkeypatch.setattr(sys, "stdin", StringIO(""))
    assert engine.main() == 0
