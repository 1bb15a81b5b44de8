"""A worker whose task Spark has given up on: Spark's own code, with nobody at the other end."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FORSAKEN = """
import socket
import sys

from pyspark import daemon
from signoff.engine.spark.daemon import {worker} as worker

ours, theirs = socket.socketpair()
theirs.close()
sys.argv = ["daemon", "pyspark.worker"]
sys.exit(worker(ours, True))
"""


def forsaken(worker: str) -> subprocess.CompletedProcess[str]:
    code = FORSAKEN.format(worker=worker)
    asked = {**os.environ, "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1"}  # as Spark does
    return subprocess.run(
        [sys.executable, "-c", code], env=asked, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_worker_that_nobody_listens_to_ends_quietly():
    done = forsaken("_quiet_worker")
    assert done.returncode != 0 and "Traceback" not in done.stderr, done.stderr


def test_without_it_there_would_be_a_traceback():
    assert "BrokenPipeError" in forsaken("_worker").stderr


def test_the_daemon_starts_such_workers(monkeypatch: pytest.MonkeyPatch):
    from signoff.engine.spark import daemon

    started = []
    monkeypatch.setattr(daemon.daemon, "worker", daemon._worker)
    monkeypatch.setattr(daemon.daemon, "manager", lambda: started.append(daemon.daemon.worker))
    monkeypatch.setattr(sys, "argv", ["daemon", "pyspark.sql.worker.plan_data_source_read"])
    daemon.main()
    assert started == [daemon._quiet_worker]


def test_any_other_failure_of_a_worker_is_still_shown(monkeypatch: pytest.MonkeyPatch):
    from signoff.engine.spark import daemon

    def fails(sock: object, authenticated: bool) -> int:
        raise ValueError("something else")

    monkeypatch.setattr(daemon, "_worker", fails)
    with pytest.raises(ValueError, match="something else"):
        daemon._quiet_worker(None, True)
