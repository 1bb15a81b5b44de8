"""Giving up a run that cannot be done: a sink will not have its rows, or the job is not what it was.

    its rows in the logs refused ─► recorded as cancelled ─► whoever asked for it is told that it failed

What sinks have taken stays there until the same run is done again, which replaces it. Without the order, a
kill in between would leave rows in the logs that the next run takes for its own.
"""

from __future__ import annotations

import time
from dataclasses import replace

from signoff.engine.state_dir.giving_up import give_up
from signoff.errors import StateError
from signoff.jobs.deliver import outcome_of
from signoff.jobs.outputs import next_number
from signoff.jobs.records import CANCELLED, IN_LOGS, PERSON, Output, Record, Records
from signoff.jobs.state_dir import Stop, claim, delivery_lock, forget_directory, run_lock
from signoff.ledger.engine_lock import engine_lock
from signoff.ledger.ledger import Ledger
from signoff.pipeline.graph import Graph

_WHY = "cancelled: signoff jobs cancel"


def cancel(graph: Graph, record: Record, stop: Stop, why: str = _WHY) -> Record:
    """Give up an unfinished run; waits until no process works on it. `stop`: says when to wait no longer.

    Raises StateError for a run that has ended, RunGoesOn for one that another process does all the time.
    """
    claim(graph)
    with run_lock(graph.state, record.key, waits=stop), Records(graph.state) as records:
        record = records.again(record)
        if not record.unfinished and not _is_between_tries(records, record):
            raise StateError(
                f"{record.id} is {record.state}; only a run that has not ended, or is asked for again, "
                "can be cancelled"
            )
        if record.state not in IN_LOGS:
            return _recorded(graph, records, record, why)
        with delivery_lock(graph.state, stop), engine_lock(graph.state):
            record = records.again(record)  # who has delivered it first may have ended it
            if record.unfinished:
                record = _refused(graph, records, record, why)
                record = _recorded(graph, records, record, why)
            return record


def _is_between_tries(records: Records, record: Record) -> bool:
    """Whether who asked for it may ask again: its tables lack data, or its last try has failed. Of one
    that is not asked for any more, cancelled says as much as failed. A person asks anew each time."""
    if record.state != "failed" or record.asked_by == PERSON:
        return False
    last = records.last(record.key)
    return (
        record.state == "failed" and record.asked_by != PERSON and last is not None and last.id == record.id
    )


def _refused(graph: Graph, records: Records, record: Record, why: str) -> Record:
    """Nothing of it is in flight any more. Of one that was appended in part, the rest has no numbers, which
    those of the next run take."""
    logs = graph.state / "log"
    outputs: dict[str, Output] = {}
    for name, output in record.outputs.items():
        first, end = output.range
        outputs[name] = replace(output, rows=max(min(next_number(logs / name), end) - first, 0))
    with Ledger(graph.state / "ledger.db") as ledger:
        for name, output in outputs.items():
            give_up(ledger, name, output.range[1], why)
    record = records.change(record, outputs=outputs)
    return records.change(record, outcome=outcome_of(graph.state, record))


def _recorded(graph: Graph, records: Records, record: Record, why: str) -> Record:
    record = records.change(record, state=CANCELLED, ended_at=time.time(), reason=why)
    forget_directory(graph.state, record.id)
    return record
