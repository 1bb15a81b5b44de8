"""One tenant: its pipelines, tokens, secrets and trail, all below a directory of its own."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from signoff.durable import sync_directory, write_whole
from signoff.pipeline.graph import Graph
from signoff.pipeline.overlays import VARIABLE as PROFILE
from signoff.pipeline.overlays import Layers
from signoff.pipeline.variables import SECRET_VARIABLE, Lenient
from signoff.private import make_private
from signoff.service.hosted import Hosted
from signoff.service.record import Record, RecordFile
from signoff.service.secret_store import SecretStore
from signoff.service.tokens import Tokens
from signoff.service.trail import Trail

ADMINISTRATOR = "administrator-token"


class Busy(Exception):
    """Somebody else is changing this pipeline at the moment."""


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
        self._graphs: dict[str, tuple[int, Graph]] = {}
        self.pipelines: dict[str, Hosted] = {}
        shutil.rmtree(directory / "removed", ignore_errors=True)  # a kill in the midst of a deletion
        for place in sorted((directory / "pipelines").glob("*/record.json")):
            if (record := RecordFile(place.parent).read()) is not None:
                self.pipelines[place.parent.name] = self._hosted(place.parent, record)

    def first_token(self) -> Path | None:
        """The file with the administrator's token, if there was none yet; it is written only then."""
        if self.tokens:
            return None
        _, sent = self.tokens.make("administrator", "administer")
        path = self.directory / ADMINISTRATOR
        write_whole(path, sent.encode() + b"\n")
        return path

    def environment(self) -> dict[str, str]:
        """Of a run, without its secrets: that of the service. A profile is none of the text that was
        submitted."""
        own = (PROFILE, SECRET_VARIABLE)
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
        self.pipelines = {**self.pipelines, name: hosted}
        return hosted

    def remove(self, name: str) -> None:
        """Take a pipeline that is stopped away, with its state directory. First under another name, so that
        half of it is never a pipeline."""
        place, away = self.place(name), self.directory / "removed"
        make_private(away)
        self.pipelines = {key: each for key, each in self.pipelines.items() if key != name}
        self._graphs.pop(name, None)
        target = away / name
        shutil.rmtree(target, ignore_errors=True)
        place.rename(target)
        sync_directory(place.parent)
        shutil.rmtree(target, ignore_errors=True)

    def graph(self, name: str) -> Graph:
        """The pipeline whose text is in force, to look at its state; without secrets."""
        return self._graph(name, self.pipelines[name].record)

    def _hosted(self, directory: Path, record: Record) -> Hosted:
        def environ() -> Mapping[str, str]:
            return self.environment() | self.secrets.environment()

        graph: Callable[[Record], Graph] = lambda record: self._graph(directory.name, record)  # noqa: E731
        return Hosted(directory, environ, graph, record)

    def _graph(self, name: str, record: Record) -> Graph:
        kept = self._graphs.get(name)
        if kept is not None and kept[0] == record.revision:
            return kept[1]
        from signoff.catalog import default
        from signoff.pipeline.load import load

        records = RecordFile(self.place(name))
        graph = load(
            records.file, default(), Lenient(self.environment()), require_secrets=False, layers=Layers(),
            texts={str(records.file): records.text(record.revision)},
        )  # fmt: skip
        self._graphs[name] = (record.revision, graph)
        return graph
