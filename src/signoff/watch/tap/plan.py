"""The rows of a range of a log at a tap: the plan of the run up to there, computed once more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import orjson
import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from signoff.engine.delivery.sink_pass import described
from signoff.engine.parts import no_events
from signoff.engine.plan.compile import compile_source
from signoff.engine.plan.plan import ErrorPlan, Plan
from signoff.engine.plan.task_report import ReportKind
from signoff.engine.spark.stack_traces import last_line
from signoff.errors import EngineError, PipelineError, Problem
from signoff.json_text import json_objects
from signoff.log import excluded
from signoff.log.spark import read_range
from signoff.pipeline.model import SourceConfig
from signoff.pipeline.secrets import redact
from signoff.transforms.frame import CHILD, OTHERS, SEQUENCE
from signoff.transforms.row_results import RowResult, parse_result
from signoff.watch.tap.place import Place
from signoff.watch.tap.repeats import without_claims
from signoff.watch.tap.rows import TappedRow, ids, shown

_SEQUENCE, _CHILD, _FURTHER = "__sequence", "__child", "__further"
_PASSED, _TEXTS, _VALUES = "__passed", "__texts", "__values"
_ENDS: dict[RowResult, Literal["failed", "dropped", "waits"]] = {
    RowResult.FAILED: "failed",
    RowResult.WAITS: "waits",
    RowResult.DROPPED: "dropped",
}


def rows_between(
    spark: SparkSession, place: Place, source: str, where: str | None, limit: int, start: int, end: int
) -> list[TappedRow]:
    """The last `limit` rows at a tap that events of a range have become, in the order of the log.

    With `where` those for which it holds; without, also those that the node did not pass. Raises
    PipelineError for a condition that does not fit, EngineError where the rows cannot be computed.
    """
    config = place.part.nodes[source].config
    assert isinstance(config, SourceConfig)
    log = place.part.state / "log" / source
    plan = _compiled(place, source, read_range(spark, log, start, end, encoding=config.encoding))
    stopped = [] if where else [each for each in plan.errors if each.stage == place.node]
    newest = [F.col(_SEQUENCE).desc(), F.col(_CHILD).desc()]
    found = _marked(plan, place.tap, stopped, where).orderBy(*newest).limit(limit)
    try:
        table = found.toArrow()
    except (PySparkException, Py4JError) as failure:
        said = f"--where fails for one of them, or the plan does: {last_line(failure)}"
        raise EngineError(f"the events {source}/{start} to {end - 1} cannot be computed: {said}") from failure
    rows = [] if where else _withheld(place, source, start, end)
    for batch in table.to_batches():
        rows += _rows(batch, place, source, stopped)
    rows.sort(key=lambda row: int(row.event_id.split("/")[1]))
    return rows[-limit:]


def check_where(spark: SparkSession, place: Place, source: str, where: str) -> None:
    """Raises PipelineError for a condition that does not fit, also where there are no events yet."""
    _marked(_compiled(place, source, no_events(place.part, source, spark)), place.tap, [], where)


def _compiled(place: Place, source: str, events: DataFrame) -> Plan:
    part = without_claims(place.part, source)
    # A trial takes no keys, and tells no batch of them; `tells` keeps the rows that end at a step.
    plan = compile_source(part, source, events, sinks={place.tap}, trial=True, tells=True)
    assert plan is not None
    return plan


def _marked(plan: Plan, tap: str, stopped: Sequence[ErrorPlan], where: str | None) -> DataFrame:
    """The rows that passed and meet the condition, and those that the node stopped."""
    sink, df = plan.sinks[tap], plan.df
    (delivery,) = sink.deliveries
    values = [
        (F.lit(None).cast(sink.schema[name]) if physical is None else F.col(physical)).alias(name)
        for name, physical in delivery.columns
    ]
    texts = [F.col(error.column).cast("string") for error in stopped]
    marked = df.select(
        F.col(SEQUENCE).alias(_SEQUENCE),
        (F.col(CHILD) if CHILD in df.columns else F.lit("")).alias(_CHILD),
        (F.col(OTHERS) if OTHERS in df.columns else F.lit(None).cast("array<bigint>")).alias(_FURTHER),
        F.coalesce(F.col(delivery.alive), F.lit(False)).alias(_PASSED),
        F.array(*texts).cast("array<string>").alias(_TEXTS),
        F.struct(*values).alias(_VALUES),
    )
    if where is not None:
        _check_condition(marked, where)
        laid_over = marked.select("*", f"{_VALUES}.*")  # under the names that users know
        return laid_over.where(F.when(F.col(_PASSED), F.expr(where))).select(*marked.columns)
    return marked.where(F.col(_PASSED) | F.exists(_TEXTS, lambda text: text.isNotNull()))


def _check_condition(marked: DataFrame, where: str) -> None:
    """Raises PipelineError for a condition that does not fit the columns that rows have at the tap."""
    names = marked.schema[_VALUES].dataType.names
    rows = marked.select(f"{_VALUES}.*")
    try:
        rows.where(where)
    except AnalysisException as error:
        unknown = (error.getCondition() or "").startswith("UNRESOLVED_COLUMN")
        message = redact(str(error)).splitlines()[0].split(" SQLSTATE")[0]
        code = "unresolved-column" if unknown else "type-error"
        raise PipelineError([Problem(code, message, f"there is: {', '.join(names)}", "--where")]) from None


def _rows(
    batch: pa.RecordBatch, place: Place, source: str, stopped: Sequence[ErrorPlan]
) -> Iterator[TappedRow]:
    values = json_objects(pa.RecordBatch.from_struct_array(batch.column(_VALUES)))
    for index in range(batch.num_rows):
        sequence, child = batch.column(_SEQUENCE)[index].as_py(), batch.column(_CHILD)[index].as_py()
        event_id, events = ids(source, sequence, child, batch.column(_FURTHER)[index].as_py())
        if batch.column(_PASSED)[index].as_py():
            row = shown(orjson.loads(values[index].as_py()))
            yield TappedRow(event_id, "passed", row=row, input=place.input, events=events)
        else:
            texts = batch.column(_TEXTS)[index].as_py()
            error, text = next((e, t) for e, t in zip(stopped, texts, strict=True) if t is not None)
            at, reason = _said(error, text)
            yield TappedRow(event_id, at, reason, input=place.input, events=events)


def _said(error: ErrorPlan, text: str) -> tuple[Literal["failed", "dropped", "waits"], str]:
    if error.kind == ReportKind.LEFT_OUT:
        return "dropped", text
    at: Literal["failed", "dropped", "waits"] = "failed"
    if error.answers:
        answer, text = parse_result(text)
        at = _ENDS[answer]
    return at, redact(described(error.describe, text))


def _withheld(place: Place, source: str, start: int, end: int) -> list[TappedRow]:
    """Events on which the plan itself fails: nobody computes them again."""
    if place.node != source:
        return []
    hidden = excluded(place.part.state / "log" / source)
    reason = "the plan fails on it, so it is a dead letter"
    return [TappedRow(f"{source}/{n}", "failed", reason) for n in hidden if start <= n < end]
