"""What the log, the ledger, the engine and the sinks mean by a batch: a range of one source's log."""

from __future__ import annotations

from dataclasses import dataclass

OF_LETTERS = 2**32


@dataclass(frozen=True, slots=True)
class BatchRef:
    """A range of one source's log: `start` is in, `end` is out. The same after every replay."""

    source: str
    start: int
    end: int
    replay: int = 0
    """0 for the batch itself, and in the ledger always. Rows of it that are delivered on their own have
    another number, so that they do not take the place of the batch at an atomic sink: below `OF_LETTERS` the
    one under which a sink publishes rows it was asked for by name, from there on that of replayed letters."""

    @property
    def of_letters(self) -> bool:
        """Whether these are replayed letters. It may have the range of a batch that is still open."""
        return self.replay >= OF_LETTERS

    @property
    def key(self) -> str:
        """A file-system-safe name that sorts in the order of the log."""
        name = f"{self.source}-{self.start:012d}-{self.end:012d}"
        return f"{name}-replay{self.replay}" if self.replay else name
