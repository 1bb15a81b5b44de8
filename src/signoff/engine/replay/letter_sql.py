"""A condition in Spark SQL over dead letters. Runs on the driver, in a session of its own."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from signoff.engine.spark.cluster import Cluster
from signoff.errors import StateError
from signoff.ledger.letter import DeadLetter
from signoff.pipeline.graph import Graph

EVENT = "event"
"""The payload as JSON; null where it is none."""
_NUMBER = "_number"
_TIME = pa.timestamp("us", "UTC")
_SCHEMA = pa.schema(
    [
        (_NUMBER, pa.int64()), ("event_id", pa.string()), ("source", pa.string()), ("stage", pa.string()),
        ("reason", pa.string()), ("first_reason", pa.string()), ("at", _TIME), ("received_at", _TIME),
        ("attempts", pa.int64()), ("status", pa.string()), ("message_id", pa.string()),
        ("headers", pa.map_(pa.string(), pa.string())), ("payload", pa.string()),
    ]
)  # fmt: skip


def holds(graph: Graph, letters: Sequence[DeadLetter], where: str) -> list[DeadLetter]:
    """Those of the letters for which the expression is true. Raises StateError for one that Spark refuses."""
    cluster = Cluster.start(graph)
    try:
        return selected(cluster.spark, letters, where)
    finally:
        cluster.stop()


def selected(spark: SparkSession, letters: Sequence[DeadLetter], where: str) -> list[DeadLetter]:
    """As `holds`, in a session that is there."""
    try:
        found = _table(spark, letters).where(where).select(_NUMBER).collect()
    except PySparkException as error:
        first = str(error).splitlines()[0]
        raise StateError(f"--where cannot be computed: {first}") from error
    numbers = {row[0] for row in found}
    return [letter for number, letter in enumerate(letters) if number in numbers]


def _table(spark: SparkSession, letters: Sequence[DeadLetter]) -> DataFrame:
    rows = [
        {
            _NUMBER: number,
            "event_id": x.event_id,
            "source": x.source,
            "stage": x.stage,
            "reason": x.reason,
            "first_reason": x.first_reason or None,
            "at": _time(x.at),
            "received_at": _time(x.received_at),
            "attempts": x.attempts,
            "status": x.status,
            "message_id": x.message_id,
            "headers": list(x.headers.items()),
            "payload": _text(x.payload),
        }
        for number, x in enumerate(letters)
    ]
    table = spark.createDataFrame(pa.Table.from_pylist(rows, schema=_SCHEMA))
    return table.selectExpr("*", f"try_parse_json(payload) AS {EVENT}")


def _text(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def _time(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
