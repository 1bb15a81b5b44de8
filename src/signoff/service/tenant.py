"""One tenant: its pipelines, tokens, secrets and trail, all below a directory of its own."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

from signoff.durable import sync_directory, write_whole
from signoff.pipeline.graph import Graph
from signoff.pipeline.overlays import VARIABLE as PROFILE
from signoff.pipeline.variables import KEPT_SECRETS, SECRET_VARIABLE
from signoff.private import make_private
from signoff.service.hosted import Hosted
from signoff.service.record import Record, RecordFile
from signoff.service.secret_store import SecretStore
from signoff.service.tokens import Tokens
from signoff.service.trail import Trail

ADMINISTRATOR = "administrator-token"


class Busy(Exception):
    """Somebody else is changing this pipeline at the moment."""


class NoPipeline(Exception):
    """There is none of that name, or not any more."""


class Tenant:
    """Everything of it that has a name."""

    def __init__(self, directory: Path, key: bytes) -> None:
        self.name, self.directory = directory.name, directory
        make_private(directory)
        self.tokens = Tokens(directory / "tokens.json")
        self.secrets = SecretStore(directory / "secrets", key)
        self.trail = Trail(directory / "trail.jsonl")
        self._lock = threading.Lock()
        self._changing: set[str] = set()
        self.pipelines: dict[str, Hosted] = {}
        shutil.rmtree(directory / "removed", ignore_errors=True)  # a kill in the midst of a deletion
        for place in sorted((directory / "pipelines").glob("*/record.json")):
            if (record := RecordFile(place.parent).read()) is not None:
                self.pipelines[place.parent.name] = self._hosted(place.parent, record)

    def first_token(self) -> Path | None:
        """The file with the administrator's token, if nobody could administer yet, or any more. It is written
        first: a kill in between leaves a token that nobody can use, and the next start makes another one."""
        if self.tokens.administered():
            return None
        token, sent = self.tokens.draft("administrator", "administer")
        path = self.directory / ADMINISTRATOR
        write_whole(path, sent.encode() + b"\n")
        self.tokens.add(token)
        return path

    def environment(self) -> dict[str, str]:
        """Of a run, without its secrets: that of the service. A profile is none of the text that was
        submitted."""
        own = (PROFILE, SECRET_VARIABLE, KEPT_SECRETS)
        return {name: value for name, value in os.environ.items() if not name.startswith(own)}

    def place(self, name: str) -> Path:
        return self.directory / "pipelines" / name

    @contextmanager
    def changing(self, name: str) -> Iterator[None]:
        """One change of a pipeline at a time; raises Busy."""
        with self._lock:
            if name in self._changing:
                raise Busy
            self._changing.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._changing.discard(name)

    def create(self, name: str, text: str, *, start: bool) -> Hosted:
        """A new pipeline; its text was checked."""
        records = RecordFile(self.place(name))
        records.make()
        records.add_text(1, text)
        record = Record("running" if start else "stopped", 1)
        records.write(record)
        records.put_in_force(record)
        hosted = self._hosted(records.directory, record)
        with self._lock:
            self.pipelines = {**self.pipelines, name: hosted}
        return hosted

    def remove(self, hosted: Hosted) -> Path:
        """Take a pipeline that is stopped away, with its state directory: under another name, so that half of
        it is never a pipeline. Its lock is held meanwhile; `discard` the path that is returned without it."""
        away = self.directory / "removed"
        make_private(away)
        target = away / f"{hosted.name}.{token_hex(8)}"
        hosted.directory.rename(target)
        hosted.removed = True
        with self._lock:
            self.pipelines = {name: each for name, each in self.pipelines.items() if each is not hosted}
        sync_directory(hosted.directory.parent)
        return target

    def discard(self, removed: Path) -> None:
        """Remove what was taken away; it may be large."""
        shutil.rmtree(removed, ignore_errors=True)

    def graph(self, name: str) -> Graph:
        """The pipeline whose text is in force, to look at its state; without secrets. Raises NoPipeline."""
        found = self.pipelines.get(name)
        if found is None:
            raise NoPipeline(name)
        return found.graph()

    def _hosted(self, directory: Path, record: Record) -> Hosted:
        known: dict[int, Graph] = {}

        def graph(record: Record) -> Graph:
            found = known.get(record.revision)
            if found is None:
                found = self._graph(directory, record)
                known.clear()
                known[record.revision] = found
            return found

        return Hosted(directory, self.environment, self.secrets, graph, record)

    def _graph(self, directory: Path, record: Record) -> Graph:
        from signoff.catalog import default
        from signoff.pipeline.load import load_alone

        records = RecordFile(directory)
        try:
            text = records.text(record.revision)
        except FileNotFoundError:
            raise NoPipeline(directory.name) from None
        return load_alone(text, records.file, default(), self.environment())
