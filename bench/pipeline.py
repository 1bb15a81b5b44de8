"""The same job several ways, in one run: plain Structured Streaming over the log, over text, and Signoff.

The job: 150-byte JSON events, parsed, filtered (half pass), written as JSON files.

    plain_over_log    readStream.format("signoff") → from_json → where → writeStream.format("json")
    plain_over_text   readStream.text              → the same
    untracked         the log, Signoff's file sink in foreachBatch, but no lineage, results or ledger
    signoff           a pipeline: parse_json, filter, files
    signoff_off       the same with acknowledgements: false
    three_sinks       the same with three file sinks on the filter, served in one pass

Every variant is run several times in turn, in one warm Spark session; each figure is the best of its
runs, and the ratios compare figures of this one run. Rates are events read per second, net of the start of
the query: from the end of the first micro-batch to the end of the last.

    .venv/bin/python bench/pipeline.py [--events 3000000] [--rounds 3] [--only NAMES] [--json FILE]
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
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming import StreamingQuery

from signoff.builder import Pipeline
from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.engine import Engine
from signoff.engine.spark.session import start_session
from signoff.log import LogWriter
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.model import LogSettings
from signoff.pipeline.settings import SparkSettings
from signoff.sinks.contract import BatchRef, Part
from signoff.sinks.files.sink import FilesSink, FilesSinkConfig

SCHEMA = (
    "stationId BIGINT, dataPointId INT, alarmId INT, eventTime TIMESTAMP, value DOUBLE, "
    "valueThreshold DOUBLE, isActive BOOLEAN"
)
RATIOS = (
    ("signoff", "plain_over_log"),
    ("signoff", "plain_over_text"),
    ("signoff", "untracked"),
    ("signoff", "signoff_off"),
    ("three_sinks", "signoff"),
)
FORMAT = "yyyy-MM-dd HH:mm:ss z"
WHERE = "alarmId < 306"
BATCH = 500_000


def event(number: int) -> bytes:
    """About 150 bytes."""
    return (
        b'{"stationId":%d,"dataPointId":%d,"alarmId":%d,"eventTime":"2021-05-01 10:%02d:%02d UTC",'
        b'"value":%d.%03d,"valueThreshold":999999,"isActive":true}'
        % (
            number % 2000,
            121 + number % 7,
            301 + number % 10,
            number // 60 % 60,
            number % 60,
            number % 400,
            number % 1000,
        )
    )


def make_data(directory: Path, count: int) -> tuple[Path, Path]:
    """The same events as a log and as text files of one batch each."""
    log_directory, text = directory / "log", directory / "text"
    text.mkdir()
    log = LogWriter(log_directory, LogSettings(max_bytes=64 * 1024**3))
    now = int(time.time() * 1e6)
    for first in range(0, count, BATCH):
        payloads = [event(number) for number in range(first, min(first + BATCH, count))]
        (text / f"{first:012d}.jsonl").write_bytes(b"\n".join(payloads) + b"\n")
        for low in range(0, len(payloads), 10_000):
            log.append(batch(payloads[low : low + 10_000], now))
        log.sync()
    log.close()
    return log_directory, text


def batch(payloads: list[bytes], now: int) -> pa.RecordBatch:
    columns = {
        "payload": pa.array(payloads, pa.binary()),
        "received_at": pa.array([now] * len(payloads), pa.timestamp("us", "UTC")),
    }
    arrays = [columns.get(f.name, pa.nulls(len(payloads), f.type)) for f in EVENT_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


class Bench:
    def __init__(self, spark: SparkSession, directory: Path, count: int) -> None:
        self.spark, self.directory, self.count = spark, directory, count
        self.log, self.text = make_data(directory, count)
        self.runs = 0

    def plain_over_log(self) -> float:
        stream = self.spark.readStream.format("signoff").options(
            path=str(self.log), maxEventsPerBatch=str(BATCH), parallelism="2"
        )
        return self._plain(stream.load().select(F.col("payload").alias("value")))

    def plain_over_text(self) -> float:
        return self._plain(self.spark.readStream.option("maxFilesPerTrigger", 1).text(str(self.text)))

    def _plain(self, lines: DataFrame) -> float:
        fresh = self._fresh()
        parsed = lines.select(F.from_json("value", SCHEMA, {"timestampFormat": FORMAT}).alias("v")).select(
            "v.*"
        )
        query = (
            parsed.where(WHERE)
            .writeStream.format("json")
            .option("path", str(fresh / "out"))
            .option("checkpointLocation", str(fresh / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        return net_seconds(query)

    def untracked(self) -> float:
        """What is left when nothing is kept account of: the price of everything else."""
        fresh = self._fresh()
        stream = self.spark.readStream.format("signoff").options(
            path=str(self.log), maxEventsPerBatch=str(BATCH), parallelism="2"
        )
        parsed = (
            stream.load()
            .select("_sequence", F.from_json("payload", SCHEMA, {"timestampFormat": FORMAT}).alias("v"))
            .select("_sequence", "v.*")
            .where(WHERE)
        )
        sink = FilesSinkConfig(path="out", input="x").build(fresh)
        sink.prepare()

        def write(df: DataFrame, number: int) -> None:
            ref = BatchRef("incoming", number * BATCH, (number + 1) * BATCH)
            parts = df.mapInArrow(_WritePart(sink, ref), "part BINARY").collect()
            sink.commit(ref, [row.part for row in parts if row.part is not None])

        query = (
            parsed.writeStream.foreachBatch(write)
            .option("checkpointLocation", str(fresh / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        return net_seconds(query)

    def signoff(self, sinks: int = 1, acknowledgements: bool = True) -> float:
        fresh = self._fresh()
        pipeline = Pipeline(
            "bench", state=str(fresh / "state"), base=fresh, acknowledgements=acknowledgements
        )
        pipeline.source("incoming", "generate", count=1, max_events_per_batch=BATCH)
        pipeline.transform("parsed", "parse_json", input="incoming", schema=SCHEMA, timestamp_format=FORMAT)
        pipeline.transform("chosen", "filter", input="parsed", where=WHERE)
        for number in range(sinks):
            pipeline.sink(f"files{number}", "files", input="chosen", path=f"out{number}", format="jsonl")
        graph = pipeline.graph()
        log = graph.state / "log" / "incoming"
        log.parent.mkdir(parents=True)
        shutil.copytree(self.log, log, copy_function=os.link)
        (log / "lock").unlink(missing_ok=True)
        control = Interrupts()
        engine = Engine(graph, control, self.spark)
        threading.Thread(target=_stop_when_idle, args=(engine, control), daemon=True).start()
        engine.run()
        with sqlite3.connect(graph.state / "ledger.db") as ledger:
            first, last = ledger.execute("SELECT min(settled_at), max(settled_at) FROM batches").fetchone()
        engine.close()
        return float(last - first)

    def _fresh(self) -> Path:
        self.runs += 1
        path = self.directory / f"run{self.runs}"
        path.mkdir()
        return path


def net_seconds(query: StreamingQuery) -> float:
    """Wait for a query; seconds from the end of its first batch to the end of its last."""
    query.awaitTermination()
    batches = [progress for progress in query.recentProgress if progress.numInputRows]
    ends = [
        datetime.fromisoformat(batch.timestamp).timestamp() + batch.durationMs["triggerExecution"] / 1000
        for batch in batches
    ]
    return ends[-1] - ends[0]


def _stop_when_idle(engine: Engine, control: Interrupts) -> None:
    while not engine.idle:
        time.sleep(0.2)
    control.stop(60)


class _WritePart:
    """A task that writes with a sink's writer, and nothing else."""

    def __init__(self, sink: FilesSink, batch: BatchRef) -> None:
        self._sink, self._batch = sink, batch

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        writer = self._sink.open(Part(self._batch, context.partitionId(), context.taskAttemptId()))
        for rows in batches:
            ids = pc.binary_join_element_wise("incoming", pc.cast(rows.column("_sequence"), pa.string()), "/")
            columns = [ids, *rows.columns[1:]]
            names = ["event_id", *rows.schema.names[1:]]
            writer.write(pa.RecordBatch.from_arrays(columns, names=names))
        yield pa.RecordBatch.from_arrays([pa.array([writer.close()], pa.binary())], names=["part"])


