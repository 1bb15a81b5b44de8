"""Backing up a state directory, also while its run goes on, and putting a backup in its place.

A backup is what a loss of all processes at one moment would have left: everything that a run needs to go on
from there. Most is copied while the run works; then the run stands still for as long as it takes to copy what
has changed since (`freezing`).

    DIR.partial-…/    being made; `restore` does not take it, the next backup to DIR removes it (`unfinished`)
    DIR/              renamed when all of it is durable
    DIR/backup.json   written last: the pipeline, the time, and size and checksum of every file
    DIR/state/        the files

Directories of the state that are links to elsewhere, as to a larger disk, are followed, and restored as plain
ones. Files that are links are refused: what SQLite keeps beside them is elsewhere.

What is restored is checked against the checksums, and appears in its place whole or not at all. It may
deliver again what was not settled then. What it cannot do is said (see `cli.restore`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISLNK
from typing import Any

from signoff.durable import sync_directory, sync_file, write_whole
from signoff.engine.state_dir.freezing import frozen
from signoff.engine.state_dir.unfinished import finish, unfinished
from signoff.errors import StateError
from signoff.ledger.engine_lock import engine_lock
from signoff.ledger.run_lock import RunLock
from signoff.pipeline.graph import Graph
from signoff.private import make_private

MANIFEST = "backup.json"
STATE = "state"
LEDGER = "ledger.db"
FORMAT = 1
PARTIAL = ".partial-"
RESTORING = ".restoring-"
_LEFT_OUT = frozenset({"lock", "engine.lock", "dead_letters.lock", "engine.json", "spark.log"})
"""Of the run that is alive, or for people."""
_PASSING = ("kept",)
"""Rows of a pass that is under way, which begins again (see `engine.plan.kept_rows`)."""
_UNSURE_S = 2.0
"""A file that was changed so shortly before it was copied may be changed again without another time."""
_ROUNDS = 3
_BLOCK = 1024**2

Seen = tuple[int, int, int]
"""inode, size and time of change."""


@dataclass(frozen=True)
class Backup:
    """What the manifest says."""

    pipeline: str
    made_at: float
    running: bool
    """Whether a run was alive."""
    files: dict[str, tuple[int, str]]
    """Size and SHA-256 by path."""

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.files.values())


def back_up(graph: Graph, directory: Path) -> Backup:
    """Make a backup in a directory that is not there yet."""
    state, directory = graph.state, directory.absolute()
    if not (state / LEDGER).exists():
        raise StateError(f"{state}: there is no state to back up")
    if directory.resolve().is_relative_to(state.resolve()):
        raise StateError(f"{directory} is in the state directory itself")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise StateError(f"{directory} is there already; each backup needs a directory of its own")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with unfinished(directory, PARTIAL) as partial:
        return _make(graph, state, partial, directory)


def _make(graph: Graph, state: Path, partial: Path, directory: Path) -> Backup:
    copy = _Copy(state, partial / STATE)
    with ExitStack() as stack:
        lock = RunLock(state)
        running = not lock.try_acquire()
        if running:
            for _ in range(_ROUNDS):
                copy.update()
            stack.enter_context(frozen(_holder(lock)))
        else:
            stack.callback(lock.release)
            stack.enter_context(engine_lock(state))
        made_at = time.time()
        copy.update(last=True)
        copy.require_whole()
    _fold_journals(partial / STATE)
    backup = Backup(graph.name, made_at, running, dict(_sums(partial / STATE)))
    if LEDGER not in backup.files:
        raise StateError(f"{LEDGER} has disappeared from {partial}; nothing was backed up")
    for path in sorted(partial.rglob("*"), key=lambda each: len(each.parts), reverse=True):
        sync_directory(path) if path.is_dir() else sync_file(path)
    write_whole(partial / MANIFEST, json.dumps(_as_dict(backup), indent=1).encode())
    finish(partial, directory)
    sync_directory(directory.parent)
    return backup


def _holder(lock: RunLock) -> int:
    pid = lock.held_by()
    if not pid:
        raise StateError("the run has ended this moment; try again")
    return pid


class _Copy:
    """A copy of a directory that is brought up to date in rounds."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source, target
        self._seen: dict[str, Seen] = {}
        make_private(target)

    def update(self, *, last: bool = False) -> None:
        """Copy what has changed since the last round. In the last one nothing changes meanwhile."""
        there = set()
        for name in self._names():
            there.add(name)
            try:
                self._file(name, last)
            except FileNotFoundError:  # trimmed, or renamed, this moment
                if last:
                    raise StateError(f"{name} disappeared meanwhile; nothing was backed up") from None
                there.discard(name)
        for name in self._seen.keys() - there:
            (self._target / name).unlink(missing_ok=True)
            del self._seen[name]

    def require_whole(self) -> None:
        """Raises StateError if a file that was copied is not in the copy."""
        for name, (_, size, _) in self._seen.items():
            path = self._target / name
            if not path.is_file() or path.stat().st_size != size:
                raise StateError(f"{path} is not as it was copied; nothing was backed up")

    def _names(self) -> Iterator[str]:
        for base, directories, files in os.walk(self._source, onerror=_unreadable, followlinks=True):
            place = Path(base).relative_to(self._source)
            for above in (self._target, *(self._source / each for each in place.parents)):
                with suppress(FileNotFoundError):  # removed this moment
                    if above.samefile(base):
                        raise StateError(f"{base} leads back to {above}: a copy of it would have no end")
            for name in directories:
                make_private(self._target / place / name)
            for name in files:
                passing = place.parts[:1] == _PASSING or name.endswith("-shm")
                if str(place / name) not in _LEFT_OUT and not passing:
                    yield str(place / name)

    def _file(self, name: str, last: bool) -> None:
        path = self._source / name
        stat = path.lstat()
        if S_ISLNK(stat.st_mode):
            raise StateError(f"{path} is a link to a file, or to nothing; a backup follows only directories")
        seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if self._seen.get(name) == seen:
            return
        fresh = time.time() - stat.st_mtime < _UNSURE_S
        target = self._target / name
        target.unlink(missing_ok=True)
        shutil.copyfile(path, target)
        target.chmod(0o600)
        self._seen[name] = (0, 0, 0) if fresh and not last else seen


