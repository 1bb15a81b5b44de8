"""The config bases of sources and sinks: what is declared of a type, and `build`."""

from __future__ import annotations

import sys
from abc import abstractmethod
from pathlib import Path

from signoff.pipeline import model
from signoff.sinks.contract import Sink
from signoff.sources.contract import Source


class SourceConfig(model.SourceConfig):
    """The base of a source's config. A subclass sets `type` and `summary`, adds fields, and builds the
    source.

    It must say `can_acknowledge: ClassVar[bool] = False` where the other side cannot be told anything.
    """

    @abstractmethod
    def build(self, base: Path) -> Source:
        """The source, not yet connected. `base`: the directory of the pipeline file, where relative paths
        start.

        Called in the intake process, once; after a crash in a new one. Opens nothing: that is `Source.open`.
        """

    def code_files(self, base: Path) -> tuple[Path, ...]:
        return files_of_package(type(self))


class SinkConfig(model.SinkConfig):
    """The base of a sink's config. A subclass sets `type` and `summary`, adds fields, and builds the sink.

    `local_directories`, `target` and `connects_to` are worth a look: they say of a sink what it would share
    with another one, and what a cluster must provide.
    """

    @abstractmethod
    def build(self, base: Path) -> Sink:
        """The sink, not yet connected; it is sent to executors by pickle. `base`: the directory of the
        pipeline file, where relative paths start.

        Called on the driver, once per start of the engine; once more at the end of a run that has one. Opens
        nothing: `Sink.prepare` does on the driver, and `Writer.write` on executors.
        """

    def code_files(self, base: Path) -> tuple[Path, ...]:
        return files_of_package(type(self))

    def needed_files(self, base: Path) -> tuple[Path, ...]:
        return files_of_package(type(self))  # a worker without the package, or with another version, is found


def files_of_package(config: type) -> tuple[Path, ...]:
    """The Python files of the package that a class is in: another version of them may make other rows."""
    parts = config.__module__.split(".")
    for depth in range(1, len(parts) + 1):  # the outermost that is no namespace shared with others
        module = sys.modules.get(".".join(parts[:depth]))
        file = getattr(module, "__file__", None)
        if file is None:
            continue
        if not hasattr(module, "__path__"):
            return (Path(file).resolve(),)
        return tuple(sorted(Path(file).resolve().parent.rglob("*.py")))
    return ()
