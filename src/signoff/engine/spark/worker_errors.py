"""How a Python worker tells Spark that it failed: without secrets, and whatever the text holds.

Spark writes what a worker says into `spark.log` and into its exceptions. Its own way fails itself on text
that UTF-8 cannot hold: the worker dies then, and nobody learns why.
"""

from __future__ import annotations

import sys
import traceback
from typing import IO

from pyspark.serializers import SpecialLengths, write_int, write_with_length

from signoff.pipeline.secrets import redact

_IN = ("pyspark.util", "pyspark.worker", "pyspark.worker_util", "pyspark.sql.worker.utils")


def tell_spark(error: BaseException, outfile: IO[bytes], _hide_traceback: bool | None = None) -> None:
    """In the place of `pyspark.util.handle_worker_exception`."""
    try:
        text = redact("".join(traceback.format_exception(error)))
    except Exception:  # noqa: BLE001 - a __str__ of the user's
        text = f"{type(error).__name__}: (its text cannot be had)"
    try:
        write_int(SpecialLengths.PYTHON_EXCEPTION_THROWN, outfile)
        write_with_length(text.encode("utf-8", "backslashreplace"), outfile)
    except OSError:
        pass  # Java has closed the socket


def take_over() -> None:
    """Called in the process workers are forked from, once their modules are loaded."""
    for name in _IN:
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "handle_worker_exception"):
            module.handle_worker_exception = tell_spark  # type: ignore[attr-defined]
