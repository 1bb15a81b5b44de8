"""Files that are followed, as `tail -F` does: an event per line as it is written, through rotation.

Rename and create: the file stays open and is read to its end under its new name, or is found by its inode
after a restart; it is let go when nothing was written to it for `rotate_wait_ms`. What has its name now is a
new file. Copy and truncate: the truncation is noticed by the size, or by other bytes at the end of what was
read, and reading begins anew; lines that were written after the last look and before the truncation are in
the copy only.

What it keeps: every line is handed out once, also across a SIGKILL at any moment (see `follow_notes`).
Files are only read: nothing is told to them, so settling does nothing.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import stat
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from signoff.durable import make_directory
from signoff.errors import SourceError
from signoff.globs import fixed_part, is_glob, pattern_of
from signoff.sources.contract import EndOfSource, Resume, Settlement, Source, SourceContext
from signoff.sources.events import Piece, event_batch
from signoff.sources.files.compressed import is_packed
from signoff.sources.files.follow_notes import Followed, FollowNotes, Place
from signoff.sources.files.follow_restart import Whereabouts, cannot_go_on
from signoff.sources.files.matching_paths import Places, is_gone, shown
from signoff.sources.files.tail import HEAD_BYTES, Tail

logger = logging.getLogger(__name__)

BATCH_BYTES = 4 * 1024**2
MOST_OPEN = 65_536
RESERVED = 64
"""How many descriptors are left to the log and whatever else the process opens."""
TOO_MANY = "too many files are followed for the limit of open files (ulimit -n)"


@dataclass(frozen=True, slots=True)
class FollowRules:
    """What of the source's config matters here."""

    path: str
    max_event_bytes: int
    poll_ms: int
    rotate_wait_ms: int
    file_header: bool


@dataclass(slots=True, eq=False)
class _File:
    """A followed file that is open."""

    known: Followed
    tail: Tail
    rotated: bool = False
    """It has no longer the name under which it was found."""
    handed: int = 0
    """The sequence number after its last event."""
    quiet_from: float = field(default_factory=time.monotonic)
    """Since then nothing was written to it, as far as was seen."""
    disk: int = -1
    """Which the directory was on in which it was found; -1 if that was not seen yet."""


