"""Real places: what a source reads, what a sink writes, and where the state is must not be the same files.

A sink that writes into its own source feeds itself: one event becomes as many as the disk holds. Paths are
compared as they are on the disk, symlinks followed and globs expanded, each time a pipeline is checked or
run. When in doubt whether a sink's file names match a glob, they do.
"""

from __future__ import annotations

import fnmatch
import glob
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, islice
from pathlib import Path

from signoff.errors import Problem
from signoff.globs import is_glob, plain, steps_match, steps_meet
from signoff.pipeline.draft import DraftNode
from signoff.pipeline.model import NodeConfig, SinkConfig, SourceConfig

MOST_DIRECTORIES = 5_000
"""How many directories that a glob finds are followed to where they really are."""
NEVER_IN_STATE = (".jsonl", ".ndjson", ".csv", ".parquet", ".txt", ".gz", ".bz2", ".zst")
"""Endings that no file of a state directory has."""


def problems_of(
    nodes: Mapping[str, DraftNode], configs: Mapping[str, NodeConfig], base: Path, state: Path
) -> Iterator[Problem]:
    """What of a pipeline's places is the same and must not be."""
    reads = {
        name: _Reading.of(pattern)
        for name, config in configs.items()
        if isinstance(config, SourceConfig) and (pattern := config.reads(base))
    }
    for name, config in configs.items():
        node = nodes[name]
        for directory, names in config.writes(base):
            if isinstance(config, SinkConfig):
                for source, reading in reads.items():
                    if reading.finds(directory, names):
                        message = f"{node.label} writes to {directory}, where {nodes[source].label} reads"
                        hint = "it would read its own output without end; give the sink another directory"
                        yield node.problem("own-output", message, at="path", hint=hint)
            if directory == state or directory.is_relative_to(state):
                message = f"{node.label} would put files into the state directory ({state})"
                yield node.problem("in-state", message, at="path", hint="give it a directory of its own")
    yield from _own_moves(nodes, configs, base, reads)
    yield from _shared_files(nodes, configs, reads)
    for name, reading in reads.items():
        if reading.finds_below(state):
            message = f"{nodes[name].label} would read the state directory ({state}) as its input"
            hint = "set state: to a directory outside, or make the path end with a suffix such as *.jsonl"
            yield nodes[name].problem("in-state", message, at="path", hint=hint)


def _own_moves(
    nodes: Mapping[str, DraftNode],
    configs: Mapping[str, NodeConfig],
    base: Path,
    reads: Mapping[str, _Reading],
) -> Iterator[Problem]:
    """Files that a source has put away are not read by it: if all it reads is there, that is nothing."""
    for name, reading in reads.items():
        config = configs[name]
        assert isinstance(config, SourceConfig)
        for field, directory, beside in config.puts_away(base):
            if directory is None:
                if beside not in (reading.last, reading.root.name if not reading.between else ""):
                    continue
                message = f"{nodes[name].label} moves files to directories named {beside} and reads from one"
            elif reading.root.is_relative_to(directory):
                message = f"{nodes[name].label} moves files to {directory}, where it reads"
            else:
                continue
            hint = f"it would take all files there for done and read none; set {field}: to another directory"
            yield nodes[name].problem("own-moves", message, at=field, hint=hint)


def _shared_files(
    nodes: Mapping[str, DraftNode], configs: Mapping[str, NodeConfig], reads: Mapping[str, _Reading]
) -> Iterator[Problem]:
    """A file that one source moves or deletes may be gone before another one has read it."""
    for one, other in combinations(reads, 2):
        takes = [name for name in (one, other) if _takes(configs[name])]
        if takes and reads[one].meets(reads[other]):
            rest = other if takes[0] == one else one
            message = f"{nodes[takes[0]].label} moves or deletes files that {nodes[rest].label} reads too"
            hint = "read them with one source and use it as input twice, or keep them in both"
            yield nodes[takes[0]].problem("shared-files", message, at="path", hint=hint)


def _takes(config: NodeConfig) -> bool:
    return isinstance(config, SourceConfig) and config.takes_files_away()


@dataclass(frozen=True)
class _Reading:
    """A glob, taken apart."""

    root: Path
    """The part without wildcards, as it really is on the disk."""
    between: tuple[str, ...]
    """The directories after it, with wildcards."""
    name: str
    """What file names must match."""
    missing: bool = False
    """Nothing has the name yet: it may become a file, or a directory that is read."""

    last: str = ""
    """The directory that the files are in, as it is written."""

    @classmethod
    def of(cls, pattern: str) -> _Reading:
        if not is_glob(pattern):
            path = Path(plain(pattern))
            if path.is_dir():
                return cls(path.resolve(), (), "*", last=path.name)
            return cls(path.parent.resolve(), (), Path(pattern).name, not path.exists(), path.parent.name)
        *parts, name = Path(pattern).parts
        static = []
        while parts and not is_glob(parts[0]):
            static.append(plain(parts.pop(0)))
        if name == "**":
            parts, name = [*parts, "**"], "*"
        last = plain([*static, *parts][-1])
        return cls(Path(*static).resolve(), tuple(parts), name, last=last)

    def finds(self, directory: Path, names: str) -> bool:
        """Whether files with such names in the directory would be found."""
        if self.missing and directory == self.root / plain(self.name):
            return True
        if not _may_match(self.name, names):
            return False
        return self._matches(directory) or any(place == directory for place in self._directories())

    def meets(self, other: _Reading) -> bool:
        """Whether there may be files that both find."""
        if steps_meet(self._steps(), other._steps()):
            return True
        if not steps_meet((self.name,), (other.name,)):
            return False
        return not set(self._directories()).isdisjoint(other._directories())

    def _steps(self) -> tuple[str, ...]:
        return (*(glob.escape(part) for part in self.root.parts), *self.between, self.name)

    def finds_below(self, state: Path) -> bool:
        if self.name.endswith(NEVER_IN_STATE):
            return False
        if self.root == state or self.root.is_relative_to(state):
            return True
        found = self._directories()
        return self._reaches(state) or any(place.is_relative_to(state) for place in found)

    def _matches(self, directory: Path) -> bool:
        if directory != self.root and not directory.is_relative_to(self.root):
            return False
        return steps_match(self.between, directory.relative_to(self.root).parts)

    def _reaches(self, state: Path) -> bool:
        """Whether a directory at or below this one, there or not, would be looked into."""
        if not state.is_relative_to(self.root):
            return False
        steps = state.relative_to(self.root).parts
        return any(steps_match(self.between[:count], steps) for count in range(len(self.between) + 1))

    def _directories(self) -> Iterator[Path]:
        """The directories the glob looks into now, where they really are."""
        if not self.between:
            return iter((self.root,))
        pattern = os.path.join(glob.escape(str(self.root)), *self.between, "")  # noqa: PTH118
        found = glob.iglob(pattern, recursive=True)  # noqa: PTH207
        return (Path(name).resolve() for name in islice(found, MOST_DIRECTORIES))


def _may_match(pattern: str, names: str) -> bool:
    """Whether a file name that matches both may exist. `names` is one name, or `*` and a suffix."""
    if not names.startswith("*"):
        return fnmatch.fnmatchcase(names, pattern)
    tail = names[1:]
    end = pattern
    for mark in "*?]":
        end = end.rpartition(mark)[2]
    return end.endswith(tail) or tail.endswith(end)
