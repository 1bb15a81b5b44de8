"""What is wrong with a step of a plan, in the words of its pipeline: the field, the code, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.errors import AnalysisException, PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.types import to_arrow_type

from signoff.pipeline.graph import Node
from signoff.pipeline.secrets import redact
from signoff.pipeline.suggestions import did_you_mean
from signoff.transforms.contract import FieldError
from signoff.transforms.frame import View


def expression_field(node: Node) -> str:
    """The field that an error of a step's expressions is most likely in."""
    for name in (
        "where",
        "routes",
        "columns",
        "aggregates",
        "column",
        "key",
        "function",
        "schema",
        "routing_key",
        "partition_by",
    ):
        if name in node.field_lines:
            return name
    return "type"


def check_kept(rows: DataFrame, field: str) -> None:
    """Raises FieldError for a type that rows cannot have which are kept on disk."""
    for column in rows.schema:
        try:
            to_arrow_type(column.dataType, timezone="UTC")
        except PySparkTypeError:
            message = f"its input has values of type {column.dataType.simpleString()}, which cannot be kept"
            raise FieldError(field, "type-error", message, "cast them with a select before") from None


def check_resolves(view: View, field: str, expression: str) -> None:
    """Raises FieldError for an expression that does not fit the rows, if it has a field to itself."""
    if not field:
        return
    try:
        view.frame.scoped(view).select(F.expr(expression))
    except AnalysisException as error:
        raise FieldError(field, *analysis(error, list(view.columns))) from None


def analysis(error: AnalysisException, columns: Sequence[str]) -> tuple[str, str, str]:
    """Code, message and hint of what Spark's analyser found in expressions over these columns."""
    condition = error.getCondition() or ""
    parameters = error.getMessageParameters() or {}
    if condition.startswith("UNRESOLVED_COLUMN"):
        name = parameters.get("objectName", "").replace("`", "")
        close = did_you_mean(name.rpartition(".")[2], columns)
        meant = f'did you mean "{close}"? ' if close else ""
        there = f"there is: {', '.join(columns)}" if columns else ""
        return "unresolved-column", f'there is no column "{name}"', meant + there
    code = "syntax-error" if condition == "PARSE_SYNTAX_ERROR" else "type-error"
    return code, first_line(str(error)), ""


def first_line(text: str) -> str:
    """The first line, and further ones while a line ends before what it announces. Masked before it is cut:
    what is left of a secret would not be known again."""
    lines = [line.strip() for line in redact(text).splitlines() if line.strip()] or ["no reason was given"]
    while len(lines) > 1 and lines[0].endswith((":", ",")):
        lines[:2] = [f"{lines[0]} {lines[1]}"]
    return lines[0].split(" SQLSTATE")[0].strip()
