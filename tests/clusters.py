"""A standalone Spark cluster of processes on this machine, from the pip package.

with SparkCluster(directory) as cluster:
    cluster.add_worker()                       # sees the same disk as the driver
    cluster.add_worker(blind=some_directory)   # has an empty disk of its own there
    ...                                        # spark: {master: cluster.master, shared: true}
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

import pyspark

from signoff.engine.spark.java import find_java
from tests.servers import free_port, wait_until

_HOST = "127.0.0.1"


def why_no_blind_worker() -> str | None:
    """Why no process can have a mount of its own here; None: it can."""
    try:
        done = subprocess.run(
            ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True
        )
    except FileNotFoundError:
        return "there is no unshare"
    return None if done.returncode == 0 else f"no mount namespace of its own: {done.stderr.strip()}"


class SparkCluster:
    """One master, and the workers that were added."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self.master = f"spark://{_HOST}:{self._port}"

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._start("master", "master.Master", "--port", str(self._port))
            self._wait_for("master", "I have been elected leader")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)  # of a session of its own: its executors as well
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def add_worker(self, blind: Path | None = None) -> subprocess.Popen[bytes]:
        """Start one, and wait until the master knows it. `blind`: a directory it has for itself, empty."""
        name = f"worker{len(self._processes)}"
        work = str(self._directory / name)
        size = ("--cores", "1", "--memory", "1g")
        process = self._start(name, "worker.Worker", *size, "--work-dir", work, self.master, blind=blind)
        self._wait_for(name, "Successfully registered with master")
        return process

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._processes.remove(process)

    def _start(self, name: str, kind: str, *args: str, blind: Path | None = None) -> subprocess.Popen[bytes]:
        home = Path(pyspark.__file__).parent
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}"]
        command += ["--host", _HOST, "--webui-port", "0", *args]
        if blind is not None:
            mount = 'mount -t tmpfs none "$0" && exec "$@"'
            command = ["unshare", "-m", "sh", "-c", mount, str(blind), *command]
        environment = {
            **os.environ,
            "SPARK_HOME": str(home),
            "JAVA_HOME": str(find_java()),
            "SPARK_LOCAL_IP": _HOST,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1",
        }
        environment.pop("SPARK_SUBMIT_OPTS", None)
        with (self._directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=environment,
            )
        self._processes.append(process)
        return process

    def _wait_for(self, name: str, text: str) -> None:
        log = self._directory / f"{name}.log"
        wait_until(lambda: text in log.read_text(errors="replace"), what=f"{text} in {log}")
