"""Windows of alarms several ways, in one run: Signoff, plain Structured Streaming, and Flink SQL.

The job: alarms as JSON, some of them broken (docs/alarms.md), parsed, filtered, counted by station, sensor
and alarm in 10-minute windows with 15 minutes of lateness, the results written as JSON.

    signoff           a pipeline: parse_json, filter, window, files; the events are in its log
    plain_over_log    readStream.format("signoff") → from_json → where → withWatermark → groupBy(window, …)
                      in append mode → writeStream.format("json")
    plain_over_text   readStream.text, two files of half a batch per trigger → the same
    flink             Flink SQL in streaming mode, parallelism 2, a checkpoint every 5 s, state on its heap:
                      text files → WATERMARK → TUMBLE → JSON files
    signoff_unsynced  if asked for: `signoff`, but what Spark writes is not synced (docs/decisions/0014)

The first three share a Spark session with the settings of a Signoff run, and cut batches of the same size
(a fifth of the alarms, and 500,000 at most, which take about as long as Flink's time between checkpoints);
Flink has a JVM of its own, which stays between the runs. Variants take turns, after a round to warm up.

Rates are net of the start, by one rule for all: the time of a run over all events, less that of a run over
the first batch alone; of both the best of the rounds. CPU time, net by the same rule, is of all processes of
a variant, and steadier than the rate where others use the machine too. Memory is the peak of its processes;
those of the first three variants share Spark's JVM, which gives back little.

Every result is held against what the simulation says should come out: see windows_input.py.

    .venv/bin/python bench/windows.py [--events 1000000,5000000] [--rounds 2] [--batch 200000]
        [--per-day 4000000] [--alarms 303,308,309] [--only NAMES] [--flink DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import logging
import os
import shutil
import sqlite3
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pipeline import FORMAT, SCHEMA
from signoff.builder import Pipeline
from signoff.engine.batch.interrupts import Interrupts
from signoff.engine.engine import Engine
from signoff.engine.spark.checkpoint_sync import SyncedFiles
from signoff.engine.spark.session import start_session
from signoff.errors import SignoffError
from signoff.pipeline.graph import Graph
from signoff.pipeline.settings import SparkSettings
from windows_flink import Flink, NoFlinkError
from windows_input import KEYS, LATENESS_MINUTES, MINUTES, Input, Result
from windows_watch import StateListener, Watch

VARIANTS = ("signoff", "plain_over_log", "plain_over_text", "flink")
ON_REQUEST = ("signoff_unsynced",)
EARLIEST, LATEST = "2021-01-01", "2031-01-01"
"""Times beyond are absurd. One in the future would move a watermark so far that all that follows is late."""
SOUND = (
    f"eventTime BETWEEN TIMESTAMP '{EARLIEST}' AND TIMESTAMP '{LATEST}' AND stationId IS NOT NULL AND "
    "dataPointId IS NOT NULL AND value IS NOT NULL AND valueThreshold IS NOT NULL AND isActive IS NOT NULL"
)
HERE = Path(__file__).parent
_LARGEST_BATCH = 500_000


@dataclass
class Run:
    """One run of a variant."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    result: Result
    batch_seconds: list[float]
    """From the end of one batch to the end of the next; none for Flink."""
    state_rows: list[float]
    state_mb: list[float]
    """Of Spark's state store after each batch."""


@dataclass(frozen=True)
class Measured:
    """A variant over a number of events: its runs over all of them, and over the first batch alone."""

    events: int
    batch: int
    runs: list[Run]
    short: list[Run]

    def report(self) -> dict[str, Any]:
        best = min(self.runs, key=lambda run: run.seconds)
        events = self.events - self.batch
        return {
            "events_per_s": round(events / self._net(lambda run: run.seconds)),
            "cpu_us_per_event": round(self._net(lambda run: run.cpu_seconds) / events * 1e6, 2),
            "seconds": round(best.seconds, 2),
            "seconds_of_first_batch": round(min(run.seconds for run in self.short), 2),
            "peak_mb": round(max(run.peak_mb for run in self.runs)),
            **asdict(best.result),
            **_thirds("batch_s", best.batch_seconds),
            **_thirds("state_rows", best.state_rows),
            **_thirds("state_mb", best.state_mb),
        }

    def _net(self, seconds: Callable[[Run], float]) -> float:
        return min(map(seconds, self.runs)) - min(map(seconds, self.short))


