"""Signoff: an event leaves its source only when every place it was going has signed for it.

The public names, each loaded when it is first used: importing `signoff` needs neither Spark nor Java.

    Pipeline, load          a pipeline in Python, or from a file, as a checked Graph
    Graph, Node, Port       the checked graph
    Catalog                 the node types a pipeline may use
    drop, fail              what a function on rows says of an event that does not go on
    unite                   what a function on groups says of an event that is made of some of them
    SignoffError and below  what is raised on purpose (see `signoff.errors`)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from signoff.builder import Pipeline
    from signoff.errors import (
        EngineError,
        LogError,
        PipelineError,
        Problem,
        SignoffError,
        SinkError,
        SourceError,
        StateError,
    )
    from signoff.pipeline.graph import Graph, Node, Port
    from signoff.pipeline.model import Catalog
    from signoff.transforms.functions.groups import unite
    from signoff.transforms.row_results import drop, fail

from signoff.version import __version__

__all__ = [
    "Catalog",
    "EngineError",
    "Graph",
    "LogError",
    "Node",
    "Pipeline",
    "PipelineError",
    "Port",
    "Problem",
    "SignoffError",
    "SinkError",
    "SourceError",
    "StateError",
    "__version__",
    "drop",
    "fail",
    "load",
    "unite",
]

_HOMES = {
    "Catalog": "signoff.pipeline.model",
    "Graph": "signoff.pipeline.graph",
    "Node": "signoff.pipeline.graph",
    "Pipeline": "signoff.builder",
    "Port": "signoff.pipeline.graph",
    "drop": "signoff.transforms.row_results",
    "fail": "signoff.transforms.row_results",
    "unite": "signoff.transforms.functions.groups",
}


def load(path: str | Path, catalog: Catalog | None = None) -> Graph:
    """The checked graph of a pipeline file (YAML or Python); raises PipelineError with all problems."""
    from signoff.catalog import default
    from signoff.pipeline.load import load as load_file

    return load_file(path, catalog or default())


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(_HOMES.get(name, "signoff.errors")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
