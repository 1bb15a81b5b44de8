"""Flink for the benchmark of windows: installed aside, in an environment of its own, and run as a process.

Nothing of Signoff needs it. What cannot be installed or does not start is said, and its variant left out.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from signoff.engine.spark.java import find_java

PACKAGE = "apache-flink==2.3.0"
NEWEST_PYTHON = (3, 12)
JVM = "-Xmx2g"
"""Spark's JVM has 1 GB, and Python workers beside it."""


class NoFlinkError(Exception):
    """Why Flink is not measured."""


class Flink:
    """Used as a context: jobs are run one by one in a process that stays."""

    def __init__(self, home: Path, log: Path) -> None:
        """`home` is where it is installed, or is to be. Raises NoFlinkError."""
        install(home)
        environment = {**os.environ, "JAVA_HOME": str(find_java()), "JVM_ARGS": JVM}
        environment.pop("PYTHONPATH", None)
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                [home / "bin" / "python", Path(__file__).with_name("windows_flink_job.py")],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def run(self, job: Mapping[str, str]) -> None:
        """Run a job to its end. Raises NoFlinkError when that fails."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(job) + "\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise NoFlinkError("its process ended")
        if (error := json.loads(answer)["error"]) is not None:
            raise NoFlinkError(error)

    def __enter__(self) -> Flink:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def install(home: Path) -> None:
    """Make the environment, unless it is there. Raises NoFlinkError with what pip said."""
    stamp = home / PACKAGE
    if stamp.exists():
        return
    python = _python()
    print(f"installing {PACKAGE} into {home} (a few minutes, 800 MB)", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    _do([python, "-m", "venv", str(home)])
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
    _do([*pip, "--disable-pip-version-check", PACKAGE])
    stamp.touch()


def _python() -> str:
    """A Python that Flink's packages are made for."""
    if sys.version_info[:2] <= NEWEST_PYTHON:
        return sys.executable
    for name in ("python3.12", "python3.11", "python3.10"):
        if (found := shutil.which(name)) is not None:
            return found
    raise NoFlinkError(f"{PACKAGE} needs Python {'.'.join(map(str, NEWEST_PYTHON))} or older")


def _do(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise NoFlinkError(f"{' '.join(command[1:])}: {said[-1] if said else 'failed'}")
