"""Drops that were interrupted: their letters are claimed (`dropping`), and no process works on them.

Whoever drops or resubmits holds `state/dead_letters.lock` from the claim to the end; the kernel lets go of it
with the process. So a claimed letter while nobody holds it was left behind. It is stored again, unless the
ledger says that it is dropped already: then the same drop, once more, closes it.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from signoff.ledger.ledger import Ledger
from signoff.ledger.outcome import Outcome
from signoff.private import opener

if TYPE_CHECKING:
    from signoff.ledger.dead_letters import DeadLetters
    from signoff.ledger.letter import DeadLetter


@contextmanager
def dropping(database: Path) -> Iterator[None]:
    """Be at work; several may be."""
    try:
        file = open(_lock_of(database), "w", opener=opener)  # noqa: SIM115 - closed below
    except OSError:  # a full disk, which is no reason not to drop what is there
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


def put_back(ledger: Ledger, letters: DeadLetters) -> int:
    """Store letters again that an interrupted drop has left claimed; none while anybody is dropping."""
    if not letters.count(statuses=("dropping",)):
        return 0
    try:
        with open(_lock_of(letters.path), "w", opener=opener) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            claimed = letters.list(statuses=("dropping",), brief=True)
            return letters.unclaim(letter for letter in claimed if _is_open(ledger, letter))
    except OSError:  # somebody is at it (BlockingIOError), or the disk is full
        return 0


def _is_open(ledger: Ledger, letter: DeadLetter) -> bool:
    """Whether the account still counts on the letter."""
    return any(
        row.row.child == letter.child and row.stage == letter.stage and not row.resolved
        for row in ledger.rows(letter.source, letter.sequence)
        if row.outcome == Outcome.DEAD_LETTERED
    )


def _lock_of(database: Path) -> Path:
    return database.with_suffix(".lock")
