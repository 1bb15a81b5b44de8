"""What rows cost for which an SQL expression fails, beside clean data, in one run.

The job: JSON events whose `text` is cast to a number and whose `day` is read as a date by a `select`, written
as JSON files. In each variant another share of the events has a text that is no number; those become dead
letters with Spark's reason. `unchecked` is the clean data with `try_cast` and `try_to_date`, which fail for
no row: what the net itself costs.

Rates are events read per second, by the clock and by processor time of all processes, both of all batches but
the first; each figure is the best of its rounds. Where other programs use the machine, the second says more.

    .venv/bin/python bench/errors.py [--events 1000000] [--rounds 2] [--variants clean,one_in_100]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from pipeline import _stop_when_idle, batch
from signoff.builder import Pipeline
from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.engine import Engine
from signoff.engine.spark.session import start_session
from signoff.log import LogWriter
from signoff.pipeline.model import LogSettings
from signoff.pipeline.settings import SparkSettings

BATCH = 200_000
TRIED = {"n": "n", "value": "cast(text AS INT) + 1", "at": "to_date(day, 'yyyy-MM-dd')"}
UNCHECKED = {"n": "n", "value": "try_add(try_cast(text AS INT), 1)", "at": "try_to_date(day, 'yyyy-MM-dd')"}
SHARES = {"clean": 0, "one_in_1000": 1000, "one_in_100": 100, "one_in_10": 10}


def make_log(directory: Path, count: int, bad_every: int) -> Path:
    log = LogWriter(directory, LogSettings(max_bytes=64 * 1024**3))
    now = int(time.time() * 1e6)
    for first in range(0, count, 10_000):
        texts = ["x" if bad_every and n % bad_every == 0 else str(n) for n in range(first, first + 10_000)]
        payloads = [
            b'{"n":%d,"text":"%s","day":"2026-05-%02d"}' % (first + i, text.encode(), i % 28 + 1)
            for i, text in enumerate(texts)
        ]
        log.append(batch(payloads, now))
    log.sync()
    log.close()
    return directory


class CpuAfterFirst(threading.Thread):
    """Processor time of this process and its children since the first batch was settled."""

    def __init__(self, ledger: Path) -> None:
        super().__init__(daemon=True)
        self._ledger, self._begin = ledger, 0.0

    def run(self) -> None:
        while not self._settled():
            time.sleep(0.02)
        self._begin = _cpu()

    def seconds(self) -> float:
        self.join()
        return _cpu() - self._begin

    def _settled(self) -> bool:
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(self._ledger)) as ledger:
            (number,) = ledger.execute("SELECT count(settled_at) FROM batches").fetchone()
            return bool(number)
        return False


def _cpu() -> float:
    this = psutil.Process()
    used = 0.0
    for process in [this, *this.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            used += times.user + times.system
    return used


def measured(
    spark: SparkSession, fresh: Path, events: Path, columns: dict[str, str]
) -> tuple[float, float, int]:
    """Time of all batches but the first, by the clock and of processors, and the number of dead letters."""
    fresh.mkdir()
    pipeline = Pipeline("bench", state=str(fresh / "state"), base=fresh)
    pipeline.source("incoming", "generate", count=1, max_events_per_batch=BATCH)
    pipeline.transform("parsed", "parse_json", input="incoming", schema="n INT, text STRING, day STRING")
    pipeline.transform("cast", "select", input="parsed", columns=columns)
    pipeline.sink("out", "files", input="cast", path="out", format="jsonl")
    graph = pipeline.graph()
    log = graph.state / "log" / "incoming"
    log.parent.mkdir(parents=True)
    shutil.copytree(events, log, copy_function=os.link)
    (log / "lock").unlink(missing_ok=True)
    control = Interrupts()
    engine = Engine(graph, control, spark)
    threading.Thread(target=_stop_when_idle, args=(engine, control), daemon=True).start()
    cpu = CpuAfterFirst(graph.state / "ledger.db")
    cpu.start()
    engine.run()
    cpu_s = cpu.seconds()
    with sqlite3.connect(graph.state / "ledger.db") as ledger:
        first, last = ledger.execute("SELECT min(settled_at), max(settled_at) FROM batches").fetchone()
    with sqlite3.connect(graph.state / "dead_letters.db") as letters:
        (number,) = letters.execute("SELECT count(*) FROM letters").fetchone()
    engine.close()
    shutil.rmtree(fresh)
    return float(last - first), cpu_s, int(number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--variants", default="unchecked," + ",".join(SHARES))
    given = parser.parse_args()
    best: dict[str, float] = {}
    cheapest: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="signoff-bench-") as name:
        directory = Path(name)
        spark = start_session(
            "bench", SparkSettings(master="local[2]"), log_file=directory / "spark.log", python_path=directory
        )
        logs = {name: make_log(directory / name, given.events, every) for name, every in SHARES.items()}
        every = {"unchecked": (logs["clean"], UNCHECKED)} | {n: (log, TRIED) for n, log in logs.items()}
        variants = {name: every[name] for name in given.variants.split(",")}
        for turn in range(given.rounds + 1):
            for name, (log, columns) in variants.items():
                took, cpu, letters = measured(spark, directory / f"run-{turn}-{name}", log, columns)
                rate, each = (given.events - BATCH) / took, cpu / (given.events - BATCH) * 1e6
                note = "" if turn else "  (warm-up)"
                print(
                    f"{name:12} {rate:>10,.0f} events/s {each:6.2f} µs CPU {letters:>8,} dead letters{note}",
                    flush=True,
                )
                if turn:
                    best[name] = max(best.get(name, 0.0), rate)
                    cheapest[name] = min(cheapest.get(name, each), each)
        spark.stop()
    ratios = {
        f"{name} / clean": (
            round(best[name] / best["clean"], 3),
            round(cheapest["clean"] / cheapest[name], 3),
        )
        for name in best
    }
    for text, (clock, by_cpu) in ratios.items():
        print(f"{text:24} {clock:6.2f} {by_cpu:6.2f} by CPU time")
    print(json.dumps({"events": given.events, "ratios": ratios}))


if __name__ == "__main__":
    main()
