"""Making the files of a batch visible, each whole and once, however often a commit is killed and repeated.

A batch is one file, or several by directory and size. For several:

    .parts/<batch>/whole-<n>     the files as they will be, put together from the parts and fsynced
    .parts/<batch>/commit.json   which of them goes where: from here on the commit is only ever finished
    .batches/<batch>.json        which files the batch has: those that a replay does not have are removed

Without it, the one file that a batch may have is found by its name, in whatever format the sink wrote then.

A part is only linked, so until the end nothing is lost that a repeated commit would need. Files of a batch
become visible one after the other; each is complete.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from signoff.durable import make_directory, sync_directory, sync_file, write_whole
from signoff.errors import TransientError
from signoff.sinks.disk_failures import cannot_exist
from signoff.sinks.files.parts import Compression, Limits, PartFile, write_all

PARTS, BATCHES = ".parts", ".batches"
COMMIT = "commit.json"
SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".csv", ".csv.gz", ".csv.zst", ".parquet")
"""Of all files that a sink has ever written here; its format may be changed between a kill and a replay."""
REMEMBERED = 1_000
"""Of how many batches it is kept which files they have. Only the last ones can come again."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a batch becomes files."""

    directory: Path
    suffix: str
    compression: Compression
    limits: Limits
    divided: bool
    """By the values of rows."""

    def targets(self, key: str, files: Sequence[PartFile]) -> dict[str, list[PartFile]]:
        """The files of a batch, below the directory, and what each is made of."""
        if not self.divided and self.limits == Limits():
            return {key + self.suffix: list(files)} if files else {}
        found: dict[str, list[PartFile]] = {}
        by_directory: dict[str, list[PartFile]] = {}
        for file in files:
            by_directory.setdefault(file.directory, []).append(file)
        for directory, members in by_directory.items():
            for number, group in enumerate(self._groups(members)):
                name = f"{key}-{number:05d}" if self.limits != Limits() else key
                found[os.path.join(directory, name + self.suffix)] = group  # noqa: PTH118
        return found

    def longest(self, key: str) -> Path:
        """As long as a file of the batch can be, besides its directory by value."""
        return self.directory / f"{key}-00000{self.suffix}"

    def _groups(self, files: Sequence[PartFile]) -> list[list[PartFile]]:
        groups: list[list[PartFile]] = []
        rows = size = 0
        for file in files:
            if not groups or self.limits.exceeded(rows + file.rows, size + file.size):
                groups.append([])
                rows = size = 0
            groups[-1].append(file)
            rows, size = rows + file.rows, size + file.size
        return groups


