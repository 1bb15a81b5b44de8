"""The ledger: outcomes, settlement, dead letters, audit, explain.

`Ledger` records what became of every event; `DeadLetters` keeps those that could not be delivered;
`Follower` tells an intake what is newly settled; `RunLock` says whether a run is alive.
"""

from __future__ import annotations

from signoff.ledger.batch_state import BatchState, Done, HandedOn, OwesAll, OwesRows, SinkState, Untried, Wait
from signoff.ledger.dead_letters import DeadLetters, close_letters, drop_letters
from signoff.ledger.ledger import Ledger
from signoff.ledger.letter import DeadLetter
from signoff.ledger.outcome import (
    Account,
    EventId,
    Outcome,
    Resolution,
    RowOutcome,
    RowRef,
)
from signoff.ledger.run_lock import RunLock
from signoff.ledger.settlement import Follower, Settled, SettledRange
from signoff.ledger.source_totals import Books

__all__ = [
    "Account",
    "BatchState",
    "Books",
    "DeadLetter",
    "DeadLetters",
    "Done",
    "EventId",
    "Follower",
    "HandedOn",
    "Ledger",
    "Outcome",
    "OwesAll",
    "OwesRows",
    "Resolution",
    "RowOutcome",
    "RowRef",
    "RunLock",
    "Settled",
    "SettledRange",
    "SinkState",
    "Untried",
    "Wait",
    "close_letters",
    "drop_letters",
]
