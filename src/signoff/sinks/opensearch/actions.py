"""Rows as the lines of a `_bulk` request: what is to be done with a document, and the document.

Rows that no such line can be made of are refused here, alone. An index that is named with the server's date
math is one of them: its name depends on the clock, so a replay would write to another index.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from signoff.json_text import TEXT, buffer_of, json_lines, json_objects
from signoff.sinks.contract import EVENT_ID
from signoff.sinks.message_ids import MessageIds
from signoff.sinks.refusal import Fit, fit

INDEX, ID, VERSION, ROUTING = "_search_index", "_search_id", "_search_version", "_search_routing"
"""Columns the engine adds to the rows: values of the expressions of the same names. Never written."""
_COMPUTED = (INDEX, ID, VERSION, ROUTING)
_LONGEST_ID = 512
_LARGEST_VERSION = 2**63 - 1
_NUMBER = "^[0-9]{1,19}$"
_SEQUENCE = r"^[^/]*/(?P<number>[0-9]{1,19})(?:/|$)"
_MOST_ROWS = 20_000
"""Rows of one request, however small they are: the answer has some bytes for each."""


@dataclass(frozen=True, slots=True)
class Lines:
    """What is sent for the rows of one write."""

    text: memoryview
    """The lines of all rows, one after the other."""
    ends: np.ndarray[tuple[int], np.dtype[np.int64]]
    """Where those of each row end; one more than there are rows, the first is 0."""

    def content(self, start: int, end: int) -> bytes:
        return bytes(self.text[self.ends[start] : self.ends[end]])

    def requests(self, most_bytes: int) -> Iterable[tuple[int, int]]:
        """Ranges of rows whose lines go into one request; a row that is too large has one to itself."""
        start, rows = 0, len(self.ends) - 1
        while start < rows:
            fits = int(np.searchsorted(self.ends, self.ends[start] + most_bytes, "right")) - 1
            end = min(max(fits, start + 1), start + _MOST_ROWS, rows)
            yield start, end
            start = end


def sorted_out(rows: pa.RecordBatch, ids: MessageIds, *, by_sequence: bool) -> Fit:
    """The rows, less those that cannot be written, with the id and version they are written under."""
    # Events are ordered by their numbers of now, also where an id is that of an earlier try.
    numbers = _sequences(rows.column(EVENT_ID)) if by_sequence else None
    rows = ids.applied(rows)
    if ID not in rows.schema.names:
        rows = rows.append_column(ID, rows.column(EVENT_ID))
    if numbers is not None:
        rows = rows.append_column(VERSION, numbers)
    found = fit(rows)
    return found.without(dict(reversed(_faults(found.rows))))


def lines_of(rows: pa.RecordBatch, op: str) -> Lines:
    """`rows`: with the columns of this module behind the others."""
    names = rows.schema.names
    about = {"_index": rows.column(INDEX), "_id": rows.column(ID)}
    if VERSION in names:
        about["version"] = rows.column(VERSION).cast(pa.int64())
        about["version_type"] = pa.repeat(pa.scalar("external_gte"), rows.num_rows)
    if ROUTING in names:
        about["routing"] = rows.column(ROUTING)
    document = rows.select([name for name in names if name not in _COMPUTED])
    lines = pc.binary_join_element_wise(
        pa.scalar(f'{{"{op}":', TEXT),
        json_objects(pa.RecordBatch.from_pydict(about)),
        pa.scalar("}\n", TEXT),
        json_lines(document),
        pa.scalar("", TEXT),
    )
    lengths = pc.binary_length(lines).to_numpy(zero_copy_only=False)
    return Lines(memoryview(buffer_of(lines)), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


def _sequences(ids: pa.Array) -> pa.Array:
    return pc.struct_field(pc.extract_regex(ids, _SEQUENCE), "number")


def _faults(rows: pa.RecordBatch) -> list[tuple[int, str]]:
    index, names = rows.column(INDEX), rows.column(ID)
    faults = [
        *((place, "the index is null") for place in _places(index.is_null())),
        *((place, _DATE_MATH) for place in _places(pc.starts_with(index, "<"))),
        *((place, "the id is null") for place in _places(names.is_null())),
        *((place, "the id is empty") for place in _places(pc.equal(pc.binary_length(names), 0))),
    ]
    lengths = pc.binary_length(names)
    faults += [
        (place, f"the id has {lengths[place]} bytes; {_LONGEST_ID} are the most")
        for place in _places(pc.greater(lengths, _LONGEST_ID))
    ]
    if VERSION in rows.schema.names:
        versions = rows.column(VERSION)
        wrong = [(place, versions[place].as_py()) for place in _no_version(versions)]
        faults += [(place, f"the version is {_shown(version)}") for place, version in wrong]
    return faults


def _no_version(column: pa.Array) -> list[int]:
    is_number = pc.match_substring_regex(column, _NUMBER).fill_null(False)
    numbers = pc.if_else(is_number, column, pa.scalar(None, column.type)).cast(pa.uint64())
    return _places(
        pc.invert(pc.less_equal(numbers, pa.scalar(_LARGEST_VERSION, pa.uint64())).fill_null(False))
    )


_DATE_MATH = (
    "the index is named with date math, which gives another index when the row is written again; compute the "
    "name from a time of the event"
)


def _shown(version: str | None) -> str:
    return "null" if version is None else f"{version!r}, and no whole number from 0 to {_LARGEST_VERSION}"


def _places(mask: pa.BooleanArray) -> list[int]:
    found: list[int] = pc.indices_nonzero(mask.fill_null(False)).to_pylist()
    return found
