"""Datetime patterns, looked at before an event is: a wrong one would fail for every row.

Spark only looks at a pattern when it meets the first value, and then each row is to blame. Here its own
formatter is asked, with the pattern alone. Only patterns that are written out are seen; one that is computed
of a row is that row's.
"""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException

HINT = "for example yyyy-MM-dd HH:mm:ss: MM is the month, mm the minute, HH the hour of 24, dd the day"
_WITH_PATTERN = {
    "ParseToTimestamp": True,
    "ParseToDate": True,
    "GetTimestamp": True,
    "UnixTimestamp": True,
    "ToUnixTimestamp": True,
    "DateFormatClass": False,
    "FromUnixTime": False,
}
"""Expressions whose second part is a pattern, and whether texts are read with it."""
_known: dict[tuple[str, bool], str | None] = {}
"""A plan is made for every batch."""


class BadPattern(Exception):
    """An expression has a datetime pattern that is none."""

    def __init__(self, pattern: str, wrong: str) -> None:
        super().__init__(f'"{pattern}" is not a datetime pattern: {wrong}')


def check_literals(expression: Any) -> None:
    """Look at the patterns in an analysed expression of Spark's. Raises BadPattern."""
    children = expression.children()
    parts = [children.apply(index) for index in range(children.size())]
    parsing = _WITH_PATTERN.get(expression.getClass().getSimpleName())
    if parsing is not None and len(parts) > 1 and parts[1].getClass().getSimpleName() == "Literal":
        pattern = parts[1].value()
        if pattern is not None and (wrong := fault(str(pattern), parsing=parsing)) is not None:
            raise BadPattern(str(pattern), wrong)
    for part in parts:
        check_literals(part)


def fault(pattern: str, *, parsing: bool = True) -> str | None:
    """What Spark's formatter says against a pattern; None if it takes it."""
    key = (pattern, parsing)
    if key not in _known:
        _known[key] = _fault(pattern, parsing)
    return _known[key]


def _fault(pattern: str, parsing: bool) -> str | None:
    context = SparkContext._active_spark_context
    assert context is not None and context._jvm is not None
    jvm: Any = context._jvm
    formatters = getattr(jvm.org.apache.spark.sql.catalyst.util, "TimestampFormatter$")
    try:
        made = getattr(formatters, "MODULE$").apply(pattern, jvm.java.time.ZoneOffset.UTC, parsing)
        made.validatePatternString(False)
    except (Py4JJavaError, PySparkException) as error:
        cause = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error
        return " ".join(str(cause or type(error).__name__).split(" SQLSTATE")[0].split())
    return None
