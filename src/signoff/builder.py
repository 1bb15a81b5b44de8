"""A pipeline written in Python: the same graph as from YAML, with PySpark functions as transforms.

    pipeline = Pipeline("alarms")
    pipeline.source("incoming", "files", path="./in/*.jsonl")
    pipeline.transform("parsed", "parse_json", input="incoming", schema="alarmId INT")

    @pipeline.transform(input="parsed")
    def failed(rows: DataFrame) -> DataFrame:
        return rows.where("alarmId = 303")

    pipeline.sink("archive", "files", input=failed, path="./out", format="jsonl")

    if __name__ == "__main__":
        raise SystemExit(pipeline.run(once=True))

Nothing is checked while the pipeline is put together: `graph` reports every problem at once, each
with the line of the call that caused it. `signoff run FILE.py` takes the pipeline of a file.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, overload

from signoff.errors import PipelineError, Problem
from signoff.pipeline.check import check
from signoff.pipeline.draft import Draft, DraftNode, WrittenInPython, loading
from signoff.pipeline.file_texts import Texts
from signoff.pipeline.graph import Graph
from signoff.pipeline.model import (
    Catalog,
    InputsConfig,
    Kind,
    NodeConfig,
    SinkConfig,
    SourceConfig,
    TransformConfig,
)
from signoff.pipeline.settings import SparkSettings
from signoff.pipeline.trace_settings import TraceSettings

Function = Callable[..., Any]
F = TypeVar("F", bound=Function)
Input = str | Function
"""A node's name, or a function that was made a transform with the decorator."""

_CLASSES: dict[Kind, type[NodeConfig]] = {
    "source": SourceConfig,
    "transform": TransformConfig,
    "sink": SinkConfig,
}


