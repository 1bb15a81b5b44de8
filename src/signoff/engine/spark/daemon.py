"""Spark's Python daemon, with what every task needs loaded before it forks workers.

Spark starts a worker by forking this process. A bare daemon makes each worker load Arrow, pandas and
Signoff itself, about a second of CPU; here it is done once and shared. Set as
`spark.python.daemon.module`; Spark names the worker's module in the arguments, as for its own daemon.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from pyspark import daemon

from signoff.engine.spark.worker_errors import take_over
from signoff.private import as_the_user

_OF_TASKS = (
    "pandas",
    "pyarrow.compute",
    "pyspark.sql.pandas.serializers",
    "signoff.engine.delivery.sink_pass",
    "signoff.transforms.preparse",
)


_worker = daemon.worker


def _quiet_worker(sock: Any, authenticated: bool) -> int:
    """A worker whose task Spark has given up on ends, without a traceback on the user's terminal."""
    try:
        return int(_worker(sock, authenticated))
    except BrokenPipeError:
        return 1


def main() -> None:
    """Load, then be the daemon. Other workers than those of tasks plan a data source, and end."""
    as_the_user()  # what sinks write is the user's
    if len(sys.argv) > 1 and sys.argv[1] == "pyspark.worker":
        for name in _OF_TASKS:
            importlib.import_module(name)
    take_over()
    daemon.worker = _quiet_worker
    daemon.manager()


if __name__ == "__main__":
    main()
