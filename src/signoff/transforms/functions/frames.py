"""`python` with `mode: frame`: a user's function on DataFrames, and what it may do.

The function is called while a plan is made, and works row by row: each row of its result is made of one row
it was given, and of no other. That is what lets a batch be done in any way: whole, again after a crash, in
halves in the search for poison, or as the few rows that one sink still lacks. A function that looks at
several rows (an aggregate, `row_number`, a limit, `dropDuplicates`) would say something else of these few
than of all of them, and nobody would hear of the rows it lets go; one that numbers them or draws lots
(`monotonically_increasing_id`, `uuid`, `rand`) would say something else each time. So Spark's plan is looked
at, and what is not known to work row by row is refused, before any event is touched (docs/decisions/0030).

What a plan does not show is the function's own duty: `mapInPandas` is given several rows at once, and a
table that has a key twice makes two rows of one, which have the same id.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from signoff.transforms.contract import FieldError
from signoff.transforms.frame import (
    CHILD,
    IDENTITY,
    MARK,
    ORIGIN,
    OTHERS,
    RECEIVED_AT,
    SEQUENCE,
    View,
    begin_again,
    lineage_of,
)
from signoff.transforms.try_expressions import tells_time

_TAKEN = frozenset({CHILD, IDENTITY, ORIGIN, OTHERS, RECEIVED_AT, SEQUENCE})
_GIVEN = "__signoff_given"
"""Begins the name, in a plan, of the rows that a function was given: each call has one of its own."""
_ROW_BY_ROW = frozenset(
    {
        "CTERelationDef",
        "MapInArrow",
        "MapInPandas",
        "Project",
        "RebalancePartitions",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sort",
        "SubqueryAlias",
        "View",
    }
)
_IN_PYTHON = frozenset({"MapInArrow", "MapInPandas"})
_UDFS = frozenset({"PythonUDF", "ScalaUDF"})
_KEEP_LEFT = frozenset({"Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti"})
_KEEP_RIGHT = frozenset({"Inner", "Cross", "RightOuter"})
"""Joins that make no row without one of that side."""

_ONE_ID = "makes several rows of one event, which would have the same id"
_UNFOLD = "use an unfold, or mode: rows, which give each row an id of its own"
_TOGETHER = "looks at several rows at once"
_ANEW = "computes what may have a different value each time (an id or a number by chance, or by place)"
_SAME = (
    "for an id, use event_id, which each row has at its sink; for a time, received_at; for a random part of "
    "the rows, a sample; a UDF must not be marked as non-deterministic"
)
_BY_KEY = "use a merge, a window or a fold, whose rows stand for all their events"
_REFUSED = {
    "Aggregate": ("aggregates", _BY_KEY),
    "CollectMetrics": ("observes its rows", "they are counted: see signoff status"),
    "Deduplicate": ("drops duplicates", "use a dedupe"),
    "DeduplicateWithinWatermark": ("drops duplicates", "use a dedupe"),
    "Distinct": ("drops duplicates", "use a dedupe"),
    "Expand": (_ONE_ID, _UNFOLD),
    "FlatMapGroupsInArrow": (_TOGETHER, "use mode: groups, or a fold"),
    "FlatMapGroupsInPandas": (_TOGETHER, "use mode: groups, or a fold"),
    "FlatMapGroupsInPandasWithState": ("keeps state", "use a fold"),
    "Generate": (_ONE_ID, _UNFOLD),
    "Join": (
        "joins its rows with one another, or adds rows of a table",
        "use a lookup, or an inner or left join with a table",
    ),
    "Sample": ("keeps rows by chance", "use a sample, which takes the same rows each time"),
    "TransformWithStateInPySpark": ("keeps state", "use a fold"),
    "Union": (_ONE_ID, "use a function for each, and name both as inputs of what is behind them"),
    "Window": (_TOGETHER, "use mode: groups, or a window"),
}
"""By what Spark calls it: what a function does that is refused, and what to do instead."""


def compile_frame(step: str, view: View, function: Callable[[DataFrame], DataFrame]) -> View:
    """The rows that a function makes of those alive at `view`."""
    _check_names(step, view.columns)
    given = view.frame.cut(view)
    lineage = lineage_of(given)
    name = f"{_GIVEN}_{uuid.uuid4().hex}"
    named = given.alias(name).select(*view.columns, F.struct(*lineage).alias(ORIGIN))
    result = function(named)
    if not isinstance(result, DataFrame):
        raise FieldError(
            "function", "bad-function", f"the function returned {type(result).__name__}, not a DataFrame"
        )
    if ORIGIN not in result.columns:
        raise FieldError(
            "function",
            "lost-origins",
            f'the result of "{step}" has no column "{ORIGIN}": its events could not be acknowledged',
            f'keep the column "{ORIGIN}" in every select; to aggregate, use a merge, a window or a fold, '
            "whose rows stand for all their events",
        )
    columns = list(result.columns)
    columns.remove(ORIGIN)
    _check_names(step, columns)
    plan = _check_row_by_row(step, result, name)
    if not plan.keeps(_origin_in(result), _origin_in(named)):
        raise FieldError(
            "function",
            "lost-origins",
            f'the function of "{step}" puts something else into "{ORIGIN}": other events would be settled',
            f'return "{ORIGIN}" as it was given; a column of your own needs another name',
        )
    flat = result.select(*(F.col(f"{ORIGIN}.{name}") for name in lineage), *columns)
    made = begin_again(flat, columns, view.frame)
    made.frame.note_chance(step, lots=plan.calls_python(), time=plan.tells_time())
    return made


def _check_names(step: str, columns: Iterable[str]) -> None:
    """Raises FieldError for a column that would be taken for one of the lineage, whatever its case."""
    for name in columns:
        if name.lower() in _TAKEN or name.lower().startswith(MARK):
            text = f'the rows of "{step}" have a column "{name}", which is a name the engine needs for itself'
            raise FieldError("function", "taken-name", text, "give it another name")


def _origin_in(rows: DataFrame) -> Any:
    """The attribute of the plan, as Spark has analysed it, that is the rows' lineage."""
    return rows._jdf.queryExecution().analyzed().output().apply(rows.columns.index(ORIGIN))


