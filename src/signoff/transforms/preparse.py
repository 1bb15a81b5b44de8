"""What steps do with events while the log is read, before Spark sees them. Runs on executors.

JSON is parsed there where it is flat (see `flat_json`), and what nobody behind the source asks for is not
handed to Spark at all: of an event that was parsed, usually the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BooleanType, StructField, StructType

from signoff.transforms.parsing.flat_json import FlatJson, early_columns
from signoff.transforms.preparsed_names import WHOLE

_PAYLOAD = "payload"


@dataclass(frozen=True)
class Early:
    """From rows of the log to rows with further columns, and without some."""

    parsers: Mapping[str, FlatJson]
    """By the names of the steps."""
    unread: frozenset[str]
    """Columns of the log that nobody reads. They are left out; of the payload what was parsed is."""

    def schema(self, log: StructType) -> StructType:
        """What comes out where rows with these columns go in."""
        columns = [field for field in log if field.name == _PAYLOAD or field.name not in self.unread]
        columns.append(StructField(WHOLE, BooleanType()))
        for step, parser in self.parsers.items():
            kinds = [BooleanType(), *(field.dataType for field in parser.schema)]
            columns += map(StructField, early_columns(step, parser.schema), kinds)
        return StructType(columns)

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        texts = rows.column(_PAYLOAD)
        columns = {
            name: rows.column(name)
            for name in rows.schema.names
            if name == _PAYLOAD or name not in self.unread
        }
        columns[WHOLE] = rows.column("error").is_null()
        everywhere = pa.repeat(pa.scalar(True), rows.num_rows)
        for step, parser in self.parsers.items():
            parsed, values = parser.parse(texts)
            everywhere = pc.and_(everywhere, parsed)
            columns |= zip(early_columns(step, parser.schema), [parsed, *values], strict=True)
        if _PAYLOAD in self.unread:
            columns[_PAYLOAD] = pc.if_else(everywhere, pa.scalar(None, texts.type), texts)
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
