"""Which files have events in flight, and what is done with files that have none.

What it keeps: a settlement looks only at the files it touches, so settling n files costs n steps however
they come. Files are put away a few milliseconds at a time, since the intake has one thread; the rest
waits for the next call. Only the very file that was read is moved or deleted (see `moves`). A file that
comes back under another name, because another file has its own by now, keeps its row: it is not read again.
"""

from __future__ import annotations

import logging
import os
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyroaring import BitMap64

from signoff.sources.files.content import ContentFile, Stamp
from signoff.sources.files.moves import aside_of, exists, free_name, move, put_back, sync
from signoff.sources.files.registry import ANY_INODE, FileRegistry, Known

logger = logging.getLogger(__name__)

SLICE_S = 0.01
LONGEST_S = 0.2
"""How long one call works, at least and at most; a sync comes on top."""
STEPS = 16
"""Done in one call however slow they are, so that few files are gone at once."""
PATIENCE_S = 5.0
"""How soon to try again what could not be moved or deleted."""


class OpenFiles:
    """Files with events that are not settled, in the order of their sequence numbers."""

    def __init__(self) -> None:
        self._files: list[Known] = []
        self._starts: list[int] = []
        self._closed: set[int] = set()
        """Units that are still in the lists and have nothing in flight: removed when they are half of it."""
        self._settled = BitMap64()
        self._unseen = BitMap64()
        """Settled, and not yet checked which files have nothing in flight now."""
        self.steps = 0
        """How many files were looked at, ever."""

    def __len__(self) -> int:
        return len(self._files) - len(self._closed)

    def add(self, file: Known) -> None:
        assert file.first_seq is not None
        self._files.append(file)
        self._starts.append(file.first_seq)

    def settle(self, sequences: BitMap64) -> None:
        """These are settled; `finished` tells what follows from it."""
        self._settled |= sequences
        self._unseen |= sequences

    def finished(self, seconds: float) -> list[Known]:
        """Files with nothing in flight any more; those that are not found in this time come with the next
        call."""
        found: list[Known] = []
        deadline = time.monotonic() + seconds
        for file in self.touched(self._unseen):
            if not self.owes(file):
                found.append(file)
            if file.end_seq is not None and self.steps % STEPS == 0 and time.monotonic() > deadline:
                self._unseen.remove_range(0, file.end_seq)
                return found
        self._unseen.clear()
        return found

    def touched(self, sequences: BitMap64) -> Iterator[Known]:
        """The open files that have one of these."""
        place = 0
        while (sequence := _next(sequences, place)) is not None:
            self.steps += 1
            index = bisect_right(self._starts, sequence) - 1
            file = self._files[index] if index >= 0 else None
            if file is not None and (file.end_seq is None or sequence < file.end_seq):
                if file.unit not in self._closed:
                    yield file
                if file.end_seq is None:
                    return
                place = file.end_seq
            elif index + 1 < len(self._starts):
                place = self._starts[index + 1]
            else:
                return

    def owes(self, file: Known) -> bool:
        if file.first_seq is None or file.end_seq is None:
            return True
        count = file.end_seq - file.first_seq
        return bool(self._settled.range_cardinality(file.first_seq, file.end_seq) != count)

    def close(self, file: Known) -> None:
        """It has nothing in flight, and is finished."""
        self._closed.add(file.unit)
        if len(self._closed) * 2 < len(self._files):
            return
        self._files = [one for one in self._files if one.unit not in self._closed]
        self._starts = [one.first_seq or 0 for one in self._files]
        self._closed.clear()

    def prune(self, next_sequence: int) -> None:
        """Forget what is settled before the first file with events in flight."""
        lowest = self._starts[0] if self._starts else next_sequence
        self._settled.remove_range(0, lowest)


@dataclass(frozen=True, slots=True)
class Policy:
    """What becomes of a file."""

    acknowledged_to: Path | None = None
    """A directory, relative to the file's own unless absolute; None keeps it."""
    refused_to: Path | None = None
    deletes: bool = False

    @property
    def takes_away(self) -> bool:
        return self.deletes or self.acknowledged_to is not None


