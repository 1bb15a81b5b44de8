"""What a session leaves on the disk, without starting one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

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
