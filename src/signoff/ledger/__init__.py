"""The ledger: outcomes, settlement, dead letters, audit, explain.

`Ledger` records what became of every event; `DeadLetters` keeps those that could not be delivered;
`Follower` tells an intake what is newly settled; `RunLock` says whether a run is alive.
"""

from __future__ import annotations

from signoff.ledger.dead_letters import DeadLetters, close_letters, drop_letters
from signoff.ledger.ledger import Books, Ledger
from signoff.ledger.letter import DeadLetter
from signoff.ledger.outcome import (
    Account,
    BatchRange,
    BatchState,
    EventId,
    Outcome,
    Resolution,
    RowOutcome,
    RowRef,
    SinkState,
)
from signoff.ledger.runlock import RunLock
from signoff.ledger.settlement import Follower, Settled, SettledRange

__all__ = [
    "Account",
    "BatchRange",
    "BatchState",
    "Books",
    "DeadLetter",
    "DeadLetters",
    "EventId",
    "Follower",
    "Ledger",
    "Outcome",
    "Resolution",
    "RowOutcome",
    "RowRef",
    "RunLock",
    "Settled",
    "SettledRange",
    "SinkState",
    "close_letters",
    "drop_letters",
]
