"""The files of a report, put in the place of the old ones as a whole, however often that is killed.

    <directory>/.<name>.report/new/<file>     each file, complete and fsynced
    <directory>/.<name>.report/publish.json   which of them go into place: from here on that is only finished
    <directory>/.<name>.report/files.json     which files the report has: those a new one has not are removed

Two files cannot be renamed in one step, so a reader may see a new one beside an old one for a moment; each is
complete, and a kill in between is made good by whoever looks next.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from signoff.durable import make_directory, sync_directory, write_whole
from signoff.private import for_the_user, make_private

_NEW, _PUBLISH, _FILES = "new", "publish.json", "files.json"


class ReportFiles:
    """The files of one report, in one directory."""

    def __init__(self, directory: Path, place: Path) -> None:
        self._directory, self._place = directory, place

    def prepare(self) -> None:
        """Make the directories; finish what was begun before a kill."""
        with for_the_user():
            make_directory(self._directory)
        make_private(self._place)
        self.complete()

    def publish(self, contents: Mapping[str, bytes]) -> None:
        """Put files into place, by name, and remove those of the report that is replaced."""
        self.complete()
        new = self._place / _NEW
        shutil.rmtree(new, ignore_errors=True)
        make_private(new)
        with for_the_user():  # a report is for others to read
            for name, content in contents.items():
                with (new / name).open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
        sync_directory(new)
        write_whole(self._place / _PUBLISH, json.dumps(sorted(contents)).encode())
        self.complete()

    def complete(self) -> None:
        """Finish what was noted; nothing, if nothing was."""
        note = self._place / _PUBLISH
        with suppress(FileNotFoundError):
            names: list[str] = json.loads(note.read_bytes())
            for name in names:
                with suppress(FileNotFoundError):  # renamed before
                    (self._place / _NEW / name).replace(self._directory / name)
            for name in self.known() - set(names):
                (self._directory / name).unlink(missing_ok=True)
            sync_directory(self._directory)
            write_whole(self._place / _FILES, json.dumps(names).encode())
            note.unlink()
            sync_directory(self._place)

    def known(self) -> set[str]:
        """The files that the report has."""
        with suppress(FileNotFoundError, ValueError):
            return set(json.loads((self._place / _FILES).read_bytes()))
        return set()

    def all_there(self, names: set[str]) -> bool:
        return self.known() == names and all((self._directory / name).exists() for name in names)
