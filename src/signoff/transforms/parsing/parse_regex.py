"""`parse_regex`: the named groups of a pattern into typed columns; what matches none is its event's error.

RE2 does the matching, which Arrow brings with it: it takes time in proportion to the text for every pattern
there is, so no line can hold up a pipeline for ever, as it can with engines that try and go back (Java's,
Python's). The price is that there is no lookaround and no back reference, which `signoff check` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BeforeValidator, Field
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType, StructField, StructType

from signoff.pipeline.secrets import excerpt
from signoff.transforms.contract import FieldError, Step, Transform
from signoff.transforms.frame import View
from signoff.transforms.parsing.grok import GrokError, expanded
from signoff.transforms.parsing.parse_json import text_column
from signoff.transforms.parsing.typed_texts import WHOLE_ROW, Describe, Rules, typed_view

_SHOWN = 120
_MATCHED = "matched"


class ParseRegexConfig(Transform):
    summary: ClassVar[str] = "Parse text with regular expressions or grok patterns into typed columns."
    example: ClassVar[str] = """\
patterns:
  - '%{COMBINEDLOG}'
  - '^(?P<client>\\S+) (?P<message>.*)$'
timestamp_format: dd/MMM/yyyy:HH:mm:ss Z
schema: client STRING, timestamp TIMESTAMP, request STRING, status INT, message STRING
"""
    type: Literal["parse_regex"] = "parse_regex"
    patterns: Annotated[
        tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)
    ] = Field(min_length=1)
    """One pattern or several, of which the first that is found in the text counts; `^…$` for all of it. Named
    groups `(?P<name>…)` become columns. `%{NAME}`, `%{NAME:column}` and `%{NAME:column:type}` are grok
    patterns. The syntax is that of RE2: no lookaround, no back references."""
    definitions: dict[str, str] = Field(default={})
    """Grok patterns of your own, by name; they go before those that are there."""
    column: str = "payload"
    """Column that holds the text."""
    schema_: str | None = Field(default=None, alias="schema")
    """Columns and types, as in Spark SQL, by the names of the groups; groups that are not named here are left
    out. Without: all groups, as STRING or as the grok pattern says."""
    null_values: tuple[str, ...] = ("",)
    """Texts that mean null. A group that took no part in the match is an empty text."""
    timestamp_format: str | None = None
    """Spark datetime pattern of TIMESTAMP columns; by default ISO 8601."""
    date_format: str | None = None
    """Spark datetime pattern of DATE columns; by default ISO 8601."""
    keep: tuple[str, ...] = ()
    """Columns of the input that go on besides the parsed ones."""

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        matcher, types = self._matcher()
        schema = self.schema_ or ", ".join(f"`{name}` {types.get(name, 'STRING')}" for name in matcher.names)
        rules = Rules.of(schema, self.null_values, self.timestamp_format, self.date_format)
        for name in rules.schema.names:
            if name not in matcher.names:
                known = ", ".join(matcher.names)
                raise FieldError(
                    "schema", "unresolved-column", f'no group is called "{name}"', f"there is: {known}"
                )
        text = F.col(text_column(self.column, view))
        frame = view.frame

        def run(values: pa.Array) -> pa.Array:  # Spark reads in type hints which kind of function it is
            return matcher(values)

        fields = [StructField(f"g{place}", StringType()) for place in range(len(matcher.names))]
        kind = StructType([StructField(_MATCHED, StringType()), *fields])
        # Spark evaluates Python functions before it looks at conditions.
        found = F.arrow_udf(run, kind)(F.when(F.col(view.alive), text))
        row = frame.compute(view, {"row": found}, guarded=False)["row"]
        texts = {
            name: F.coalesce(F.col(row)[f"g{matcher.names.index(name)}"], F.lit(""))
            for name in rules.schema.names
        }
        wrong = F.when(F.col(row)[_MATCHED].isNull(), F.concat(F.lit(WHOLE_ROW), F.coalesce(text, F.lit(""))))
        made = typed_view(
            step.name,
            view,
            texts,
            rules,
            self.on_error,
            wrong=wrong,
            describe=_Describe(rules),
            keep=self.keep,
        )
        return {None: made}

    def _matcher(self) -> tuple[Matcher, dict[str, str]]:
        made: list[str] = []
        types: dict[str, str] = {}
        names: dict[str, None] = {}
        for pattern in self.patterns:
            try:
                regex, given = expanded(pattern, self.definitions)
                groups = _groups(regex)
            except (GrokError, pa.ArrowInvalid) as error:
                raise FieldError(
                    "patterns", "bad-value", f'"{excerpt(pattern, 60)}" is not a pattern: {error}', _HINT
                ) from None
            made.append(regex)
            types |= given
            names |= dict.fromkeys(groups)
        return Matcher(tuple(made), tuple(names)), types


_HINT = (
    "RE2 syntax: name at least one group as (?P<name>…) or %{NAME:column}; no lookaround, no back references"
)


def _groups(regex: str) -> list[str]:
    """The named groups of a pattern. Raises ArrowInvalid for one that RE2 does not take, without any, or with
    two of one name."""
    kind = pc.extract_regex(pa.array([], pa.string()), pattern=regex).type
    if not kind.num_fields:
        raise pa.ArrowInvalid("it has no named group")
    names = [field.name for field in kind]
    for name in names:
        if names.count(name) > 1:
            raise pa.ArrowInvalid(f'two groups are called "{name}"; write two patterns instead')
    return names


@dataclass(frozen=True)
class Matcher:
    """From texts to the groups of the first pattern that matches. Runs on executors."""

    patterns: tuple[str, ...]
    names: tuple[str, ...]
    """Of the groups of all patterns."""

    def __call__(self, texts: pa.Array) -> pa.Array:
        texts = texts.cast(pa.string())
        matched = pa.nulls(len(texts), pa.string())
        values = {name: pa.nulls(len(texts), pa.string()) for name in self.names}
        for pattern in self.patterns:
            left = pc.if_else(matched.is_null(), texts, pa.scalar(None, pa.string()))
            found = pc.extract_regex(left, pattern=pattern)
            hit = found.is_valid()
            matched = pc.if_else(hit, pa.scalar("", pa.string()), matched)
            for name in (field.name for field in found.type):
                values[name] = pc.if_else(hit, pc.struct_field(found, name), values[name])
        names = [_MATCHED, *(f"g{place}" for place in range(len(self.names)))]
        return pa.StructArray.from_arrays([matched, *values.values()], names=names)


class _Describe(Describe):
    def line(self, text: str) -> str:
        return f'no pattern matches "{excerpt(text, _SHOWN)}"' if text else "the text is empty"
