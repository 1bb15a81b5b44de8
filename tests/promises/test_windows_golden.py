"""A million alarms in disorder: the windows are those of a batch computation by plain Spark, none is missing.

`SIGNOFF_GOLDEN_EVENTS` and `SIGNOFF_GOLDEN_KILLS` make the run with kills as long as you like.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from signoff.log import LogReader
from signoff_alarms.simulator import Simulation, SimulationConfig
from tests.promises.product import Product, Running
from tests.servers import wait_until

pytestmark = pytest.mark.spark

SCHEMA = (
    "stationId BIGINT, dataPointId INT, alarmId INT, eventTime TIMESTAMP, value DOUBLE, valueThreshold "
    "DOUBLE, "
    "isActive BOOLEAN"
)
KEYS = ["stationId", "dataPointId", "alarmId"]
SEED = 11
PER_DAY = 2_000_000
"""Dense enough that most windows hold several alarms."""
EVENTS = int(os.environ.get("SIGNOFF_GOLDEN_EVENTS", "80000"))
KILLS = int(os.environ.get("SIGNOFF_GOLDEN_KILLS", "3"))

Result = tuple[Any, ...]


def pipeline(number: int, batch: int) -> dict[str, Any]:
    return {
        "sources": {
            "incoming": {
                "type": "generate", "template": "stations", "count": number, "seed": SEED,
                "simulation": {"disorder": "15m", "late": 0, "per_day": PER_DAY},
                "max_events_per_batch": batch,
            }
        },
        "transforms": {
            "parsed": {"type": "parse_json", "input": "incoming", "schema": SCHEMA},
            "active": {"type": "filter", "input": "parsed", "where": "alarmId <> 302"},
            "counts": {
                "type": "window", "input": "active", "time": "eventTime", "size": "10m", "keys": KEYS,
                "aggregates": {"alarms": "count(*)", "highest": "max(value)"},
                "allowed_lateness": "15m", "idle_after": "2s",
            },
        },
        "sinks": {"results": {"type": "sqlite", "input": "counts", "path": "out.db", "table": "events"}},
    }  # fmt: skip


def golden(spark: SparkSession, number: int, directory: Path) -> Counter[Result]:
    """The same windows by plain Spark, over a file with all alarms."""
    messages = Simulation(SEED, SimulationConfig(disorder=900, late=0, per_day=PER_DAY)).messages(0, number)
    file = directory / "all.txt"
    with file.open("wb") as lines:
        for payload in messages.column("payload").to_pylist():
            lines.write((payload if isinstance(payload, bytes) else payload.encode()) + b"\n")
    strict = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "corrupt"}
    parsed = spark.read.text(str(file)).select(
        F.from_json("value", f"{SCHEMA}, corrupt STRING", strict).alias("alarm")
    )
    sound = parsed.select("alarm.*").where(
        "corrupt IS NULL AND alarmId <> 302 AND eventTime BETWEEN '1971-01-01' AND '2026-01-01'"
    )
    window = F.window("eventTime", "10 minutes")["start"].cast("long").alias("start")
    rows = sound.groupBy(window, *KEYS).agg(F.count("*"), F.max("value")).collect()
    return Counter(tuple(row) for row in rows)


def found(product: Product) -> Counter[Result]:
    """What the sink holds; the id begins with the window's start in seconds."""
    return Counter(
        (int(row["event_id"].split("/")[1]), *(row[key] for key in KEYS), row["alarms"], row["highest"])
        for row in product.table()
    )


def assert_all_accounted(product: Product, number: int, results: Counter[Result]) -> None:
    account = product.account()
    assert account["received"] == number and account["in_flight"] == account["refused"] == 0
    assert account["delivered"] == sum(row[4] * times for row, times in results.items())
    assert account["delivered"] + account["dropped"] + account["dead_lettered"] == number
    audit = product.audit()
    assert audit["buffers"]["counts.results.buffer"]["delivered"] == len(results)


@pytest.mark.timeout(1800)
@pytest.mark.case(34, 36, 37)
def test_a_million_disordered_alarms_give_the_windows_of_a_batch_computation(
    real: Callable[..., Product], spark: SparkSession, tmp_path: Path
) -> None:
    number = 1_000_000
    product = real(**pipeline(number, batch=200_000))
    assert product.run_once(timeout=600).code == 0
    results = found(product)
    assert results == golden(spark, number, tmp_path)
    assert_all_accounted(product, number, results)


@pytest.mark.timeout(1800)
@pytest.mark.case(24, 25, 26, 34, 37)
def test_the_windows_are_the_same_after_kills_at_random_moments(
    real: Callable[..., Product], spark: SparkSession, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    product = real(**pipeline(EVENTS, batch=max(EVENTS // (7 * KILLS), 1000)))
    running, kills = product.start("--once"), 0
    for number in range(KILLS):
        await_progress(product, running, chance)
        if running.ended:
            break
        if number % 2:
            running.kill9()
            running = product.start("--once")
        else:
            victim = chance.choice([product.engine_pid, product.jvm_pid, product.intake_pid])
            if (pid := wait_until(lambda v=victim, r=running: v() or r.ended)) is True:
                break
            product.kill9(pid)
        kills += 1
    print(f"{kills} kills")
    assert kills >= KILLS * 2 // 3, "it has ended before enough was killed"
    if running.wait(timeout=600).code:  # killed as it was about to end
        assert product.run_once(timeout=600).code == 0
    results = found(product)
    assert results == golden(spark, EVENTS, tmp_path)
    assert_all_accounted(product, EVENTS, results)


def await_progress(product: Product, running: Running, chance: random.Random) -> None:
    """Wait until one of the logs, or the account, has come a random way further; or the run has ended."""
    logs = [product.state / "log" / name for name in ("counts.buffer", "counts.results.buffer")]
    places: list[Callable[[], int]] = [product.settled_upto, *(lambda p=p: LogReader(p).head() for p in logs)]
    place = chance.choice(places)
    target = place() + chance.randrange(1, max(EVENTS // (7 * KILLS), 2))
    ended_or_there = lambda: running.ended or place() >= target  # noqa: E731
    try:
        running.wait_for(ended_or_there, timeout=40)
    except AssertionError:
        assert not running.ended or "the run ended" not in running.output[-200:]
