"""Finding the files to read: which are new, which have grown, which are still being written.

What it keeps: a file that was read is found again only when it holds something else. Stamps (inode, size,
times) tell which files need a look at their content; content decides. A file that still begins with all
that was read has grown, and is read on from there; any other is new. A stamp that may hide a change (see
`file_content`) is not believed before the content was compared.

A look goes over all files in steps of a few milliseconds, and rests four times as long as it took: the
intake has one thread, and kept files are there for good.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from signoff.clock import ClockWatch
from signoff.errors import SourceError
from signoff.globs import fixed_part, is_glob, pattern_of
from signoff.sources.contract import Resume
from signoff.sources.files.content import ContentFile, Stamp
from signoff.sources.files.matching_paths import Away, Places, is_gone
from signoff.sources.files.registry import ANY_INODE, FileRegistry, Found, Known

logger = logging.getLogger(__name__)

STEP_FILES = 64
"""After so many files the time is looked at."""
REST = 4
"""How many times as long as a look took there is none."""
COMPARED_BYTES_PER_S = 10 * 1024**2
"""The larger a file, the longer it must be quiet before it is compared without a sign of a change."""
BELIEVED_S = 2.5
"""How long a stamp must have been seen before the content behind it counts as final."""

DAY_S = 24 * 3600.0
"""By more than this nobody sets a clock: a file that has not changed for so long is complete."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What of the source's config matters here."""

    path: str
    settle_ms: int
    poll_ms: int
    away: Away
    """Where files are moved to: a directory, or one of this name next to the file."""
    takes_away: bool
    """Files are moved or deleted: another file of the same content is another delivery."""


