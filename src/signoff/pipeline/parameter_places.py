"""Where in a job's file the value of a parameter may stand. An event may bring it, and must not write a part
of the job with it.

- A parameter of type `string` stands nowhere but in a path: in SQL or in a template it would be compiled, in
  an address, a header or a setting it would say where secrets go, in others what becomes of rows. What is
  safe is listed, so that a field that is new, or a plug-in's, is refused. A value of any other type has no
  sign that could do harm.
- In a path it is a name: it leads nowhere else, and no disk finds it too long.
- A value of another type with which the file is no job is the fault of the value: see `invoker`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from signoff.errors import Problem
from signoff.pipeline.draft import Draft, DraftNode
from signoff.pipeline.graph import Graph
from signoff.pipeline.job_settings import Parameter, Value, read_value, text_of
from signoff.pipeline.model import NodeConfig
from signoff.pipeline.variables import REFERENCE
from signoff.templating import has_template

_PATH = re.compile(r"(^|_)(path|state|file|dir|directory|move_to|refused_to|font)$")
_SQL = {
    "source": re.compile(r"^(where|complete_to)$"),
    "transform": re.compile(r"^(where|query|columns|routes|rules|column|key)$"),
    "sink": re.compile(r"^(routing_key|partition_by)$"),
}
"""Fields that hold SQL, by the kind of the node."""
_SAFE = frozenset({"path", "dir", "directory", "move_to", "refused_to"})
"""Fields of a node that are the place of its rows and nothing else: all that a text may stand in. Not the
files that say whom to trust or who one is, nor what a report is drawn with."""
_LONGEST_NAME = 200
"""Bytes of a value in a path: a disk takes names of 255, and sinks add some of their own."""


def in_paths(fields: object) -> set[str]:
    """The names of references that stand in fields which are paths."""
    return _references(fields, _PATH)


def texts_out_of_place(
    draft: Draft, parameters: Mapping[str, Parameter], configs: Mapping[str, NodeConfig]
) -> Iterator[Problem]:
    """Parameters that are texts and stand where their values would be more than values."""
    texts = {name for name, parameter in parameters.items() if parameter.type == "string"}
    if not texts:
        return
    for node in draft.nodes:
        for name in sorted(_references(node.fields, _SQL[node.kind]) & texts):
            message = f'has the parameter "{name}", a text, in its SQL'
            hint = f"write :{name} in a query or a table; elsewhere bring it by one: SELECT :{name} AS {name}"
            yield node.problem("parameter-in-sql", f"{node.label} {message}", hint=hint)
        for field, what in _unsafe(node, configs.get(node.name)):
            written = {field: node.fields[field]}
            found = _references(written, _ANY) - _references(written, _SQL[node.kind])
            for name in sorted(found & texts):
                message = f'{node.label} has the parameter "{name}", a text, {what}'
                yield node.problem("parameter-in-text", message, at=field, hint=_hint(name, what))
    for field, value in draft.settings.items():
        for name in sorted(_references(value, _ANY, field != "state") & texts):
            message = f'the field "{field}" has the parameter "{name}", a text'
            line = draft.settings_lines.get(field, 0)
            yield Problem("parameter-in-text", message, "write it down in the file", draft.file, line)


def must_stay_in_paths(graph: Graph, values: Mapping[str, Value]) -> None:
    """Raises ValueError for a value, other than the default, with which a path would lead elsewhere, or be
    none. Asked of values that events bring: a person may write where they like."""
    for name in sorted(graph.in_paths & values.keys()):
        declared, text = graph.settings.parameters[name], text_of(values[name])
        if values[name] == read_value(declared.type, declared.default):
            continue  # it stands in the job's file
        if re.search(r"[/\\\\\0]", text) or not text.strip(". "):
            raise ValueError(
                f'parameter "{name}" stands in a path; its value may have no / or \\ and not be empty or ..'
            )
        if len(text.encode()) > _LONGEST_NAME:
            raise ValueError(
                f'parameter "{name}" stands in a path; its value may not be longer than {_LONGEST_NAME} bytes'
            )


def _unsafe(node: DraftNode, config: NodeConfig | None) -> Iterator[tuple[str, str]]:
    """Fields of which a text might be more than a name, and how to call them."""
    known = {} if config is None else type(config).model_fields
    templates = {each.alias or name for name, each in known.items() if has_template(each)}
    for field, value in node.fields.items():
        if field in templates:
            yield field, "in a template"
        elif field not in _SAFE or not isinstance(value, str):
            yield field, f"in its {field}"


def _hint(name: str, what: str) -> str:
    column = f"bring it as a column of the query (SELECT *, :{name} AS {name})"
    if what == "in a template":
        return f"{column}, and write {{{{ {name} }}}}"
    if what in ("in its title", "in its about", "in its content"):
        return f"{column}, and write {{first({name})}}"
    return "write it down in the file, or give the parameter another type"


_ANY = re.compile("")


def _references(fields: object, wanted: re.Pattern[str], inside: bool = False) -> set[str]:
    """The names of references that stand in fields of certain names."""
    if isinstance(fields, str):
        return {found["name"] for found in REFERENCE.finditer(fields) if inside and found["name"]}
    if isinstance(fields, Mapping):
        return {
            name for key, each in fields.items()
            for name in _references(each, wanted, inside or bool(wanted.search(str(key))))
        }  # fmt: skip
    if isinstance(fields, list | tuple):
        return {name for each in fields for name in _references(each, wanted, inside)}
    return set()