def _check_row_by_row(step: str, result: DataFrame, given: str) -> _Plan:
    """The plan; raises FieldError for one that is not known to make each row of one row."""
    if result.isStreaming:
        raise _refused(step, "reads a stream", "read a table, or use a lookup")
    execution = result._jdf.queryExecution()
    plan = _Plan(step, given, execution.analyzed())
    made = plan.is_made_of_given(plan.root)
    # As Spark will run it: where what was given is cached, each batch would be the one that was cached first.
    run = _Plan(step, given, execution.withCachedData())
    if not made or not run.is_made_of_given(run.root):
        raise _refused(
            step,
            "does not return what is made of the rows it is given, or keeps a copy of them",
            "do without cache, checkpoint, collect and rdd",
        )
    return plan


class _Plan:
    """A walk through a plan of Spark's, from its result to what it reads."""

    def __init__(self, step: str, given: str, root: Any) -> None:
        self.root = root
        self._step = step
        self._given = given
        self._made_ctes: dict[int, Any] = {}
        """Parts with a name of their own (WITH …) that are made of rows that were given."""

    def is_made_of_given(self, node: Any) -> bool:
        """Whether the rows of a part of the plan are made of rows that were given; FieldError where they are
        not made row by row."""
        name = str(node.nodeName())
        if name == "SubqueryAlias" and str(node.alias()).lower().startswith(_GIVEN):
            if node.alias() == self._given:
                return True
            raise _refused(self._step, "uses rows that another call was given", "keep no DataFrame of a call")
        if name == "CTERelationRef":
            return node.cteId() in self._made_ctes
        if any(map(self.is_made_of_given, _each(node.subqueries()))):
            raise _refused(self._step, _TOGETHER, "use a window, or mode: groups")
        made = [self.is_made_of_given(child) for child in _each(node.children())]
        if name == "WithCTE":
            return made[-1]
        if not any(made):
            return False
        if name == "CTERelationDef":
            self._made_ctes[node.id()] = node
        if name == "Join":
            fits = _keeps_rows(node, *made)
        elif name == "Filter":
            fits, name = bool(node.condition().deterministic()), "Sample"
        else:
            fits = name in _ROW_BY_ROW
        if not fits:
            raise _refused(self._step, *_REFUSED.get(name, (f"{_TOGETHER} ({name})", _BY_KEY)))
        if not _says_the_same_again(node):
            raise _refused(self._step, _ANEW, _SAME)
        return True

    def calls_python(self) -> bool:
        """Whether code of the user's works on the rows, of which Spark cannot know what it does."""
        return self._any(
            self.root,
            lambda node: node.nodeName() in _IN_PYTHON or any(map(_has_udf, _each(node.expressions()))),
        )

    def tells_time(self) -> bool:
        """Whether the function asks for the current time or date."""
        return self._any(self.root, lambda node: any(map(tells_time, _each(node.expressions()))))

    def _any(self, node: Any, holds: Callable[[Any], bool]) -> bool:
        """Whether something holds for a part of the plan, of those that are the function's own."""
        if node.nodeName() == "SubqueryAlias" and node.alias() == self._given:
            return False
        parts = (*_each(node.children()), *_each(node.subqueries()))
        return holds(node) or any(self._any(part, holds) for part in parts)

    def keeps(self, attribute: Any, given: Any) -> bool:
        """Whether a column of the result is, under whatever name, one that was given. What code in Python
        returns cannot be followed, and is believed; call this once the plan is known to be row by row."""
        node = self.root
        while attribute.exprId().id() != given.exprId().id():
            name = str(node.nodeName())
            below = [child for child in _each(node.children()) if child.outputSet().contains(attribute)]
            if below:
                node = below[-1]
            elif name in _IN_PYTHON:
                return self.is_made_of_given(node)
            elif name == "CTERelationRef" and node.cteId() in self._made_ctes:
                place = [each.exprId().id() for each in _each(node.output())].index(attribute.exprId().id())
                node = self._made_ctes[node.cteId()]
                attribute = node.output().apply(place)
            elif name == "Project" and (source := _renamed(node, attribute)) is not None:
                attribute = source
            else:
                return False
        return True


