"""A full disk: nothing can be written, and nothing ends because of that.

Whatever failed for lack of room is done again a moment later, as it has to be after a kill. Meanwhile nothing
is settled, so that the sources are held back. It is said when it begins, and when there is room again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol, TypeVar

from signoff.errors import SignoffError
from signoff.ledger.store import no_room
from signoff.pipeline.secrets import redact

logger = logging.getLogger(__name__)

_LOOK_S = 0.5
_CALM_S = 3.0
"""There is room again when nothing has failed for so long."""
_SAY_FIRST_S, _SAY_MOST_S = 30.0, 600.0
"""How soon it is said again that there is no room, and how seldom at last. A run with `--once` waits as well:
what it has taken is safe, and ending would not make room; so it must be seen what it waits for."""
_SAID = ("No space left on device", "disk is full", "Disk quota exceeded", "[log-no-space]", "disk I/O error")
"""What is said of a full disk where only a text is left: by Java, by Spark, by a task."""
Opened = TypeVar("Opened")


class _Stopping(Protocol):
    @property
    def stopping(self) -> bool: ...


class Room:
    """Entered around what may fail for lack of room: it is passed over then. Used by one thread."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._failed_at = self._since = self._say_at = self._say_every = 0.0
        self.trouble = ""
        """Why nothing can be recorded at the moment; '' when it can."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            if self.trouble and self._now() - self._failed_at > _CALM_S:
                logger.warning("there is room again")
                self.trouble = ""
            return False
        if not no_room(error):
            return False
        self._missing(str(error))
        return True

    def tried(self, do: Callable[[], None]) -> bool:
        """Do something; false when it has failed for lack of room. Spark says that in a text only."""
        try:
            do()
        except Exception as error:
            if no_room(error):
                self._missing(str(error))
            elif not self.is_missing(str(error)):
                raise
            return False
        return True

    def is_missing(self, text: str) -> bool:
        """Whether something has failed for lack of room, as far as its text says so."""
        missing = any(said in text for said in _SAID)
        if missing:
            self._missing(text)
        return missing

    def wait_for(self, open_: Callable[[], Opened], control: _Stopping) -> Opened:
        """Open something as soon as there is room for it; raises what that raises if the run is over."""
        while True:
            try:
                return open_()
            except (OSError, SignoffError) as error:
                if control.stopping or not no_room(error):
                    raise
                self._missing(str(error))
            time.sleep(_LOOK_S)

    def _missing(self, text: str) -> None:
        now, trouble = self._now(), f"no room: {redact(text)}"
        if not self.trouble:
            self._since, self._say_at, self._say_every = now, now + _SAY_FIRST_S, _SAY_FIRST_S
            logger.warning("the disk is full: %s; this is retried until there is room", redact(text))
        elif now >= self._say_at:
            self._say_every = min(self._say_every * 2, _SAY_MOST_S)
            self._say_at = now + self._say_every
            logger.warning(
                "the disk is still full after %.0f s, and nothing is settled: %s; nothing is lost, the run "
                "goes on when there is room, and can be stopped",
                now - self._since, redact(text),
            )  # fmt: skip
        self.trouble = trouble
        self._failed_at = now
