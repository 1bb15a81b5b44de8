"""What a pipeline is asked to be, on disk: the whole of it is replaced, fsynced, before anything is done.

    DIRECTORY/record.json       this record
    DIRECTORY/texts/7.yaml      the text of revision 7; revisions that nothing names any more are removed
    DIRECTORY/NAME.yaml         the text in force, for `signoff run` and for people
    DIRECTORY/run, run.log      the process of its run (see `run_process`), and what that writes
    DIRECTORY/state/            the state directory, unless the pipeline names another one

Invariant: the service may be killed between any two writes. The record decides; a step of an update that was
begun is taken again from it, and taking it twice changes nothing.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from signoff.durable import sync_directory, write_whole
from signoff.private import make_private

RECORD, TEXTS = "record.json", "texts"
_KEPT = 10
"""Revisions that stay, to be looked at."""

Wanted = Literal["running", "stopped"]


@dataclass(frozen=True)
class Stopping:
    """A run that was asked to end."""

    asked_at: float
    """By `uptime`."""
    within_s: float
    """How long it may go on with what is in flight."""
    signalled: int | None = None
    """The pid that was asked; a second SIGTERM would end it at once."""


@dataclass(frozen=True)
class Update:
    """One text takes the place of another, while the pipeline runs."""

    revision: int
    """The new one."""
    before: int
    """The one that runs again if the new one does not start."""
    phase: Literal["draining", "starting"]
    since: float
    """By `uptime`: when the phase began; of a start, when its run was launched last."""


@dataclass(frozen=True)
class UpdateResult:
    """How the last update ended."""

    revision: int
    result: Literal["done", "rolled_back", "stopped"]
    reason: str
    at: float


@dataclass(frozen=True)
class Record:
    """All of it."""

    wanted: Wanted
    revision: int
    """Of the text in force; during an update the old one, until that has drained."""
    stopping: Stopping | None = None
    update: Update | None = None
    last_update: UpdateResult | None = None

    @property
    def newest(self) -> int:
        """The revision that was submitted last."""
        used = [self.revision, *(each.revision for each in (self.update, self.last_update) if each)]
        return max(used)


class RecordFile:
    """Keeps the record of one pipeline, and its texts."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.name = directory, directory.name
        self.file = directory / f"{directory.name}.yaml"

    def read(self) -> Record | None:
        """None if the pipeline was never accepted: a kill in the midst of its first submission."""
        try:
            found: dict[str, Any] = json.loads((self.directory / RECORD).read_bytes())
        except FileNotFoundError:
            return None
        parts = {"stopping": Stopping, "update": Update, "last_update": UpdateResult}
        for name, kind in parts.items():
            found[name] = kind(**found[name]) if found.get(name) else None
        return Record(**found)

    def write(self, record: Record) -> None:
        write_whole(self.directory / RECORD, json.dumps(asdict(record), indent=1).encode())

    def text(self, revision: int) -> str:
        return self._path(revision).read_bytes().decode()  # line ends are as they were submitted

    def add_text(self, revision: int, text: str) -> None:
        """Before a record names it."""
        make_private(self.directory / TEXTS)
        write_whole(self._path(revision), text.encode())

    def put_in_force(self, record: Record) -> Path:
        """Have the file say what the record says; returns it."""
        text = self.text(record.revision).encode()
        with suppress(FileNotFoundError):
            if self.file.read_bytes() == text:
                return self.file
        write_whole(self.file, text)
        return self.file

    def forget_old(self, record: Record) -> None:
        """Remove texts of long ago."""
        needed = {record.revision, *(number for each in [record.update] if each
                                     for number in (each.revision, each.before))}  # fmt: skip
        for path in (self.directory / TEXTS).glob("*.yaml"):
            with suppress(ValueError):
                number = int(path.stem)
                if number not in needed and number <= record.newest - _KEPT:
                    path.unlink()

    def make(self) -> None:
        make_private(self.directory)
        sync_directory(self.directory.parent)

    def _path(self, revision: int) -> Path:
        return self.directory / TEXTS / f"{revision}.yaml"