def _thirds(name: str, values: Sequence[float]) -> dict[str, float]:
    """How the last third of a run compares with the first, its first batch aside."""
    third = (len(values) - 1) // 3
    if third < 1:
        return {}
    first, last = statistics.median(values[1 : 1 + third]), statistics.median(values[-third:])
    return {f"{name}_first_third": round(first, 3), f"{name}_last_third": round(last, 3)}


class Bench:
    """The variants. Each takes an input and a new directory, and writes its results to `out` in it."""

    def __init__(self, spark: SparkSession, flink: Flink | None, alarms: Sequence[int]) -> None:
        self._spark, self._flink = spark, flink
        self._where = f"alarmId IN ({', '.join(map(str, alarms))})"
        self._state = StateListener()
        spark.streams.addListener(self._state)
        self._batch_seconds: list[float] = []

    def run(self, variant: str, given: Input, home: Path) -> Run:
        """Run a variant once, and hold its results against what they should be."""
        home.mkdir()
        self._state.forget()
        self._batch_seconds = []
        with Watch(self._processes_of_flink if variant == "flink" else self._processes_of_spark) as watch:
            begin = time.monotonic()
            getattr(self, variant)(given, home)
            seconds = time.monotonic() - begin
        time.sleep(0.5)  # Spark tells its listeners a little later
        result = given.check(home / "out")
        shutil.rmtree(home)
        batches = self._batch_seconds or self._state.batch_seconds
        return Run(
            seconds, watch.cpu_seconds, watch.peak_mb, result, batches, self._state.rows, self._state.mb
        )

    def signoff(self, given: Input, home: Path) -> None:
        graph = self.pipeline(home, given.batch)
        log = graph.state / "log" / "incoming"
        log.parent.mkdir(parents=True)
        shutil.copytree(given.log, log, copy_function=os.link)
        (log / "lock").unlink(missing_ok=True)
        control = Interrupts()
        engine = Engine(graph, control, self._spark)
        for query in engine.queries.values():
            query.spark.streams.addListener(self._state)  # each has a session of its own
        threading.Thread(target=_stop_when_idle, args=(engine, control), daemon=True).start()
        gave_up = engine.run()
        engine.close()
        if gave_up is not None:
            raise SignoffError(gave_up)
        with sqlite3.connect(graph.state / "ledger.db") as ledger:
            rows = ledger.execute("SELECT settled_at FROM batches WHERE source = 'incoming' ORDER BY start")
            ends = [end for (end,) in rows]
        self._batch_seconds = [after - before for before, after in itertools.pairwise(ends)]

    def signoff_unsynced(self, given: Input, home: Path) -> None:
        def note(files: SyncedFiles, done: int) -> None:
            files._done = max(done, files._done or 0)

        with mock.patch.object(SyncedFiles, "sync", note):
            self.signoff(given, home)

    def pipeline(self, home: Path, batch: int) -> Graph:
        """Raises SignoffError when a step of it is unknown."""
        pipeline = Pipeline("windows", state=str(home / "state"), base=home)
        pipeline.source("incoming", "generate", count=1, max_events_per_batch=batch)
        pipeline.transform("parsed", "parse_json", input="incoming", schema=SCHEMA, timestamp_format=FORMAT)
        pipeline.transform("chosen", "filter", input="parsed", where=f"{self._where} AND {SOUND}")
        pipeline.transform(
            "per_ten_minutes",
            "window",
            input="chosen",
            time="eventTime",
            size=f"{MINUTES}m",
            keys=list(KEYS),
            aggregates={"count": "count(*)"},
            allowed_lateness=f"{LATENESS_MINUTES}m",
        )
        pipeline.sink("results", "files", input="per_ten_minutes", path="out", format="jsonl")
        return pipeline.graph()

    def plain_over_log(self, given: Input, home: Path) -> None:
        stream = self._spark.readStream.format("signoff").options(
            path=str(given.log), maxEventsPerBatch=str(given.batch), parallelism="2"
        )
        self._plain(stream.load().select(F.col("payload").alias("value")), home)

    def plain_over_text(self, given: Input, home: Path) -> None:
        self._plain(self._spark.readStream.option("maxFilesPerTrigger", 2).text(str(given.text)), home)

    def _plain(self, texts: DataFrame, home: Path) -> None:
        parsed = texts.select(F.from_json("value", SCHEMA, {"timestampFormat": FORMAT}).alias("v"))
        times = (F.col(f"window.{end}").alias(f"window_{end}") for end in ("start", "end"))
        windows = (
            parsed.select("v.*")
            .where(f"{self._where} AND {SOUND}")
            .withWatermark("eventTime", f"{LATENESS_MINUTES} minutes")
            .groupBy(F.window("eventTime", f"{MINUTES} minutes"), *KEYS)
            .count()
            .select(*times, *KEYS, "count")
        )
        query = (
            windows.writeStream.format("json")
            .outputMode("append")
            .option("path", str(home / "out"))
            .option("checkpointLocation", str(home / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    def flink(self, given: Input, home: Path) -> None:
        assert self._flink is not None
        self._flink.run(
            {
                "input": str(given.dealt),
                "output": str(home / "out"),
                "checkpoints": str(home / "checkpoints"),
                "where": self._where,
                "earliest": EARLIEST,
                "latest": LATEST,
                "minutes": str(MINUTES),
                "lateness": str(LATENESS_MINUTES),
            }
        )

    def _processes_of_flink(self) -> list[psutil.Process]:
        assert self._flink is not None
        process = psutil.Process(self._flink.process.pid)
        return [process, *process.children(recursive=True)]

    def _processes_of_spark(self) -> list[psutil.Process]:
        process = psutil.Process()
        flinks = self._processes_of_flink() if self._flink is not None else []
        return [process, *(child for child in process.children(recursive=True) if child not in flinks)]


def _stop_when_idle(engine: Engine, control: Interrupts) -> None:
    while not engine.idle:
        time.sleep(0.2)
    control.stop(60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=_numbers, default=[1_000_000, 5_000_000])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--batch", type=int, help="of a micro-batch; by default a fifth, 500,000 at most")
    parser.add_argument("--per-day", type=float, default=4_000_000, help="events per day of event time")
    parser.add_argument("--alarms", type=_numbers, default=[303, 308, 309], help="ids that pass the filter")
    parser.add_argument("--only", default=",".join(VARIANTS), help="names of variants, with commas")
    parser.add_argument(
        "--flink", type=Path, default=HERE / ".flink", help="where Flink is, or is to be, installed"
    )
    parser.add_argument("--json", type=Path, default=HERE / "results" / "windows.json")
    given = parser.parse_args()
    if min(given.events) < 2 * (given.batch or 1):
        parser.error("--events: two batches are the least")
    logging.getLogger("signoff").setLevel(logging.ERROR)  # broken alarms are dead letters, as they should be
    with tempfile.TemporaryDirectory(prefix="signoff-bench-") as name, contextlib.ExitStack() as stack:
        result = measure(Path(name), given, stack)
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(result, indent=2) + "\n")
    print(f"written to {given.json}")


def measure(directory: Path, given: argparse.Namespace, stack: contextlib.ExitStack) -> dict[str, Any]:
    inputs = {size: _inputs(directory, size, given) for size in given.events}
    wanted = [name for name in (*VARIANTS, *ON_REQUEST) if name in given.only.split(",")]
    left_out: dict[str, str] = {}
    flink = None
    if "flink" in wanted:
        try:
            flink = stack.enter_context(Flink(given.flink, directory / "flink.log"))
        except NoFlinkError as error:
            left_out["flink"] = str(error)
    settings = SparkSettings(master="local[2]")
    spark = start_session("bench", settings, log_file=directory / "spark.log", python_path=directory)
    stack.callback(spark.stop)
    bench = Bench(spark, flink, given.alarms)
    left_out |= _unable(bench, flink, next(iter(inputs.values()))[0], directory)
    for name, reason in left_out.items():
        print(f"{name} is left out: {reason}", flush=True)
    variants = [name for name in wanted if name not in left_out]
    every = list(itertools.chain(*inputs.values()))
    runs = _rounds(bench, variants, every, given.rounds, directory)
    sizes = {
        size: _report(
            whole,
            {name: Measured(size, whole.batch, of[whole], of[short]) for name, of in runs.items()},
        )
        for size, (short, whole) in inputs.items()
    }
    setting = {"per_day": given.per_day, "alarms": given.alarms}
    return {**setting, "left_out": left_out, "sizes": sizes}


def _unable(bench: Bench, flink: Flink | None, short: Input, directory: Path) -> dict[str, str]:
    """The variants that are there but cannot be run, and why."""
    reasons: dict[str, str] = {}
    try:
        bench.pipeline(directory, short.batch)
    except SignoffError as error:
        reasons["signoff"] = str(error)
    if flink is not None:
        try:
            bench.run("flink", short, directory / "flink-try")
        except NoFlinkError as error:
            reasons["flink"] = str(error)
    return reasons


def _inputs(directory: Path, size: int, given: argparse.Namespace) -> tuple[Input, Input]:
    """The first batch alone, and all."""
    print(f"making {size:,} alarms", flush=True)
    batch = given.batch or min(size // 5, _LARGEST_BATCH)
    short, whole = (
        Input(
            directory / f"input{size}-{count}", count, batch=batch, per_day=given.per_day, alarms=given.alarms
        )
        for count in (batch, size)
    )
    return short, whole


def _rounds(
    bench: Bench, variants: Sequence[str], inputs: Sequence[Input], rounds: int, directory: Path
) -> dict[str, dict[Input, list[Run]]]:
    """All runs by variant and input. The first round is to warm up, and does the smaller half."""
    runs: dict[str, dict[Input, list[Run]]] = {name: {given: [] for given in inputs} for name in variants}
    for turn in range(rounds + 1):
        for given, name in itertools.product(inputs if turn else inputs[:2], variants):
            run = bench.run(name, given, directory / f"{name}-{given.events}-{turn}")
            print(
                f"{name:16} {given.events:>10,} events {run.seconds:7.2f} s {run.cpu_seconds:7.2f} s CPU"
                f"  load {os.getloadavg()[0]:.1f}{'' if turn else '  (warm-up)'}",
                flush=True,
            )
            if turn:
                runs[name][given].append(run)
    return runs


def _report(given: Input, measured: Mapping[str, Measured]) -> dict[str, Any]:
    """Print the table of one size; what it says, for the file."""
    print(f"\n{given.events:,} alarms, {given.kept:,} of them pass the filter")
    print(f"{'':16} {'events/s':>10} {'µs CPU':>8} {'peak MB':>8} {'rows':>9} {'open':>7}  closed until")
    reports = {name: one.report() for name, one in measured.items()}
    for name, report in reports.items():
        print(
            f"{name:16} {report['events_per_s']:>10,} {report['cpu_us_per_event']:>8.2f} "
            f"{report['peak_mb']:>8,} {report['rows']:>9,} {report['open_rows']:>7,}  "
            f"{report['closed_until']}"
        )
    for name, report in reports.items():
        flat = [key.removesuffix("_first_third") for key in report if key.endswith("_first_third")]
        told = (f"{key} {report[f'{key}_first_third']} → {report[f'{key}_last_third']}" for key in flat)
        if flat:
            print(f"{name:16} first third → last third: {', '.join(told)}")
    ratios = {
        f"signoff / {other}": {
            "events_per_s": round(reports["signoff"]["events_per_s"] / report["events_per_s"], 3),
            "cpu": round(report["cpu_us_per_event"] / reports["signoff"]["cpu_us_per_event"], 3),
        }
        for other, report in reports.items()
        if "signoff" in reports and other != "signoff"
    }
    for text, ratio in ratios.items():
        print(f"{text:32} {ratio['events_per_s']:6.2f} {ratio['cpu']:6.2f} by CPU time")
    return {"kept": given.kept, "variants": reports, "ratios": ratios}


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    main()
