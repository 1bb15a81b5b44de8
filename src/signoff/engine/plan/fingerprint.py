"""The form of a pipeline as one sink sees it: all that decides which rows come to it, and where they go.

A receipt says that a sink needs nothing more of some events. That holds as long as the same rows come to it:
when a step was repaired between a kill and the next run, an event that had failed now has a row, and the
receipt knows nothing of it. So a receipt carries the form, and counts only for a pipeline of the same form.

Invariants: the same pipeline has the same form in every process. Where it cannot be known whether something
makes a difference, it is part of the form: a row is rather written again than left out. Secrets are not: a
new password makes no other rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel, SecretBytes, SecretStr

from signoff.pipeline.graph import Graph
from signoff.version import __version__


def form_of(graph: Graph, sink: str) -> str:
    """The form of what lies between the sources and a sink, both with it."""
    nodes = [graph.nodes[name] for name in sorted({sink, *graph.upstream(sink)})]
    described = [
        [node.name, [str(port) for port in node.inputs], _plain(node.config), _code(graph, node.name)]
        for node in nodes
    ]
    text = json.dumps([__version__, _plain(graph.settings.spark.config), described])
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()


def _code(graph: Graph, name: str) -> list[list[str]]:
    """What is in the files whose code a node runs."""
    found = []
    for path in sorted(set(graph.nodes[name].config.code_files(graph.base))):
        try:
            found.append([path.name, hashlib.sha256(path.read_bytes()).hexdigest()])
        except OSError:
            found.append([path.name, ""])
    return found


def _plain(value: object) -> Any:
    """A value as JSON that is the same in every process: without addresses and the order of sets."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, SecretStr | SecretBytes):
        return "secret"
    if isinstance(value, BaseModel):
        return [_name(type(value)), {name: _plain(getattr(value, name)) for name in type(value).model_fields}]
    if is_dataclass(value) and not isinstance(value, type):
        return [_name(type(value)), {each.name: _plain(getattr(value, each.name)) for each in fields(value)}]
    if isinstance(value, Mapping):  # in its order, which is that of columns
        return [[_plain(key), _plain(each)] for key, each in value.items()]
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(_plain(each)) for each in value)
    if callable(value):
        return _name(value)
    text = str(value)
    return _name(type(value)) if " at 0x" in text else text


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', type(value).__qualname__)}"
