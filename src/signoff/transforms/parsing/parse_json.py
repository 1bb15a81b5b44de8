"""`parse_json`: a text column into typed columns; what does not fit is an error of that one event.

Spark's own parser does the work. It is lenient in two places where leniency loses data, so those
are errors here: text behind the object, and an array or a bare value where an object is expected.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, StringType, StructField, StructType

from signoff.pipeline.model import OnFailure
from signoff.pipeline.secrets import excerpt, redact
from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.frame import View
from signoff.transforms.parsing.flat_json import FlatJson, early_columns

CORRUPT = "__corrupt"
# Flat JSON, which is most, has one closing brace, at its end. For the rest: Spark's parsers stop at the end
# of the first value and pass over what follows, `try_parse_json` as well; so the text is put into an array
# and into an object, of which it must be the only element. Nothing that follows a value fits into both.
_FLAT_OBJECT = r"^\s*\{[^}]*\}\s*$"
_OBJECT = r"^\s*\{"


class ParseJsonConfig(Transform):
    summary: ClassVar[str] = "Parse JSON into typed columns; what does not fit is a dead letter."
    type: Literal["parse_json"] = "parse_json"
    schema_: str = Field(alias="schema")
    """Columns and types, as in Spark SQL: `id BIGINT NOT NULL, eventTime TIMESTAMP, tags ARRAY<STRING>`.
    An object without a value for a column that is `NOT NULL` is an error."""
    column: str = "payload"
    """Column that holds the text."""
    timestamp_format: str | None = None
    """Spark datetime pattern of TIMESTAMP fields; by default ISO 8601."""
    date_format: str | None = None
    """Spark datetime pattern of DATE fields; by default ISO 8601."""
    keep: tuple[str, ...] = ()
    """Columns of the input that go on besides the parsed ones, such as `headers`."""

    def flat_json(self) -> FlatJson | None:
        if self.column != "payload":
            return None
        return FlatJson.of(parse_schema(self.schema_), self.timestamp_format)

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        options = {"timestampFormat": self.timestamp_format} if self.timestamp_format else {}
        options |= {"dateFormat": self.date_format} if self.date_format else {}
        schema = parse_schema(self.schema_)
        rows = parse(step, view, schema, self.on_error, column=self.column, keep=self.keep, **options)
        return {None: _without_nulls(step, rows, schema, self.on_error)}


def parse(
    step: Step,
    view: View,
    schema: StructType,
    policy: OnFailure,
    *,
    column: str = "payload",
    keep: tuple[str, ...] = (),
    **formats: str,
) -> View:
    """The rows whose text is one JSON object that fits the schema, with its fields as columns."""
    frame = view.frame
    text = F.col(text_column(column, view))
    early, *values = early_columns(step.name, schema)
    done = F.col(early) if early in frame.df.columns else F.lit(False)
    options = {"columnNameOfCorruptRecord": CORRUPT, "mode": "PERMISSIVE", **formats}
    with_corrupt = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    made = F.when(~done, F.from_json(text, with_corrupt, options))
    value = frame.compute(view, {"value": made})["value"]
    parsed = View(frame, view.alive, {**view.columns, "__value": value})
    whole = (
        _is_flat(text) | F.rlike(text, F.lit(_FLAT_OBJECT)) | (F.rlike(text, F.lit(_OBJECT)) & _alone(text))
    )
    bad = F.col(value).isNull() | F.col(value)[CORRUPT].isNotNull() | ~whole
    reason = F.when(~done & bad, F.coalesce(text, F.lit("")))
    error = frame.compute(parsed, {"error": reason})["error"]
    frame.add_error(step.name, error, policy, DescribeJson(schema, formats.get("timestampFormat")))
    fields = {name: F.col(value)[name] for name in schema.names}
    if early in frame.df.columns:
        fields = {
            name: F.when(done, F.col(column)).otherwise(fields[name])
            for name, column in zip(schema.names, values, strict=True)
        }
    return parsed_view(parsed, error, fields, keep)


def _without_nulls(step: Step, view: View, schema: StructType, policy: OnFailure) -> View:
    """The rows that have a value in each column that is NOT NULL: Spark's parser gives nulls there too."""
    needed = [field.name for field in schema.fields if not field.nullable]
    if not needed:
        return view
    frame = view.frame
    said = F.concat_ws(
        "; ",
        *(
            F.when(F.col(f"`{name}`").isNull(), F.lit(f'field "{name}" is null or missing, and is NOT NULL'))
            for name in needed
        ),
    )
    error = frame.compute(view, {"error": F.when(said != F.lit(""), said)})["error"]
    frame.add_error(step.name, error, policy)
    alive = frame.compute(view, {"alive": F.col(error).isNull()})["alive"]
    return View(frame, alive, view.columns)


