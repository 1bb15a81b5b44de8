"""The batch as which letters are replayed: it has a name of its own, which is kept with the letters.

Sinks that publish whole batches, and links, know by it what they have already: what comes again under a name
takes the place of what came before. So a name is of these letters and no others, and no others get it, until
it is known what became of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from signoff.batch import OF_LETTERS
from signoff.ledger.letter import DeadLetter
from signoff.sinks.contract import BatchRef


def new_replay(source: str, letters: Sequence[DeadLetter]) -> BatchRef:
    """A batch of these letters. Those that failed in it and are replayed again are another one, and so are
    the letters that the same events have at another stage."""
    sequences = [letter.sequence for letter in letters]
    ids = "\n".join(sorted(f"{letter.event_id} {letter.stage} {letter.attempts}" for letter in letters))
    tag = int(hashlib.sha256(ids.encode()).hexdigest()[:8], 16) + OF_LETTERS
    return BatchRef(source, min(sequences), max(sequences) + 1, replay=tag)


def is_of_letters(batch: BatchRef) -> bool:
    """Whether these are replayed letters. It may have the range of a batch that is still open."""
    return batch.of_letters


def replay_name(batch: BatchRef) -> str:
    return f"{batch.start}-{batch.end}-{batch.replay}"


def replay_ref(source: str, name: str) -> BatchRef:
    """The batch of a source that has this name."""
    start, end, tag = map(int, name.split("-"))
    return BatchRef(source, start, end, replay=tag)
