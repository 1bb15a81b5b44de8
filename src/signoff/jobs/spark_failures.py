"""What Spark says when it cannot do something, as one line for people."""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from signoff.pipeline.secrets import redact

SPARK_FAILURES = (PySparkException, Py4JJavaError)
"""PySpark knows some of the exceptions of the JVM; others (a job that was aborted, say) come as they are."""


def reason_of(error: PySparkException | Py4JJavaError) -> str:
    said = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    lines = [line.strip() for line in redact(said).splitlines() if line.strip()] or ["no reason was given"]
    for line in lines:  # of a task that failed in Python, the last line of its traceback
        if line.startswith(("ValueError:", "sqlite3.", "psycopg.")):
            return line
    return lines[0].split(" SQLSTATE")[0]
