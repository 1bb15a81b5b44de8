"""Dead letters of a job: each is a row of one run, and goes only where that run puts its rows.

What a sink writes, and where, depends on the values of the run; its report and its table are of that run's
rows alone. So a letter is replayed while its own run is delivered, by the graph of that run, and by no other.
A run that has ended is not delivered again: doing it again replaces all its rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from signoff.jobs.records import IN_LOGS, Record, Records
from signoff.ledger.letter import DeadLetter
from signoff.ledger.outcome import EventId


class RunsOfLetters:
    """Which run a letter is of, by the number of its row."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._records = [record for record in records if record.ranges]
        self._last: dict[str, Record] = {}
        for record in self._records:
            if record.edition >= self._last.setdefault(record.key, record).edition:
                self._last[record.key] = record

    def run_of(self, letter: DeadLetter) -> Record | None:
        """None if no run is known that has made the row, or not all of what it was made from."""
        rows = [EventId.parse(each) for each in letter.made_from or (letter.event_id,)]
        for record in self._records:
            if all(_is_in(record, row) for row in rows):
                return record
        return None

    def obstacle(self, letter: DeadLetter) -> str:
        """Why a letter is never replayed as things are; '' if it is when its run goes on."""
        if (run := self.run_of(letter)) is None:
            return "it is not known which run of the job it is of; run the job again for its row, or drop it"
        if (last := self._last[run.key]).edition > run.edition:
            return f"it is of {run.id}, whose rows {last.id} replaces; drop it"
        if run.state in IN_LOGS:
            return ""
        values = "".join(
            f" -p {name}={value}" for name, value in json.loads(run.parameters).items() if value is not None
        )
        return (
            f"its run {run.id} has ended, and the rows of another run go elsewhere; run it again, which "
            f"replaces all its rows: signoff jobs run FILE{values}"
        )


def run_obstacles(state: Path) -> Callable[[DeadLetter], str]:
    """Says why a letter is never replayed, because of the run it is of; '' of all letters of a pipeline."""
    with Records(state, readonly=True) as records:
        known = records.newest()
    runs = RunsOfLetters(known)
    return lambda letter: runs.obstacle(letter) if known else ""


def _is_in(record: Record, row: EventId) -> bool:
    first, end = record.ranges.get(row.source, (0, 0))
    return first <= row.sequence < end