def _is_flat(text: Column) -> Column:
    """Whether a text begins with a brace and its first closing brace is its end. Most are so, and it costs a
    fourth of the pattern that also allows for white space."""
    before = F.octet_length(F.substring_index(text, "}", 1))
    return text.startswith("{") & (before + F.lit(1) == F.octet_length(text))


def _alone(text: Column) -> Column:
    """Whether a text is one JSON value and nothing else."""
    in_array = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))
    in_object = F.json_object_keys(F.concat(F.lit('{"":'), text, F.lit("}")))
    return F.coalesce((in_array == F.lit(1)) & (F.size(in_object) == F.lit(1)), F.lit(False))


def parsed_view(view: View, error: str, values: Mapping[str, Column], keep: tuple[str, ...]) -> View:
    """The rows without an error, with these columns."""
    alive = view.frame.compute(view, {"alive": F.col(error).isNull()})["alive"]
    fields = view.frame.compute(View(view.frame, alive, view.columns), values)
    kept = {name: view.columns[name] for name in keep if name in view.columns}
    missing = [name for name in keep if name not in view.columns]
    if missing:
        raise FieldError("keep", "unresolved-column", f'there is no column "{missing[0]}" to keep')
    return View(view.frame, alive, {**fields, **kept})


def parse_schema(text: str) -> StructType:
    """A DDL string as Spark reads it."""
    parsed = _from_ddl(text)
    if not parsed.fields:
        raise FieldError("schema", "type-error", "the schema has no columns")
    lowered = [name.lower() for name in parsed.names]
    twice = next((name for name in lowered if lowered.count(name) > 1), None)
    if twice:
        raise FieldError("schema", "duplicate-column", f'column "{twice}" is declared twice')
    return parsed


def _from_ddl(text: str) -> StructType:
    try:
        return StructType.fromDDL(text)
    except Exception as error:  # noqa: BLE001 - Spark raises several kinds; all mean: not a schema
        # Masked before it is cut: what is left of a secret would not be known again.
        first = next(iter(redact(str(error)).strip().splitlines()), type(error).__name__)
        raise FieldError("schema", "type-error", f"not a schema: {first}", 'write "name TYPE, …"') from None


def text_column(name: str, view: View) -> str:
    """Check that a column is there and holds text."""
    if name not in view.columns:
        known = ", ".join(view.columns)
        raise FieldError("column", "unresolved-column", f'there is no column "{name}"', f"there is: {known}")
    kind = view.frame.df.schema[view.columns[name]].dataType
    if not isinstance(kind, StringType):
        raise FieldError("column", "type-error", f'column "{name}" is {kind.simpleString()}, not a string')
    return name


class DescribeJson:
    """Says what is wrong with a text that did not parse. Only called for the few that did not."""

    def __init__(self, schema: StructType, timestamp_format: str | None) -> None:
        self.schema, self.timestamp_format = schema, timestamp_format

    def __call__(self, text: str) -> str:
        if not text.strip():
            return "the payload is empty"
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            what = error.msg.removesuffix(" at").removesuffix(" starting")
            return f"not valid JSON: {what} at character {error.pos}"
        except RecursionError:
            return "not valid JSON: nested too deeply"
        except ValueError:  # Python reads no whole numbers of more digits than this
            return f"a number has more than {sys.get_int_max_str_digits()} digits"
        if not isinstance(value, dict):
            return f"expected a JSON object, got {_json_kind(value)}"
        for field in self.schema.fields:
            found = value.get(field.name)
            if found is not None and not _fits(field.dataType, found):
                return (
                    f'field "{field.name}" is {_json_kind(found)} {_short(found)}, '
                    f"not {field.dataType.simpleString()}"
                )
        times = [f.name for f in self.schema.fields if f.dataType.typeName() in ("timestamp", "date")]
        if times and self.timestamp_format:
            return f'{_listed(times)} does not match "{self.timestamp_format}"'
        return "the object does not fit the schema"


_KINDS: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "double": (int, float),
    "float": (int, float),
    "decimal": (int, float),
    "timestamp": (str, int, float),
    "timestamp_ntz": (str, int, float),
    "date": (str, int),
    "array": (list,),
    "struct": (dict,),
    "map": (dict,),
}
_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}


def _fits(kind: DataType, value: object) -> bool:
    name = kind.typeName()
    if name in _BITS:
        limit = 1 << (_BITS[name] - 1)
        return isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
    if name in _KINDS:
        return isinstance(value, _KINDS[name]) and (name == "boolean" or not isinstance(value, bool))
    return True


def _json_kind(value: object) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _short(value: object) -> str:
    return excerpt(json.dumps(value), 60)


def _listed(names: list[str]) -> str:
    return "field " + " or ".join(f'"{name}"' for name in names)
