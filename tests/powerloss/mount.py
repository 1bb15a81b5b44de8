"""A `Disk` as a file system, by FUSE, in a process of its own; every change is recorded in a journal.

    with Mounted(image, directory, journal):   # image: a pickled Disk
        ...                                    # directory is on that disk

The journal grows by one pickle per change, before the change is answered: its size is a moment of the run.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import pickle
import stat
import subprocess
import sys
import time
from pathlib import Path
from shutil import which
from typing import Any, Self

from tests.powerloss.disk import ROOT, Disk, Inode
from tests.servers import wait_until


def missing() -> str:
    """What there lacks to mount one; '' if nothing does."""
    if importlib.util.find_spec("mfusepy") is None:
        return "the Python package mfusepy is not installed (make setup)"
    if which("fusermount3") is None:
        return "fuse3 is not installed (make setup)"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse cannot be used by this user"
    return ""


_HIDDEN = ".fuse_hidden"
"""What libfuse renames a file to that is removed, or replaced, while somebody has it open."""


class Mounted:
    """One disk, for as long as it is mounted."""

    def __init__(self, image: bytes, directory: Path, journal: Path) -> None:
        self.directory, self.journal = directory, journal
        directory.mkdir(parents=True, exist_ok=True)
        source = journal.with_suffix(".image")
        source.write_bytes(image)
        journal.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.powerloss.mount", str(source), str(directory), str(journal)],
            cwd=Path(__file__).parents[2],
        )
        wait_until(self._is_mounted, what="the disk is mounted")

    def _is_mounted(self) -> bool:
        assert self._process.poll() is None, "the file system did not start"
        return os.path.ismount(self.directory)

    @property
    def moment(self) -> int:
        """How much of the journal there is."""
        return self.journal.stat().st_size

    def unmount(self) -> None:
        if self._process.poll() is None:
            # Lazily: what is still open (a log of Java's, a provider of state) keeps nobody waiting.
            subprocess.run(["fusermount3", "-u", "-z", str(self.directory)], check=False)
            try:
                self._process.wait(0.3)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()


def _serve(image: Path, directory: Path, journal: Path) -> None:
    import mfusepy

    class FileSystem(_FileSystem, mfusepy.Operations):  # type: ignore[misc]
        # Open files are known by their numbers: a file that was removed has no path.
        flag_nopath = flag_nullpath_ok = True

    class Fuse(mfusepy.FUSE):  # type: ignore[misc]
        def truncate_fuse_3(self, path: bytes | None, length: int, fip: Any) -> int:
            number = fip.contents.fh if fip else None
            return int(self.operations.truncate(path.decode() if path else None, length, number))

    Fuse(
        FileSystem(pickle.loads(image.read_bytes()), journal),
        str(directory),
        foreground=True,
        nothreads=True,
        use_ino=True,
        fsname="forgetful",
    )


class _FileSystem:
    """What FUSE asks for."""

    use_ns = True

    def __init__(self, disk: Disk, journal: Path) -> None:
        self._disk = disk
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._hidden: dict[str, int] = {}
        self._removed: str | None = None
        """Hidden a moment ago: removed, unless another file is renamed to that path at once."""

    def _change(self, *change: Any) -> None:
        self._finish_removal()
        self._disk.apply(change)
        os.write(self._journal, pickle.dumps(change, protocol=5))

    def _finish_removal(self) -> None:
        path, self._removed = self._removed, None
        if path is not None:
            self._change("remove", *self._place(path))

    def _inode(self, path: str | None, number: int | None = None) -> Inode:
        self._finish_removal()
        if path is None or path in self._hidden:
            return self._disk.inodes[self._hidden[path] if path is not None else number or ROOT]
        found = self._disk.find(path)
        if found is None:
            raise OSError(errno.ENOENT, path)
        return found

    def _place(self, path: str) -> tuple[int, str]:
        parent, _, name = path.rpartition("/")
        return self._inode(parent).number, name

    # -- reading

    def getattr(self, path: str | None, fh: int | None = None) -> dict[str, Any]:
        inode = self._inode(path, fh)
        return {
            "st_ino": inode.number,
            "st_mode": inode.mode,
            "st_nlink": 2 if inode.is_directory else 1,
            "st_size": len(inode.data),
            "st_blocks": -(-len(inode.data) // 512),
            "st_uid": os.getuid(),
            "st_gid": os.getgid(),
            "st_mtime": inode.changed_ns,
            "st_ctime": inode.changed_ns,
            "st_atime": inode.changed_ns,
        }

    def readdir(self, path: str | None, fh: int) -> list[tuple[str, dict[str, int], int]]:
        numbers = {".": fh, "..": ROOT, **self._inode(None, fh).names}
        inodes = self._disk.inodes
        return [(name, {"st_ino": n, "st_mode": inodes[n].mode}, 0) for name, n in numbers.items()]

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return bytes(self._disk.inodes[fh].data[offset : offset + size])

    def statfs(self, path: str) -> dict[str, int]:
        much = 2**24
        sizes = dict.fromkeys(("f_blocks", "f_bfree", "f_bavail"), much)
        return {"f_bsize": 4096, "f_frsize": 4096, "f_namemax": 255, **sizes}

    def access(self, path: str, amode: int) -> int:
        self._inode(path)
        return 0

    def opendir(self, path: str) -> int:
        return self._inode(path).number

    # -- changing

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        parent, name = self._place(path)
        number = self._disk.following
        kind = 0 if stat.S_IFMT(mode) else stat.S_IFREG
        self._change("create", parent, name, number, mode | kind, time.time_ns())
        return number

    def mkdir(self, path: str, mode: int) -> int:
        self.create(path, stat.S_IFDIR | mode)
        return 0

    def open(self, path: str, flags: int) -> int:
        number = self._inode(path).number
        if flags & os.O_TRUNC:
            self._change("truncate", number, 0, time.time_ns())
        return number

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._change("write", fh, offset, bytes(data), time.time_ns())
        return len(data)

    def truncate(self, path: str | None, length: int, fh: int | None = None) -> int:
        self._change("truncate", self._inode(path, fh).number, length, time.time_ns())
        return 0

    def unlink(self, path: str) -> int:
        self._finish_removal()
        if self._hidden.pop(path, None) is None:
            self._change("remove", *self._place(path))
        return 0

    def rmdir(self, path: str) -> int:
        if self._inode(path).names:
            raise OSError(errno.ENOTEMPTY, path)
        self._change("remove", *self._place(path))
        return 0

    def rename(self, old: str, new: str) -> int:
        if new.rpartition("/")[2].startswith(_HIDDEN):
            self._hidden[new] = self._inode(old).number
            self._removed = old
            return 0
        if self._removed == new:
            self._removed = None  # what is renamed takes its place
        there = self._disk.find(new)
        if there is not None and there.is_directory and there.names:
            raise OSError(errno.ENOTEMPTY, new)
        self._change("rename", *self._place(old), *self._place(new))
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._change("sync", fh)
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self._change("sync", fh)
        return 0

    def chmod(self, path: str | None, mode: int) -> int:
        if path is not None:  # of an open file nobody here changes it
            self._change("mode", self._inode(path).number, mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        return 0

    def utimens(self, path: str | None, times: tuple[int, int] | None = None) -> int:
        if path is not None:
            self._change("touch", self._inode(path).number, times[1] if times else time.time_ns())
        return 0


if __name__ == "__main__":
    _serve(*map(Path, sys.argv[1:4]))
