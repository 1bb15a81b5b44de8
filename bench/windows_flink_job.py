"""Runs the benchmark's job in Flink. Started by `windows_flink.py`, with the Python that has `apache-flink`.

Each line of standard input is a job, as JSON; the answer to it is a line of standard output.

    {"input": DIR, "output": DIR, "checkpoints": DIR, "where": SQL, "minutes": 10, "lateness": 15}
    {"error": TEXT or null}

All jobs are run in one JVM, which is warm after the first; each gets a small cluster of its own in it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyflink.common import Configuration
from pyflink.table import EnvironmentSettings, TableEnvironment

SETTINGS = {
    "parallelism.default": "2",
    "execution.checkpointing.interval": "5 s",
    # Without it a job that has read everything waits for the next checkpoint, up to five seconds in which
    # nothing is done. The results are complete without: the file sink publishes them at the end of its input.
    "execution.checkpointing.checkpoints-after-tasks-finish": "false",
    "state.backend.type": "hashmap",
    "table.local-time-zone": "UTC",
    "rest.bind-port": "0",
}

# The watermark is taken before the filter, and a time must not be null: what is no time of this age becomes
# one that moves no watermark, and is filtered out. `isActive` is text, as BOOLEAN takes any word for false.
SOURCE = """
CREATE TABLE alarms (
  stationId BIGINT, dataPointId INT, alarmId INT, eventTime STRING, `value` DOUBLE, valueThreshold DOUBLE,
  isActive STRING,
  happened AS COALESCE(
    CASE WHEN eventTime BETWEEN '{earliest}' AND '{latest}'
         THEN TO_TIMESTAMP(eventTime, 'yyyy-MM-dd HH:mm:ss ''UTC''') END,
    TIMESTAMP '1970-01-01 00:00:00'),
  WATERMARK FOR happened AS happened - INTERVAL '{lateness}' MINUTE
) WITH ('connector' = 'filesystem', 'path' = 'file://{input}', 'format' = 'json',
        'json.ignore-parse-errors' = 'true')
"""
SINK = """
CREATE TABLE results (
  window_start TIMESTAMP(3), window_end TIMESTAMP(3), stationId BIGINT, dataPointId INT, alarmId INT,
  `count` BIGINT
) WITH ('connector' = 'filesystem', 'path' = 'file://{output}', 'format' = 'json')
"""
JOB = """
INSERT INTO results
SELECT window_start, window_end, stationId, dataPointId, alarmId, COUNT(*)
FROM TABLE(TUMBLE(TABLE alarms, DESCRIPTOR(happened), INTERVAL '{minutes}' MINUTE))
WHERE {where} AND happened > TIMESTAMP '1970-01-01 00:00:00'
  AND stationId IS NOT NULL AND dataPointId IS NOT NULL
  AND `value` IS NOT NULL AND valueThreshold IS NOT NULL AND isActive IN ('true', 'false')
GROUP BY window_start, window_end, stationId, dataPointId, alarmId
"""


def run(job: dict[str, Any]) -> None:
    """Run a job to its end."""
    configuration = Configuration()
    for key, value in {**SETTINGS, "execution.checkpointing.dir": f"file://{job['checkpoints']}"}.items():
        configuration.set_string(key, value)
    settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration)
    tables = TableEnvironment.create(settings.build())
    tables.execute_sql(SOURCE.format_map(job))
    tables.execute_sql(SINK.format_map(job))
    tables.execute_sql(JOB.format_map(job)).wait()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever Flink and its JVM print is no answer
    for line in sys.stdin:
        error = None
        try:
            run(json.loads(line))
        except Exception as failure:  # noqa: BLE001 - told to whoever asked
            error = str(failure)
        print(json.dumps({"error": error}), file=answers, flush=True)


if __name__ == "__main__":
    main()
