"""The source `maildir`: each mail in `new/` is an event; settled, it goes to `cur/` as seen.

Mails come in any order, so a place in the directory says nothing. Their names are unique, as a Maildir
demands: each event carries the name of its file in its headers, and what the log knows is not received again.
So a crash of this process, or of the machine, loses no mail and gives none twice.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Literal

import pyarrow as pa

from signoff.plugin import (
    EndOfSource,
    EventLog,
    Field,
    Resume,
    Settlement,
    Source,
    SourceConfig,
    SourceContext,
    SourceError,
    event_batch,
    sync_directory,
)
from signoff_maildir.message import payload_of

SEEN, FLAGGED = ":2,S", ":2,F"
FILE = "file"


class MaildirConfig(SourceConfig):
    """The mails of a Maildir."""

    summary: ClassVar[str] = "Mails of a Maildir as JSON; seen when they are settled, flagged when refused."
    example: ClassVar[str] = "path: ~/Maildir"

    type: Literal["maildir"] = "maildir"
    path: str
    """The Maildir, with its directories `new` and `cur`; `~` is the home directory."""
    poll_ms: int = Field(default=200, ge=1)
    """How often `new` is looked at while no mail comes."""

    @property
    def remembered_events(self) -> int:
        """Between the settlement of an event and the move of its file there may be a crash."""
        return 10_000

    def build(self, base: Path) -> Source:
        return MaildirSource(base / Path(self.path).expanduser(), self.poll_ms / 1000)


class MaildirSource(Source):
    def __init__(self, directory: Path, poll_s: float) -> None:
        self._new, self._cur = directory / "new", directory / "cur"
        self._poll_s = poll_s
        self._count = 0
        """Mails so far: the position of the last event."""
        self._handed_out: deque[str] = deque()
        """Received, and not in the log yet."""
        self._owed: dict[int, str] = {}
        """In the log and not settled: file names by sequence number."""
        self._known: set[str] = set()
        """All that must not be received again."""
        self._once = False

    def open(self, context: SourceContext, resume: Resume) -> None:
        self._count, self._once = resume.position or 0, context.once
        for directory in (self._new, self._cur):
            if not directory.is_dir():
                raise SourceError(f"{directory.parent} is no Maildir: {directory} is not there")
        here = {path.name for path in self._new.iterdir()}
        if context.log is not None:
            in_log = {name: sequence for sequence, name in _names(context.log) if name in here}
            self._known = set(in_log)
            self._owed = {sequence: name for name, sequence in in_log.items()}

    def receive(self, max_events: int, timeout_s: float) -> pa.RecordBatch | None:
        names, mails = self._next(max_events)
        if not names:
            if self._once:
                raise EndOfSource
            time.sleep(min(timeout_s, self._poll_s))
            return None
        first, self._count = self._count + 1, self._count + len(names)
        self._known.update(names)
        self._handed_out.extend(names)
        payloads, ids = zip(*map(payload_of, mails), strict=True)
        positions = range(first, first + len(names))
        return event_batch(payloads, positions, headers=[{FILE: name} for name in names], message_ids=ids)

    def logged(self, first_sequence: int, count: int) -> None:
        for sequence in range(first_sequence, first_sequence + count):
            self._owed[sequence] = self._handed_out.popleft()

    def settle(self, settlement: Settlement) -> None:
        moved = False
        for numbers, flag in (
            (settlement.acknowledged, SEEN),
            (settlement.refused, FLAGGED),
            (settlement.expired, FLAGGED),
        ):
            # Not the other way round: after a restart, all that was ever settled is told again.
            for sequence in [sequence for sequence in self._owed if sequence in numbers]:
                moved |= self._move(self._owed.pop(sequence), flag)
        if moved:
            sync_directory(self._cur)
            sync_directory(self._new)

    def drained(self) -> bool:
        return not self._owed

    def close(self) -> None:
        """Nothing is open; what is not settled is still in `new`."""

    def _next(self, most: int) -> tuple[list[str], list[bytes]]:
        """The oldest mails that are not known. One that somebody has taken away meanwhile is none."""
        waiting = (
            path for path in self._new.iterdir() if path.name not in self._known and path.name[0] != "."
        )
        names, mails = [], []
        for _, path in sorted(_by_age(waiting))[:most]:
            try:
                mails.append(path.read_bytes())
            except FileNotFoundError:
                continue
            names.append(path.name)
        return names, mails

    def _move(self, name: str, flag: str) -> bool:
        try:
            (self._new / name).rename(self._cur / f"{name}{flag}")
        except FileNotFoundError:  # a mail program was faster
            return False
        finally:
            self._known.discard(name)
        return True


def _by_age(paths: Iterator[Path]) -> Iterator[tuple[tuple[int, str], Path]]:
    for path in paths:
        try:
            yield (path.stat().st_mtime_ns, path.name), path
        except FileNotFoundError:
            continue


def _names(log: EventLog) -> Iterator[tuple[int, str]]:
    """The names of the files that the log knows, with their sequence numbers."""
    for first, batch in log.read(log.first(), log.head(), ["headers"]):
        for place, headers in enumerate(batch.column("headers").to_pylist()):
            if (name := dict(headers or ()).get(FILE)) is not None:
                yield first + place, name
