"""A graph as a picture: a tree of text for the terminal, or a Mermaid flowchart.

In the tree a node stands below the input it reads; a node with several inputs is drawn in full once,
and the other times as a pointer to that place. No secret is drawn.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from signoff.pipeline.graph import Graph, Node, Port
from signoff.pipeline.model import Kind, NodeConfig, SinkConfig, SourceConfig, TransformConfig
from signoff.pipeline.secrets import excerpt, holds_secret, redact

_MARKS: dict[Kind, str] = {"source": "▶", "transform": "·", "sink": "■"}
_COLOURS: dict[Kind, str] = {"source": "36", "transform": "1", "sink": "32"}
_SHAPES: dict[Kind, tuple[str, str]] = {"source": ("([", "])"), "transform": ("[", "]"), "sink": ("[(", ")]")}
_COMMON = {*SourceConfig.model_fields, *TransformConfig.model_fields, *SinkConfig.model_fields}
_LONGEST = 48


def text(graph: Graph, *, styled: bool = False) -> str:
    """The graph as a tree, each source with what hangs on it; `styled` adds colours."""
    drawn: set[str] = set()
    lines = [f"{graph.name}"]
    for source in graph.sources.values():
        lines.append(_line(source, graph, styled))
        lines += _below(graph, source, "", drawn, styled)
    return "\n".join(lines) + "\n"


def plain(picture: str) -> str:
    """The same picture in ASCII."""
    for fancy, simple in (("├─", "|-"), ("└─", "`-"), ("│", "|"), ("▶", ">"), ("·", "-"), ("■", "#")):
        picture = picture.replace(fancy, simple)
    return picture.encode("ascii", "replace").decode("ascii")


def mermaid(graph: Graph) -> str:
    """The graph as a Mermaid flowchart, for Markdown."""
    lines = ["flowchart LR"]
    for node in graph.nodes.values():
        begin, end = _SHAPES[node.kind]
        lines.append(f'  {_id(node)}{begin}"{node.name}<br/><small>{node.config.type}</small>"{end}')
    for node in graph.nodes.values():
        for port in node.inputs:
            arrow = f"-- {port.output} -->" if port.output else "-->"
            lines.append(f"  {_id(graph.nodes[port.node])} {arrow} {_id(node)}")
    return "\n".join(lines) + "\n"


def detail(config: NodeConfig) -> str:
    """The one field that says most about a node: the first of its own that the user wrote."""
    for name, field in type(config).model_fields.items():
        if name in _COMMON or name not in config.model_fields_set:
            continue
        value = getattr(config, name)
        if callable(value):
            value = getattr(value, "__name__", "")
        if isinstance(value, dict):
            value = ", ".join(value)
        elif isinstance(value, list | tuple):
            value = ", ".join(str(item) for item in value)
        shown = re.sub(r"\s+", " ", redact(str(value)))
        if holds_secret(field.annotation) and "://" not in shown:
            continue
        return excerpt(shown, _LONGEST)
    return ""


def _below(graph: Graph, node: Node, indent: str, drawn: set[str], styled: bool) -> Iterator[str]:
    drawn.add(node.name)
    readers = [(port, reader) for reader in graph.readers(node.name) for port in _ports(reader, node)]
    for index, (port, reader) in enumerate(readers):
        last = index == len(readers) - 1
        branch, further = ("└─ ", "   ") if last else ("├─ ", "│  ")
        output = f"{port.output} → " if port.output else ""
        if reader.name in drawn:
            yield f"{indent}{branch}{output}{_MARKS[reader.kind]} {reader.name} (see above)"
            continue
        yield f"{indent}{branch}{output}{_line(reader, graph, styled)}"
        yield from _below(graph, reader, indent + further, drawn, styled)


def _ports(reader: Node, node: Node) -> list[Port]:
    return [port for port in reader.inputs if port.node == node.name]


def _line(node: Node, graph: Graph, styled: bool) -> str:
    name = f"{_MARKS[node.kind]} {node.name}"
    if styled:
        name = f"\x1b[{_COLOURS[node.kind]}m{name}\x1b[0m"
    parts = [name, node.config.type, detail(node.config)]
    if node.kind == "source" and not graph.acknowledges(node.name):
        parts.append("(not acknowledged)")
    return "  ".join(part for part in parts if part)


def _id(node: Node) -> str:
    return f"{node.kind}_{node.name}"  # a bare name may be a word of Mermaid's, such as "end"