def _unreadable(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # removed this moment
        raise StateError(f"{error.filename}: {error.strerror}; nothing was backed up") from error


def _fold_journals(directory: Path) -> None:
    """Bring what is in the journals of SQLite into its files, and see that they are whole."""
    for path in directory.rglob("*.db"):
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise StateError(f"{path.relative_to(directory)} is damaged: {found}; nothing was backed up")
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


def read_backup(directory: Path) -> Backup:
    """Raises StateError for what is no backup, or a half one."""
    try:
        content: dict[str, Any] = json.loads((directory / MANIFEST).read_bytes())
        if content["format"] != FORMAT:
            raise StateError(
                f"{directory}: a backup of format {content['format']}; this Signoff reads {FORMAT}"
            )
        files = {name: (int(size), str(sha)) for name, (size, sha) in content["files"].items()}
        return Backup(str(content["pipeline"]), float(content["made_at"]), bool(content["running"]), files)
    except FileNotFoundError:
        half = " (one that was not finished)" if PARTIAL in directory.name else ""
        raise StateError(f"{directory} is no backup{half}: it has no {MANIFEST}") from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StateError(f"{directory / MANIFEST} cannot be read: {error!r}") from error


def restore(graph: Graph, directory: Path) -> Backup:
    """Put a backup in the place of a state directory that is not there."""
    backup = read_backup(directory.absolute())
    state = graph.state
    if backup.pipeline != graph.name:
        raise StateError(f'{directory} is a backup of pipeline "{backup.pipeline}", not of "{graph.name}"')
    if LEDGER not in backup.files:
        raise StateError(f"{directory} is no whole backup: {LEDGER} is not in it")
    if state.exists() and any(state.iterdir()):
        raise StateError(
            f"{state} is there already: move it away first. As long as it can be read, it is newer than any "
            "backup"
        )
    make_private(state.parent)
    with unfinished(state, RESTORING) as fresh:
        _copy_checked(backup, directory / STATE, fresh)
        if backup.running:
            _let_go_of_links(fresh)
        for path in sorted(fresh.rglob("*"), key=lambda each: len(each.parts), reverse=True):
            sync_directory(path) if path.is_dir() else sync_file(path)
        sync_directory(fresh)
        finish(fresh, state)
    sync_directory(state.parent)
    return backup


def _copy_checked(backup: Backup, source: Path, target: Path) -> None:
    make_private(target)
    for path in source.rglob("*"):
        if path.is_dir():
            make_private(target / path.relative_to(source))
    for name, (size, sha) in backup.files.items():
        path = target / name
        if not path.resolve().is_relative_to(target.resolve()):
            raise StateError(f"{source / name}: a backup does not hold files outside of itself")
        make_private(path.parent)
        try:
            shutil.copyfile(source / name, path)
        except FileNotFoundError:
            raise StateError(f"{source / name} is missing; the backup is not whole") from None
        path.chmod(0o600)
        if (path.stat().st_size, _sum(path)) != (size, sha):
            raise StateError(f"{source / name} is not as it was written; the backup is damaged")


def _let_go_of_links(state: Path) -> None:
    """After the backup the run has gone on writing to links and reading from them. The links know its batches
    by name, and the names come again with other events: so this one is not the writer, or the reader, any
    more, until nothing of the other waits in the link (see `link.ownership`)."""
    with closing(sqlite3.connect(state / LEDGER, isolation_level=None)) as db:
        db.execute("DELETE FROM tokens")
    for reader in (state / "intake").glob("*/reader"):
        write_whole(reader, b"restored")


def _sums(directory: Path) -> Iterator[tuple[str, tuple[int, str]]]:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(directory)), (path.stat().st_size, _sum(path))


def _sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _as_dict(backup: Backup) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "pipeline": backup.pipeline,
        "made_at": backup.made_at,
        "running": backup.running,
        "files": {name: list(each) for name, each in backup.files.items()},
    }
