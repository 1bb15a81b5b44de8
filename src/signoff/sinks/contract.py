"""What a sink is: a `Sink` made from its config, and the `Writer` it opens on an executor.

One micro-batch, one sink:

    driver     prepare()                                   once, when the run starts
    executor   open() ─► write(rows) … ─► close()          once per task; rows in order of sequence
    driver     commit(batch, parts)                        once all tasks of the sink have closed

A sink signs for a row when `write` returned without naming it (`atomic = False`), or for all rows
of the batch when `commit` returned (`atomic = True`: nothing is visible before). Every step may be
repeated with the same rows after a crash or a lost task; `event_id` is the same then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

EVENT_ID = "event_id"
"""Column of every row a sink gets, and of every row it writes: the same on every replay."""
ORIGIN = "_origin"
"""Last column of the rows a sink with `wants_origins` gets: the number of the event a row was made from, or a
list of them where events were united."""


@dataclass(frozen=True, slots=True)
class BatchRef:
    """A range of one source's log: `start` is in, `end` is out. The same after every replay."""

    source: str
    start: int
    end: int
    replay: int = 0
    """0 for the batch itself. Rows of it that are delivered on their own later (a replayed dead
    letter) have another number, so that they do not take the place of the batch at an atomic sink."""

    @property
    def key(self) -> str:
        """A file-system-safe name that sorts in the order of the log."""
        name = f"{self.source}-{self.start:012d}-{self.end:012d}"
        return f"{name}-replay{self.replay}" if self.replay else name


@dataclass(frozen=True, slots=True)
class Part:
    """One task's share of a batch."""

    batch: BatchRef
    partition: int
    attempt: int
    """Spark's task attempt id: unique among all tries of all tasks of a run. The next begins with 0 again,
    while receipts of this one may still name its parts."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One row the sink did not take."""

    index: int
    """Place of the row in the record batch handed to `write`."""
    reason: str
    transient: bool
    """True: ask again, it may be taken. False: it never will be."""


class Writer(ABC):
    """A sink's client in one task. Lives on an executor, in a thread of its own."""

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        """Write rows (first column `event_id`) and name those that were not taken.

        Raises TransientError when none of them is known to be taken and trying again may help,
        PermanentError when it cannot. May be called again with the same rows after either.
        """

    @abstractmethod
    def close(self) -> bytes | None:
        """Finish, and return what `Sink.commit` needs to know of this part, if anything.

        For an atomic sink the part is durable (but not visible) when this returns.
        """

    def abort(self) -> None:
        """Give up this part: release the client, remove what is not visible. Must not raise."""


class Sink(ABC):
    """Made from a config on the driver, sent to executors by pickle: holds no connection itself."""

    atomic: ClassVar[bool] = False
    takes_back: ClassVar[bool] = False
    """Whether a commit without parts removes what the batch has published before: a kill came before the
    ledger knew, and the pipeline makes no rows of it any more."""
    observes: ClassVar[bool] = False
    """Whether it only looks on: what it is given does not count as delivered."""
    wants_ids: bool = True
    """Whether it looks at the ids of its rows; else they are null."""
    wants_origins: ClassVar[bool] = False
    """Whether its rows are to say, in a last column, which event they were made from."""

    def prepare(self) -> None:
        """Driver, once per run before the first batch: create what must exist (directory, table).

        Raises PermanentError for what no retry mends; TransientError is retried with the sink's own
        schedule while the run goes on.
        """

    @abstractmethod
    def open(self, part: Part) -> Writer:
        """Executor, once per task. Cheap where possible: connect at the first write."""

    def commit(self, batch: BatchRef, parts: Sequence[bytes]) -> None:
        """Driver: make the batch visible at once. `parts` are the non-None results of `close`.

        Repeatable: after a crash the same batch may be committed again. Raises TransientError; or
        PermanentError, when no row of the batch will ever be taken.
        """

    def release(self) -> None:
        """Driver, once at the end of a run: let go of what `prepare` or `commit` have opened."""
