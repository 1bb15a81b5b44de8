"""Which rows of a run its sinks do not have: those that are dead letters, at the sink or at a step before it.

A run with such rows is done all the same; so it says so where people look: in its report and `jobs show`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from signoff.jobs.records import Record
from signoff.ledger.dead_letters import DeadLetters
from signoff.ledger.outcome import EventId
from signoff.pipeline.graph import Graph
from signoff.sinks.contract import MissingRows


def missing_rows(half: Graph, record: Record) -> Mapping[str, tuple[MissingRows, ...]]:
    """By sink, of the second half of a job. Sinks that have all rows are left out."""
    found: dict[str, Counter[str]] = {}
    with DeadLetters(half.state / "dead_letters.db", readonly=True) as letters:
        for source, (first, end) in record.ranges.items():
            for letter in letters.each(source=source, brief=True):
                if first <= EventId.parse(letter.event_id).sequence < end:
                    for sink in _behind(half, letter.stage):
                        found.setdefault(sink, Counter())[letter.reason] += 1
    return {
        sink: tuple(MissingRows(rows, reason) for reason, rows in counted.most_common())
        for sink, counted in found.items()
    }


def _behind(half: Graph, stage: str) -> Sequence[str]:
    if stage in half.sinks:
        return [stage]
    return sorted(half.downstream(stage) & half.sinks.keys()) if stage in half.nodes else []
