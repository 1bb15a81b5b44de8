"""How far a batch is: one state for each sink, and one for each step that rows wait for in front of a sink.

    Untried    no pass was made yet that the sink could have been part of
    OwesAll    it took nothing, and is to be given the whole batch again
    OwesRows   it took the others, and is to be given these rows
    HandedOn   its rows are in another log, where they are not all settled yet
    Done       nothing more is owed

A sink that hands rows on may owe others at the same time: what was handed on is then noted with what it owes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from pyroaring import BitMap64

from signoff.batch import BatchRef
from signoff.ledger.outcome import RowRef

REMOVED = "removed from the pipeline"
"""The error of a sink that was gone, once a run has closed what it owed: as letters, or for the new one in
its place."""


@dataclass(frozen=True, slots=True)
class SinkState:
    """How far a sink, or a wait, is with one batch; always one of the five classes below."""

    attempts: int = field(default=0, kw_only=True)
    error: str = field(default="", kw_only=True)
    since: float | None = field(default=None, kw_only=True)
    """Seconds since the epoch at which it began to fail on this batch, or handed rows of it on."""

    @property
    def done(self) -> bool:
        return isinstance(self, Done)

    @property
    def tried(self) -> bool:
        """Whether a pass that the sink could have been part of has been made."""
        return not isinstance(self, Untried)

    @property
    def wants_all(self) -> bool:
        """Whether it is to be given every row of the batch that comes to it."""
        return isinstance(self, OwesAll) or (isinstance(self, Untried) and self.only is None)

    @property
    def wanted_rows(self) -> tuple[RowRef, ...]:
        """The rows it is to be given, where it is not to be given all."""
        match self:
            case OwesRows(rows=rows) | Untried(only=tuple() as rows):
                return rows
        return ()

    @property
    def to_ask(self) -> bool:
        """Whether there are rows it is still to be given."""
        return self.wants_all or bool(self.wanted_rows)

    @property
    def handed_on(self) -> BitMap64 | None:
        """Origins whose rows are in another log and not settled there; None: it has handed on nothing."""
        return self.handed if isinstance(self, OwesAll | OwesRows | HandedOn) else None

    @property
    def arrived(self) -> BitMap64 | None:
        """Origins of the rows that have come to it in a pass; None: not known."""
        return self.came if isinstance(self, OwesAll | OwesRows) else None

    def owes(self, whole: BitMap64) -> BitMap64:
        """The origins it is still to be given rows of, of a batch of which `whole` is not settled."""
        return whole if self.wants_all else BitMap64(row.sequence for row in self.wanted_rows)

    def filtered(self, keep: Callable[[RowRef], bool]) -> SinkState:
        """With only some of the rows it is to be given; unchanged where it is to be given all."""
        match self:
            case OwesRows(rows=rows):
                return replace(self, rows=tuple(filter(keep, rows)))
            case Untried(only=tuple() as rows):
                return Untried(tuple(filter(keep, rows)))
        return self

    def also_owing(self, rows: Iterable[RowRef], error: str) -> OwesRows:
        """It owes these rows as well."""
        return OwesRows(
            (*self.wanted_rows, *rows),
            self.handed_on,
            attempts=self.attempts,
            error=self.error or error,
            since=self.since,
        )

    def also_handed(self, origins: BitMap64) -> SinkState:
        """With what was handed on before and is not answered."""
        handed = origins | (self.handed_on or BitMap64())
        match self:
            case OwesAll() | OwesRows() | HandedOn():
                return replace(self, handed=handed)
            case Untried(only=None):
                return OwesAll(handed=handed)
            case Untried(only=tuple() as rows):
                return OwesRows(rows, handed)
        return HandedOn(handed, attempts=self.attempts, error=self.error, since=self.since)

    def with_answer(self, left: BitMap64) -> SinkState:
        """After some of what was handed on is settled; of `left` it is not."""
        if not left and not self.to_ask:
            return Done(attempts=self.attempts, error=self.error, since=self.since)
        return replace(self, handed=left) if isinstance(self, OwesAll | OwesRows | HandedOn) else self

    def without(self, origins: BitMap64) -> SinkState:
        """Where it owes single rows, or has handed some on: without those of events that are settled."""
        match self:
            case OwesRows() | HandedOn():
                rows = tuple(row for row in self.wanted_rows if row.sequence not in origins)
                handed = None if self.handed is None else self.handed - origins
            case _:
                return self
        if rows:
            return OwesRows(rows, handed, attempts=self.attempts, error=self.error, since=self.since)
        if handed:
            return HandedOn(handed, attempts=self.attempts, error=self.error, since=self.since)
        return Done(attempts=self.attempts, since=self.since)


@dataclass(frozen=True, slots=True)
class Untried(SinkState):
    """No pass was made yet that the sink could have been part of."""

    only: tuple[RowRef, ...] | None = None
    """These rows are asked for; None: all. A sink that came into the pipeline when some events of the batch
    were settled gets the others."""

    def held_back(self, error: str, since: float, came: BitMap64, named: str) -> OwesAll | OwesRows:
        """What it owes once a pass without it has shown what comes to it."""
        if self.only is None:
            return OwesAll(came, named, error=error, since=since)
        return OwesRows(self.only, came=came, error=error, since=since)


@dataclass(frozen=True, slots=True)
class OwesAll(SinkState):
    """The sink took nothing, or was not asked, and is to be given the whole batch."""

    came: BitMap64 | None = None
    """The origins of the rows that have come to it; None: not known."""
    named: str = ""
    """The rows that have come to it under names of their own, as JSON: many batches may wait. '' for none."""
    handed: BitMap64 | None = None
    """What it has handed on beside that, and is not settled there; None: nothing."""


@dataclass(frozen=True, slots=True)
class OwesRows(SinkState):
    """The sink is to be given these rows, and no others."""

    rows: tuple[RowRef, ...]
    handed: BitMap64 | None = None
    """What it has handed on beside that, and is not settled there; None: nothing."""
    came: BitMap64 | None = None
    """Where it is new and was not asked yet: the origins of the rows that have come to it."""


@dataclass(frozen=True, slots=True)
class HandedOn(SinkState):
    """All that the sink was given is in another log, and not settled there."""

    handed: BitMap64


@dataclass(frozen=True, slots=True)
class Done(SinkState):
    """Nothing more is owed."""


@dataclass(frozen=True, slots=True, order=True)
class Wait:
    """Rows of a batch that a sink does not get before a step can compute them.

    It has a state of its own: the rows, how often the step was tried for them, since when, and why it fails.
    The sink itself may be done.
    """

    sink: str
    step: str

    def __str__(self) -> str:
        return f"{self.sink} via {self.step}"


Debtor = str | Wait
"""Who may owe rows: a sink, by its name, or a step in front of one."""


def sink_of(debtor: Debtor) -> str:
    """The sink that rows are owed to, also where they wait for a step in front of it."""
    return debtor.sink if isinstance(debtor, Wait) else debtor


@dataclass(frozen=True, slots=True)
class BatchState:
    """What the ledger knows of one batch."""

    ref: BatchRef
    delivered: BitMap64
    """Origins of which at least one row was delivered."""
    owed: BitMap64
    """Origins that are not settled yet."""
    sinks: Mapping[str, SinkState]
    settled: bool
    waits: Mapping[Wait, SinkState] = field(default_factory=dict)
    """Rows that wait for a step, which the step's sink does not get before."""
    published_as: Mapping[Debtor, int] = field(default_factory=dict)
    """The numbers under which a sink that publishes whole batches publishes rows it is asked for by name. One
    stays until what was published under it is recorded, so that what a kill has left is replaced; then there
    is another one, so that nothing else is."""

    @property
    def debtors(self) -> dict[Debtor, SinkState]:
        """All that owe, or have owed, rows of the batch: sinks, then steps in front of them."""
        found: dict[Debtor, SinkState] = dict(self.sinks.items())
        found.update((wait, state) for wait, state in self.waits.items())
        return found
