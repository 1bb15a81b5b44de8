"""Whose a link between two pipelines is: it has one writer and one reader.

A link knows the rows of a batch by the batch's name in the writer's account (source, start, end), and what is
answered by the numbers of its log. A second writer's batches have the same names: they would be taken for
batches that are there already, and count as delivered. So the writer leaves a token in the link, of which its
ledger holds the other half; with each run it is a new one:

    ledger: this token, too, is mine ──► link: this is the writer's token ──► ledger: the old one is not

Whoever does not hold the link's token is another pipeline, or the same one with another state directory, a
copy of it or an older backup. A token also says which link it is of, by its path: if no link is there any
more, its disk is away, and a new link in its place would take rows that nobody reads. The reader does the
same with a file of its own (`signoff.link.source`).
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from signoff.errors import StateError
from signoff.ledger.sequences import from_range
from signoff.ledger.store import no_room
from signoff.link.handover import LinkPlace
from signoff.link.notes import LinkNotes, Owner
from signoff.sinks.contract import BatchRef

logger = logging.getLogger(__name__)


class Tokens(Protocol):
    """The writer's half; `signoff.ledger.Ledger` keeps it."""

    def holds_token(self, token: str) -> bool: ...
    def holds_token_like(self, end: str) -> bool: ...
    def add_token(self, token: str) -> None: ...
    def remove_token(self, token: str) -> None: ...


def claim_writing(
    place: LinkPlace, pipeline: str, state: Path, tokens: Tokens, knows: Callable[[BatchRef], bool]
) -> None:
    """Make this pipeline, in this state directory, the writer of a link. Called before anything is written.

    `knows`: whether a batch is in this pipeline's account. Raises StateError, with what to do, if the link
    holds rows of another writer, or is not there although this pipeline has written to it. May be repeated.
    """
    here = _mark(place)
    if not place.database.exists():
        _check_never_written(place, tokens, here)
        place.notes.mkdir(parents=True, exist_ok=True)
    notes = LinkNotes(place.database)
    try:
        before, left = notes.writer(), notes.each()
        if before is None:
            if not left:
                _check_never_written(place, tokens, here)
            # Of a release that knew no writers, or nobody has written yet.
            ours = all(knows(handed.batch) for handed in left if not handed.batch.replay)
        else:
            ours = tokens.holds_token(before.token)
        if not ours:
            _take_over(place, notes, before, pipeline)
        new = Owner(uuid.uuid4().hex + here, pipeline, str(state))
        try:
            if before is None and not left:
                notes.set_writer(new, anew=False)  # first: a kill in between leaves no token of no link
                tokens.add_token(new.token)
                return
            tokens.add_token(new.token)
            notes.set_writer(new, anew=not ours)
            if ours and before is not None:
                tokens.remove_token(before.token)
        except StateError as error:
            if before is None or not ours or not no_room(error):
                raise
            logger.warning("%s: the disk is full; the link stays this pipeline's", place.notes)
    finally:
        notes.close()


def _mark(place: LinkPlace) -> str:
    """Ends the tokens of a link."""
    return f"-{hashlib.sha256(str(place.notes.absolute()).encode()).hexdigest()[:16]}"


def _check_never_written(place: LinkPlace, tokens: Tokens, here: str) -> None:
    if tokens.holds_token_like(here):
        raise StateError(
            f"[link-gone] {place.notes}: this pipeline has written to this link, and it is not there any "
            "more; is its disk mounted? Put it back. If it was removed, give the sink another `path`, to "
            "begin with a new link; what becomes of the rows in the old one is not heard then"
        )


def _take_over(place: LinkPlace, notes: LinkNotes, before: Owner | None, pipeline: str) -> None:
    """Raises StateError unless nothing is lost if another becomes the writer."""
    who = f'pipeline "{before.pipeline}" ({before.state})' if before else "another pipeline"
    own = "give this one a link of its own, with a path and a reader of its own"
    if _is_written(place.log):
        raise StateError(f"[link-writer] {place.notes}: {who} is writing to this link now; {own}")
    left = notes.each()
    settled = notes.settled()
    unanswered = sum(len(from_range(each.first, each.last) - settled) for each in left)
    if unanswered:
        raise StateError(
            f"[link-writer] {place.notes}: {unanswered} rows of {who} are in this link, and the pipeline "
            "that reads it has not settled them; let it do so, or put back the state directory they came "
            f"from. If this is another pipeline, {own}"
        )
    if left and (before is None or before.pipeline != pipeline):
        raise StateError(
            f"[link-writer] {place.notes}: {who} has not read yet that its rows in this link are settled; "
            f"run it once more, or {own}"
        )
    if before is not None:
        logger.warning("%s: the link of %s is taken over: nothing waits in it", place.notes, who)


def _is_written(log: Path) -> bool:
    """Whether a living process has the link's log open for writing."""
    try:
        descriptor = os.open(log, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
