"""Why the expressions of a step failed for some rows. Runs on the driver, after a pass that found such rows.

The pass only knows that they failed (see `transforms.try_expressions`). Their input is computed again, for
these rows alone, and each expression is evaluated for each row with Catalyst's interpreter, here and one
after the other: what it raises is the reason. So thousands of rows cost one small job and some milliseconds,
where a job for each row would take minutes.

The loop over the rows is compiled by Janino, which Spark itself uses for the code it generates, and its
answer is one text: from Python each row would be several calls across the gateway.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from signoff.engine.plan.lineage import joined
from signoff.engine.plan.task_report import ReportKind, TaskReport
from signoff.pipeline.secrets import redact
from signoff.transforms.frame import CHILD, SEQUENCE
from signoff.transforms.try_expressions import UNEXPLAINED, Attempt

logger = logging.getLogger(__name__)

RowName = tuple[int, str]
_AT_ONCE = 20_000
"""How many rows are brought to the driver at a time."""
_SEPARATOR, _END = "\x1f", "\x1e"
_EVALUATE = f"""
Object[] tries = (Object[]) expressions;
Object[] given = (Object[]) rows;
StringBuilder found = new StringBuilder();
for (int i = 0; i < given.length; i++) {{
    org.apache.spark.sql.catalyst.InternalRow row = (org.apache.spark.sql.catalyst.InternalRow) given[i];
    String why = "";
    for (int k = 0; k < tries.length && why.isEmpty(); k++) {{
        try {{
            ((org.apache.spark.sql.catalyst.expressions.Expression) tries[k]).eval(row);
        }} catch (Exception error) {{
            String message = String.valueOf(error.getMessage()).replace("{_END}", " ");
            why = k + "{_SEPARATOR}" + error.getClass().getSimpleName() + "{_SEPARATOR}" + message;
        }}
    }}
    if (!why.isEmpty()) {{
        found.append(row.getLong(0)).append("{_SEPARATOR}").append(row.getUTF8String(1)).append("{_SEPARATOR}");
        found.append(why).append("{_END}");
    }}
}}
return found.toString();
"""


def unexplained(results: Sequence[TaskReport]) -> list[TaskReport]:
    """What a pass could not say the reason of."""
    return [result for result in results if _is_vague(result)]


def explained(results: Sequence[TaskReport], attempts: Mapping[str, Sequence[Attempt]]) -> list[TaskReport]:
    """The results with the reasons of failed expressions. `attempts`: by the name of the step, over rows
    among which the failed ones are. Where no reason is found, because an expression does not fail this time,
    the result says only that it failed."""
    reasons: dict[tuple[str, RowName], str] = {}
    vague = unexplained(results)
    for stage in {result.name for result in vague}:
        rows = {_row(result) for result in vague if result.name == stage}
        for attempt in attempts.get(stage, ()):
            try:
                found = _explain(attempt, rows)
            except (PySparkException, Py4JError):
                logger.debug("the reasons of %s cannot be found out", stage, exc_info=True)
                continue
            reasons |= {(stage, row): why for row, why in found.items()}
    return [
        replace(result, text=reasons.get((result.name, _row(result)), UNEXPLAINED))
        if _is_vague(result)
        else result
        for result in results
    ]


def _is_vague(result: TaskReport) -> bool:
    return result.kind == ReportKind.ERROR and result.text == UNEXPLAINED


def _row(result: TaskReport) -> RowName:
    return result.sequence or 0, result.child or ""


def _explain(attempt: Attempt, rows: Set[RowName]) -> dict[RowName, str]:
    found: dict[RowName, str] = {}
    ordered = sorted(rows)
    for first in range(0, len(ordered), _AT_ONCE):
        some = ordered[first : first + _AT_ONCE]
        # By range: a list of thousands of numbers is a large plan.
        wanted = F.col(SEQUENCE).between(some[0][0], some[-1][0])
        found |= _evaluate(attempt.rows.where(F.col(attempt.alive) & wanted), attempt.values)
    named = {(sequence, joined(child, attempt.suffix)): why for (sequence, child), why in found.items()}
    return {row: why for row, why in named.items() if row in rows}


def _evaluate(rows: DataFrame, values: Mapping[str, Column]) -> dict[RowName, str]:
    jvm = rows.sparkSession._jvm
    assert jvm is not None
    lineage = [F.col(SEQUENCE), F.col(CHILD)]
    whole = rows.select(*lineage, *(value.alias(name) for name, value in values.items()))
    names = sorted(_names(whole._jdf.queryExecution().analyzed().projectList()) - {SEQUENCE, CHILD})
    needed = rows.select(*lineage, *(F.col(f"`{name}`") for name in names))
    wanted = needed.select(*(value.alias(name) for name, value in values.items()))
    replaced = _scala_object(jvm.org.apache.spark.sql.catalyst.optimizer, "ReplaceExpressions")
    plan = replaced.apply(wanted._jdf.queryExecution().analyzed())
    bind = _scala_object(jvm.org.apache.spark.sql.catalyst.expressions, "BindReferences")
    columns = jvm.org.apache.spark.sql.catalyst.expressions.package.AttributeSeq(plan.child().output())
    chosen = plan.projectList()
    gateway = rows.sparkSession.sparkContext._gateway
    assert gateway is not None
    tries = gateway.new_array(jvm.java.lang.Object, len(values))
    for index in range(len(values)):
        tries[index] = bind.bindReference(chosen.apply(index).child(), columns, False)
    given = needed._jdf.queryExecution().executedPlan().executeCollect()
    arguments = gateway.new_array(jvm.java.lang.Object, 2)
    arguments[0], arguments[1] = tries, given
    said = _evaluator(jvm, gateway).evaluate(arguments)
    return dict(_read(said, list(values)))


def _read(said: str, names: Sequence[str]) -> Iterator[tuple[RowName, str]]:
    for line in said.split(_END)[:-1]:
        sequence, child, place, kind, message = line.split(_SEPARATOR, 4)
        text = kind if message == "null" else _sentence(message)
        name = names[int(place)]
        yield (int(sequence), child), redact(text if name.startswith("__") else f"{name}: {text}")


def _sentence(message: str) -> str:
    """What Spark says, without the codes and the marked query text behind it."""
    return " ".join(message.split("== SQL")[0].split(" SQLSTATE")[0].split())


def _names(expressions: Any) -> set[str]:
    """The columns that expressions read."""
    found: set[str] = set()
    for index in range(expressions.size()):
        references = expressions.apply(index).references().iterator()
        while references.hasNext():
            found.add(references.next().name())
    return found


def _scala_object(package: Any, name: str) -> Any:
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def _evaluator(jvm: Any, gateway: Any) -> Any:
    evaluator = jvm.org.codehaus.janino.ScriptEvaluator()
    evaluator.setReturnType(jvm.java.lang.Class.forName("java.lang.String"))
    names = gateway.new_array(jvm.java.lang.String, 2)
    types = gateway.new_array(jvm.java.lang.Class, 2)
    for index, name in enumerate(("expressions", "rows")):
        names[index], types[index] = name, jvm.java.lang.Class.forName("java.lang.Object")
    evaluator.setParameters(names, types)
    evaluator.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    evaluator.cook(_EVALUATE)
    return evaluator
