"""A disk in memory that knows what of it would survive a loss of power, as pessimistic as POSIX allows.

- What was written to a file, and its length, is durable once that file was fsynced. Not its name.
- A name in a directory, new, gone or changed, is durable once that directory was fsynced. A rename is one
  change: durable with either of its directories.
- Nothing else is. What is not durable may be lost or not, each change for itself: `survivors` takes all of it
  away, or a random part. A write that survives may be torn.

A change is a tuple, so that a run can be recorded and gone through again up to any point (`replay`).
"""

from __future__ import annotations

import pickle
import random
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = 1
SECTOR = 512

Change = tuple[Any, ...]


@dataclass
class Inode:
    """A file or a directory: as it is, as it is on disk, and what is between the two."""

    number: int
    mode: int
    data: bytearray = field(default_factory=bytearray)
    names: dict[str, int] = field(default_factory=dict)
    kept_data: bytearray = field(default_factory=bytearray)
    kept_names: dict[str, int] = field(default_factory=dict)
    pending: list[Change] = field(default_factory=list)
    changed_ns: int = 0

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)


class Disk:
    def __init__(self) -> None:
        self.inodes = {ROOT: Inode(ROOT, stat.S_IFDIR | 0o755)}
        self.following = ROOT + 1
        """The number of the next file."""
        self._renames = 0

    def apply(self, change: Change) -> None:
        """Make one change, as `create`, `write` and so on below."""
        kind, *rest = change
        getattr(self, f"_{kind}")(*rest)

    # -- the changes

    def _create(self, parent: int, name: str, number: int, mode: int, now: int) -> None:
        self.following = max(self.following, number + 1)
        self.inodes[number] = Inode(number, mode, changed_ns=now)
        self._set(parent, name, number)

    def _write(self, number: int, offset: int, data: bytes, now: int) -> None:
        inode = self.inodes[number]
        _put(inode.data, offset, data)
        inode.pending.append(("write", offset, data))
        inode.changed_ns = now

    def _truncate(self, number: int, size: int, now: int) -> None:
        inode = self.inodes[number]
        _resize(inode.data, size)
        inode.pending.append(("truncate", size))
        inode.changed_ns = now

    def _remove(self, parent: int, name: str) -> None:
        self._set(parent, name, None)

    def _rename(self, parent: int, name: str, new_parent: int, new_name: str) -> None:
        number = self.inodes[parent].names[name]
        self._renames += 1
        change = ("rename", self._renames, parent, name, new_parent, new_name, number)
        del self.inodes[parent].names[name]
        self.inodes[new_parent].names[new_name] = number
        for directory in {parent, new_parent}:
            self.inodes[directory].pending.append(change)

    def _mode(self, number: int, mode: int) -> None:
        inode = self.inodes[number]
        inode.mode = stat.S_IFMT(inode.mode) | stat.S_IMODE(mode)

    def _touch(self, number: int, now: int) -> None:
        self.inodes[number].changed_ns = now

    def _sync(self, number: int) -> None:
        inode = self.inodes[number]
        pending, inode.pending = inode.pending, []
        if not inode.is_directory:
            for change in pending:
                _redo(inode.kept_data, change)
            return
        inode.kept_names = dict(inode.names)
        for change in pending:
            if change[0] == "rename":
                self._keep_elsewhere(change, number)

    def _set(self, parent: int, name: str, number: int | None) -> None:
        directory = self.inodes[parent]
        if number is None:
            del directory.names[name]
        else:
            directory.names[name] = number
        directory.pending.append(("set", name, number))

    def _keep_elsewhere(self, change: Change, synced: int) -> None:
        """The other half of a rename that has become durable."""
        _, _, parent, name, new_parent, new_name, number = change
        for directory, own, value in ((parent, name, None), (new_parent, new_name, number)):
            other = self.inodes[directory]
            if directory == synced or change not in other.pending:
                continue
            place = other.pending.index(change)
            before = [each for each in other.pending[:place] if not _is_about(each, directory, own)]
            other.pending[: place + 1] = before
            _keep(other.kept_names, own, value)

    # -- a loss of power

    def survivors(self, chance: random.Random | None = None) -> Disk:
        """What is there afterwards: only what was synced, or besides a random part of all else."""
        found = Disk()
        found.following, found._renames = self.following, self._renames
        share = chance.choice((0.0, 0.2, 0.5, 0.9, 1.0)) if chance is not None else 0.0
        renames: dict[int, bool] = {}

        def survives(change: Change) -> bool:
            if chance is None:
                return False
            if change[0] == "rename":
                return renames.setdefault(change[1], chance.random() < share)
            return chance.random() < share

        for number, inode in self.inodes.items():
            kept = Inode(number, inode.mode, changed_ns=inode.changed_ns)
            kept.data, kept.names = bytearray(inode.kept_data), dict(inode.kept_names)
            for change in inode.pending:
                if survives(change):
                    _survive(kept, change, chance)
            kept.kept_data, kept.kept_names = bytearray(kept.data), dict(kept.names)
            found.inodes[number] = kept
        found._drop_unreachable()
        return found

    def _drop_unreachable(self) -> None:
        reachable, waiting = set(), [ROOT]
        while waiting:
            number = waiting.pop()
            if number not in reachable:
                reachable.add(number)
                waiting += self.inodes[number].names.values()
        self.inodes = {number: inode for number, inode in self.inodes.items() if number in reachable}

    # -- looking at it

    def find(self, path: str) -> Inode | None:
        inode: Inode | None = self.inodes[ROOT]
        for name in filter(None, path.split("/")):
            number = inode.names.get(name) if inode is not None else None
            inode = self.inodes.get(number) if number is not None else None
        return inode

    def files(self, number: int = ROOT, path: str = "") -> Iterator[tuple[str, Inode]]:
        for name, child in sorted(self.inodes[number].names.items()):
            inode = self.inodes[child]
            if inode.is_directory:
                yield from self.files(child, f"{path}/{name}")
            else:
                yield f"{path}/{name}", inode


