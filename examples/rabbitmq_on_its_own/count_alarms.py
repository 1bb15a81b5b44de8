"""A RabbitMQ queue as a stream of plain PySpark; a message is acknowledged when its batch is committed.

RABBITMQ_URL=amqp://guest:guest@localhost/ python count_alarms.py QUEUE     until the queue is empty
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812


def main(queue: str) -> None:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark looks for the source where signoff is
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    messages = (
        spark.readStream.format("signoff")
        .option("source", "rabbitmq")
        .option("state", "state")  # keeps the log, and what is settled; not Spark's checkpoint
        .option("url", "${RABBITMQ_URL}")  # expanded where it is used, so no plan shows the password
        .option("queues", queue)
        .load()
    )
    alarms = messages.select(
        F.concat(F.lit("alarms/"), "_sequence").alias("event_id"),  # the same when a batch is done again
        F.get_json_object("payload", "$.alarmId").alias("alarm"),
    )
    query = alarms.writeStream.format("json").option("checkpointLocation", "checkpoint")
    query.trigger(availableNow=True).start("out").awaitTermination()
    spark.read.json("out").groupBy("alarm").count().orderBy("alarm").show()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
