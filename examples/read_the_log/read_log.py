"""Read a log from plain PySpark, without a pipeline: as a stream, in micro-batches of a size you choose.

python read_log.py DIRECTORY     such as state/log/incoming of any pipeline, also while it runs
"""

from __future__ import annotations

import os
import sys
import tempfile

from pyspark.sql import DataFrame, SparkSession


def show(batch: DataFrame, number: int) -> None:
    first, last, events = batch.selectExpr("min(_sequence)", "max(_sequence)", "count(*)").first()
    print(f"batch {number}: {events} events, {first} to {last}", flush=True)


def main(log: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark looks for the source where signoff is
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    events = spark.readStream.format("signoff").option("maxEventsPerBatch", 25).load(log)
    with tempfile.TemporaryDirectory() as checkpoint:  # a reader that is to go on later keeps it
        query = events.writeStream.foreachBatch(show).option("checkpointLocation", checkpoint)
        query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
