"""A route beside one that is down: how fast is it, against the same route alone?

    alone     a pipeline: parse_json, filter, files
    beside    the same, and a webhook on the same events whose server refuses every connection

Events are in the log already, so the load is as full as it gets, and the webhook is down for as long as it
lasts. The rate is that of the files: from the first batch that is visible to the last. Afterwards the files
must hold each event once, and memory must not have grown with what waits.

    .venv/bin/python bench/routes.py [--events 4000000] [--rounds 2] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from pipeline import BATCH, FORMAT, SCHEMA, WHERE, make_data
from signoff.builder import Pipeline
from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.engine import Engine
from signoff.engine.spark.session import start_session
from signoff.pipeline.settings import SparkSettings

NOBODY = "http://127.0.0.1:9/events"


def run(
    spark: SparkSession, base: Path, log: Path, events: int, *, beside: bool
) -> tuple[float, float, float]:
    """Events per second that reach the files, for how long; how much this process and Spark grew, in MB."""
    pipeline = Pipeline("bench", state=str(base / "state"), base=base)
    pipeline.source("incoming", "generate", count=1, max_events_per_batch=BATCH // 5)
    pipeline.transform("parsed", "parse_json", input="incoming", schema=SCHEMA, timestamp_format=FORMAT)
    pipeline.transform("chosen", "filter", input="parsed", where=WHERE)
    pipeline.sink("files", "files", input="chosen", path="out", format="jsonl")
    if beside:
        pipeline.sink("hook", "http", input="chosen", url=NOBODY, mode="ndjson")
    graph = pipeline.graph()
    target = graph.state / "log" / "incoming"
    target.parent.mkdir(parents=True)
    shutil.copytree(log, target, copy_function=os.link)
    (target / "lock").unlink(missing_ok=True)
    control = Interrupts()
    engine = Engine(graph, control, spark)
    thread = threading.Thread(target=engine.run, daemon=True)
    thread.start()
    out, before = base / "out", 0.0
    while (done := written(out)) < events:
        if not before and done > events // 4:
            before = memory_mb()
        time.sleep(0.05)
    grown = memory_mb() - before
    control.stop(0)
    thread.join()
    engine.close()
    check(out, events)
    files = sorted(out.glob("*.jsonl"))
    first = bounds(files[0])[1]
    seconds = files[-1].stat().st_mtime - files[0].stat().st_mtime
    return (events - first) / seconds, seconds, grown


def bounds(file: Path) -> tuple[int, int]:
    start, end = file.stem.split("-")[-2:]
    return int(start), int(end)


def written(out: Path) -> int:
    return max((bounds(file)[1] for file in out.glob("*.jsonl")), default=0)


def check(out: Path, events: int) -> None:
    ids = [line.split('"', 4)[3] for file in out.glob("*.jsonl") for line in file.read_text().splitlines()]
    assert len(ids) == len(set(ids)) == events // 2, f"{len(ids)} rows, {len(set(ids))} events"


def memory_mb() -> float:
    me = psutil.Process()
    family = [me, *(child for child in me.children(recursive=True) if child.name() == "java")]
    return sum(process.memory_info().rss for process in family) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    logging.getLogger("signoff").setLevel(logging.ERROR)  # the webhook fails, as it should
    best = {"alone": 0.0, "beside": 0.0}
    with tempfile.TemporaryDirectory(prefix="signoff-bench-") as name:
        base = Path(name)
        spark = start_session(
            "bench", SparkSettings(master="local[2]"), log_file=base / "spark.log", python_path=base
        )
        log, _ = make_data(base, given.events)
        for turn in range(given.rounds + 1):
            for variant in best:
                home = base / f"{variant}{turn}"
                home.mkdir()
                rate, seconds, grown = run(spark, home, log, given.events, beside=variant == "beside")
                note = "" if turn else "  (warm-up)"
                print(
                    f"{variant:8} {rate:>10,.0f} events/s for {seconds:.0f} s  memory {grown:+.0f} MB{note}",
                    flush=True,
                )
                best[variant] = max(best[variant], rate if turn else 0.0)
                shutil.rmtree(home)
        spark.stop()
    ratio = best["beside"] / best["alone"]
    print(f"beside / alone {ratio:.2f}")
    result = {"events": given.events, **{k: round(v) for k, v in best.items()}, "ratio": round(ratio, 3)}
    print(json.dumps(result))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