class Pipeline(WrittenInPython):
    """Sources, transforms and sinks, added one by one and checked as a whole."""

    def __init__(
        self,
        name: str,
        state: str | os.PathLike[str] = "./state",
        base: str | os.PathLike[str] | None = None,
        acknowledgements: bool = True,
        spark: SparkSettings | Mapping[str, Any] | None = None,
        traces: TraceSettings | Mapping[str, Any] | None = None,
    ) -> None:
        """`base` is where relative paths start: the directory of the calling file by default."""
        self._file, self._line = _caller()
        self._base = Path(base) if base is not None else _directory(self._file)
        self._settings: dict[str, Any] = {
            "name": name,
            "state": os.fspath(state),
            "acknowledgements": acknowledgements,
        }
        if spark is not None:
            self._settings["spark"] = spark
        if traces is not None:
            self._settings["traces"] = traces
        self._nodes: list[DraftNode] = []
        self._decorated: dict[int, str] = {}

    def source(self, name: str, type_or_config: str | SourceConfig, **fields: Any) -> str:
        """Add a source; returns its name, to be used as an input."""
        return self._add("source", name, type_or_config, fields)

    @overload
    def transform(
        self,
        name: str,
        type_or_function: str | TransformConfig | Function,
        *,
        input: Input | None = None,
        inputs: Iterable[Input] = (),
        **fields: Any,
    ) -> str: ...

    @overload
    def transform(
        self,
        name: str | None = None,
        type_or_function: None = None,
        *,
        input: Input | None = None,
        inputs: Iterable[Input] = (),
        **fields: Any,
    ) -> Callable[[F], F]: ...

    def transform(
        self,
        name: str | None = None,
        type_or_function: str | TransformConfig | Function | None = None,
        *,
        input: Input | None = None,  # noqa: A002 - the name of the field in YAML
        inputs: Iterable[Input] = (),
        **fields: Any,
    ) -> str | Callable[[F], F]:
        """Add a transform by its type, config or function; without either, decorate a function."""
        wiring = self._wiring(input, inputs)
        if type_or_function is not None:
            if name is None:
                raise TypeError("a transform that is not a decorated function needs a name")
            return self._add("transform", name, type_or_function, {**wiring, **fields})
        place = _caller()

        def decorate(function: F) -> F:
            own = name or str(getattr(function, "__name__", ""))
            self._decorated[id(function)] = own
            self._add("transform", own, function, {**wiring, **fields}, place)
            return function

        return decorate

    def sink(
        self,
        name: str,
        type_or_config: str | SinkConfig,
        *,
        input: Input | None = None,  # noqa: A002 - the name of the field in YAML
        inputs: Iterable[Input] = (),
        **fields: Any,
    ) -> str:
        """Add a sink; returns its name."""
        return self._add("sink", name, type_or_config, {**self._wiring(input, inputs), **fields})

    def draft(self, file: Path | None = None) -> Draft:
        """The pipeline as it was put together; `file` is how the user named the file it stands in."""
        shown = {str(file.resolve()): str(file)} if file else {}
        own = shown.get(_resolved(self._file), self._file)
        lines = dict.fromkeys(self._settings, self._line)
        nodes = [replace(node, file=shown.get(_resolved(node.file), node.file)) for node in self._nodes]
        return Draft(str(file) if file else own, self._base.resolve(), dict(self._settings), lines, nodes)

    def graph(self, catalog: Catalog | None = None, environ: Mapping[str, str] = os.environ) -> Graph:
        """The checked graph; raises PipelineError with all problems."""
        if catalog is None:
            from signoff.catalog import default

            catalog = default()
        return check(self.draft(), catalog, environ)

    def run(self, once: bool = False, quiet: bool = False, metrics: str | None = None) -> int:
        """Run until SIGTERM or Ctrl-C, or, with `once`, until what is there is settled; as `signoff run`.

        Shows on standard error what `signoff run` shows, unless `quiet`, and returns the exit code. `metrics`
        is a port, or HOST:PORT, at which Prometheus finds the metrics. The
        engine is a process of its own that loads this pipeline's file again: call `run` below
        `if __name__ == "__main__":`, in the file that makes the pipeline.
        """
        self._refuse_to_run_while_loaded()
        from signoff.logs import set_up_logging
        from signoff.run.options import RunOptions
        from signoff.watch.live import run_live

        if not logging.getLogger("signoff").hasHandlers():  # else the program has its own way
            set_up_logging("text")
        options = RunOptions(once=once, patience_s=30.0 if once else None, metrics=metrics)
        file = Path(self._file).resolve()

        def load() -> Graph:
            files = Texts()
            files.text(file)
            return replace(self.graph(), texts=files.read)

        return run_live(load, file, options, quiet=quiet)

    def _refuse_to_run_while_loaded(self) -> None:
        message, hint = "", ""
        if loading.get():
            message = "pipeline.run() is called while the file is being loaded"
            hint = 'put it below if __name__ == "__main__":'
        elif not Path(self._file).is_file():
            message = "a pipeline that is in no file cannot be run"
            hint = "write it into a file: the engine loads it in a process of its own"
        if message:
            raise PipelineError([Problem("bad-python", message, hint, self._file, self._line)])

    def _add(
        self,
        kind: Kind,
        name: str,
        what: str | NodeConfig | Function,
        fields: Mapping[str, Any],
        place: tuple[str, int] | None = None,
    ) -> str:
        file, line = place or _caller()
        config: NodeConfig | None = None
        if isinstance(what, str):
            fields = {"type": what, **fields}
        elif isinstance(what, NodeConfig):
            config = _completed(kind, name, what, fields)
        elif kind == "transform" and callable(what):
            fields = {"type": "python", "function": what, **fields}
        else:
            raise TypeError(f'{kind} "{name}" needs a type, such as "files", or a config, not {what!r}')
        lines = dict.fromkeys(fields, line)
        self._nodes.append(DraftNode(kind, name, fields, line, lines, file, config))
        return name

    def _wiring(self, one: Input | None, several: Iterable[Input]) -> dict[str, Any]:
        several = [several] if isinstance(several, str) or callable(several) else list(several)
        wiring: dict[str, Any] = {}
        if one is not None:
            wiring["input"] = self._name_of(one)
        if several:
            wiring["inputs"] = [self._name_of(each) for each in several]
        return wiring

    def _name_of(self, node: Input) -> str:
        if callable(node):
            return self._decorated.get(id(node), getattr(node, "__name__", repr(node)))
        return node


def _completed(kind: Kind, name: str, config: NodeConfig, fields: Mapping[str, Any]) -> NodeConfig:
    """A config with its inputs; every other field is in it already."""
    if not isinstance(config, _CLASSES[kind]):
        raise TypeError(f'{kind} "{name}" cannot be made of a {type(config).__name__}')
    further = set(fields) - {"input", "inputs"}
    if further:
        raise TypeError(f'{kind} "{name}" is given as a config; put {", ".join(sorted(further))} into it')
    if not isinstance(config, InputsConfig) or not fields:
        return config
    wiring = {key: tuple(value) if key == "inputs" else value for key, value in fields.items()}
    return config.model_copy(update=wiring)


def _caller() -> tuple[str, int]:
    """File and line of the user's call: the first frame outside this module."""
    frame = sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _directory(file: str) -> Path:
    """Of the file that makes a pipeline; when an engine loads it, the file itself may be gone."""
    return Path(file).resolve().parent if loading.get() or Path(file).is_file() else Path.cwd()


def _resolved(file: str) -> str:
    return str(Path(file).resolve())
