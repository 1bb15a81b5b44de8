"""A run in a process of its own: what Spark or a query does to it, it does to nobody else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from signoff.jobs.parameters import Asked
from signoff.jobs.state_dir import RunGoesOn
from signoff.pipeline.job_settings import text_of
from signoff.pipeline.overlays import chosen

_LOOK_S = 1.0
GOES_ON = 75
"""Exit code: another process does this run."""
KILLED = 137
"""Exit code: its Java was killed, by a machine without memory, say. That is as if all of it had been."""


class Stopped(RunGoesOn):
    """The run was told to stop with whoever asked for it. It has not failed."""


class ChildRun:
    """Does runs of one job, one at a time, with `signoff jobs run`."""

    def __init__(self, file: Path, meanwhile: Callable[[], object] = lambda: None) -> None:
        """`meanwhile`: called again and again while a run goes on, which may take hours."""
        self._file, self.meanwhile = file, meanwhile
        self._child: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def __call__(self, wanted: Asked, asked_by: str) -> int:
        """Do a run to its end; returns its exit code. Raises RunGoesOn if another process does it, or if
        it is stopped."""
        if self._stopped:
            raise Stopped(f'the run "{wanted.key}" was not begun')
        self._child = subprocess.Popen(self.command(wanted, asked_by), stdin=subprocess.DEVNULL)
        if self._stopped:
            self._child.terminate()
        code = self._waited(self._child)
        self._child = None
        if self._stopped and code:
            raise Stopped(f'the run "{wanted.key}" was stopped')
        if code == GOES_ON:
            raise RunGoesOn(f'the run "{wanted.key}" is being done by another process')
        return code

    def _waited(self, child: subprocess.Popen[bytes]) -> int:
        while True:
            try:
                return child.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                self.meanwhile()

    def command(self, wanted: Asked, asked_by: str) -> list[str]:
        made = [sys.executable, "-m", "signoff.cli", "jobs", "run", str(self._file), "--quiet"]
        made += ["--asked-by", asked_by]
        for name, value in wanted.values.items():
            if value is not None:
                made += ["-p", f"{name}={text_of(value)}"]
        if wanted.period[0] is not None and wanted.period[1] is not None:
            made += ["--period", f"{wanted.period[0].isoformat()}/{wanted.period[1].isoformat()}"]
        layers = chosen()
        for option, given in (
            ("--overlay", layers.overlays),
            ("--set", layers.sets),
            ("--profile", layers.profiles),
        ):
            for each in given:
                made += [option, each]
        return made

    def stop(self) -> None:
        """Let the run that goes on finish what is in flight; the next begins no more."""
        self._stopped = True
        if self._child is not None:
            self._child.terminate()
