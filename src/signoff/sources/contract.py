"""What a source is: a handful of methods, all called by one thread of the intake process.

The life of an event at its source:

    receive() ──► appended to the log, fsynced ──► logged() ──► … Spark, sinks, ledger … ──► settle()

A source never sees Spark. It is handed the sequence numbers of its events in `logged`, and the
same numbers come back in `settle`, in any order, each exactly once per run. What it needs to find
its place again after a crash travels with each event through the log (`unit`, `position`): on
`open` it is given those of the last durable event.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from pyroaring import BitMap64


class EndOfSource(Exception):
    """Raised by `receive` when there will never be another event (standard input closed, count reached,
    or, in a run that takes what is there and ends, every file read)."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Where the source stood when the last durable event was logged."""

    next_sequence: int
    """Sequence number the next event will get; 0 on the very first start."""
    unit: int | None = None
    position: int | None = None
    settled_upto: int = 0
    """All events below are settled; the source will be told so again."""


class EventLog(Protocol):
    """The source's own events as the log keeps them: what is durable and not yet removed."""

    def first(self) -> int: ...

    def head(self) -> int: ...

    def read(
        self, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[tuple[int, pa.RecordBatch]]: ...

    def lookup(self, sequences: Iterable[int]) -> dict[int, dict[str, Any]]: ...


@dataclass(frozen=True, slots=True)
class SourceContext:
    """What the intake lends a source."""

    name: str
    directory: Path
    """A directory of the source's own below the state directory, for what must outlive a restart."""
    once: bool
    """The run takes what is there now and ends."""
    base: Path
    """Directory of the pipeline file; relative paths start here."""
    log: EventLog | None = None
    """For a source that must recognise what it has handed out before."""
    state: Path | None = None
    """The state directory: what is in it is never an event."""
    not_ready: Callable[[], Mapping[str, str]] = dict
    """Who is not ready to settle an event of this source now, and why; empty when all are. May be called by
    any thread."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """Origins that are settled, as told to the source."""

    acknowledged: BitMap64
    """Delivered, dropped or dead-lettered: the source may forget them."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """Refused, with the reason: the source gets a negative answer."""
    expired: Mapping[int, str] = field(default_factory=dict)
    """Not settled in time, with the reason and the sinks they waited for: a negative answer too."""
    transient: BitMap64 = field(default_factory=BitMap64)
    """Those of the refused that a later delivery may take: the last retry failed, no sink refused
    permanently."""
    dead_lettered: BitMap64 = field(default_factory=BitMap64)
    dropped: BitMap64 = field(default_factory=BitMap64)
    delivered: BitMap64 = field(default_factory=BitMap64)
    """Outcomes of the acknowledged ones, for a source whose answer includes them. An origin may be in none of
    these three: nobody asked, or it was settled too long ago."""


class Source(ABC):
    """One connection to the outside, owned by one intake process."""

    @abstractmethod
    def open(self, context: SourceContext, resume: Resume) -> None:
        """Connect, and find the place after `resume`. Called once per process, first."""

    @abstractmethod
    def receive(self, max_events: int, timeout_s: float) -> pa.RecordBatch | None:
        """Return up to `max_events` events (EVENT_SCHEMA), or None when none came within `timeout_s`.

        Called again and again while the log has room; not called while the source is held back, so
        that whatever is not received stays where it is. Raises EndOfSource when there is no more.
        """

    def logged(self, first_sequence: int, count: int) -> None:
        """The batch last received is durable and has the sequence numbers from `first_sequence` on.

        Called once for each batch, in order, after the fsync. Without acknowledgements this is
        where the source is told; the intake then calls `settle` at once.
        """

    @abstractmethod
    def settle(self, settlement: Settlement) -> None:
        """Acknowledge or refuse these origins. After a crash a settlement may come again: the call
        must be repeatable, and unknown sequence numbers are ignored."""

    def tend(self) -> None:
        """Keep the connection alive. Called every few milliseconds while `receive` is not: the source is
        held back, has ended or is stopped. Must not block."""

    def progress(self) -> tuple[int, int] | None:
        """How much of what this process is to read was read, and all of that, in bytes or whatever the
        source knows; None where there is no end, or it is not known. May be asked at any moment, often."""
        return None

    def trouble(self) -> str:
        """Why nothing can be received or told at the moment, for the status; '' when all is well."""
        return ""

    def limit(self) -> str:
        """Why nothing more comes before something is settled, though there may be more; '' when it may come.

        For the status; called after every step of the intake.
        """
        return ""

    def expire(self) -> Mapping[int, str]:
        """Origins whose time is up (sequence to reason); called about ten times a second.

        Only for a source that has a clock of its own, as a request has: `acknowledge_within` from receipt
        is kept by the intake for all. It records them in the ledger and calls `settle` with those that were
        still owed; without acknowledgements the answer is not asked for.
        """
        return {}

    def unanswered(self) -> int | None:
        """The lowest event that may be settled although its answer could not be sent, and so comes again and
        must be recognised by the log; None when there is none. The log is kept from there on, as far as it
        has room.

        Only for a source with `remembered_events`; called after every step of the intake.
        """
        return None

    def stop(self) -> None:
        """There will be no more `receive`: turn away whoever still comes. `settle` goes on.

        Called once at a graceful stop. What was handed out by `receive` stays owed.
        """

    def drained(self) -> bool:
        """True when nothing that `settle` should still tell is pending; asked at the end of a run."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Let go of the connection. What is not settled goes back to the source."""
