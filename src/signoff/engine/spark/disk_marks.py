"""Driver: on a cluster, leave marks in the directories that executors use, and answer their greetings.

What executors do with them is in `signoff.log.disk_proof`. The marks are there for as long as the session:
executors that join later, or lose their mount, are found by their own tasks. On a local master nothing is
written and nothing checked.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from signoff.errors import StateError
from signoff.log.disk_proof import VARIABLE, SharedPlaces, digest
from signoff.pipeline.graph import Graph
from signoff.private import make_private, opener

logger = logging.getLogger(__name__)

_LOOK_S = 0.1
_SEEN_WITHIN_S = 20.0
"""How long the other greetings of a worker may come after the one in the home, which was written last."""


class SharedDisk:
    """The marks of one session, and the thread that answers."""

    def __init__(
        self, state: Path, name: str, directories: Sequence[Path], files: Sequence[Path] = ()
    ) -> None:
        self.home = state / "shared"
        owner = f"{name}-{hashlib.sha256(str(state).encode()).hexdigest()[:8]}"
        places = dict.fromkeys([self.home, *directories])
        self.told = SharedPlaces(
            f"{owner}-{secrets.token_hex(8)}", str(self.home), tuple(str(place) for place in places),
            {str(file): digest(file) for file in files if file.is_file()},
        )  # fmt: skip
        self._owner = owner
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._answer, name="shared-disk", daemon=True)
        self._first_seen: dict[str, float] = {}

    def begin(self) -> None:
        """Write the marks; remove what a run that was killed has left."""
        for place in self._places():
            try:
                if place == self.home:
                    make_private(place, durable=False)
                else:  # of a sink: the user may share it
                    place.mkdir(parents=True, exist_ok=True)
                self._clear(place)
                _write(place / self.told.mark, self.told.token)
            except OSError as error:
                raise StateError(f"{place} cannot be written to: {error.strerror}") from error
        self._thread.start()

    @property
    def environment(self) -> Mapping[str, str]:
        """What executors are told."""
        return {VARIABLE: self.told.encode()}

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        for place in self._places():
            with suppress(OSError):
                self._clear(place)

    def _places(self) -> Iterator[Path]:
        return map(Path, self.told.places)

    def _clear(self, place: Path) -> None:
        for kind in ("shared", "greeting", "answer"):
            for file in place.glob(f".signoff-{kind}-{self._owner}-*"):
                file.unlink(missing_ok=True)

    def _answer(self) -> None:
        while not self._ended.wait(_LOOK_S):
            try:
                self.look()
            except OSError as error:  # a disk that is full or gone for now; workers wait for a while
                logger.warning("cannot answer a worker in %s: %s", self.home, error.strerror)

    def look(self) -> None:
        """Answer the workers whose greetings are here."""
        prefix = self.told.greeting("")
        for file in self.home.glob(f"{prefix}*"):
            worker = file.name.removeprefix(prefix)
            missing = [place for place in self._places() if not self._greeted(place, worker)]
            since = self._first_seen.setdefault(worker, time.monotonic())
            if missing and time.monotonic() < since + _SEEN_WITHIN_S:
                continue
            # The answer is the place that misses the greeting; empty: all is well. Whole or not at all.
            aside = self.home / f"{self.told.answer(worker)}~"
            _write(aside, str(missing[0]) if missing else "")
            aside.replace(self.home / self.told.answer(worker))
            for place in self._places():
                (place / file.name).unlink(missing_ok=True)
            del self._first_seen[worker]

    def _greeted(self, place: Path, worker: str) -> bool:
        try:
            return (place / self.told.greeting(worker)).read_text() == worker
        except OSError:
            return False


def _write(path: Path, text: str) -> None:
    with open(path, "w", opener=opener) as file:
        file.write(text)


def shared_disk(graph: Graph) -> SharedDisk | None:
    """The marks for a pipeline on a cluster; None on one machine."""
    if graph.settings.spark.is_local:
        return None
    files = [file for node in graph.nodes.values() for file in node.config.needed_files(graph.base)]
    return SharedDisk(graph.state, graph.name, [path for _, path in graph.local_directories()], files)
