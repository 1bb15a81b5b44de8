"""What a session leaves on the disk, without starting one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from signoff.engine.session import _local_sockets, java_options


def test_sockets_of_killed_processes_are_removed_and_those_of_living_ones_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    over = subprocess.Popen([sys.executable, "-c", ""])
    over.wait()
    of = f"signoff-sockets-{os.getuid()}-"
    dead, living, other = (tmp_path / name for name in (f"{of}{over.pid}-x", f"{of}{os.getppid()}-x", "mine"))
    for directory in (dead, living, other):
        directory.mkdir()
    made = Path(_local_sockets()["spark.python.unix.domain.socket.dir"])
    assert not dead.exists() and living.exists() and other.exists()
    assert made.parent == tmp_path and made.stat().st_mode & 0o077 == 0, "nobody else's business"


def test_java_is_told_one_collector_and_the_users_options_last() -> None:
    ours = java_options(Path("spark.log"), "-Xss4m")
    assert ours.endswith(" -XX:+UseG1GC -Xss4m")
    assert java_options(Path("spark.log"), "-XX:+UseParallelGC -Xss4m").count("GC") == 1