class FileSearch:
    """Looks for files below a path or glob."""

    def __init__(
        self,
        base: Path,
        rules: Rules,
        registry: FileRegistry,
        appendable: Callable[[str], bool],
        state: Path | None = None,
    ) -> None:
        self._base = base
        self._pattern = pattern_of(base, rules.path)
        self._places = Places(self._pattern, str(base / rules.path), rules.away, state)
        self._prefix = f"{base}{os.sep}"
        self._rules, self._registry, self._appendable = rules, registry, appendable
        self._changing: dict[str, tuple[int, int, float]] = {}
        """Files that may still be written to: size, time of change, and since when both are so."""
        self._unsure: dict[str, tuple[Stamp, float]] = {}
        """Files whose stamp may hide a change: the stamp, and since when it is that."""
        self._look: Iterator[None] | None = None
        self._checks: deque[tuple[Known, bool]] = deque()
        """Files of which the content is to be compared, and whether their stamp can be believed then."""
        self._checking: ContentFile | None = None
        self._found: list[tuple[int, Found]] = []
        self._spent = 0.0
        self.look_at = 0.0
        """When the next look is due."""
        self.looked_at = 0
        """How many files were looked at, ever."""
        self._clock = ClockWatch()
        self._trusted_from = self._steady = time.monotonic()
        """Since then it is known that nobody has set the clock."""

    def require_path(self, resume: Resume) -> None:
        """Raise SourceError when there is not even a directory to look into."""
        place = Path(fixed_part(self._pattern))
        if not is_glob(self._pattern) and resume.next_sequence > 0:
            place = place.parent  # a single file may have been read and moved away
        if not place.exists():
            raise SourceError(
                f"{place} does not exist (from `path: {self._rules.path}`); create it or correct `path`"
            )

    def step(self, deadline: float) -> list[Found] | None:
        """Go on with the look until the deadline, at least a little; at its end the files to read, oldest
        first, else None."""
        started = time.monotonic()
        if self._look is None:
            self._found, self._spent = [], 0.0
            self._look = self._steps()
        ended = False
        while not ended:
            ended = next(self._look, self) is self
            if time.monotonic() > deadline:
                break
        self._spent += time.monotonic() - started
        if not ended:
            return None
        self._look = None
        self.look_at = time.monotonic() + max(self._rules.poll_ms / 1000, REST * self._spent)
        return [found for _, found in sorted(self._found, key=lambda row: (row[0], row[1].path))]

    def trouble(self, *, walked: bool = True) -> dict[str, str]:
        """Of places that could not be looked into, by their path."""
        return self._places.trouble(walked=walked)

    def close(self) -> None:
        if self._checking is not None:
            self._checking.close()

    def _steps(self) -> Iterator[None]:
        before, self._changing = self._changing, {}
        unsure, self._unsure = self._unsure, {}
        if self._clock.stepped():
            self._trusted_from = time.monotonic()
        self._steady = time.monotonic()
        now = time.time()  # one for all, or a newer file might be complete before an older one
        for count, path in enumerate(self._places.find()):
            if count % STEP_FILES == STEP_FILES - 1:
                yield
            self.looked_at += 1
            try:
                status = os.stat(path)  # noqa: PTH116  (a Path for each of 50,000 files takes its time)
            except OSError as error:
                if not is_gone(error):
                    self._places.failed[path] = error
                continue
            if stat.S_ISREG(status.st_mode):
                self._one(path, Stamp.of(status), before, unsure, now)
        yield from self._compare()

    def _one(
        self,
        path: str,
        stamp: Stamp,
        before: dict[str, tuple[int, int, float]],
        unsure: dict[str, tuple[Stamp, float]],
        now: float,
    ) -> None:
        key = path.removeprefix(self._prefix)
        known = self._registry.newest.get(key)
        if known is not None:
            if known.end_seq is None or known.size is None:
                return  # waiting or being read
            if known.has(stamp) and (known.sure or known.digest is None):
                return
        if not self._is_complete(key, stamp, before, now):
            return
        if known is None or self._is_another(known, stamp):
            self._add(key, stamp, known)
        elif known.size == stamp.size:
            seen, since = unsure.get(key, (stamp, time.monotonic()))
            since = since if seen == stamp else time.monotonic()
            self._unsure[key] = stamp, since
            quiet = time.monotonic() - since
            believed = stamp.settled(now) or quiet >= BELIEVED_S
            if not known.has(stamp) or (believed and quiet >= stamp.size / COMPARED_BYTES_PER_S):
                self._checks.append((known, believed))
        elif self._appendable(key) and self._may_have_grown(path, known):
            found = Found(key, stamp.inode, known.size or 0, known.digest, known.refused, known.events,
                          stamp.size)  # fmt: skip
            self._found.append((stamp.mtime_ns, found))
        else:
            self._add(key, stamp, known)

    def _is_another(self, known: Known, stamp: Stamp) -> bool:
        """Whether the file is a new one whatever it holds."""
        if not 0 <= (known.size or 0) <= stamp.size:
            return True
        return self._rules.takes_away and known.inode not in (stamp.inode, ANY_INODE)

    def _add(self, key: str, stamp: Stamp, known: Known | None) -> None:
        """To be read from its beginning. `known`: what was read under this name before."""
        kept = known is not None and not self._rules.takes_away and (known.size or 0) >= 0
        if known is not None and kept:
            warn_of_reading_anew(key, known.events)
        self._found.append((stamp.mtime_ns, Found(key, stamp.inode, size=stamp.size)))

    def _may_have_grown(self, path: str, known: Known) -> bool:
        """Whether it begins and ends as before; if so, all of it is compared when it is read on."""
        try:
            content = ContentFile(Path(path))
        except OSError:
            return False
        try:
            return content.edges(known.size or 0) == (known.head_crc, known.tail_crc)
        finally:
            content.close()

    def _compare(self) -> Iterator[None]:
        """Compare the content of files that look different, or may hold something else."""
        touched = []
        while self._checks:
            known, believed = self._checks.popleft()
            try:
                content = self._checking = ContentFile(self._base / known.path)
            except OSError:
                continue
            try:
                while not content.hash_on():
                    yield
                stamp = content.stamp()
                if not _same(known, content):
                    self._add(known.path, stamp, known)
                elif stamp == content.opened:
                    known.looks(stamp)
                    known.sure, known.digest = believed, content.digest()
                    touched.append(known)
            finally:
                content.close()
                self._checking = None
            yield
        if touched:
            self._registry.save([file for file in touched if file.unit in self._registry.files])

    def _is_complete(
        self, key: str, stamp: Stamp, before: dict[str, tuple[int, int, float]], now: float
    ) -> bool:
        """Whether the file has been as it is for long enough."""
        wait = self._rules.settle_ms / 1000
        steady = self._steady
        doubt = 0.0 if steady - self._trusted_from >= wait else DAY_S
        if not wait or wait + doubt <= now - stamp.mtime_ns / 1e9:
            return True
        # A clock that is ahead (a network file system) must not hide the file for ever, and one that was set
        # must not make it look older than it is.
        size, changed, since = before.get(key, (stamp.size, stamp.mtime_ns, steady))
        if (size, changed) != (stamp.size, stamp.mtime_ns):
            since = steady
        self._changing[key] = stamp.size, stamp.mtime_ns, since
        return steady - since >= wait


def warn_of_reading_anew(path: str, events: int) -> None:
    """A kept file holds something else than when it was read: rows that are in both come twice."""
    if events:
        logger.warning(
            "%s has changed since it was read (%d events): it is read again from its beginning, and those of "
            "them that it still holds are delivered again, under new ids; to correct a dead letter: "
            "signoff dead-letters "
            "resubmit", shown(path), events,
        )  # fmt: skip


def shown(path: str) -> str:
    """The path of a file as people read it, whatever bytes its name is of."""
    return os.fsencode(path).decode("utf-8", "replace").removeprefix("./")


def _same(known: Known, content: ContentFile) -> bool:
    """Whether the file holds what was read. Of one that an earlier version read, only the edges are known."""
    if content.hashed != known.size:
        return False
    if known.digest is None:
        return content.edges(known.size) == (known.head_crc, known.tail_crc)
    return content.digest() == known.digest