class PutAway:
    """Keeps, moves or deletes files of which every event is settled, one after the other."""

    def __init__(self, base: Path, registry: FileRegistry, policy: Policy) -> None:
        self._base, self._registry, self._policy = base, registry, policy
        self._queue: deque[Known] = deque()
        self._failed: deque[Known] = deque()
        self._retry_at = 0.0
        self._checked: tuple[Known, ContentFile] | None = None
        self._kept: list[Known] = []
        self._gone: list[Known] = []
        self._inherited: list[Known] = []
        self._touched: set[Path] = set()
        self._note_at = 0.0
        """When to try again to note what is done; 0 if nothing is in the way."""
        self._syncing_s = 0.0
        """How long the last sync took. As long is worked, or a slow disk would take most of the time."""
        self.trouble = ""

    def __len__(self) -> int:
        return len(self._queue) + len(self._failed) + len(self._gone) + len(self._kept)

    @property
    def stuck(self) -> bool:
        """Nothing is left but what cannot be moved or deleted, or noted."""
        return bool(self._failed or self._note_at) and not self._queue

    def add(self, file: Known) -> None:
        self._queue.append(file)

    def restore(self, files: list[Known]) -> None:
        """Put back what a crash left aside, also if such files are kept by now."""
        for file in files:
            if os.path.lexists(self._aside(file)):
                self._put_back(file)

    def work(self) -> list[Known]:
        """Put files away for a moment, at least a few; returns those that are done with."""
        deadline = time.monotonic() + max(SLICE_S, self._syncing_s)
        if self._failed and time.monotonic() >= self._retry_at:
            self._queue.extend(self._failed)
            self._failed.clear()
            self.trouble = ""
        steps = 0
        while self._queue:
            steps += 1
            file = self._queue[0]
            try:
                finished = self._one(file)
            except OSError as error:
                self._give_up_for_now(file, error)
                finished = True
            if finished:
                self._queue.popleft()
            if steps >= STEPS and time.monotonic() > deadline:
                break
        return self._note()

    def _note(self) -> list[Known]:
        """What was done, durably: the directories first, or a crash would bring back a file without a row,
        which would be read again. As long as they cannot be synced, the rows stay."""
        began = time.monotonic()
        if began < self._note_at:
            return []
        try:
            sync(self._touched)
        except OSError as error:
            self._note_at = began + PATIENCE_S
            self.trouble = (
                f"cannot make durable that files were moved or deleted: {error.strerror}; this is tried again"
            )
            logger.warning("%s", self.trouble)
            return []
        if self._note_at:
            self._note_at, self.trouble = 0.0, ""
        self._touched.clear()
        done = [*self._kept, *self._gone]
        if self._kept or self._inherited:  # first: a refusal goes over to the grown file before its row goes
            self._registry.save([*self._kept, *self._inherited])
        if self._gone:
            self._registry.forget(self._gone)
        self._kept, self._gone, self._inherited = [], [], []
        self._syncing_s = min(LONGEST_S, time.monotonic() - began)
        return done

    def _give_up_for_now(self, file: Known, error: OSError) -> None:
        verb = "delete" if self._policy.deletes and not file.refused else "move"
        name = os.fsencode(file.path).decode("utf-8", "replace")
        self.trouble = (
            f"cannot {verb} {name}: {error.strerror}; its events are settled and this is tried again"
        )
        logger.warning("%s", self.trouble)
        self._close_check()
        with suppress(OSError):
            self._put_back(file)
        self._failed.append(file)
        self._retry_at = time.monotonic() + PATIENCE_S

    def _one(self, file: Known) -> bool:
        """One step with one file; whether it is finished."""
        if self._checked is not None:
            return self._check(file)
        if os.path.lexists(self._aside(file)):  # it could not be put back when this was tried before
            self._put_back(file)
        later = self._registry.newest.get(file.path)
        if later is not None and later is not file:
            if later.begin > 0 and file.refused and not later.refused:
                later.refused = True  # the same file, grown
                self._inherited.append(later)
            return self._leave(file, gone=True)
        if not self._policy_of(file):
            return self._leave(file, gone=False)
        path, aside = self._base / file.path, self._aside(file)
        try:
            before = Stamp.of(path.stat())
            if file.inode not in (before.inode, ANY_INODE):
                return self._leave(file, gone=True)  # another file, to be found by the next look
            if before.size != file.size:
                return self._leave(file, gone=False)  # grown since: the same
            path.rename(aside)
            self._touched.add(path.parent)
            now = Stamp.of(aside.stat())
        except FileNotFoundError:
            return self._leave(file, gone=True)
        if file.sure and file.has(before) and (now.inode, now.size) == (before.inode, before.size):
            if now.mtime_ns == before.mtime_ns:
                return self._take(file, aside)
        elif file.inode in (now.inode, ANY_INODE) and now.size == file.size and file.digest is not None:
            self._checked = file, ContentFile(aside)
            return self._check(file)
        another = file.inode not in (now.inode, ANY_INODE)
        self._put_back(file, is_it=not another)
        return self._leave(file, gone=another)

    def _check(self, file: Known) -> bool:
        """Whether the file that is aside holds what was read, a step at a time."""
        assert self._checked is not None
        _, content = self._checked
        if not content.hash_on():
            return False
        same = content.hashed == file.size and content.digest() == file.digest
        quiet = content.stamp() == content.opened
        self._close_check()
        aside = self._aside(file)
        if same and quiet:
            return self._take(file, aside)
        self._put_back(file)
        if same:  # what was compared already may hold something else by now
            self._queue.append(file)
            return True
        return self._leave(file, gone=False)

    def _put_back(self, file: Known, *, is_it: bool = True) -> None:
        """Give a file that is aside its name again, or a free one if another file has it by now.

        `is_it`: as far as is known it is the file that was read, and its row has its new name before the
        file has: without a row it would be read again. A crash in between leaves it aside, to come back
        under the new name; that it is aside must be durable by then, or it would be back under the old one.
        """
        aside, path = self._aside(file), self._base / file.path
        self._touched.add(path.parent)

        def taken(one: Path) -> bool:  # also by a file that is known and may come back
            return exists(one) or _renamed(file, one.name) in self._registry.newest

        while True:
            try:
                return put_back(aside, path)
            except FileExistsError:
                path = free_name(path.parent, path.name, taken)
            if is_it:
                sync([path.parent])
                self._registry.rename(file, _renamed(file, path.name))

    def _close_check(self) -> None:
        if self._checked is not None:
            self._checked[1].close()
            self._checked = None

    def _take(self, file: Known, aside: Path) -> bool:
        target = self._policy.refused_to if file.refused else self._policy.acknowledged_to
        if target is None:
            aside.unlink(missing_ok=True)
        else:
            directory = aside.parent / target
            move(aside, Path(file.path).name, directory)
            self._touched.add(directory)
        return self._leave(file, gone=True)

    def _leave(self, file: Known, *, gone: bool) -> bool:
        if gone:
            self._gone.append(file)
        else:
            file.done = True
            self._kept.append(file)
        return True

    def _policy_of(self, file: Known) -> bool:
        """Whether the file is to be taken away."""
        if file.refused:
            return self._policy.refused_to is not None
        return self._policy.takes_away

    def _aside(self, file: Known) -> Path:
        return aside_of(self._base / file.path, self._registry.token, file.unit)


def _renamed(file: Known, name: str) -> str:
    return os.path.join(os.path.dirname(file.path), name)  # noqa: PTH118, PTH120  (as the search spells it)


def _next(sequences: BitMap64, place: int) -> int | None:
    try:
        return int(sequences.next_set_bit(place))
    except ValueError:
        return None
