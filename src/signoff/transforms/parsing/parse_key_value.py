"""`parse_key_value`: `level=warn host="web 1"` into typed columns, or into a map.

Every sign of the text belongs to a pair: what does not (a word without a separator, a quote that is not
closed) is an error of its event, and nothing is passed over in silence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import MapType, StringType, StructField, StructType

from signoff.pipeline.secrets import excerpt
from signoff.transforms.contract import Step, Transform
from signoff.transforms.frame import View
from signoff.transforms.functions.arrow_calls import arrow_udf
from signoff.transforms.parsing.parse_json import parsed_view, text_column
from signoff.transforms.parsing.typed_texts import IN_WORDS, WHOLE_ROW, Describe, Rules, typed_view

_PAIRS = MapType(StringType(), StringType())
_RESULT = StructType([StructField("pairs", _PAIRS), StructField("error", StringType())])
_SHOWN = 60


class ParseKeyValueConfig(Transform):
    summary: ClassVar[str] = 'Parse pairs such as `level=warn host="web 1"` into columns or a map.'
    example: ClassVar[str] = """\
schema: level STRING, host STRING, took_ms INT
"""
    type: Literal["parse_key_value"] = "parse_key_value"
    column: str = "payload"
    """Column that holds the text."""
    pair_separator: Annotated[str, Field(min_length=1, max_length=10)] = " "
    """What stands between two pairs; a space also stands for several, and for tabs."""
    key_separator: Annotated[str, Field(min_length=1, max_length=10)] = "="
    """What stands between a key and its value; spaces around both are not part of them."""
    quote: Annotated[str, Field(min_length=1, max_length=1)] | None = '"'
    """What encloses a value that holds separators; inside, a backslash stands before a quote or a backslash,
    and before anything else it is one. Null: nothing does."""
    schema_: str | None = Field(default=None, alias="schema")
    """Columns and types, as in Spark SQL, by the keys. A key that is not there is null (with NOT NULL: an
    error); further keys are left out, unless `into` takes them all."""
    into: str | None = None
    """Column for all pairs, as MAP<STRING, STRING>."""
    duplicates: Literal["error", "first", "last"] = "error"
    """What becomes of a key that is there twice: an error, or the first or the last value counts."""
    null_values: tuple[str, ...] = ("",)
    """With `schema`: texts that mean null."""
    timestamp_format: str | None = None
    """With `schema`: Spark datetime pattern of TIMESTAMP columns; by default ISO 8601."""
    date_format: str | None = None
    """With `schema`: Spark datetime pattern of DATE columns; by default ISO 8601."""
    keep: tuple[str, ...] = ()
    """Columns of the input that go on besides the parsed ones."""

    @model_validator(mode="after")
    def _goes_somewhere(self) -> Self:
        if self.schema_ is None and self.into is None:
            raise ValueError('say where the pairs go: into the columns of a "schema", or "into" a map')
        if self.pair_separator == self.key_separator or self.quote in (
            self.pair_separator,
            self.key_separator,
        ):
            raise ValueError("pair_separator, key_separator and quote must be different")
        return self

    def compile(self, step: Step, view: View) -> Mapping[str | None, View]:
        frame = view.frame
        text = F.col(text_column(self.column, view))
        pairs = _Pairs(self.pair_separator, self.key_separator, self.quote, self.duplicates)
        # Spark evaluates Python functions before it looks at conditions.
        parsed = arrow_udf(pairs, StringType(), _RESULT)(F.when(F.col(view.alive), text))
        row = frame.compute(view, {"row": parsed}, guarded=False)["row"]
        wrong = F.when(
            F.col(row)["pairs"].isNull(),
            F.concat(F.lit(WHOLE_ROW), F.coalesce(F.col(row)["error"], F.lit("the text is null"))),
        )
        if self.schema_ is None:
            assert self.into is not None
            error = frame.compute(view, {"error": wrong})["error"]
            frame.add_error(step.name, error, self.on_error, _without_mark)
            return {None: parsed_view(view, error, {self.into: F.col(row)["pairs"]}, self.keep)}
        rules = Rules.of(self.schema_, self.null_values, self.timestamp_format, self.date_format)
        texts = {name: F.try_element_at(F.col(row)["pairs"], F.lit(name)) for name in rules.schema.names}
        made = typed_view(
            step.name,
            view,
            texts,
            rules,
            self.on_error,
            wrong=wrong,
            describe=Describe(rules),
            keep=self.keep,
        )
        if self.into is None:
            return {None: made}
        whole = frame.compute(View(frame, made.alive, {}), {self.into: F.col(row)["pairs"]})
        return {None: View(frame, made.alive, {**made.columns, **whole})}


def _without_mark(text: str) -> str:
    return text.removeprefix(WHOLE_ROW).removeprefix(IN_WORDS)


class _Pairs:
    """The pairs of one text, or what is wrong with it. Runs on executors."""

    def __init__(self, between: str, sign: str, quote: str | None, duplicates: str) -> None:
        self.between = r"[ \t]+" if between == " " else rf"[ \t]*{re.escape(between)}[ \t]*"
        self.sign, self.quote, self.duplicates = sign, quote, duplicates
        self.outer, self.pair = between, self._pair(between, sign, quote)

    @staticmethod
    def _pair(between: str, sign: str, quote: str | None) -> re.Pattern[str]:
        ends = r"[ \t]" if between == " " else re.escape(between)
        gap = "" if between == " " else r"[ \t]*+"
        # Possessive: what was taken is not given back, so no text takes more than time in proportion to it.
        key = rf"(?P<key>(?:(?!{ends}|{re.escape(sign)}).)++)"
        plain = rf"(?P<plain>(?:(?!{ends}).)*+)"
        if quote is None:
            return re.compile(rf"{key}{re.escape(sign)}{gap}{plain}", re.DOTALL)
        q = re.escape(quote)
        quoted = rf"{q}(?P<quoted>(?:[^{q}\\]|\\.)*+){q}(?=$|{ends}|[ \t])"
        return re.compile(rf"{key}{re.escape(sign)}{gap}(?:{quoted}|(?!{q}){plain})", re.DOTALL)

    def __call__(self, text: Any) -> dict[str, Any]:
        if text is None:
            return {"pairs": None, "error": None}
        found: dict[str, str] = {}
        try:
            for key, value in self._read(text.strip(" \t\r\n")):
                if key in found and self.duplicates == "error":
                    raise _Wrong(f'key "{excerpt(key, _SHOWN)}" is there twice')
                if key not in found or self.duplicates == "last":
                    found[key] = value
        except _Wrong as wrong:
            return {"pairs": None, "error": str(wrong)}
        return {"pairs": list(found.items()), "error": None}

    def failed(self, text: Any, reason: str) -> dict[str, Any]:
        return {"pairs": None, "error": reason}

    def _read(self, text: str) -> Iterator[tuple[str, str]]:
        if not text:
            raise _Wrong("the text is empty")
        place, gap = 0, re.compile(self.between)
        escaped = re.compile(rf"\\([{re.escape(self.quote or '')}\\])")
        while place < len(text):
            match = self.pair.match(text, place)
            if match is None:
                raise _Wrong(f'no pair at character {place}: "{excerpt(text[place:], _SHOWN)}"')
            quoted = match.groupdict().get("quoted")
            plain = match["plain"]
            value = plain.strip(" \t") if quoted is None else escaped.sub(r"\1", quoted)
            yield match["key"].strip(" \t"), value
            place = match.end()
            if place < len(text):
                next_pair = gap.match(text, place)
                if next_pair is None:
                    raise _Wrong(f'no pair at character {place}: "{excerpt(text[place:], _SHOWN)}"')
                place = next_pair.end()


class _Wrong(Exception):
    pass
