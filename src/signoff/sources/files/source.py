"""Files in a directory or glob: one event per line or row; a file is acknowledged as a whole.

Files are read one after the other, oldest first. A file counts as complete when it has not changed
for `settle_ms`; files that take long to write should be written elsewhere and moved in. A kept file
that grows later is read on from where it ended; one that was replaced is read anew.

What it keeps: every line is handed out once, also across a SIGKILL at any moment (see
`registry`); a file is moved or deleted only when all its events are settled and it is still the
file that was read (see `settling`); nothing is ever overwritten. One call takes milliseconds, however
many or large the files are: looking, comparing and putting away go on with the next one.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyroaring import BitMap64

from signoff.durable import make_directory
from signoff.errors import SourceError
from signoff.sources.contract import EndOfSource, Resume, Settlement, Source, SourceContext
from signoff.sources.events import event_batch
from signoff.sources.files.amount import Amount
from signoff.sources.files.config import FilesConfig
from signoff.sources.files.content import ContentFile
from signoff.sources.files.formats import open_reader
from signoff.sources.files.reader import Reader
from signoff.sources.files.registry import ANY_INODE, DATABASE, FileRegistry, Found, Known, Note
from signoff.sources.files.search import FileSearch, shown, warn_of_reading_anew
from signoff.sources.files.settling import SLICE_S, OpenFiles, PutAway

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

logger = logging.getLogger(__name__)

BATCH_BYTES = 4 * 1024**2
"""Payload bytes after which a batch is handed out, however few its events are."""
LONGEST_S = 0.2
"""How long one call reads many small files at most."""
REGISTERED = 500
"""How many found files are registered at a time."""
ALWAYS_COMPARED = 1024**2
"""A file that has grown and was at least so large is compared in full only when it has grown by a quarter
since that was done last, or is quiet; else a log of gigabytes would be read again with each of its lines."""
REMEMBERED = 256
"""For how many files that grow the state of the digest is kept in memory."""


@dataclass(slots=True)
class _Opening:
    """A file that is not read yet: first it must turn out to be the one that is to be read on."""

    position: int
    """Where reading goes on."""
    upto: int | None
    """How many bytes are compared; None for all."""
    digest: str | None
    """What they must be; None if that is not known."""
    resumed: bool = False
    """Some of its events are in the log already."""


class FilesSource(Source):
    """Reads on from (file number, byte offset or row number)."""

    def __init__(self, config: FilesConfig, base: Path) -> None:
        self._config = config
        self._base = base
        self._found: deque[Found] = deque()
        """Files to be read that have no number yet, in this order."""
        self._waiting: deque[Known] = deque()
        """Files to be read, in this order."""
        self._open = OpenFiles()
        self._current: Known | None = None
        self._content: ContentFile | None = None
        self._opening: _Opening | None = None
        self._reader: Reader | None = None
        self._position = 0
        """Of the last event that was handed out."""
        self._began = 0
        """How many bytes of the current file were read before: those do not count as progress."""
        self._reached = 0
        """Position of the last event of the current file."""
        self._hashes: OrderedDict[str, tuple[Hash, int, int]] = OrderedDict()
        """Of files that may grow: digest, of how many bytes, and how many of these were compared."""
        self._unreadable: dict[str, str] = {}
        self._looked = False
        self._amount = Amount()
        self._saving_s = 0.0
        """How long it took to note something durably."""
        self._next_sequence = 0
        self._changed: list[Known] = []
        """Files of which more is known than is noted durably."""
        self._ready: pa.RecordBatch | None = None
        self._stopped = False

    def open(self, context: SourceContext, resume: Resume) -> None:
        self._once, config = context.once, self._config
        make_directory(context.directory)
        self._registry = FileRegistry(context.directory / DATABASE, self._base)
        self._put_away = PutAway(self._base, self._registry, config.settling_policy(self._base))
        rules = config.search_rules(self._base, context.once)
        self._search = FileSearch(self._base, rules, self._registry, config.can_grow, context.state)
        self._search.require_path(resume)
        self._next_sequence = resume.next_sequence
        current = self._registry.recover(resume)
        for file in self._registry.files.values():
            if file.first_seq is None:
                self._waiting.append(file)
                with suppress(OSError):
                    self._amount.found(file.path, (self._base / file.path).stat().st_size - file.begin)
            elif not file.done:
                self._put_away.restore([file])
                self._open.add(file)
        if current is not None:
            self._read_on(current, resume.position or 0)

    def receive(self, max_events: int, timeout_s: float) -> pa.RecordBatch | None:
        started = time.monotonic()
        deadline = started + timeout_s
        if self._ready is None:
            # On a slow disk as long as noting it takes: else most of the time would go into syncing.
            self._ready = self._gather(max_events, max(deadline, started + self._saving_s))
        if self._ready is None and self._once and not self._looked and self._idle():
            while not self._looked:  # nothing is in flight yet that would have to wait for it
                self._look(float("inf"))
            self._ready = self._gather(max_events, deadline)
        if self._changed:
            began = time.monotonic()
            self._registry.save(self._changed)
            self._saving_s = min(LONGEST_S, time.monotonic() - began)
            ended, self._changed = self._changed, []
            self._finish([file for file in ended if not self._open.owes(file)])
        if self._ready is not None:
            self._note_progress()
            ready, self._ready = self._ready, None
            return ready
        self._finish([])
        if self._idle():
            if self._once:
                self._end()
            self._wait_and_look(deadline)
        return None

    def settle(self, settlement: Settlement) -> None:
        refused = BitMap64([*settlement.refused, *settlement.expired])
        if refused:
            hit = [file for file in self._open.touched(refused) if not file.refused]
            self._registry.save([replace(file, refused=True) for file in hit])
            for file in hit:  # not before: what could not be noted is told again
                file.refused = True
        self._open.settle(settlement.acknowledged | refused)
        self._finish([])

    def tend(self) -> None:
        self._finish([])
        if self._once and self._put_away.stuck:
            raise SourceError(self._put_away.trouble)

    def trouble(self) -> str:
        return self._put_away.trouble or next(
            iter({**self._unreadable, **self._search.trouble()}.values()), ""
        )

    def progress(self) -> tuple[int, int] | None:
        if not self._once or not self._looked:
            return None
        count, current = 0, self._current
        if current is not None and self._reader is not None and self._content is not None:
            count = self._reader.bytes_read(self._content, self._reached) - self._began
        return self._amount.read(None if current is None else current.path, count)

    def stop(self) -> None:
        self._stopped = True

    def drained(self) -> bool:
        # Of a file that is read on by the next run, nothing can be told before.
        read_on = 1 if self._stopped and self._current is not None else 0
        return len(self._open) <= read_on and not len(self._put_away)

    def close(self) -> None:
        self._close_current()
        self._search.close()
        self._registry.close()

    # Reading

    def _gather(self, max_events: int, deadline: float) -> pa.RecordBatch | None:
        """Events of as many files as it takes to fill a batch."""
        batches: list[pa.RecordBatch] = []
        count = size = 0
        while count < max_events and size < BATCH_BYTES:
            try:
                if not self._current and not self._begin_next():
                    break
            except OSError:
                if batches:  # they are counted: the next call tries, and fails, again
                    break
                raise
            if self._opening is not None:
                self._compare()
            else:
                events = self._read(max_events - count)
                if events is not None:
                    batches.append(events)
                    count, size = count + len(events), size + events.column("payload").nbytes
            if time.monotonic() > deadline:
                break
        if len(batches) > 1:
            return pa.concat_batches(batches)
        return batches[0] if batches else None

    def _read(self, max_events: int) -> pa.RecordBatch | None:
        """One step of reading."""
        file, reader, content = self._current, self._reader, self._content
        assert file is not None and reader is not None and content is not None
        try:
            piece = reader.read(max_events)
        except OSError as error:
            raise SourceError(
                f"cannot read {shown(file.path)}: {error.strerror or error}; reading continues from here"
            ) from error
        if piece is None:
            # What comes after the damage belongs to the file as well, or it would look as if it had grown.
            if not reader.damaged or content.hash_on():
                self._end_current()
            return None
        if not len(piece):
            return None
        self._next_sequence += len(piece)
        self._position = self._reached = int(piece.positions[-1])
        headers = {"file": shown(file.path)} if self._config.file_header else None
        return event_batch(piece, unit=file.unit, headers=headers)

    def _begin_next(self) -> bool:
        while self._waiting or self._found:
            if not self._waiting:
                some = list(islice(self._found, REGISTERED))
                self._waiting.extend(self._registry.add(some))  # first: it raises if there is no room
                for _ in some:
                    self._found.popleft()
            file = self._waiting[0]
            try:
                content = ContentFile(self._base / file.path)
            except FileNotFoundError:
                self._registry.forget([file])  # gone before it was read
                self._amount.done(file.path)
                self._waiting.popleft()
                continue
            except OSError as error:
                self._pass_over(file, error)
                self._waiting.popleft()
                continue
            self._waiting.popleft()
            self._unreadable.pop(file.path, None)
            file.first_seq = self._next_sequence
            file.looks(content.opened)
            self._current, self._content = file, content
            self._opening = self._how_to_begin(file, content)
            self._began = self._reached = file.begin
            self._open.add(file)
            self._changed.append(file)
            return True
        return False

    def _pass_over(self, file: Known, error: OSError) -> None:
        """One file that cannot be opened keeps no other from being read: the next look finds it again."""
        self._registry.forget([file])
        self._amount.done(file.path)
        reason = (
            f"cannot read {shown(file.path)}: {error.strerror}; nothing of it was taken: "
            "make it readable or move it away, and reading continues"
        )
        if file.path not in self._unreadable:
            logger.warning("%s", reason)
        self._unreadable[file.path] = reason

    def _how_to_begin(self, file: Known, content: ContentFile) -> _Opening:
        if not self._config.can_grow(file.path):
            return _Opening(0, None if self._config.is_parquet(file.path) else 0, None)
        remembered = self._hashes.pop(file.path, None)
        if file.begin > ALWAYS_COMPARED and remembered is not None:
            digest, hashed, compared = remembered
            if hashed == file.begin and hashed * 4 <= compared * 5:
                content.trust(digest, hashed)
                self._hashes[file.path] = remembered
                return _Opening(file.begin, 0, None)
        return _Opening(file.begin, file.begin, file.expected)

    def _read_on(self, file: Known, position: int) -> None:
        """Go on with the file that was being read at the crash, if it is still the same."""
        try:
            content = ContentFile(self._base / file.path)
        except FileNotFoundError:
            self._leave_unfinished(file)
            self._registry.save([file])
            return
        except OSError as error:
            raise SourceError(
                f"cannot read {shown(file.path)} any further: {error.strerror}; make it readable, "
                "and reading continues"
            ) from error
        self._current, self._content, self._position = file, content, position
        position = max(position, file.begin)
        self._began, self._reached = position if self._config.can_grow(file.path) else 0, position
        self._amount.found(file.path, content.opened.size - self._began)
        note = self._registry.noted(file.unit, position)
        if note is not None:
            self._opening = _Opening(position, note.hashed, note.digest, resumed=True)
        elif file.digest is not None and file.size is not None and file.size >= 0:
            self._opening = _Opening(position, file.size, file.digest, resumed=True)
        else:
            same = file.inode == content.opened.inode and file.ctime_ns in (None, content.opened.ctime_ns)
            same = same or file.inode == ANY_INODE
            grows = self._config.can_grow(file.path)
            if not same or (grows and content.opened.size < position):
                self._leave_unfinished(file)
                self._close_current()
                self._registry.save([file])
                return
            self._opening = _Opening(position, position if grows else 0, None, resumed=True)
        if self._config.is_parquet(file.path):
            self._opening.upto = None

    def _leave_unfinished(self, file: Known) -> None:
        """What is there now is another file, or none; the next look finds it."""
        file.end_seq, file.size, file.digest, file.sure = self._next_sequence, -1, None, False
        logger.warning(
            "%s was replaced or removed before its end was read; what is there now is read as a new file",
            shown(file.path),
        )

    def _compare(self) -> None:
        """One step towards knowing whether the file that was opened is the one to be read on."""
        file, content, opening = self._current, self._content, self._opening
        assert file is not None and content is not None and opening is not None
        if not content.hash_on(opening.upto):
            return
        if opening.digest is not None and content.digest() != opening.digest:
            if opening.resumed:
                self._leave_unfinished(file)
                self._close_current()
                self._changed.append(file)
                return
            content.rewind()  # it has not grown: it is another file
            if self._config.on_acknowledge == "keep":
                warn_of_reading_anew(file.path, file.earlier)
            file.begin, file.expected, file.refused, opening.position = 0, None, False, 0
            file.earlier = 0
            self._changed.append(file)
        self._opening = None
        self._reader = open_reader(content, self._config.shape_of(file.path), opening.position)

    def _end_current(self) -> None:
        """Note what was read, so that a grown or replaced file is recognised later."""
        file, reader, content = self._current, self._reader, self._content
        assert file is not None and reader is not None and content is not None
        file.end_seq = self._next_sequence
        file.looks(content.stamp())
        file.size, file.digest, file.sure = content.hashed, content.digest(), content.sure()
        file.head_crc, file.tail_crc = content.edges(file.size)
        file.refused = file.refused or bool(reader.damaged)
        if self._config.can_grow(file.path) and file.size > ALWAYS_COMPARED:
            before = self._hashes.pop(file.path, None)
            compared = file.size if content.gapless or before is None else before[2]
            self._hashes[file.path] = content.state(), file.size, compared
            if len(self._hashes) > REMEMBERED:
                self._hashes.popitem(last=False)
        self._close_current()
        self._changed.append(file)

    def _close_current(self) -> None:
        if self._current is not None:
            self._amount.done(self._current.path)
        if self._reader is not None:
            self._reader.close()
        if self._content is not None:
            self._content.close()
        self._reader = self._content = self._current = self._opening = None

    def _note_progress(self) -> None:
        """So that a restart finds out whether the file is still the one that is being read now."""
        file, content = self._current, self._content
        if file is not None and content is not None and self._reader is not None and self._position:
            self._registry.note(Note(file.unit, self._position, content.hashed, content.digest()))

    def _wait_and_look(self, deadline: float) -> None:
        now = time.monotonic()
        if now < self._search.look_at:
            time.sleep(max(0.0, min(self._search.look_at, deadline) - now))
        if time.monotonic() >= self._search.look_at:
            self._look(deadline)

    def _look(self, deadline: float) -> None:
        found = self._search.step(deadline)
        if found is not None:
            self._looked = True
            self._found.extend(found)
            for one in found:
                self._amount.found(one.path, one.size - one.begin)
            paths = {one.path for one in found}
            self._unreadable = {path: why for path, why in self._unreadable.items() if path in paths}

    def _idle(self) -> bool:
        """Everything that was found is read."""
        return self._current is None and not self._waiting and not self._found

    def _end(self) -> None:
        """Everything that was there is read."""
        closed = {**self._unreadable, **self._search.trouble(walked=False)}
        if closed:
            raise SourceError("; ".join(closed.values()))
        raise EndOfSource

    # Settling

    def _finish(self, settled: list[Known]) -> None:
        """Keep, move or delete files of which every event is settled: these, and those that still wait."""
        settled = settled + self._open.finished(SLICE_S)
        for file in {file.unit: file for file in settled}.values():
            self._open.close(file)
            self._put_away.add(file)
        if len(self._put_away):
            self._put_away.work()
        if settled:
            self._open.prune(self._next_sequence)
