"""Which events of a log a tap looks at: the newest first, then older ones until there are enough rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from signoff.errors import EngineError, LogError
from signoff.ledger.ledger import Ledger
from signoff.log import LogReader
from signoff.watch.tap.rows import TappedRow

_LOOK_BACK = (1_000, 20_000, 200_000)
"""Events that are looked through for as many rows as are wanted."""
_AT_ONCE = 10_000
"""Events that are looked through at once while rows are awaited; of more the older ones are passed over."""
_TRIES = 5
"""Segments may be removed while they are looked at: the run does not wait for a tap."""

Rows = Callable[[int, int], list[TappedRow]]
"""The rows that the events of a range have become, in order, as many as are wanted; the last of them."""


class Ranges:
    """The log of one source, as far as a tap has seen it."""

    def __init__(self, state: Path, source: str, *, few: bool = False, whole_batches: bool = False) -> None:
        """`few`: no more events are looked at than rows are wanted. `whole_batches`: rows are made of several
        events of a batch."""
        self._log, self._state, self._source = LogReader(state / "log" / source), state, source
        self._few, self._whole = few, whole_batches
        self._seen: int | None = None

    def take(self, rows: Rows, limit: int) -> list[TappedRow]:
        for _ in range(_TRIES - 1):
            try:
                return self._take(rows, limit)
            except (LogError, EngineError) as error:
                if "[log-trimmed]" not in str(error):
                    raise
        return self._take(rows, limit)

    def _take(self, rows: Rows, limit: int) -> list[TappedRow]:
        head = self._end()
        if self._seen is None:
            found = self._newest(rows, head, limit)
        else:
            start = max(self._seen, head - (limit if self._few else _AT_ONCE), self._log.first())
            found = rows(start, head) if start < head else []
        self._seen = max(head, self._seen or 0)
        return found

    def _newest(self, rows: Rows, head: int, limit: int) -> list[TappedRow]:
        first = self._log.first()
        if self._whole:
            return rows(self._batch_before(head, first), head) if first < head else []
        found: list[TappedRow] = []
        end = head
        for count in (limit,) if self._few else _LOOK_BACK:
            start = max(head - count, first)
            if start < end:
                found = rows(start, end) + found
            end = start
            if len(found) >= limit or start == first:
                break
        return found[-limit:]

    def _end(self) -> int:
        """Rows that are made of a batch are not known before there is one."""
        if not self._whole:
            return self._log.head()
        with Ledger(self._state / "ledger.db", readonly=True) as ledger:
            return min(self._log.head(), ledger.books(self._source).next)

    def _batch_before(self, end: int, first: int) -> int:
        with Ledger(self._state / "ledger.db", readonly=True) as ledger:
            batch = ledger.batch_of(self._source, end - 1)
        return max(batch.ref.start if batch is not None else end - _LOOK_BACK[0], first)
