"""The Spark session of a run: quiet, local by default, with settings that the account relies on."""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pyspark import SparkContext, java_gateway
from pyspark.sql import SparkSession

from signoff.engine.spark import class_archive
from signoff.engine.spark.java import use_java
from signoff.pipeline.settings import SparkSettings
from signoff.private import make_private, opener, privately

_LOG4J = Path(__file__).with_name("log4j2.properties")

# Spark's local file system writes a checksum file beside every checkpoint file and renames twice; these
# take the offset and commit logs from about 60 ms to 8 ms a batch. Only for local disks, where what a power
# cut has torn is known and done again (see engine/spark/checkpoint_sync.py).
_FAST_LOCAL_CHECKPOINTS = {
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming."
    "checkpointing.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}

_ALWAYS = {
    # Hadoop sets the modes of what it makes by itself, whatever the umask of the process.
    "spark.hadoop.fs.permissions.umask-mode": "077",
    "spark.sql.session.timeZone": "UTC",
    "spark.python.daemon.module": "signoff.engine.spark.daemon",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024**2),
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "10",
    "spark.sql.streaming.minBatchesToRetain": "20",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.log.level": "WARN",
}


_SOCKETS = "signoff-sock-"
_TRIES = 5
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LAUNCHER_OPTIONS = "SPARK_LAUNCHER_OPTS"
SHORT_LIVED = "-XX:TieredStopAtLevel=1"
"""For a Java that lives for seconds: to optimise would cost more than it saves."""
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")


def start_session(
    name: str,
    settings: SparkSettings,
    *,
    log_file: Path,
    python_path: Path,
    executor_environment: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start (or, in a program that has one, reuse) the session. `python_path` is where users' modules are."""
    use_java()
    if settings.is_local:  # on a cluster Spark chooses an address that others can reach, or the user does
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Spark asks a first Java how to start the second.
    os.environ.setdefault(_LAUNCHER_OPTIONS, f"{SHORT_LIVED} -XX:+UseSerialGC")
    _extend_python_path(python_path)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # what they say is in the error
        logging.getLogger(name).setLevel(logging.CRITICAL)
    builder = SparkSession.builder.appName(f"signoff: {name}").master(_with_retries(settings.master))
    options = dict(_ALWAYS)
    if settings.is_local:
        options |= _FAST_LOCAL_CHECKPOINTS
        options |= _local_sockets()
    options["spark.executorEnv.PYTHONPATH"] = os.environ["PYTHONPATH"]
    options |= {f"spark.executorEnv.{key}": value for key, value in (executor_environment or {}).items()}
    options |= settings.config
    options[JAVA_OPTIONS] = java_options(log_file, settings.config.get(JAVA_OPTIONS, ""))
    for key, value in options.items():
        builder = builder.config(key, value)
    with _errors_into(log_file), privately(), _ends_java_with_the_start():
        return builder.getOrCreate()


def java_was_killed() -> bool:
    """Whether a signal has ended the Java of this process: nothing that it was asked for says so."""
    process = getattr(SparkContext._gateway, "proc", None)
    return process is not None and (process.poll() or 0) < 0


def java_options(log_file: Path, given: str) -> str:
    """Java's options: ours, and behind them the user's. With two collectors it would not start."""
    ours = f"-Dlog4j2.configurationFile=file:{_LOG4J} -Dsignoff.log={log_file}"
    collector = "" if _COLLECTOR.search(given) else "-XX:+UseG1GC"
    return " ".join(part for part in (ours, class_archive.use(given), collector, given) if part)


@contextmanager
def _ends_java_with_the_start() -> Iterator[None]:
    """Whoever is stopped while Java starts takes it along. PySpark removes the directory in which Java is to
    say that it is there; Java, which does not find it any more, would stay for ever and do nothing."""
    started: list[subprocess.Popen[bytes]] = []
    popen = java_gateway.Popen

    def noted(*given: Any, **named: Any) -> subprocess.Popen[bytes]:
        started.append(popen(*given, **named))
        return started[-1]

    java_gateway.Popen = noted
    try:
        yield
    except BaseException:
        for process in started:
            process.kill()
            process.wait()
        raise
    finally:
        java_gateway.Popen = popen


@contextmanager
def _errors_into(file: Path) -> Iterator[None]:
    """Processes that are started meanwhile write their standard error into a file.

    For Java and its Python processes, which have no terminal to talk to: what matters comes as an exception,
    and a worker that is ended in the middle of its work ends with a traceback that says nothing to anybody.
    """
    make_private(file.parent)
    sys.stderr.flush()
    ours = os.dup(2)
    with open(file, "ab", opener=opener) as target:
        begin = target.tell()
        os.dup2(target.fileno(), 2)
        try:
            yield
        except BaseException:
            os.write(ours, file.read_bytes()[begin:])  # it did not start, and says why
            raise
        finally:
            os.dup2(ours, 2)
            os.close(ours)


def _local_sockets() -> dict[str, str]:
    """Let Spark talk to its Python workers through files instead of TCP.

    Over TCP a small batch waits 40 ms for each Python step: Spark writes in pieces, and the kernel holds
    the second back until the first is acknowledged. The files are in a directory of this process, made
    in the system's own one, whose path is short enough; what killed processes left there is removed.
    """
    if not hasattr(socket, "AF_UNIX"):
        return {}
    parent, prefix = Path(tempfile.gettempdir()), f"{_SOCKETS}{os.getuid()}-"
    for left in parent.glob(f"{prefix}*"):
        if (lock := _locked(left)) is not None:
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)
    for _ in range(_TRIES):  # in vain where /tmp knows no locks: nobody removes anything there
        directory = Path(tempfile.mkdtemp(prefix=prefix))
        if _locked(directory) is not None:
            break
        with suppress(OSError):  # or somebody took it for one that was left, before it was locked
            directory.rmdir()
    make_private(directory)
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(directory),
    }


def _locked(directory: Path) -> int | None:
    """A directory of nobody else, locked for as long as the descriptor is open; None if somebody has it.

    By a lock and not by the owner's process number: that may be of another container with the same /tmp.
    """
    try:
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if directory.stat().st_ino == os.fstat(lock).st_ino:
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _with_retries(master: str) -> str:
    """`local[2]` runs a task once; a Python worker that is killed should not fail a batch."""
    if master == "local":
        return "local[1,4]"
    if master.startswith("local[") and "," not in master:
        return master.removesuffix("]") + ",4]"
    return master


def _extend_python_path(path: Path) -> None:
    parts = [str(path), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(parts))
