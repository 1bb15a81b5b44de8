"""What a session leaves on the disk, without starting one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from signoff.engine.spark.session import _local_sockets, java_options


def test_sockets_of_killed_processes_are_removed_and_those_of_living_ones_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    other = tmp_path / "mine"
    other.mkdir()
    with _owner(tmp_path) as living:
        with _owner(tmp_path) as dead:
            of_dead, of_living = _made_by(dead), _made_by(living)
            dead.kill()
        assert of_dead.is_dir() and of_living.is_dir()
        made = Path(_local_sockets()["spark.python.unix.domain.socket.dir"])
        assert not of_dead.exists() and of_living.exists() and other.exists()
        living.kill()
    assert made.parent == tmp_path and made.stat().st_mode & 0o077 == 0, "nobody else's business"


def _owner(directory: Path) -> subprocess.Popen[str]:
    """A process that has sockets, and sees process numbers of its own, as in another container."""
    text = (
        "import os, sys; os.getpid = lambda: 2**22 + 1; "
        "from signoff.engine.spark.session import _local_sockets; "
        "print(_local_sockets()['spark.python.unix.domain.socket.dir'], flush=True); sys.stdin.read()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(directory)},
    )


def _made_by(owner: subprocess.Popen[str]) -> Path:
    assert owner.stdout is not None
    return Path(owner.stdout.readline().strip())


def test_java_is_told_one_collector_and_the_users_options_last() -> None:
    ours = java_options(Path("spark.log"), "-Xss4m")
    assert ours.endswith(" -XX:+UseG1GC -Xss4m")
    assert java_options(Path("spark.log"), "-XX:+UseParallelGC -Xss4m").count("GC") == 1


STOPPED = """
import sys, time
from pathlib import Path
from pyspark import java_gateway
from signoff.engine.spark.session import start_session
from signoff.pipeline.settings import SparkSettings
popen = java_gateway.Popen
class Seen(popen):
    def __init__(self, *given, **named):
        super().__init__(*given, **named)
        print(self.pid, flush=True)
def stopped(_):
    raise KeyboardInterrupt
java_gateway.Popen, java_gateway.time.sleep = Seen, stopped
start_session("x", SparkSettings(), log_file=Path(sys.argv[1]), python_path=Path())
"""


@pytest.mark.crash
def test_java_does_not_outlive_who_was_stopped_while_it_started(tmp_path: Path) -> None:
    """It would find nobody to say so to, and stay for ever."""
    command = [sys.executable, "-c", STOPPED, str(tmp_path / "spark.log")]
    said, error = tmp_path / "said", tmp_path / "error"
    with said.open("w") as out, error.open("w") as err:  # Java would hold a pipe open
        subprocess.run(command, stdout=out, stderr=err, timeout=120, check=False)
    assert "KeyboardInterrupt" in error.read_text()
    pid = int(said.read_text())
    try:
        assert not psutil.pid_exists(pid)
    finally:
        if psutil.pid_exists(pid):
            psutil.Process(pid).kill()
