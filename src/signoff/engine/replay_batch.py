"""The batch as which letters are replayed: its name is kept with them, so that it is the same after a crash.

Sinks that publish whole batches, and links, know by it what they have already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from signoff.ledger.dead_letters import DeadLetter
from signoff.sinks.contract import BatchRef


def new_replay(source: str, letters: Sequence[DeadLetter]) -> BatchRef:
    """A batch of these letters. Those that failed in it and are replayed again are another one, and so are
    the letters that the same events have at another stage."""
    sequences = [letter.sequence for letter in letters]
    ids = "\n".join(sorted(f"{letter.event_id} {letter.stage} {letter.attempts}" for letter in letters))
    tag = int(hashlib.sha256(ids.encode()).hexdigest()[:8], 16) or 1
    return BatchRef(source, min(sequences), max(sequences) + 1, replay=tag)


def replay_name(batch: BatchRef) -> str:
    return f"{batch.start}-{batch.end}-{batch.replay}"


def replay_ref(source: str, name: str) -> BatchRef:
    """The batch of a source that has this name."""
    start, end, tag = map(int, name.split("-"))
    return BatchRef(source, start, end, replay=tag)
