"""How far the log of a source that recognises redelivered events may be trimmed: as far as it was told.

An event that is settled while the intake is dead is not acknowledged, so it comes again, and is recognised by
the log alone. The next intake has read the log before it says that the source was told. While an intake
lives, the log is kept for it for a moment only: on a full disk it cannot say how far it is, and room is made
by nothing but trimming. A dead one receives nothing that would need room.

An event whose source was told, and could not answer because the other side is away, comes again as well: the
log is kept from there on (`Source.unanswered`), as far as it has room.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from signoff.intake.status import Status, read_status
from signoff.log import trim
from signoff.pipeline.model import SourceConfig

PATIENCE_S = 5.0
"""A living intake tells its source, and says so, well within this time."""


class ToldUpto:
    """What the intake of one source says of it, for whoever trims its log."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._behind: tuple[int, float] | None = None
        """What was asked for and could not be granted, and when."""

    def trim(self, log: Path, upto: int, config: SourceConfig) -> None:
        """Remove what is settled and will not be read again, unless its source may have to recognise it."""
        spare, kept_from = config.remembered_events, None
        if spare:
            upto, kept_from = self.bound(upto), self.unanswered()
        trim(log, upto, spare=spare, kept_from=kept_from, room_bytes=config.log.max_bytes // 2)

    def unanswered(self) -> int | None:
        """From where on events may come again that the source was told of and could not answer; None, too,
        while a living intake has no room: what would be answered may wait behind what is not received."""
        status = read_status(self._directory)
        if status is None or (status.state == "held" and status.held_because and _lives(status)):
            return None
        return status.unanswered_sequence

    def bound(self, upto: int) -> int:
        """`upto`, or less if the source was not told so far."""
        status = read_status(self._directory)
        if status is None or status.settled_sequence >= upto:  # without an intake there is nobody to be told
            self._behind = None
            return upto
        now = time.monotonic()
        if self._behind is None or status.settled_sequence >= self._behind[0]:
            self._behind = upto, now
        wanted, since = self._behind
        if now - since > PATIENCE_S and _lives(status):
            self._behind = upto, now
            return wanted
        return status.settled_sequence


def _lives(status: Status) -> bool:
    if status.state == "failed":
        return False
    try:
        os.kill(status.pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return status.pid > 0
