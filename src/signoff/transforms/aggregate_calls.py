"""Calls of aggregate functions in an SQL expression, and where they and their arguments are written.

    sum(n * 2) / count(*)       two calls, `sum(n * 2)` and `count(*)`; `n * 2` is an argument of the first

Spark's own parser finds them; they are then used as the text they were written as.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

_IN_COLUMNS = ("UnresolvedAttribute", "UnresolvedNamedLambdaVariable")
_functions: set[str] = set()


@dataclass(frozen=True)
class Span:
    """A part of an expression's text."""

    start: int
    end: int
    text: str

    def within(self, other: Span) -> Span:
        """The same part, of the text of another that holds it."""
        return Span(self.start - other.start, self.end - other.start, self.text)


def is_call(spark: SparkSession, node: Any) -> bool:
    kind = node.getClass().getSimpleName()
    if kind != "UnresolvedFunction":
        return str(kind) == "AggregateExpression"
    return function_of(node) in _aggregate_functions(spark)


def _aggregate_functions(spark: SparkSession) -> frozenset[str]:
    """The names of all that Spark calls an aggregate function."""
    if not _functions:
        registry: Any = spark._jsparkSession.sessionState().functionRegistry()
        every = registry.listFunction().iterator()
        while every.hasNext():
            name = every.next()
            if registry.lookupFunction(name).get().getGroup() == "agg_funcs":
                _functions.add(str(name.funcName()).lower())
    return frozenset(_functions)


def arguments_of(node: Any) -> list[Any]:
    """An argument as it is written: without its name, or the direction of an order."""
    if node.getClass().getSimpleName() in ("SortOrder", "NamedArgumentExpression"):
        return [node.child()]
    return [node]


def function_of(node: Any) -> str:
    return str(node.nameParts().last()).lower()


def is_column(node: Any) -> bool:
    return node.getClass().getSimpleName() in _IN_COLUMNS


def is_constant(node: Any) -> bool:
    return node.getClass().getSimpleName() == "Literal" and node.value() is not None


def any_of(node: Any, holds: Any) -> bool:
    return bool(holds(node)) or any(any_of(child, holds) for child in children_of(node))


def children_of(node: Any) -> list[Any]:
    return items_of(node.children())


def items_of(sequence: Any) -> list[Any]:
    return [sequence.apply(at) for at in range(sequence.size())]


def span_of(node: Any, text: str) -> Span:
    """Where an expression is written. Of `a IS NULL` Spark only says where `IS NULL` is: its parts tell."""
    start, end = _extent(node)
    while _depth(text[start:end]) < 0 and "(" in text[:start]:
        start = text.rindex("(", 0, start)
    while _depth(text[start:end]) > 0 and ")" in text[end:]:
        end = text.index(")", end) + 1
    return Span(start, end, text[start:end])


def _extent(node: Any) -> tuple[int, int]:
    origin = node.origin()
    known = [_extent(child) for child in children_of(node)]
    if origin.startIndex().isDefined():
        known.append((int(origin.startIndex().get()), int(origin.stopIndex().get()) + 1))
    known = [extent for extent in known if extent[1]]
    return min((start for start, _ in known), default=0), max((end for _, end in known), default=0)


def _depth(text: str) -> int:
    """How many parentheses are open at its end; less than none where more are closed."""
    bare = re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`", "", text)
    depth = least = 0
    for sign in bare:
        depth += {"(": 1, ")": -1}.get(sign, 0)
        least = min(least, depth)
    return least if least < 0 else depth


def replaced(text: str, pairs: list[tuple[Span, str]]) -> str:
    for span, other in sorted(pairs, key=lambda pair: -pair[0].start):
        text = text[: span.start] + other + text[span.end :]
    return text
