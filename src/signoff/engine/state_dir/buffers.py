"""The buffers of a pipeline as people see them: how full they are, whose they are, and giving one up."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pyroaring import BitMap64

from signoff.engine.feedback.links import left_behind
from signoff.engine.split.boundaries import NO_LIMIT, Boundary, buffer_place
from signoff.engine.split.division import all_boundaries, buffers_on_disk
from signoff.engine.state_queries.removed_steps import give_up_left
from signoff.ledger.batch_state import Done
from signoff.ledger.batches import HandedOnOutcome
from signoff.ledger.dead_letters import DeadLetters
from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import BUFFER, Account
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.stateful.lost_state import LostState


@dataclass(frozen=True)
class Buffer:
    """One buffer, in a moment."""

    name: str
    sink: str | None
    """The sink that takes its rows; None: it is in no pipeline any more, and nobody does."""
    waiting: int
    """Rows the sink has not taken yet."""
    bytes: int
    """What its log takes on the disk."""
    max_bytes: int | None
    account: Account

    @property
    def orphan(self) -> bool:
        """It holds rows that nobody will take."""
        return self.sink is None and self.waiting > 0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "account": self.account.as_dict(), "orphan": self.orphan}


def read_buffers(graph: Graph, ledger: Ledger) -> dict[str, Buffer]:
    """Every buffer of the pipeline, and every other one that the state directory holds."""
    boundaries = {boundary.name: boundary for _, boundary in all_boundaries(graph)}
    names = dict.fromkeys([*boundaries, *buffers_on_disk(graph)])
    return {name: _read(graph, ledger, name, boundaries.get(name)) for name in names}


def _read(graph: Graph, ledger: Ledger, name: str, boundary: Boundary | None) -> Buffer:
    source = name + BUFFER
    books = ledger.books(source)
    log = LogReader(buffer_place(graph, source).log)
    head = log.head()
    account = books.account(head)
    return Buffer(
        name=name,
        sink=boundary.node.name if boundary else None,
        waiting=account.in_flight,
        bytes=log.size(log.first(), head),
        max_bytes=_limit(boundary) if boundary and boundary.in_use else None,
        account=account,
    )


def give_up(graph: Graph, ledger: Ledger, name: str) -> int:
    """Drop what waits in a buffer that no sink takes rows from, and settle the events it was made from.

    Only while no run is alive. Returns how many rows were dropped; may be repeated.
    """
    source = name + BUFFER
    place = buffer_place(graph, source)
    dropped = read_buffers(graph, ledger)[name].waiting
    for known in ledger.open_batches(source):
        _drop(ledger, source, known.ref.start, known.ref.end)
    start, end = ledger.books(source).next, LogReader(place.log).head()
    if start < end:
        _drop(ledger, source, start, end)
    _tell(graph, ledger, name)
    give_up_left(place, ledger.books(source).next)
    return dropped


def state_is_lost(graph: Graph, name: str) -> bool:
    """Whether a run has found that the state of a step is gone."""
    return LostState(buffer_place(graph, name + BUFFER)).noted


def give_up_state(graph: Graph, ledger: Ledger, name: str) -> int:
    """Let a step whose state is lost begin anew. Rows that were in it, and whose events waited for results,
    are dropped; what is behind them in the log is not.

    Only while no run is alive. Returns how many rows were dropped; may be repeated.
    """
    source, dropped = name + BUFFER, 0
    for known in ledger.open_batches(source):
        dropped += len(known.owed)
        _drop(ledger, source, known.ref.start, known.ref.end)
    _tell(graph, ledger, name)
    LostState(buffer_place(graph, source)).give_up()
    return dropped


def _tell(graph: Graph, ledger: Ledger, name: str) -> None:
    """Bring what is settled in a buffer to the events its rows were made from, and to replayed letters."""
    with DeadLetters(graph.state / "dead_letters.db") as letters:
        feedback = left_behind(graph, name, ledger, {}, letters)
        feedback.tend()
        feedback.close()


def _drop(ledger: Ledger, source: str, start: int, end: int) -> None:
    known = ledger.open_batch(source, start, end, [])
    over = Done(error="given up")
    handed = {sink: rows for sink, state in known.sinks.items() if (rows := state.handed_on)}
    waiting = BitMap64.union(BitMap64(), *handed.values())
    ledger.record(
        source,
        start,
        end,
        delivered=BitMap64(),
        outcomes=[],
        sinks={sink: over for sink, state in known.sinks.items() if state.to_ask},
        waits={wait: over for wait, state in known.waits.items() if state.to_ask},
        owed=waiting,
    )
    for sink, rows in handed.items():
        ledger.release(source, start, end, sink, HandedOnOutcome(rows, BitMap64(), BitMap64()))


def _limit(boundary: Boundary) -> int | None:
    most = boundary.settings.max_bytes
    return None if most == NO_LIMIT else most
