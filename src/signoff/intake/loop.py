"""The intake's one thread: receive, append, sync, tell, again and again.

    receive ──► append ──► sync (group commit) ──► logged … ledger … ──► settle

What it keeps: a source is told `logged` only after the fsync, and `settle` only what the ledger
holds as settled (or, without acknowledgements, what is in the log). While the log or the disk has
no room nothing is received, at most one received batch waits in memory, and settling goes on.
An event whose time is up (`deadlines`, or the source's own) is recorded as expired before the source
is told to refuse it.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyroaring import BitMap64

from signoff.errors import LogError, StateError
from signoff.intake.backpressure import Holding
from signoff.intake.clock_notes import ClockNotes
from signoff.intake.control import IntakeControl
from signoff.intake.deadlines import Deadlines
from signoff.intake.settle_times import SettleTimes
from signoff.intake.status import IntakeState, Status, StatusFile
from signoff.ledger import Follower
from signoff.log import LogWriter
from signoff.pipeline.secrets import redact
from signoff.sources.contract import EndOfSource, Settlement, Source

if TYPE_CHECKING:
    from signoff.intake.traces import IntakeTraces

logger = logging.getLogger(__name__)

MAX_EVENTS = 50_000
"""Most events asked of a source at a time."""
POLL_S = 0.01
"""How long a settled event waits at most before the source is told."""
EXPIRE_S = 0.1
NAMED_REASONS = 10
"""Reasons for which events expired that are written to the run's log at a time."""
RETRY_S = 0.1
"""How soon to try again what failed for lack of room."""
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Intake:
    """One source that is open, its log, and the ledger that says what is settled."""

    def __init__(
        self,
        source: Source,
        log: LogWriter,
        follower: Follower | None,
        control: IntakeControl,
        status: StatusFile,
        deadlines: Deadlines | None = None,
        clock_notes: ClockNotes | None = None,
        traces: IntakeTraces | None = None,
    ) -> None:
        self._source, self._log, self._follower = source, log, follower
        self._deadlines, self._clock_notes, self._traces = deadlines, clock_notes, traces
        self._control, self._status = control, status
        self._state: IntakeState = "receiving"
        self._held_because = ""
        self._untold_because = ""
        self._retry_at = 0.0
        self._source_held = False
        """Held because the source itself has no room for its notes."""
        self._waiting: pa.RecordBatch | None = None
        """Received, but the log would not take it yet."""
        self._received = 0.0
        """When that was."""
        self._offset = 0.0
        """By how much the time of day was ahead of the monotonic clock then."""
        self._appended: deque[tuple[int, int, float]] = deque()
        """Batches (first sequence, count, time of receipt) the source has not been told to be logged."""
        self._untold: deque[Settlement] = deque()
        self._told_upto = 0
        self._began = log.next_sequence
        self._expire_at = 0.0
        self._holding = Holding(status.source, logger)
        self._settle_times = SettleTimes()
        if follower is None and log.next_sequence:
            # What a crash may have left between the log and the source; telling twice does no harm.
            self._untold.append(_acknowledged(0, log.next_sequence))

    def run(self) -> None:
        """Work until the run is over."""
        while not self._control.over():
            if self._control.stop_requested and self._state in ("receiving", "held"):
                self._state = "stopped"
                self._source.stop()
            self._step()
        self._commit()
        self._tell()
        self._source.close()
        self._state = "ended" if self._state == "ended" else "stopped"
        self._report(last_word=True)

    def _step(self) -> None:
        pause = min(POLL_S, self._until_sync())
        if self._receiving():
            self._receive(pause)
        else:
            self._source.tend()
            self._control.over(pause)
        self._append()
        if self._log.sync_due_in() == 0:
            self._commit()
        self._tell()
        self._expire()
        self._report()

    def _receiving(self) -> bool:
        open_ = self._state in ("receiving", "held") and self._waiting is None
        return open_ and time.monotonic() >= self._retry_at

    def _until_sync(self) -> float:
        due = self._log.sync_due_in()
        return POLL_S if due is None else due

    # From the source to the log

    def _receive(self, timeout_s: float) -> None:
        before = self._clock_offset()
        try:
            self._waiting = self._source.receive(MAX_EVENTS, timeout_s)
        except EndOfSource:
            self._state = "ended"
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self._source_held = True
            self._hold(str(error.strerror))
        else:
            self._received = time.monotonic()
            # Of a clock that is set this moment, the one by which the events are younger.
            self._offset = min(before, self._clock_offset())
            if self._source_held:
                self._source_held = False
                self._go_on()

    def _clock_offset(self) -> float:
        return 0.0 if self._clock_notes is None else self._clock_notes.offset()

    def _append(self) -> None:
        events = self._waiting
        if events is None or time.monotonic() < self._retry_at:
            return
        if not events.num_rows:
            self._waiting = None
            return
        try:
            if self._clock_notes is not None:
                self._clock_notes.note(self._log.next_sequence, self._offset, self._told_upto)
            first = self._log.append(events)
            self._appended.append((first, events.num_rows, self._received))
            self._settle_times.received(first, events.num_rows, self._received)
        except (LogError, OSError) as error:
            if isinstance(error, OSError) and error.errno not in NO_ROOM:
                raise
            self._hold(str(error))
        else:
            self._waiting = None
            self._go_on()

    def _commit(self) -> None:
        """Make what was appended durable, and tell the source so."""
        try:
            durable = self._log.sync()
        except LogError as error:
            self._hold(str(error))
            return
        if self._waiting is None:
            self._go_on()
        while self._appended and sum(self._appended[0][:2]) <= durable:
            first, count, received = self._appended.popleft()
            self._source.logged(first, count)
            if self._traces is not None:
                self._traces.logged(first, count)
            if self._deadlines is not None:
                self._deadlines.add(first, count, received)
            if self._follower is None:
                self._untold.append(_acknowledged(first, first + count))

    def _hold(self, reason: str) -> None:
        """Receive nothing until there is room again."""
        self._held_because = reason
        self._retry_at = time.monotonic() + RETRY_S
        if self._state == "receiving":
            self._state = "held"

    def _go_on(self) -> None:
        self._held_because = ""
        if self._state == "held":
            self._state = "receiving"

    # From the ledger to the source

    def _tell(self) -> None:
        """Tell the source what is newly settled. What cannot be told now stays to be told."""
        try:
            if not self._untold and self._follower is not None:
                settled = self._follower.poll()
                if settled is not None:
                    if self._deadlines is not None and (settled.acknowledged or settled.refused):
                        self._deadlines.progressed(time.monotonic())
                    self._untold.append(
                        Settlement(
                            settled.acknowledged,
                            settled.refused,
                            settled.expired,
                            settled.transient,
                            settled.dead_lettered,
                            settled.dropped,
                            settled.delivered,
                        )
                    )
            while self._untold:
                began_ns = time.time_ns()
                self._source.settle(self._untold[0])
                if self._traces is not None:
                    self._traces.settled(self._untold[0], began_ns)
                self._settle_times.settled(_all_of(self._untold.popleft()), time.monotonic())
                if not self._untold:
                    self._confirm()
        except (OSError, StateError) as error:
            if isinstance(error, OSError) and error.errno not in NO_ROOM:
                raise
            self._untold_because = f"the source cannot be told what is settled: {error}"
        else:
            self._untold_because = ""

    def _confirm(self) -> None:
        if self._follower is not None:
            self._follower.confirm()
            self._told_upto = self._follower.upto
        else:
            self._told_upto = self._log.durable_sequence

    def _expire(self) -> None:
        """Find out whose time is up, record it, and let the source answer those."""
        now = time.monotonic()
        if now < self._expire_at:
            return
        self._expire_at = now + EXPIRE_S  # also with many of them: others want to write to the ledger
        asked = self._source.expire()
        if self._follower is None:
            return
        late = self._late(self._follower, now)
        try:
            expired = self._follower.expire({**late, **asked})
        except StateError as error:
            self._untold_because = f"expiry cannot be recorded: {error}"
            return
        if self._deadlines is not None and late:
            self._deadlines.forget(max(late) + 1)
        if expired:
            _say_expired(self._follower.source, expired)
            self._untold.append(Settlement(BitMap64(), {}, expired))
            self._tell()

    def _late(self, follower: Follower, now: float) -> dict[int, str]:
        """Events whose `acknowledge_within` is over, and that nobody has called settled; with the reason."""
        deadlines = self._deadlines
        if deadlines is None:
            return {}
        deadlines.forget(follower.upto)
        due = deadlines.due(now)
        late = follower.pending(due.start, due.stop)
        if not late:
            deadlines.forget(due.stop)
        return dict.fromkeys(late, f"not settled within {deadlines.within_s:g} s (acknowledge_within)")

    # What is said about it

    def _report(self, *, last_word: bool = False) -> None:
        log = self._log
        receives = self._state in ("receiving", "held") and not last_word
        self._holding.look(redact(self._held_because or self._source.limit()) if receives else "")
        if last_word:
            self._holding.end()
        held = self._holding.held
        done = self._state in ("ended", "stopped") and self._waiting is None and not self._untold
        self._status.report(
            Status(
                pid=os.getpid(),
                state=self._state,
                reason=redact(self._held_because or self._untold_because or self._source.trouble()),
                held_because=held.reason if held else "",
                held_since=held.since if held else None,
                next_sequence=log.next_sequence,
                durable_sequence=log.durable_sequence,
                settled_sequence=self._told_upto,
                unanswered_sequence=self._source.unanswered(),
                expected=self._expected(),
                settled_after=tuple(self._settle_times.counts),
                settled_seconds=self._settle_times.seconds,
                drained=done and self._told_upto >= log.next_sequence and self._source.drained(),
            ),
            last_word=last_word,
        )

    def _expected(self) -> int | None:
        """As many events for each byte as so far; unknown before the first one, and after the last byte, when
        what was read ahead is still to become events."""
        progress, waiting = self._source.progress(), self._waiting.num_rows if self._waiting else 0
        count = self._log.next_sequence + waiting - self._began
        if progress is None or not count or not 0 < progress[0] < progress[1]:
            return None
        return self._began + count * progress[1] // progress[0]


def _say_expired(source: str, expired: Mapping[int, str]) -> None:
    """One line for all of them: how many, which, what was owed and by whom."""
    reasons = Counter(expired.values()).most_common()
    said = "; ".join(f"{count} {reason}" for reason, count in reasons[:NAMED_REASONS])
    more = f"; {len(reasons) - NAMED_REASONS} more reasons" if len(reasons) > NAMED_REASONS else ""
    many, which = "1 event", f"{source}/{min(expired)}"
    if len(expired) > 1:
        many, which = f"{len(expired)} events", f"{which} to {max(expired)}"
    logger.warning('source "%s": %s expired (%s): %s%s', source, many, which, said, more)


def _all_of(settlement: Settlement) -> BitMap64:
    """Every event it names, whatever became of it."""
    if not settlement.refused and not settlement.expired:
        return settlement.acknowledged
    return settlement.acknowledged | BitMap64(settlement.refused) | BitMap64(settlement.expired)


def _acknowledged(start: int, end: int) -> Settlement:
    sequences = BitMap64()
    sequences.add_range(start, end)
    return Settlement(sequences)
