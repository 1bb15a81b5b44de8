"""How fast a log is written, read, and read by Spark: 150-byte events, fsync on.

    python bench/log.py [--events 2000000] [--batch 2000] [--directory DIR] [--spark]

Prints a line for people and, last, one JSON object. The directory should be on a real disk: on
tmpfs an fsync costs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from signoff.log import LogReader, LogWriter
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.pipeline.model import LogSettings

PAYLOAD_BYTES = 150


def events(first: int, count: int) -> pa.RecordBatch:
    """JSON payloads of 150 bytes, all different."""
    lines = [b'{"n": %012d, "text": "' % number for number in range(first, first + count)]
    payloads = [line + b"x" * (PAYLOAD_BYTES - len(line) - 2) + b'"}' for line in lines]
    nothing = pa.nulls(count)
    columns = [
        pa.array(payloads, pa.binary()),
        nothing,
        nothing,
        pa.array(np.full(count, int(datetime.now(UTC).timestamp() * 1e6)), pa.timestamp("us", tz="UTC")),
        pa.array(np.ones(count, dtype=np.int64)),
        pa.array(np.arange(first, first + count)),
        nothing,
    ]
    arrays = [column.cast(field.type) for column, field in zip(columns, EVENT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


def write(directory: Path, total: int, size: int) -> dict[str, float]:
    """Append batches as an intake does: sync whenever it is due. Making the events is not counted."""
    templates = [events(index * size, size) for index in range(min(20, -(-total // size)))]
    writer = LogWriter(directory, LogSettings())
    syncs = 0
    begin = time.perf_counter()
    while writer.next_sequence < total:
        writer.append(templates[writer.next_sequence // size % len(templates)])
        if writer.sync_due_in() == 0:
            writer.sync()
            syncs += 1
    writer.sync()
    seconds = time.perf_counter() - begin
    written = writer.next_sequence
    result = {
        "append_events_per_s": round(written / seconds),
        "append_mb_per_s": round(writer.size_bytes / seconds / 1e6, 1),
        "syncs": syncs + 1,
        "bytes_per_event": round(writer.size_bytes / written, 1),
    }
    writer.close()
    return result


def read(directory: Path) -> dict[str, float]:
    reader = LogReader(directory)
    begin = time.perf_counter()
    rows = sum(batch.num_rows for _, batch in reader.read(0, reader.head()))
    seconds = time.perf_counter() - begin
    begin, polls = time.perf_counter(), 2000
    for _ in range(polls):
        reader.head()
    return {
        "read_events_per_s": round(rows / seconds),
        "head_us": round((time.perf_counter() - begin) / polls * 1e6, 1),
    }


def read_with_spark(directory: Path) -> dict[str, float]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    frame = spark.read.format("signoff").option("path", str(directory)).option("parallelism", "2").load()
    total = LogReader(directory).head()
    best = 0.0
    for _ in range(4):
        begin = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        best = max(best, total / (time.perf_counter() - begin))
    result = {"spark_batch_rows_per_s": round(best)}
    with tempfile.TemporaryDirectory(dir=directory.parent) as checkpoint:
        stream = (
            spark.readStream.format("signoff")
            .options(path=str(directory), maxEventsPerBatch="500000", parallelism="2").load()
        )  # fmt: skip
        query = (
            stream.writeStream.format("noop").option("checkpointLocation", checkpoint)
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        rates = sorted(progress["processedRowsPerSecond"] for progress in query.recentProgress)
        result["spark_stream_rows_per_s"] = round(rates[len(rates) // 2])
    spark.stop()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--batch", type=int, default=2000, help="events per append")
    parser.add_argument("--directory", type=Path, help="where to put the log; a temporary one if not given")
    parser.add_argument("--spark", action="store_true", help="read it with Spark too")
    arguments = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="signoff-log-", dir=arguments.directory))
    try:
        result: dict[str, float] = {"events": arguments.events, "batch": arguments.batch}
        result |= write(base / "log", arguments.events, arguments.batch)
        print(f"append {result['append_events_per_s']:>12,} events/s  ({result['syncs']} fsyncs)")
        result |= read(base / "log")
        print(f"read   {result['read_events_per_s']:>12,} events/s  (head {result['head_us']} µs)")
        if arguments.spark:
            result |= read_with_spark(base / "log")
            print(f"spark  {result['spark_batch_rows_per_s']:>12,} rows/s batch")
            print(f"spark  {result['spark_stream_rows_per_s']:>12,} rows/s stream")
        print(json.dumps({"bench": "log", **result}))
    finally:
        shutil.rmtree(base)


if __name__ == "__main__":
    main()