def cpu_seconds() -> float:
    """CPU time of this process, Spark's JVM and its Python workers so far."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=3_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="names of variants, with commas")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="signoff-bench-") as name:
        rates = measure(Path(name), given.events, given.rounds, set(filter(None, given.only.split(","))))
    ratios = {
        f"{one} / {other}": round(rates[one] / rates[other], 3)
        for one, other in RATIOS
        if one in rates and other in rates
    }
    for text, ratio in ratios.items():
        print(f"{text:32} {ratio:6.2f}")
    result = {
        "events": given.events,
        "events_per_s": {k: round(v) for k, v in rates.items()},
        "ratios": ratios,
    }
    print(json.dumps(result))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


def measure(directory: Path, events: int, rounds: int, only: set[str]) -> dict[str, float]:
    settings = SparkSettings(
        master="local[2]", config={"spark.sql.streaming.numRecentProgressUpdates": "10000"}
    )
    spark = start_session("bench", settings, log_file=directory / "spark.log", python_path=directory)
    bench = Bench(spark, directory, events)
    variants: dict[str, Callable[[], float]] = {
        "plain_over_log": bench.plain_over_log,
        "plain_over_text": bench.plain_over_text,
        "untracked": bench.untracked,
        "signoff": bench.signoff,
        "signoff_off": lambda: bench.signoff(acknowledgements=False),
        "three_sinks": lambda: bench.signoff(sinks=3),
    }
    chosen = {name: run for name, run in variants.items() if not only or name in only}
    best: dict[str, float] = {}
    for turn in range(rounds + 1):
        for name, run in chosen.items():
            before = cpu_seconds()
            rate = (events - BATCH) / run()
            cost = (cpu_seconds() - before) / events * 1e6
            note = "" if turn else "  (warm-up)"
            print(f"{name:16} {rate:>10,.0f} events/s {cost:6.2f} µs CPU an event{note}", flush=True)
            if turn:
                best[name] = max(best.get(name, 0.0), rate)
    spark.stop()
    return best


if __name__ == "__main__":
    main()