class FollowSource(Source):
    """Reads on from (file number, byte offset)."""

    def __init__(self, rules: FollowRules, base: Path) -> None:
        self._rules, self._base = rules, base
        self._files: list[_File] = []
        self._next_sequence = self._durable = 0
        self._last: Place | None = None
        """Of the file of the last event, if that place is not durable."""
        self._ready: list[tuple[_File, Piece]] = []
        """Lines to be handed out next. They wait here while there is no room to note their places."""
        self._cut: list[_File] = []
        """Files that were truncated, with lines that were read before."""
        self._owed = BitMap64()
        self._look_at = 0.0
        self._unreadable: dict[str, str] = {}
        self._packed: set[str] = set()

    def open(self, context: SourceContext, resume: Resume) -> None:
        self._once = context.once
        make_directory(context.directory)
        pattern = pattern_of(self._base, self._rules.path)
        place = Path(fixed_part(pattern))
        place = place if is_glob(pattern) else place.parent
        if not place.exists():
            raise SourceError(
                f"{place} does not exist (from `path: {self._rules.path}`); create it or correct `path`"
            )
        self._places = Places(pattern, str(self._base / self._rules.path), (), context.state)
        self._prefix = f"{self._base}{os.sep}"
        self._next_sequence = self._durable = resume.next_sequence
        self._owed.add_range(resume.settled_upto, resume.next_sequence)
        self._room = descriptors()
        self._notes = FollowNotes(context.directory / "follow.db")
        whereabouts = Whereabouts(self._base, self._places, copied=self._notes.copied)
        for known in self._notes.load(resume):
            file = self._find_again(known, whereabouts)
            if file is not None and known.unit == resume.unit:
                # The note of it may have gone with the power: it is written with that of the next file.
                self._last = Place(known.unit, resume.next_sequence, known.position, file.tail.tail())

    def receive(self, max_events: int, timeout_s: float) -> pa.RecordBatch | None:
        deadline = time.monotonic() + timeout_s
        while True:
            if not self._ready:
                if time.monotonic() >= self._look_at:
                    self._look()
                self._gather(max_events)
            if self._ready:
                return self._hand_out()
            if self._once:
                closed = {**self._unreadable, **self._places.trouble(walked=False)}
                if closed:
                    raise SourceError("; ".join(closed.values()))
                raise EndOfSource
            wait = min(self._look_at, deadline) - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            if time.monotonic() >= deadline:
                return None

    def logged(self, first_sequence: int, count: int) -> None:
        self._durable = first_sequence + count
        self._owed.add_range(first_sequence, self._durable)
        with suppress(OSError):  # no room to tidy up: the next call does all of it
            self._notes.logged(self._durable)

    def settle(self, settlement: Settlement) -> None:
        """A file that is followed is only read: its source cannot be told anything."""
        self._owed -= settlement.acknowledged | BitMap64([*settlement.refused, *settlement.expired])

    def drained(self) -> bool:
        return not self._owed

    def trouble(self) -> str:
        return next(iter({**self._places.trouble(), **self._unreadable}.values()), "")

    def close(self) -> None:
        for file in [*self._files, *self._cut]:
            file.tail.close()
        self._files, self._cut = [], []
        if hasattr(self, "_notes"):
            self._notes.close()

    # Reading

    def _gather(self, max_events: int) -> None:
        """Lines of as many files as it takes to fill a batch; of truncated files first, then of rotated."""
        count = size = 0
        self._files.sort(key=lambda file: not file.rotated)  # stable
        for file in [*self._cut, *self._files]:
            while count < max_events and size < BATCH_BYTES:
                piece = self._read(file, max_events - count)
                if piece is None:
                    break
                self._ready.append((file, piece))
                count, size = count + len(piece), size + piece.payload.nbytes
        if self._ready:
            busy = self._ready[-1][0]
            self._files.sort(key=lambda file: file is busy)  # the next batch begins with another file

    def _read(self, file: _File, max_events: int) -> Piece | None:
        try:
            if file in self._cut:
                piece = file.tail.finish(max_events)
                if piece is None:
                    file.tail.close()
                    self._cut.remove(file)
                return piece
            piece = file.tail.read(max_events)
            if piece is not None:
                file.quiet_from = time.monotonic()
            if piece is None and file.rotated and not file.tail.ended and self._is_over(file):
                piece = file.tail.finish(max_events)
        except OSError as error:
            raise SourceError(
                f"cannot read {self._shown(file)}: {error.strerror or error}; reading continues from here"
            ) from error
        return piece

    def _is_over(self, file: _File) -> bool:
        """Whether a rotated file is no longer written to."""
        return self._once or time.monotonic() - file.quiet_from >= self._rules.rotate_wait_ms / 1000

    def _hand_out(self) -> pa.RecordBatch:
        """Note the places first, durably those that the log's last event will not tell. If there is no room
        for that, nothing has changed, and the next call does it again."""
        places: dict[int, Place] = {} if self._last is None else {self._last.unit: self._last}
        batches, sequence = [], self._next_sequence
        for file, piece in self._ready:
            sequence += len(piece)
            position = int(piece.positions[-1])
            last = Place(file.known.unit, sequence, position, file.tail.tail())
            places.pop(last.unit, None)  # it comes last now
            places[last.unit] = last
            headers = {"file": self._shown(file)} if self._rules.file_header else None
            unit = np.full(len(piece), file.known.unit, np.int64)
            batches.append(event_batch(piece, unit=unit, headers=headers))
        # Also where the last one stood before: of this batch only lines of other files may reach the log.
        before = [] if self._last is None else [self._last]
        self._notes.note([*before, *places.values()], durably=len(places) > 1)
        self._last = list(places.values())[-1]
        for file, piece in self._ready:
            self._next_sequence += len(piece)
            file.handed = self._next_sequence
        self._ready = []
        return pa.concat_batches(batches) if len(batches) > 1 else batches[0]

    # Looking

    def _look(self) -> None:
        """Which files are there, under which names, and whether they are still what they were."""
        self._look_at = time.monotonic() + self._rules.poll_ms / 1000
        before, self._unreadable = self._unreadable, {}
        failed = self._places.failed
        there: dict[tuple[int, int], tuple[int, str]] = {}
        for path in self._places.find():
            try:
                status = os.stat(path)  # noqa: PTH116
            except OSError as error:
                if not is_gone(error):
                    self._places.failed[path] = error
                continue
            if stat.S_ISREG(status.st_mode) and not self._is_skipped(path):
                there.setdefault((status.st_dev, status.st_ino), (status.st_mtime_ns, path))
        for path, reason in self._places.trouble().items():
            if path not in failed:
                logger.warning("%s", reason)
        for file in list(self._files):
            now = there.pop(file.tail.key, (0, None))[1]
            if now is not None:
                file.disk = disk_of(now)
            if now is not None or not self._in_doubt(file) or file.tail.truncated():
                self._follow_one(file, now)
        for _, path in sorted(there.values()):
            self._begin(path)
        for path in self._unreadable.keys() - before.keys():
            logger.warning("%s", self._unreadable[path])

    def _in_doubt(self, file: _File) -> bool:
        """Whether it may be where it was though it was not found, since that place could not be looked into.
        What is closed to the user says nothing of other places; anything else may be true of all of them."""
        place = str(self._base / file.known.path)
        if not file.rotated and file.disk not in (-1, disk_of(place)):
            return True  # a mount is away: nobody has rotated anything
        return any(
            not isinstance(error, PermissionError) or place == path or place.startswith(f"{path}{os.sep}")
            for path, error in self._places.failed.items()
        )

    def _follow_one(self, file: _File, path: str | None) -> None:
        """`path` is where it is found now."""
        known = file.known
        if file.tail.truncated():
            self._restart(file, path)
            return
        rotated = path is None or path.removeprefix(self._prefix) != known.path
        if rotated and not file.rotated:
            file.quiet_from = time.monotonic()
        file.rotated = rotated
        if file.tail.ended and file.tail.unread():
            file.tail.go_on()
        if path is None:
            if file.tail.ended and file.handed <= self._durable and self._is_over(file):
                self._let_go(file)
        elif known.head_bytes < HEAD_BYTES:
            head, size = file.tail.head()
            if size > known.head_bytes:
                self._notes.change(replace(known, head=head, head_bytes=size))
                known.head, known.head_bytes = head, size

    def _restart(self, file: _File, path: str | None) -> None:
        """The file was truncated: what it holds now is new."""
        self._notes.forget(file.known.unit)
        logger.warning(
            "%s was truncated after %d bytes of it were read; it is read from its beginning. Lines "
            "that were written after the last poll and before the truncation were not seen",
            self._shown(file), file.tail.position,
        )  # fmt: skip
        self._files.remove(file)
        self._cut.append(file)
        if path is not None:
            self._begin(path)

    def _begin(self, path: str) -> None:
        """A file that was not there before."""
        if self._is_back(path):
            return
        try:
            if len(self._files) + len(self._cut) >= self._room:
                raise OSError(errno.EMFILE, TOO_MANY)
            tail = Tail(Path(path), 0, self._rules.max_event_bytes)
        except FileNotFoundError:
            return
        except OSError as error:
            self._pass_over(path, error)
            return
        head, size = tail.head()
        name = path.removeprefix(self._prefix)
        try:
            tail.unit = self._notes.add(name, tail.inode, head, size)
        except OSError:
            tail.close()
            raise
        self._files.append(_File(Followed(tail.unit, name, tail.inode, head, size), tail))

    def _is_back(self, path: str) -> bool:
        """Whether it is a file that was away with its disk, and goes on. One in the place of such a file
        that is another is new, and that one is over."""
        name, disk = path.removeprefix(self._prefix), disk_of(path)
        for file in self._files:
            if file.known.path == name and not file.rotated and file.disk not in (-1, disk):
                file.disk = disk
                with suppress(OSError):
                    tail = Tail(Path(path), file.known.unit, self._rules.max_event_bytes, file.tail.position)
                    known = replace(file.known, position=file.tail.position, tail=file.tail.tail())
                    if self._is_same(known, tail):
                        file.tail.close()
                        file.tail, file.known.inode = tail, tail.inode
                        self._notes.change(file.known)
                        return True
                    tail.close()
        return False

    def _pass_over(self, path: str, error: OSError) -> None:
        name = shown(path.removeprefix(self._prefix))
        self._unreadable[path] = (
            f"cannot read {name}: {error.strerror}; make it readable, and reading continues"
        )

    def _let_go(self, file: _File) -> None:
        self._notes.forget(file.known.unit)
        file.tail.close()
        self._files.remove(file)

    def _is_skipped(self, path: str) -> bool:
        """A compressed file is one that was followed before it was compressed."""
        if not is_packed(path):
            return False
        if path not in self._packed:
            self._packed.add(path)
            logger.warning("%s is compressed and not followed", path.removeprefix(self._prefix))
        return True

    # After a restart

    def _find_again(self, known: Followed, whereabouts: Whereabouts) -> _File | None:
        """Go on with a file from before: under its name, or the one it was rotated to."""
        for path in whereabouts.of(known):
            try:
                if len(self._files) >= self._room:
                    raise OSError(errno.EMFILE, TOO_MANY)
                tail = Tail(path, known.unit, self._rules.max_event_bytes, known.position)
            except OSError as error:
                if is_gone(error) or (path != self._base / known.path and self._notes.copied):
                    continue
                raise cannot_go_on(path, error) from error
            if tail.key not in whereabouts.taken and self._is_same(known, tail):
                whereabouts.taken.add(tail.key)
                known.inode = tail.inode
                self._files.append(_File(known, tail, handed=self._next_sequence))
                if self._notes.copied:
                    self._notes.change(known)
                return self._files[-1]
            tail.close()
        logger.warning(
            "%s is gone, or holds something else: if lines were written to it after the %d bytes that were "
            "read, they were not seen", known.path, known.position,
        )  # fmt: skip
        self._notes.forget(known.unit)
        return None

    def _is_same(self, known: Followed, tail: Tail) -> bool:
        if tail.size() < known.position or tail.head(known.head_bytes) != (known.head, known.head_bytes):
            return False
        return known.tail is None or tail.tail() == known.tail

    def _shown(self, file: _File) -> str:
        return os.fsencode(file.known.path).decode("utf-8", "replace").removeprefix("./")


def disk_of(path: str) -> int:
    """The file system that a file's directory is on, or the nearest one above that is there."""
    directory = Path(path).parent
    while True:
        try:
            return directory.stat().st_dev
        except OSError:
            if directory == directory.parent:
                return -1
            directory = directory.parent


def descriptors() -> int:
    """How many files may be followed at once; the limit is raised as far as the user may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN)
    if 0 <= soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return MOST_OPEN if soft == resource.RLIM_INFINITY else max(1, soft - RESERVED)
