"""What traces cost: the same events with and without, in one run.

    engine    the job of `pipeline.py` (parse_json, filter, files) over a log; off, and with traces
    intake    batches of 10,000 events appended to a log and made durable; off, and with an intake's spans

A collector of its own process takes the spans. The variants take turns in one warm session; each figure is
the best of its runs, and the ratios compare figures of this one run.

    .venv/bin/python bench/traces.py [--events 2000000] [--rounds 3] [--ratio 0.01] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from pipeline import BATCH, FORMAT, SCHEMA, WHERE, _stop_when_idle, batch, event, make_data
from signoff.builder import Pipeline
from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.engine import Engine
from signoff.engine.spark.session import start_session
from signoff.intake.traces import IntakeTraces
from signoff.log import LogReader, LogWriter
from signoff.pipeline.model import LogSettings
from signoff.pipeline.settings import SparkSettings
from signoff.pipeline.trace_settings import TraceSettings
from signoff.traces.chosen import Chooser
from signoff.traces.export import Exporter
from signoff.traces.spans import Where

_AT_ONCE = 10_000
_COLLECTOR = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200); self.send_header("content-length", "0"); self.end_headers()
    def log_message(self, *_): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


class Bench:
    def __init__(self, spark: SparkSession, directory: Path, count: int, traces: TraceSettings) -> None:
        self.spark, self.directory, self.count, self.traces = spark, directory, count, traces
        self.log, _ = make_data(directory, count)
        now = int(time.time() * 1e6)
        self.batches = [
            batch([event(number) for number in range(first, first + _AT_ONCE)], now)
            for first in range(0, min(count, 500_000), _AT_ONCE)
        ]
        self.runs = 0

    def engine(self, traces: TraceSettings | None) -> float:
        """Events a second, from the end of the first batch to the end of the last."""
        fresh = self._fresh()
        pipeline = Pipeline("bench", state=str(fresh / "state"), base=fresh, traces=traces)
        pipeline.source("incoming", "generate", count=1, max_events_per_batch=BATCH)
        pipeline.transform("parsed", "parse_json", input="incoming", schema=SCHEMA, timestamp_format=FORMAT)
        pipeline.transform("chosen", "filter", input="parsed", where=WHERE)
        pipeline.sink("files", "files", input="chosen", path="out", format="jsonl")
        graph = pipeline.graph()
        log = graph.state / "log" / "incoming"
        log.parent.mkdir(parents=True)
        shutil.copytree(self.log, log, copy_function=os.link)
        control = Interrupts()
        engine = Engine(graph, control, self.spark)
        threading.Thread(target=_stop_when_idle, args=(engine, control), daemon=True).start()
        engine.run()
        with sqlite3.connect(graph.state / "ledger.db") as ledger:
            first, last = ledger.execute("SELECT min(settled_at), max(settled_at) FROM batches").fetchone()
        engine.close()
        return (self.count - BATCH) / float(last - first)

    def intake(self, settings: TraceSettings | None) -> float:
        """Events a second, of a log and what makes spans of them."""
        fresh = self._fresh() / "log"
        log, traces = LogWriter(fresh, LogSettings(max_bytes=64 * 1024**3)), None
        if settings is not None:
            exporter = Exporter(settings, "bench", "intake incoming")
            chooser = Chooser("incoming", settings)
            traces = IntakeTraces(Where("incoming", "files"), LogReader(fresh), chooser, exporter)
        began = time.monotonic()
        for events in self.batches:
            first = log.append(events)
            log.sync()
            if traces is not None:
                traces.logged(first, events.num_rows)
        took = time.monotonic() - began
        log.close()
        if traces is not None:
            traces.close()
        return pa.concat_batches(self.batches).num_rows / took

    def _fresh(self) -> Path:
        self.runs += 1
        path = self.directory / f"run{self.runs}"
        path.mkdir()
        return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ratio", type=float, default=0.01)
    parser.add_argument("--only", choices=["engine", "intake"])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    collector = subprocess.Popen([sys.executable, "-c", _COLLECTOR], stdout=subprocess.PIPE, text=True)
    try:
        assert collector.stdout is not None
        endpoint = f"http://127.0.0.1:{int(collector.stdout.readline())}"
        settings = TraceSettings(endpoint=endpoint, ratio=given.ratio)
        with tempfile.TemporaryDirectory(prefix="signoff-bench-") as name:
            result = measure(Path(name), given.events, given.rounds, settings, given.only)
    finally:
        collector.kill()
        collector.wait()
    print(json.dumps(result))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


def measure(
    directory: Path, events: int, rounds: int, traces: TraceSettings, only: str | None
) -> dict[str, object]:
    spark = start_session(
        "bench", SparkSettings(master="local[2]"), log_file=directory / "spark.log", python_path=directory
    )
    bench = Bench(spark, directory, events, traces)
    what = {"engine": bench.engine, "intake": bench.intake}
    best: dict[str, float] = {}
    for turn in range(rounds + 1):
        for name, run in what.items():
            if only not in (None, name):
                continue
            for variant, settings in (("off", None), ("on", traces)):
                rate = run(settings)
                print(
                    f"{name} {variant:4} {rate:>10,.0f} events/s{'' if turn else '  (warm-up)'}", flush=True
                )
                if turn:
                    best[f"{name} {variant}"] = max(best.get(f"{name} {variant}", 0.0), rate)
    spark.stop()
    ratios = {
        name: round(best[f"{name} on"] / best[f"{name} off"], 3) for name in what if f"{name} on" in best
    }
    return {
        "events": events,
        "ratio": traces.ratio,
        "events_per_s": {name: round(rate) for name, rate in best.items()},
        "on_to_off": ratios,
    }


if __name__ == "__main__":
    main()
