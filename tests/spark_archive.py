"""Java's classes of a Spark run, laid out once for all runs of the tests: half the CPU of every start.

`python -m tests.spark_archive` makes the archive if it is not there (about half a minute); `use_archive`
has every Spark that is started from now on read it, also those of the product, of the examples and of
plain PySpark programs. Without it, or with another Java, everything is as it was, only slower.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from signoff.engine.spark.java import find_java
from signoff.errors import EngineError

PLACE = Path(sys.prefix) / "share" / "signoff-tests"
_OF_RUNS = "SPARK_SUBMIT_OPTS"
_OF_LAUNCHERS = "SPARK_LAUNCHER_OPTS"
"""Spark asks a first, short-lived Java how to start the second."""
_QUICK = "-XX:TieredStopAtLevel=1"
"""Java does not optimise what runs only for seconds."""
_SHORT_LIVED = f"{_QUICK} -XX:+UseSerialGC"
_PATIENCE_S = 300.0
_PIPELINES: dict[str, dict[str, Any]] = {
    "without_state": {
        "some": {"type": "filter", "input": "parsed", "where": "n > 1"},
        "last": {"type": "unfold", "input": "some", "column": "parts", "as": "part"},
    },
    "with_state": {"last": {"type": "dedupe", "input": "parsed", "keys": ["n"]}},
}


def archive() -> Path | None:
    """Where the archive of this Java and this Spark is or will be; None without Java."""
    try:
        home = find_java().resolve()
    except EngineError:
        return None
    release = home / "release"
    described = release.read_text() if release.exists() else str(home)
    key = f"{described} {importlib.metadata.version('pyspark')} {sys.prefix}"
    return PLACE / f"spark-{hashlib.sha256(key.encode()).hexdigest()[:16]}.jsa"


def use_archive() -> None:
    """Say so in the environment, which all processes inherit."""
    if _OF_RUNS in os.environ:
        return  # somebody has decided already: the process that started this one, or whoever tests
    os.environ.setdefault(_OF_LAUNCHERS, _SHORT_LIVED)
    found = archive()
    use = f" -XX:SharedArchiveFile={found} -Xlog:cds=off" if found and found.exists() else ""
    os.environ[_OF_RUNS] = _QUICK + use


def make_archive() -> None:
    """Run a Spark that does what the tests do, and have Java keep what it loaded."""
    place = archive()
    if place is None or place.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as aside:
        made = Path(aside) / "spark.jsa"
        os.environ[_OF_RUNS] = f"-XX:ArchiveClassesAtExit={made} -Xlog:disable"
        _work(Path(aside))
        with suppress(FileNotFoundError):  # a Java that cannot
            made.rename(place)


def _work(directory: Path) -> None:
    """Start a Spark, run the pipelines, end it."""
    from signoff.engine.spark.session import start_session
    from signoff.pipeline.settings import SparkSettings
    from tests.promises.product import FILES, PARSE, SPARK, Inline

    settings = SparkSettings(master="local[2]", config=SPARK["config"])
    spark = start_session("archive", settings, log_file=directory / "spark.log", python_path=directory)
    for name, steps in _PIPELINES.items():
        sinks = {
            "out": {"type": "files", "input": "last", "path": "./out"},
            "table": {"type": "sqlite", "input": "parsed", "path": "out.db", "table": "events"},
        }
        nodes = {"sources": {"incoming": FILES}, "transforms": {"parsed": PARSE, **steps}, "sinks": sinks}
        with Inline(directory / name, spark, **nodes) as product:
            product.put("a.jsonl", [{"n": n % 5, "parts": [n, n]} for n in range(10)])
            done = product.run_once()
            assert done.code == 0, done.output
    gateway = spark.sparkContext._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # its end is the end of Java, which then writes the archive
    gateway.proc.wait(_PATIENCE_S)


if __name__ == "__main__":
    make_archive()
