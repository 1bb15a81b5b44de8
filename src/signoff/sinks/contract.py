"""What a sink is: a `Sink` made from its config, and the `Writer` it opens on an executor.

One micro-batch, one sink:

    driver     prepare()                                   once, when the run starts
    executor   open() ─► write(rows) … ─► close()          once per task; rows in order of sequence
    driver     commit(batch, parts)                        once all tasks of the sink have closed

A sink signs for a row when `write` returned without naming it (`atomic = False`), or for all rows
of the batch when `commit` returned (`atomic = True`: nothing is visible before). Every step may be
repeated with the same rows after a crash or a lost task; `event_id` is the same then.

A run that has an end (a job, `run --once`) is one more bracket around all of this: `begin(run)` before
`prepare`, and `finish(run)` when everything is settled. Until every sink has finished, the run is not done.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

import pyarrow as pa

from signoff.batch import BatchRef as BatchRef
from signoff.pipeline.row_columns import EVENT_ID as EVENT_ID
from signoff.pipeline.row_columns import INPUT as INPUT
from signoff.pipeline.row_columns import ORIGIN as ORIGIN

Ranges = Mapping[str, tuple[int, int]]
"""By source, a range of its log: the first number is in, the second is out."""


@dataclass(frozen=True, slots=True)
class MissingRows:
    """Rows that a sink does not have, and why."""

    rows: int
    reason: str


def missing_text(missing: Sequence[MissingRows], most: int = 3) -> str:
    """A line for people; '' if nothing is missing."""
    if not missing:
        return ""
    rows = sum(each.rows for each in missing)
    said = [f"{each.reason} ({each.rows})" if missing[1:] else each.reason for each in missing[:most]]
    more = f"; and {len(missing) - most} other reasons" if missing[most:] else ""
    return f"{rows} row{'' if rows == 1 else 's'} could not be included: {'; '.join(said)}{more}"


@dataclass(frozen=True, slots=True)
class RunRef:
    """A run, as a sink is told of it. The same while an unfinished run is resumed after a kill or a stop."""

    id: str
    """Another one for another run, also of the same job with the same parameters."""
    bounded: bool
    """Whether it has an end, at which `finish` is called: a job, `run --once`."""
    key: str = ""
    """Of a job: its name and key parameters, `report@station=7,day=2021-05-01`. The same when run again:
    what such a run puts anywhere takes the place of what the one before has put there."""
    began_at: datetime | None = None
    """Of a job: when it began, in UTC. A stamp that is the same however often the run is resumed."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Of a job: values by name (str, int, float, bool, date, datetime in UTC, None)."""
    period: tuple[datetime | None, datetime | None] = (None, None)
    """Of a job: the time it is about."""
    complete_to: str | None = None
    """Of a job: up to where its input was complete, if that is known."""
    ranges: Ranges = field(default_factory=dict)
    """Of a job: the rows of this run; the batches of a sink are in these ranges."""
    earlier: tuple[Ranges, ...] = ()
    """Of a job: the rows of all earlier runs with the same key, which these replace."""
    missing: tuple[MissingRows, ...] = ()
    """Of a job, when it finishes: the rows that are dead letters, and not in this sink."""
    repeats: Mapping[str, Sequence[tuple[int, int, int]]] = field(default_factory=dict)
    """Of a job whose last try has failed: rows that are equal to rows of that one, by source: the first
    number here, the first one then, and how many follow. See `message_ids`."""
    editions: Mapping[str, str] = field(default_factory=dict)
    """Of a job: sources whose row is what a sink has published, with the names of these sinks."""


@dataclass(frozen=True, slots=True)
class Part:
    """One task's share of a batch."""

    batch: BatchRef
    partition: int
    attempt: int
    """Spark's task attempt id: unique among all tries of all tasks of a run. The next begins with 0 again,
    while receipts of this one may still name its parts."""
    contexts: Mapping[str, str] = field(default_factory=dict)
    """Of events that are traced, by their ids: what a sink hands on with rows made from them, as the header
    `traceparent`, where the other side can continue a trace. See `handed_contexts`."""


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
    ledger knew, and the pipeline makes no rows of it any more; or the sink is about to give up the batch, of
    which a commit that failed may have left some visible."""
    observes: ClassVar[bool] = False
    """Whether it only looks on: what it is given does not count as delivered."""
    wants_ids: bool = True
    """Whether it looks at the ids of its rows; else they are null."""
    wants_origins: ClassVar[bool] = False
    """Whether its rows are to say, in a last column, which event they were made from."""

    def begin(self, run: RunRef) -> None:
        """Driver, before `prepare`: which run this is."""

    def refuse_others(self, owner: str, sources: Set[str]) -> None:
        """Driver, before a job computes anything: raises OthersRows where `claim` would, and changes nothing.
        Raises SinkError if that cannot be told."""

    def claim(self, owner: str, sources: Set[str]) -> None:
        """Driver, before the rows of a job come: the ids of these sources are this job's, in the place where
        they go. Raises OthersRows if they are another's, whose rows would be taken for these: overwritten,
        and removed by `finish`. Raises SinkError if that cannot be told."""

    def finish(self, run: RunRef) -> None:
        """Driver, at the end of a bounded run: all rows are settled, and that is recorded; also if there were
        none. The run is done when this returned. Repeatable: after a kill it comes again, perhaps to a sink
        that was made anew from its config. Raises TransientError or PermanentError; the run is not done then.
        """

    def edition(self, run: RunRef) -> Mapping[str, Any]:
        """Driver, after `finish`: what it has published for this run, as the row that those get which name
        this sink as their input (`SinkConfig.edition_columns`; values as in JSON). The same when asked again
        after a kill. Raises TransientError or PermanentError."""
        raise NotImplementedError

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