def _renamed(project: Any, attribute: Any) -> Any | None:
    """The column that has another name in a projection; None for one that is computed."""
    for each in _each(project.projectList()):
        if each.exprId().id() == attribute.exprId().id() and each.nodeName() == "Alias":
            return each.child() if each.child().nodeName() == "AttributeReference" else None
    return None


def _keeps_rows(join: Any, left: bool, right: bool) -> bool:
    """Whether each row of a join is made of one row that was given, on one of its sides."""
    kind = str(join.joinType().toString())
    return left != right and kind in (_KEEP_LEFT if left else _KEEP_RIGHT)


def _says_the_same_again(node: Any) -> bool:
    """Whether one part of a plan, apart from those it reads, always computes the same of a row."""
    # What Spark knows at once is of a part and all it reads; where that is enough, no column is asked.
    return bool(node.deterministic()) or all(each.deterministic() for each in _each(node.expressions()))


def _has_udf(expression: Any) -> bool:
    if expression.getClass().getSimpleName() in _UDFS:
        return True
    return any(map(_has_udf, _each(expression.children())))


def _each(several: Any) -> list[Any]:
    """What is in a sequence of Scala's."""
    return [several.apply(index) for index in range(several.size())]


def _refused(step: str, what: str, hint: str) -> FieldError:
    text = f'the function of "{step}" {what}; a function on DataFrames works on each row by itself'
    return FieldError("function", "not-row-by-row", text, hint)
