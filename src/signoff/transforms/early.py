"""What steps do with events while the log is read, before Spark sees them. Runs on executors.

JSON is parsed there where it is flat (see `flat_json`), and what nobody behind the source asks for is not
handed to Spark at all: of an event that was parsed, usually the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BooleanType, StructField

from signoff.transforms.flat_json import FlatJson, early_columns

_PAYLOAD = "payload"


@dataclass(frozen=True)
class Early:
    """From rows of the log to rows with further columns, and without some."""

    parsers: Mapping[str, FlatJson]
    """By the names of the steps."""
    unread: frozenset[str]
    """Columns of the log that nobody reads: only nulls are left of them, and of texts those not parsed."""

    @property
    def fields(self) -> list[StructField]:
        """The further columns."""
        return [
            StructField(column, kind)
            for step, parser in self.parsers.items()
            for column, kind in zip(
                early_columns(step, parser.schema),
                [BooleanType(), *(field.dataType for field in parser.schema)],
                strict=True,
            )
        ]

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        texts = rows.column(_PAYLOAD)
        columns = {
            name: pa.nulls(rows.num_rows, column.type) if name in self.unread else column
            for name, column in zip(rows.schema.names, rows.columns, strict=True)
        }
        everywhere = pa.repeat(pa.scalar(True), rows.num_rows)
        for step, parser in self.parsers.items():
            parsed, values = parser.parse(texts)
            everywhere = pc.and_(everywhere, parsed)
            columns |= zip(early_columns(step, parser.schema), [parsed, *values], strict=True)
        if _PAYLOAD in self.unread and everywhere.true_count < rows.num_rows:
            columns[_PAYLOAD] = pc.if_else(everywhere, pa.scalar(None, texts.type), texts)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
