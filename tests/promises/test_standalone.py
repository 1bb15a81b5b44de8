"""A RabbitMQ queue read by a plain PySpark program, without a pipeline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from signoff.intake import read_status
from tests.brokers import PASSWORD, RabbitMQ
from tests.servers import PATIENCE_S, wait_until

pytestmark = pytest.mark.spark

PROGRAM = """
import sys, pathlib, time
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
def work(batch, number):
    with open("seen", "a") as seen:
        seen.writelines(row.message_id + "\\n" for row in batch.select("message_id").collect())
    pathlib.Path("under_way").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.02)
    batch.select("message_id").write.mode("overwrite").json(f"out/{number}")
(spark.readStream.format("signoff").option("source", "rabbitmq").option("state", "state")
    .option("url", "${RABBITMQ_URL}").option("queues", "alone").load()
    .writeStream.foreachBatch(work).option("checkpointLocation", "checkpoint")
    .trigger(availableNow=True).start().awaitTermination())
"""


@pytest.mark.case(27)
def test_messages_are_acknowledged_when_their_batch_is_committed_although_no_other_follows(
    spark: SparkSession, rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    go, seen = threading.Event(), threading.Event()

    def work(batch: DataFrame, _: int) -> None:
        if batch.count():  # the first batch of a query comes even when there is nothing yet
            seen.set()
            assert go.wait(PATIENCE_S)

    rabbitmq.declare_queue("alone")
    _publish(rabbitmq, 10)
    with _query(spark, rabbitmq, tmp_path, work):
        assert seen.wait(PATIENCE_S)
        assert _told(tmp_path) == 0, "nothing is acknowledged while the batch is under way"
        go.set()
        wait_until(lambda: _told(tmp_path) == 10, what="acknowledged")
    wait_until(lambda: _gone(tmp_path), what="the intake ends with the query")
    assert rabbitmq.count("alone") == 0


@pytest.mark.case(24)
def test_messages_of_a_batch_that_was_not_finished_go_back_to_the_queue(
    spark: SparkSession, rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    def work(batch: DataFrame, _: int) -> None:
        if batch.count():
            raise ValueError("no")

    rabbitmq.declare_queue("alone")
    _publish(rabbitmq, 10)
    with _query(spark, rabbitmq, tmp_path, work) as query:
        wait_until(lambda: not query.isActive, what="the batch fails")
    rabbitmq.wait_for("alone", 10)


@pytest.mark.case(24)
def test_a_program_that_is_killed_in_a_batch_loses_nothing_and_does_no_message_twice(
    rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    rabbitmq.declare_queue("alone")
    _publish(rabbitmq, 500)
    with _program(rabbitmq, tmp_path) as program:
        wait_until((tmp_path / "under_way").exists, what="the batch is under way")
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    first = _seen(tmp_path)
    rabbitmq.wait_for("alone", 500)
    (tmp_path / "go").touch()
    with _program(rabbitmq, tmp_path) as program:
        assert program.wait(PATIENCE_S) == 0

    assert rabbitmq.count("alone") == 0
    again = _seen(tmp_path)[len(first) :]
    assert first and sorted(again[: len(first)]) == sorted(first), "the same batch, again"
    assert sorted(again) == sorted(f"m{number}" for number in range(500))
    lines = [line for file in tmp_path.glob("out/*/*.json") for line in file.read_text().splitlines()]
    written = sorted(json.loads(line)["message_id"] for line in lines)
    assert written == sorted(f"m{number}" for number in range(500))


def test_an_option_that_does_not_fit_is_said_without_the_password(
    spark: SparkSession, rabbitmq: RabbitMQ, tmp_path: Path
) -> None:
    stream = spark.readStream.format("signoff").option("source", "rabbitmq").option("state", str(tmp_path))
    with pytest.raises(Exception, match="prefetch") as raised:
        stream.option("url", rabbitmq.url).option("queues", "alone").option("prefetch", "many").load()
    assert PASSWORD not in str(raised.value)


def _publish(rabbitmq: RabbitMQ, count: int) -> None:
    rabbitmq.purge("alone")
    rabbitmq.publish([b"{}"] * count, "alone")


@contextmanager
def _query(
    spark: SparkSession, rabbitmq: RabbitMQ, path: Path, work: Callable[[DataFrame, int], Any]
) -> Iterator[StreamingQuery]:
    stream = spark.readStream.format("signoff").option("source", "rabbitmq").option("state", f"{path}/state")
    rows = stream.option("url", rabbitmq.url).option("queues", "alone").load()
    query = rows.writeStream.foreachBatch(work).option("checkpointLocation", f"{path}/checkpoint").start()
    try:
        yield query
    finally:
        query.stop()


@contextmanager
def _program(rabbitmq: RabbitMQ, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=path,
        env={**os.environ, "RABBITMQ_URL": rabbitmq.url, "PYSPARK_PYTHON": sys.executable},
        start_new_session=True,
    )
    try:
        yield program
    finally:
        if program.poll() is None:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()


def _told(path: Path) -> int:
    status = read_status(path / "state" / "intake" / "rabbitmq")
    return status.settled_sequence if status else 0


def _gone(path: Path) -> bool:
    status = read_status(path / "state" / "intake" / "rabbitmq")
    return status is not None and not Path(f"/proc/{status.pid}").exists()


def _seen(path: Path) -> list[str]:
    file = path / "seen"
    return file.read_text().splitlines() if file.exists() else []
