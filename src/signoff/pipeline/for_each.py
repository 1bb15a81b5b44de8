"""`for_each`: one node that stands for several, which differ in a few values.

    table_{region}:
      for_each: {region: [north, south]}       # or a list: [{region: north, limit: 5}, …]
      type: sqlite
      input: alarms_{region}
      path: ./out/{region}.db

`{region}` is replaced in the name of the node and in all its texts; a text that is nothing but `{limit}`
becomes the value itself, a number or a list. Other braces stay as they are, and so does every `${…}`. A node
that is written once reads all of them by the name as it is written: `inputs: ["alarms_{region}"]`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from signoff.pipeline.overlays import SECTIONS, Text
from signoff.pipeline.syntax import Place

FOR_EACH = "for_each"
_NAME = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_PLACE = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_]*)\}")


def expand(text: Text) -> None:
    """Replace every node with `for_each` by those it stands for."""
    made: dict[str, list[str]] = {}
    for section in SECTIONS:
        nodes = text.value.get(section)
        if isinstance(nodes, dict):
            text.value[section] = _expanded(text, section, nodes, made)
    for section in SECTIONS:
        nodes = text.value.get(section)
        for name, fields in nodes.items() if made and isinstance(nodes, dict) else ():
            if isinstance(fields, dict):
                _read_all(text, (section, name), fields, made)


def _expanded(
    text: Text, section: str, nodes: Mapping[str, Any], made: dict[str, list[str]]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, fields in nodes.items():
        if not isinstance(fields, dict) or FOR_EACH not in fields:
            found[name] = fields
            continue
        place: Place = (section, name)
        for values in _values(text, place, fields[FOR_EACH]):
            own = _filled(name, values)
            if isinstance(own, dict | list):
                text.problem("bad-value", "a list or a mapping cannot be the name of a node", place,
                             "put a text or a number of for_each into the name")  # fmt: skip
                continue
            own = _text(own)
            if own in found or own in nodes:
                hint = "put a {name} of for_each into the name" if own == name else "rename one of them"
                text.problem("duplicate-name", f'for_each makes "{own}" a second time', place, hint)
                continue
            made.setdefault(name, []).append(own)
            found[own] = {key: _filled(part, values) for key, part in fields.items() if key != FOR_EACH}
            for below, line in [(each, line) for each, line in text.lines.items() if each[:2] == place]:
                text.lines[(section, own, *below[2:])] = line
    return found


def _values(text: Text, place: Place, given: Any) -> list[Mapping[str, Any]]:
    """The values of each of the nodes; none, and a problem, if they cannot be read."""
    at = (*place, FOR_EACH)
    if isinstance(given, dict) and len(given) == 1:
        ((name, values),) = given.items()
        given = [{name: value} for value in values] if isinstance(values, list) else None
    if not isinstance(given, list) or not given or not all(isinstance(each, dict) and each for each in given):
        hint = "write {region: [north, south]}, or [{region: north, limit: 5}, {region: south, limit: 7}]"
        text.problem("bad-value", f'"{FOR_EACH}" must be a name with a list of values, or a list of mappings',
                     at, hint)  # fmt: skip
        return []
    names = given[0].keys()
    for number, each in enumerate(given):
        if each.keys() != names:
            text.problem("bad-value", f'"{FOR_EACH}" must give the same names each time: {", ".join(names)}',
                         (*at, number))  # fmt: skip
            return []
    if wrong := next((name for name in names if not _NAME.match(name)), None):
        text.problem("bad-name", f'"{wrong}" in "{FOR_EACH}" may not be called that', at)
        return []
    return given


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, str):
        whole = _PLACE.fullmatch(value)
        if whole and whole[1] in values:
            return deepcopy(values[whole[1]])  # each node has its own
        return _PLACE.sub(lambda found: _text(values[found[1]]) if found[1] in values else found[0], value)
    if isinstance(value, dict):
        return {_text(_filled(key, values)): _filled(part, values) for key, part in value.items()}
    if isinstance(value, list):
        return [_filled(part, values) for part in value]
    return value


def _text(value: Any) -> str:
    """A value inside a text: as it is written in YAML."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)


def _read_all(text: Text, place: Place, fields: dict[str, Any], made: Mapping[str, list[str]]) -> None:
    """Inputs that are the name of a node with for_each become all that it stands for."""
    inputs = fields.get("inputs")
    several = [inputs] if isinstance(inputs, str) else inputs
    if isinstance(several, list) and any(isinstance(each, str) and _of(each) in made for each in several):
        fields["inputs"] = [one for each in several for one in _all(each, made)]
    if isinstance(fields.get("input"), str) and _of(fields["input"]) in made:
        fields["inputs"] = _all(fields.pop("input"), made)
        if (*place, "input") in text.lines:
            text.lines[(*place, "inputs")] = text.lines[(*place, "input")]


def _of(name: str) -> str:
    return name.partition(".")[0]


def _all(name: Any, made: Mapping[str, list[str]]) -> list[Any]:
    if not isinstance(name, str) or _of(name) not in made:
        return [name]
    _, dot, output = name.partition(".")
    return [f"{each}{dot}{output}" for each in made[_of(name)]]
