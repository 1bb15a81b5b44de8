"""Which dead letters are meant: by stage, source, reason and time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

from signoff.ledger.letter import DeadLetter, Status


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """All that is given must hold; nothing given: every letter."""

    stage: str | None = None
    source: str | None = None
    reason: str | None = None
    """A part of the reason, or of the first one, whatever its case."""
    pattern: str | None = None
    """A regular expression (Python's), found anywhere in the reason or in the first one."""
    since: float | None = None
    """Became a letter, or failed last, at this time or later; seconds since the epoch."""
    until: float | None = None
    """Before this time."""
    payload: bytes | None = None
    """A part of the payload, byte by byte."""

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) is not None for each in fields(self))

    def where(self, statuses: Sequence[Status]) -> tuple[str, list[object]]:
        """The condition in SQL, but for what is looked at letter by letter (`keeps`): the pattern, and a part
        of the reason whose case SQLite does not know, which is all but ASCII."""
        where = [f"status IN ({', '.join('?' * len(statuses))})"]
        values: list[object] = [*statuses]
        part = self.reason.lower() if self.reason is not None and self.reason.isascii() else None
        for condition, value in (
            ("stage = ?", self.stage),
            ("source = ?", self.source),
            ("instr(lower(reason) || char(10) || lower(first_reason), ?)", part),
            ("at >= ?", self.since),
            ("at < ?", self.until),
            ("instr(payload, ?)", self.payload),
        ):
            if value is not None:
                where.append(condition)
                values.append(value)
        return " AND ".join(where), values

    def has(self, letter: DeadLetter) -> bool:
        """Whether all of it holds for a letter, whatever its status."""
        return (
            self.stage in (None, letter.stage)
            and self.source in (None, letter.source)
            and (self.since is None or letter.at >= self.since)
            and (self.until is None or letter.at < self.until)
            and (self.payload is None or self.payload in letter.payload)
            and self.keeps(letter)
        )

    def keeps(self, letter: DeadLetter) -> bool:
        """Whether the part of the reason and the pattern are found."""
        reasons = f"{letter.reason}\n{letter.first_reason}".lower()
        if self.reason is not None and self.reason.lower() not in reasons:
            return False
        if self.pattern is None:
            return True
        found = re.compile(self.pattern).search  # compiled once: `re` remembers it
        return found(letter.reason) is not None or (
            bool(letter.first_reason) and found(letter.first_reason) is not None
        )
