"""A pipeline on a disk that forgets: a run that is recorded, the power cut at any moment of it, a run after.

Every file of a source is deleted when its events are acknowledged. So whatever the moment, all events of the
files that were there must be at their sinks in the end, each once: those of files that are gone because they
were acknowledged, and all others because they are still there to be read.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.powerloss.disk import Change, Disk, changes, replay
from tests.powerloss.mount import Mounted
from tests.promises.product import SOON, Product

BEGIN = 1_600_000_020
"""A full minute, in seconds since the epoch."""
SCHEMA = "t TIMESTAMP, key STRING, n INT, filler STRING"
WINDOW = {
    "type": "window",
    "input": "parsed",
    "time": "t",
    "size": "1m",
    "keys": ["key"],
    "aggregates": {
        "events": "count(*)",
        "numbers": "to_json(sort_array(collect_list(n)))",
        "filler": "max(filler)",  # so that rows in front of the window have a size
    },
    "allowed_lateness": "0s",
    "idle_after": "2s",
}
FOLD = {
    "type": "fold",
    "input": "parsed",
    "keys": ["key"],
    "count": 5,
    "timeout": "4s",
    "columns": {"numbers": "to_json(events.n)"},
}
KINDS: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    # kind: (transforms behind `parsed`, sinks)
    "plain": (
        {},
        {
            "files": {"type": "files", "input": "parsed", "path": "out/files"},
            "table": {"type": "sqlite", "input": "parsed", "path": "out/db/table.db", "table": "events"},
        },
    ),
    "buffered": (
        {},
        {
            "files": {
                "type": "files",
                "input": "parsed",
                "path": "out/files",
                "buffer": {"type": "disk"},
                "retry": SOON,
            }
        },
    ),
    "window": ({"counts": WINDOW}, {"files": {"type": "files", "input": "counts", "path": "out/files"}}),
    "window delivered": (
        {"counts": WINDOW | {"acknowledge": "delivered"}},
        {"files": {"type": "files", "input": "counts", "path": "out/files"}},
    ),
    "fold": ({"orders": FOLD}, {"files": {"type": "files", "input": "orders", "path": "out/files"}}),
}
Make = Callable[[Path], Product]
"""An engine for a pipeline that is in a directory already."""


def pipeline(kind: str) -> dict[str, Any]:
    transforms, sinks = KINDS[kind]
    source = {
        "type": "files",
        "path": "./in/*.jsonl",
        "on_acknowledge": "delete",
        "settle_ms": 0,
        "poll_ms": 20,
        "max_events_per_batch": 7,
        "log": {"max_bytes": 1024**2, "segment_bytes": 64 * 1024},
    }
    parsed = {"type": "parse_json", "input": "incoming", "schema": SCHEMA}
    return {
        "sources": {"incoming": source},
        "transforms": {"parsed": parsed, **transforms},
        "sinks": dict(sinks),
    }


@dataclass(frozen=True)
class Put:
    """A file that was given to the source."""

    name: str
    numbers: range
    began: int
    ended: int
    """Moments of the journal: in between nobody can tell whether it is there."""


@dataclass
class Recorded:
    """A run, with everything that was written in it."""

    image: bytes
    changes: list[Change]
    moments: list[int]
    """How large the journal was after each change."""
    puts: list[Put]

    def cut(self, chance: random.Random) -> int:
        """A moment, as a number of changes: none in which a file is being put."""
        first = self._after(self.puts[0].ended)
        place = chance.randrange(first, len(self.changes) + 1)
        moment = self.moments[place - 1]
        for put in self.puts:
            if put.began <= moment < put.ended:
                return self._after(put.ended)
        return place

    def all_acknowledged(self) -> int:
        """The moment in which the last file is deleted, because all its events are acknowledged."""
        names = {put.name for put in self.puts}
        kinds = ("remove", "rename")
        gone = [i for i, change in enumerate(self.changes) if change[0] in kinds and change[2] in names]
        return gone[-1] + 1

    def window_log_trimmed(self) -> int:
        """The first moment from then on in which part of the log in front of the window is removed."""
        first, disk = self.all_acknowledged(), replay(self.image, self.changes)
        log = disk.find("/p/state/log/counts.buffer")
        assert log is not None
        for place, change in enumerate(self.changes):
            if change[0] == "remove" and change[1] == log.number and change[2].endswith(".log"):
                return max(first, place + 1)
        raise AssertionError("nothing of the log in front of the window was removed")

    def _after(self, moment: int) -> int:
        return next(i + 1 for i, each in enumerate(self.moments) if each >= moment)

    def given(self, place: int) -> list[Put]:
        """The files that were there before."""
        return [put for put in self.puts if put.ended <= self.moments[place - 1]]

    def disk_after(self, place: int, chance: random.Random | None) -> Disk:
        return replay(self.image, self.changes[:place]).survivors(chance)


class Scene:
    """One kind of pipeline, in a directory that is on the disk."""

    def __init__(self, kind: str, place: Path, make: Make, *, payload: int = 0) -> None:
        self.kind, self._make = kind, make
        self._payload = payload
        self._mount, self._journal = place / "disk", place / "journal"

    def prepared(self) -> bytes:
        """A disk with the pipeline file and an empty directory for its input, both durable."""
        with self._mounted(pickle.dumps(Disk())) as disk:
            product = Product(disk.directory / "p", **pipeline(self.kind))
            (product.directory / "in").mkdir()
            product.close()
        image = replay(pickle.dumps(Disk()), changes(self._journal))
        for number in image.inodes:
            image.apply(("sync", number))
        return pickle.dumps(image)

    def record(self, image: bytes, files: int, events: int) -> Recorded:
        """Run it with so many files, each once the one before is taken."""
        with self._mounted(image) as disk:
            product = self._make(disk.directory / "p")
            try:
                running = product.start()
                puts = []
                for number in range(files):
                    numbers = range(number * events, (number + 1) * events)
                    puts.append(self._put(disk, product, number, numbers))
                    running.wait_for(lambda n=number: product.received() >= (n + 1) * (events + 1))
                running.wait_for(lambda: not any((product.directory / "in").iterdir()))
                everything = Counter(range(files * events))
                running.wait_for(lambda: all(one == everything for one in self.delivered(product).values()))
                assert running.terminate().code == 0, running.output
            finally:
                product.close()
        return Recorded(image, changes(self._journal), _moments(self._journal), puts)

    def after(self, disk: Disk, given: Iterable[Put], why: str) -> None:
        """Run it on what has survived, and see that everything arrives, once."""
        with self._mounted(pickle.dumps(disk)) as mounted:
            product = self._make(mounted.directory / "p")
            try:
                for folder in ("in", "out"):
                    with suppress(FileExistsError):
                        (product.directory / folder).mkdir()
                done = product.run_once()
                assert done.code == 0, f"{why}: {done.output}"
                expected = Counter(number for put in given for number in put.numbers)
                for sink, found in self.delivered(product).items():
                    assert found == expected, (
                        f"{why}: {sink} lacks {sorted((expected - found).elements())}, "
                        f"has too often {sorted((found - expected).elements())}\n{done.output}"
                    )
                assert product.balanced, f"{why}: {product.audit()}"
                letters = product.dead_letters()
                assert len(letters) == len(list(given)), f"{why}: dead letters {letters}"
            finally:
                product.close()

    def delivered(self, product: Product) -> dict[str, Counter[int]]:
        """By sink, the events that its rows were made from."""
        found: dict[str, Counter[int]] = {}
        for name, sink in KINDS[self.kind][1].items():
            if sink["type"] == "files":
                files = (product.directory / sink["path"]).glob("*.jsonl")
                lines = [line for file in files for line in file.read_text().splitlines()]
                found[name] = Counter(number for line in lines for number in _numbers(json.loads(line)))
            else:
                found[name] = Counter()
                with suppress(sqlite3.OperationalError):
                    found[name] = Counter(row["n"] for row in product.table(file=sink["path"]))
        return found

    def _mounted(self, image: bytes) -> Mounted:
        return Mounted(image, self._mount, self._journal)

    def _put(self, disk: Mounted, product: Product, file: int, numbers: range) -> Put:
        """A file of a minute, and with one line that is no JSON; durable, as of a careful program."""
        at = datetime.fromtimestamp(BEGIN + 60 * file, UTC).isoformat()
        filler = "x" * self._payload
        lines = [json.dumps({"t": at, "key": f"k{n % 3}", "n": n, "filler": filler}) for n in numbers]
        path = product.directory / "in" / f"{file:03d}.jsonl"
        aside = path.with_name(f".{path.name}.part")
        began = disk.moment
        with aside.open("w") as out:
            out.write("\n".join([*lines, f"no JSON {file}", ""]))
            out.flush()
            os.fsync(out.fileno())
        aside.rename(path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        return Put(path.name, numbers, began, disk.moment)


def _numbers(row: Mapping[str, Any]) -> list[int]:
    return list(json.loads(row["numbers"])) if "numbers" in row else [row["n"]]


def _moments(journal: Path) -> list[int]:
    found = []
    with journal.open("rb") as file:
        while True:
            try:
                pickle.load(file)
            except EOFError:
                return found
            found.append(file.tell())