class Commit:
    """One batch."""

    def __init__(self, layout: Layout, key: str) -> None:
        self._layout, self._key = layout, key
        self._root, self._folder = layout.directory, layout.directory / PARTS / key
        self._manifest = layout.directory / BATCHES / f"{key}.json"

    def publish(self, files: Sequence[PartFile]) -> None:
        """Make them visible in the place of whatever the batch had before."""
        targets = self._layout.targets(self._key, files)
        staged = self._noted(files, targets)
        missing = [file.name for file in files if not (self._folder / file.name).exists()]
        there = all((self._root / name).exists() for name in targets)
        if staged is None and missing and len(missing) == len(files) and there:
            self._sync(targets)  # committed before: parts disappear only after the renames
            return
        # If only some are there, others were committed with what these are to replace: rows that are in
        # these alone would count as written.
        if staged is None and missing:
            raise TransientError(
                f"{', '.join(missing)} of {self._key} disappeared from {self._folder}: write the batch again"
            )
        before = self._known() - set(targets)
        if staged is None and list(targets) == [self._key + self._layout.suffix] and not before:
            self._publish_one(files, self._root / self._key)
            return
        staged = staged or self._staged(files, targets)
        if before or self._manifest.exists() or not self._found_by_name() >= set(targets):
            make_directory(self._manifest.parent)
            write_whole(self._manifest, json.dumps(sorted({*targets, *before})).encode())
        for directory in {(self._root / name).parent for name in targets}:
            make_directory(directory)
        for name, target in staged.items():
            with suppress(FileNotFoundError):  # renamed before
                (self._folder / name).replace(self._root / target)
        for name in before:
            (self._root / name).unlink(missing_ok=True)
        self._sync([*targets, *before])
        if before:
            write_whole(self._manifest, json.dumps(sorted(targets)).encode())

    def _publish_one(self, files: Sequence[PartFile], stem: Path) -> None:
        whole = self._folder / files[0].name
        if len(files) > 1:
            whole = self._folder / ("whole" + self._layout.suffix)
            self._put_together(files, whole)
        whole.replace(stem.with_name(stem.name + self._layout.suffix))
        sync_directory(self._root)

    def remove(self) -> None:
        """The batch has no rows, and no files any more. Repeated after it failed, it syncs again: a file that
        was removed before may come back until then."""
        known, noted = self._known(), self._in_manifest()
        for name in known:
            (self._root / name).unlink(missing_ok=True)
        unfinished = [self._key] if self._folder.exists() else []
        self._sync([*known, *noted, *unfinished])
        self._manifest.unlink(missing_ok=True)

    def _found_by_name(self) -> set[str]:
        """Where a batch of one file has it, unless that is in a directory by value."""
        return {self._key + number + suffix for number in ("", "-00000") for suffix in SUFFIXES}

    def _known(self) -> set[str]:
        """The files that the batch has had, also by another layout. A directory is none of them."""
        known = self._found_by_name() | self._in_manifest()
        return {name for name in known if _is_file(self._root / name)}

    def _in_manifest(self) -> set[str]:
        with suppress(FileNotFoundError, ValueError):
            return set(json.loads(self._manifest.read_bytes()))
        return set()

    def _staged(self, files: Sequence[PartFile], targets: dict[str, list[PartFile]]) -> dict[str, str]:
        """Make the files as they will be; returns the names under which they wait, and where they go."""
        staged: dict[str, str] = {}
        for number, (target, members) in enumerate(targets.items()):
            name = f"whole-{number}{self._layout.suffix}"
            path = self._folder / name
            path.unlink(missing_ok=True)
            if len(members) == 1:
                _link(self._folder / members[0].name, path)
            else:
                self._put_together(members, path)
            staged[name] = target
        sync_directory(self._folder)
        note = {"parts": [file.name for file in files], "staged": staged}
        write_whole(self._folder / COMMIT, json.dumps(note).encode())
        return staged

    def _noted(self, files: Sequence[PartFile], targets: dict[str, list[PartFile]]) -> dict[str, str] | None:
        """What `_staged` has returned for the same parts in a commit that did not come to its end."""
        with suppress(FileNotFoundError, ValueError):
            noted = json.loads((self._folder / COMMIT).read_bytes())
            staged: dict[str, str] = noted["staged"]
            same = noted["parts"] == [file.name for file in files] and set(staged.values()) == set(targets)
            here = [
                (self._folder / name).exists() or (self._root / to).exists() for name, to in staged.items()
            ]
            if same and all(here):
                return staged
        return None

    def _put_together(self, files: Sequence[PartFile], target: Path) -> None:
        paths = [self._folder / file.name for file in files]
        if self._layout.suffix == ".parquet":
            _merge_parquet(paths, target, self._layout.compression)
        else:
            _concatenate(paths, [0, *(file.head for file in files[1:])], target)
        sync_file(target)

    def _sync(self, names: Sequence[str] | dict[str, list[PartFile]]) -> None:
        for directory in {(self._root / name).parent for name in names}:
            try:
                sync_directory(directory)
            except OSError as error:
                if not isinstance(error, FileNotFoundError) and not cannot_exist(error):
                    raise


def remove_within(layout: Layout, source: str, first: int, end: int) -> None:
    """Remove the files of all batches of a source that lie in a range of its log, in whatever directory."""
    pattern = re.compile(rf"{re.escape(source)}-(\d{{12,}})-(\d{{12,}})(?:-replay\d+)?[.-]")
    for where, _, names in os.walk(layout.directory):
        gone = [
            name
            for name in names
            if (match := pattern.match(name)) and first <= int(match[1]) and int(match[2]) <= end
        ]
        for name in gone:
            (Path(where) / name).unlink(missing_ok=True)
        if gone:
            sync_directory(Path(where))


def forget_old(directory: Path) -> None:
    """Remove the notes of batches that cannot come again."""
    notes = [(entry.stat().st_mtime_ns, entry.path) for entry in _entries(directory / BATCHES)]
    for _, path in sorted(notes)[:-REMEMBERED]:
        Path(path).unlink(missing_ok=True)


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    with suppress(FileNotFoundError), os.scandir(directory) as entries:
        return list(entries)
    return []


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        if cannot_exist(error):
            return False
        raise


def _link(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:  # no hard links here
        shutil.copyfile(path, target)
        sync_file(target)


def _concatenate(files: Sequence[Path], skipped: Sequence[int], target: Path) -> None:
    with target.open("wb") as out:
        for file, offset in zip(files, skipped, strict=True):
            with file.open("rb") as part:
                part.seek(offset)
                _copy(part.fileno(), out.fileno(), file.stat().st_size - offset)


def _copy(source: int, target: int, size: int) -> None:
    """In the kernel, without passing the bytes through this process."""
    while size > 0:
        try:
            copied = os.copy_file_range(source, target, size)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            chunk = os.read(source, 1 << 20)
            copied = write_all(target, memoryview(chunk))
        if copied == 0:
            raise OSError(errno.EIO, "a part is shorter than it was")
        size -= copied


def _merge_parquet(files: Sequence[Path], target: Path, compression: Compression) -> None:
    with pq.ParquetWriter(target, pq.read_schema(files[0]), compression=compression) as out:
        for file in files:
            with pq.ParquetFile(file) as part:
                for group in range(part.num_row_groups):
                    table = part.read_row_group(group)
                    out.write_table(table, row_group_size=max(table.num_rows, 1))
