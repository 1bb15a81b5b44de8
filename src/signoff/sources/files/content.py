"""A file as the files source knows it: the bytes that were read, and the stamp of the file that held them.

What it keeps: the digest is of the very bytes that were handed to the reader, in the file's order, not of
whatever lies under the path when somebody looks again. Everything is asked of the open descriptor, so a
file that is renamed over another one while it is read changes nothing.

A stamp (inode, size, times of change) that has not changed says that the content has not, if the last
change was a while before the reading began: two changes within one tick of the clock look the same.
Such a stamp is `sure`; any other has to be compared by content.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

STEP_BYTES = 4 * 1024**2
"""How much is hashed in one step, so that nobody waits long for one large file."""
EDGE_BYTES = 4096
"""How much of a file's beginning and end is compared before all of it is."""
TICK_S = 0.1
"""Longer than a tick of the clock by which file systems stamp."""
COARSE_TICK_S = 2.5
"""The same for file systems that count seconds, or two at a time."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What the file system says of a file without reading it."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        return cls(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    def settled(self, now: float) -> bool:
        """Whether a change from now on would give another stamp."""
        changed = max(self.mtime_ns, self.ctime_ns)
        coarse = self.ctime_ns % 1_000_000_000 == 0
        return changed / 1e9 + (COARSE_TICK_S if coarse else TICK_S) < now


class ContentFile:
    """One regular file, open for reading; remembers the digest of what was read from its beginning on."""

    def __init__(self, path: Path) -> None:
        # Without O_NONBLOCK, a FIFO that took the file's place would be waited for.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise FileNotFoundError(errno.ENOENT, "no longer a regular file", str(path))
        self.path = path
        self.opened = Stamp.of(status)
        self._opened_at = time.time()
        self._offset = 0
        self._hash = hashlib.sha256()
        self.hashed = 0
        """Of how many bytes, from the first on, the digest is."""
        self.gapless = True
        """Every byte below `hashed` was read by this process; False if a part was taken on trust."""

    def read(self, size: int = -1) -> bytes:
        """The next bytes; what was not read before becomes part of the digest."""
        data = os.pread(self._descriptor, STEP_BYTES if size is None or size < 0 else size, self._offset)
        self._note(data)
        return data

    def tell(self) -> int:
        return self._offset

    def seek(self, offset: int) -> None:
        """Go on elsewhere. What is jumped over is read as well, for the digest."""
        while self.hashed < offset and not self.hash_on(offset):
            pass
        self._offset = offset

    def hash_on(self, upto: int | None = None) -> bool:
        """One step towards having hashed that many bytes, or all; whether that, or the end, is reached."""
        wanted = STEP_BYTES if upto is None else min(STEP_BYTES, upto - self.hashed)
        if wanted <= 0:
            return True
        data = os.pread(self._descriptor, wanted, self.hashed)
        self._hash.update(data)
        self.hashed += len(data)
        return len(data) < wanted or self.hashed == upto

    def trust(self, digest: Hash, hashed: int) -> None:
        """Begin with a digest of an earlier reading of the file."""
        self._hash, self.hashed, self.gapless = digest.copy(), hashed, False

    def rewind(self) -> None:
        """Forget what was read."""
        self._hash, self.hashed, self._offset, self.gapless = hashlib.sha256(), 0, 0, True

    def digest(self) -> str:
        return self._hash.hexdigest()

    def state(self) -> Hash:
        """To `trust` in later, in this process."""
        return self._hash.copy()

    def stamp(self) -> Stamp:
        return Stamp.of(os.fstat(self._descriptor))

    def sure(self) -> bool:
        """Whether a file with the stamp of now holds what was read, all of it and nothing else."""
        now = self.stamp()
        same = now == self.opened and now.size == self.hashed
        return same and self.gapless and now.settled(self._opened_at)

    def edges(self, size: int) -> tuple[int, int]:
        """Checksums of the first and the last bytes of the first `size` bytes."""
        count = min(EDGE_BYTES, max(0, size))
        head = os.pread(self._descriptor, count, 0)
        tail = os.pread(self._descriptor, count, max(0, size - count))
        return zlib.crc32(head), zlib.crc32(tail)

    def duplicate(self) -> int:
        """Another descriptor of the same open file, for a library that reads here and there."""
        return os.dup(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _note(self, data: bytes) -> None:
        end = self._offset + len(data)
        if end > self.hashed:
            # A reader never jumps ahead without `seek`, so there is no gap.
            self._hash.update(memoryview(data)[self.hashed - self._offset :])
            self.hashed = end
        self._offset = end
