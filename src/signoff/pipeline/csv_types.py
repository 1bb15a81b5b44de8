"""The obvious mistake with CSV: to parse rows that are parsed already, with types that texts do not have.

Rows of a `files` source with CSV come as JSON objects of texts. A `parse_json` behind it that asks for
numbers would make a dead letter of every row, and so would a `parse_csv`, which expects a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from signoff.errors import Problem
from signoff.pipeline.graph import Graph, Node

_PASS_ON = frozenset({"filter", "sample", "route", "dedupe", "validate"})
"""Steps behind which the payload is what it was before them."""
_TEXTS = re.compile(r"(STRING|VARCHAR|CHAR|TIMESTAMP|DATE|BINARY|VARIANT)", re.IGNORECASE)
_HINT = 'give the source the schema ("schema: {0}") and read its columns without this step'


def problems_of_csv(graph: Graph) -> Iterator[Problem]:
    """One problem for each step that parses rows of CSV once more."""
    for node in graph.transforms.values():
        if (
            node.config.type not in ("parse_json", "parse_csv")
            or getattr(node.config, "column", "") != "payload"
        ):
            continue
        schema = str(getattr(node.config, "schema_", ""))
        for source in _sources(graph, node):
            if getattr(source.config, "schema_", None) is not None:
                continue  # there is no payload, which Spark will say
            if node.config.type == "parse_csv":
                message = (
                    f"parses a line, but rows of {source.label} (format: csv) come as JSON objects of texts"
                )
                yield node.problem("csv-parsed-twice", message, at="type", hint=_HINT.format(schema))
            elif typed := _not_a_text(schema):
                message = f'asks for "{typed}", but rows of {source.label} (format: csv) hold texts only'
                yield node.problem("csv-parsed-twice", message, at="schema", hint=_HINT.format(schema))


def _sources(graph: Graph, node: Node) -> Iterator[Node]:
    for port in node.inputs:
        above = graph.nodes[port.node]
        if above.kind == "source" and getattr(above.config, "is_csv", False):
            yield above
        elif above.config.type in _PASS_ON:
            yield from _sources(graph, above)


def _not_a_text(schema: str) -> str | None:
    """The first column of a schema that no text in JSON can be."""
    depth, column = 0, ""
    for sign in schema + ",":
        depth += {"(": 1, "<": 1, ")": -1, ">": -1}.get(sign, 0)
        if sign != "," or depth > 0:
            column += sign
            continue
        words = re.split(r"[\s:]+", column.strip(), maxsplit=1)
        if len(words) == 2 and not _TEXTS.match(words[1].strip()):
            return column.strip()
        column = ""
    return None
