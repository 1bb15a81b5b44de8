"""Under which ids rows of a job's run are sent to where a message is known by its id.

The id of a row is its number in a log. A try of a run that follows a failed one has new numbers; rows that
the earlier one had as well are sent under their ids of then (`RunRef.repeats`). What a run has published is
named by the run.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property

import pyarrow as pa

from signoff.sinks.contract import EVENT_ID, RunRef

_NOBODY = RunRef("", bounded=False)


class MessageIds:
    """Of one run. Pickles."""

    def __init__(self, run: RunRef = _NOBODY) -> None:
        self._repeats: Mapping[str, Sequence[tuple[int, int, int]]] = run.repeats
        self._editions = {source: f"{name}/{run.id}" for source, name in run.editions.items()}

    @cached_property
    def _begins(self) -> dict[str, list[int]]:
        return {source: [first for first, _, _ in ranges] for source, ranges in self._repeats.items()}

    def of(self, event_id: str | None) -> str | None:
        if event_id is None:
            return None
        source, _, place = event_id.partition("/")
        number, slash, rest = place.partition("/")
        if source in self._editions:
            return self._editions[source] + slash + rest
        if source not in self._repeats or not number.isdigit():
            return event_id
        index = bisect_right(self._begins[source], int(number)) - 1
        first, there, rows = self._repeats[source][index] if index >= 0 else (0, 0, 0)
        if int(number) >= first + rows:
            return event_id
        return f"{source}/{there + int(number) - first}{slash}{rest}"

    def applied(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows with these ids."""
        if not self._repeats and not self._editions:
            return rows
        place = rows.schema.get_field_index(EVENT_ID)
        ids = [self.of(each) for each in rows.column(place).to_pylist()]
        return rows.set_column(place, rows.schema.field(place), pa.array(ids, rows.schema.field(place).type))