def changes(journal: Path) -> list[Change]:
    """All changes of a recorded run, in order."""
    found = []
    with journal.open("rb") as file:
        while True:
            try:
                found.append(pickle.load(file))
            except EOFError:
                return found


def replay(image: bytes, recorded: list[Change]) -> Disk:
    """A disk after these changes."""
    disk: Disk = pickle.loads(image)
    for change in recorded:
        disk.apply(change)
    return disk


def _survive(inode: Inode, change: Change, chance: random.Random | None) -> None:
    assert chance is not None
    if change[0] == "set":
        _keep(inode.names, change[1], change[2])
    elif change[0] == "rename":
        _, _, parent, name, new_parent, new_name, number = change
        if inode.number == parent and inode.names.get(name) == number:
            del inode.names[name]
        if inode.number == new_parent:
            inode.names[new_name] = number
    elif change[0] == "write" and chance.random() < 0.2:
        sectors = len(change[2]) // SECTOR
        _redo(inode.data, ("write", change[1], change[2][: chance.randint(0, sectors) * SECTOR]))
    else:
        _redo(inode.data, change)


def _redo(data: bytearray, change: Change) -> None:
    if change[0] == "write":
        _put(data, change[1], change[2])
    else:
        _resize(data, change[1])


def _is_about(change: Change, directory: int, name: str) -> bool:
    if change[0] == "set":
        return bool(change[1] == name)
    _, _, parent, old, new_parent, new, _ = change
    return (parent, old) == (directory, name) or (new_parent, new) == (directory, name)


def _keep(names: dict[str, int], name: str, number: int | None) -> None:
    if number is None:
        names.pop(name, None)
    else:
        names[name] = number


def _put(data: bytearray, offset: int, piece: bytes) -> None:
    if len(data) < offset:
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(piece)] = piece


def _resize(data: bytearray, size: int) -> None:
    del data[size:]
    data.extend(bytes(size - len(data)))
