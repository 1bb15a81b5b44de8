"""YAML text to plain values, with the line of each.

Values are read as YAML 1.2 has them: `no`, `on` and `12:30` are texts, not a boolean and not a
number of seconds. Nothing but plain values is ever built. A key written twice is a problem, not an
overwritten value. Anchors and `<<` work; a text that explodes through them is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import yaml

from signoff.errors import BareLine, Problem

Place = tuple[str | int, ...]
"""Where a value stands: keys and list positions from the top."""

MOST_VALUES = 100_000
MOST_DIGITS = 40
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_UNUSABLE = re.compile("[\x00\ud800-\udfff]")
"""Characters that no path, SQL or JSON can hold."""
_OCTAL = re.compile(r"^[-+]?0o[0-7]+$")
"""A number to most readers of YAML 1.2, though not here."""
_QUOTED = re.compile(r"'(?:[^'\\]|\\.){3,}'|\"(?:[^\"\\]|\\.){3,}\"")
"""More than the character that PyYAML stumbled over: it may be a secret."""
_NO_TAGS = ("a tag such as !name cannot be used here", "write plain values")

_ABOUT_NAMES = {
    "undefined alias": ("an alias (*name) is of no anchor", "quote a text that begins with *"),
    "duplicate anchor": ("an anchor (&name) is there twice", "quote a text that begins with &"),
    "tag": _NO_TAGS,
}
"""What PyYAML says with the text of the file in it."""


@dataclass(frozen=True)
class Repeated:
    """A key that was written a second time."""

    place: Place
    line: int
    first_line: int


@dataclass
class Document:
    """The values of one file, and the line of each."""

    value: Any = None
    lines: dict[Place, int] = field(default_factory=dict)
    repeated: list[Repeated] = field(default_factory=list)


class BadYaml(Exception):
    """The text cannot be read."""

    def __init__(self, message: str, hint: str = "", line: int = 0) -> None:
        super().__init__(message)
        self.hint = hint
        self.line = line

    def problem(self, file: str) -> Problem:
        return Problem("bad-yaml", str(self), self.hint, file, self.line)


class _Loader(yaml.SafeLoader):
    """PyYAML with the scalars of YAML 1.2."""

    # PyYAML declares it for instances, but reads and fills it in the class.
    yaml_implicit_resolvers: ClassVar[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}  # type: ignore[misc]

    def compose_scalar_node(self, anchor: Any) -> Any:
        node = super().compose_scalar_node(anchor)
        if anchor and _is_bare(node):
            line = node.start_mark.line + 1
            raise BadYaml("an anchor (&name) has no value", "quote a text that begins with &", line)
        return node


for _tag, _pattern, _first in (
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"^[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789"),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+)$", "-+.0123456789"),
    ("null", r"^(?:~|null|Null|NULL|)$", "~nN\0"),
    ("merge", r"^<<$", "<"),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), ["" if c == "\0" else c for c in _first]
    )


def _construct_float(_loader: _Loader, node: yaml.ScalarNode) -> float:
    return float(node.value)  # PyYAML's own cannot read 1e3


_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)


def parse(text: str) -> Document:
    """Read one YAML document; raises BadYaml."""
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise BadYaml(
            f"the character U+{error.character:04X} may not be in a file", "remove it", line
        ) from None
    try:
        root = loader.get_single_node()
        reader = _Reader(loader)
        if root is not None:
            reader.document.value = reader.read(root, ())
        return reader.document
    except yaml.MarkedYAMLError as error:
        raise _explained(error) from None
    except RecursionError:
        raise BadYaml("the file is nested too deeply") from None
    except (ValueError, OverflowError):  # PyYAML's own: an escape beyond Unicode, a version without end
        message = "a number in an escape (\\U…) or in %YAML is too large"
        raise BadYaml(message, "correct it", loader.get_mark().line + 1) from None
    finally:
        loader.dispose()


class _Reader:
    def __init__(self, loader: _Loader) -> None:
        self._loader = loader
        self._open: set[int] = set()
        self._count = 0
        self.document = Document()

    def read(self, node: yaml.Node, place: Place) -> Any:
        self._count += 1
        line = node.start_mark.line + 1
        if self._count > MOST_VALUES:
            raise BadYaml("the file holds too many values", "it repeats its anchors without end", line)
        if id(node) in self._open:
            raise BadYaml("an anchor contains itself", line=line)
        self.document.lines.setdefault(place, line)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, line)
        if not node.tag.startswith("tag:yaml.org,2002:") or "python" in node.tag:
            raise BadYaml(*_NO_TAGS, line)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return [self.read(item, (*place, index)) for index, item in enumerate(node.value)]
            assert isinstance(node, yaml.MappingNode)
            return self._mapping(node, place)
        finally:
            self._open.discard(id(node))

    def _scalar(self, node: yaml.ScalarNode, line: int) -> Any:
        if len(node.value) > MOST_DIGITS and node.tag in _NUMBERS:
            raise BadYaml(f"a number of {len(node.value)} digits", "put it in quotes if it is a text", line)
        try:
            value = self._loader.construct_object(node)
        except (ValueError, LookupError, AttributeError, ArithmeticError, TypeError):  # PyYAML trusts `!!int`
            kind = node.tag.rpartition(":")[2]
            # Without the value: it may be a secret.
            raise BadYaml(f"this is not a value of the type !!{kind}", *_NO_TAGS[1:], line) from None
        if not isinstance(value, str | int | float | None):
            raise BadYaml(*_NO_TAGS, line)
        if isinstance(value, str):
            _refuse_unusable(value, line)
        return value

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise BadYaml("a key must be a plain text", line=line)
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged = {**self._merged(value_node, place, line), **merged}
                continue
            key = str(key_node.value)
            _refuse_unusable(key, line)
            here = (*place, key)
            if key in values:
                self.document.repeated.append(Repeated(here, line, self.document.lines[here]))
                continue
            self.document.lines[here] = BareLine(line) if _is_bare(value_node) else line
            values[key] = self.read(value_node, here)
        return {**{key: part for key, part in merged.items() if key not in values}, **values}

    def _merged(self, node: yaml.Node, place: Place, line: int) -> dict[str, Any]:
        parts = self.read(node, (*place, "<<"))
        merged: dict[str, Any] = {}
        for part in parts if isinstance(parts, list) else [parts]:
            if not isinstance(part, Mapping):
                raise BadYaml("<< must name a mapping", line=line)
            merged = {**part, **merged}
        return merged


def _is_bare(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and not node.value and node.style is None


def _refuse_unusable(text: str, line: int) -> None:
    if found := _UNUSABLE.search(text):
        raise BadYaml(f"the character U+{ord(found[0]):04X} may not be in a value", "remove it", line)


def _explained(error: yaml.MarkedYAMLError) -> BadYaml:
    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 0
    message = " ".join(part for part in (error.context, error.problem) if part)
    if "'\\t'" in message:
        return BadYaml("a tab is where only spaces may be", "indent with spaces", line)
    if "expected a single document" in message:
        return BadYaml("the file holds more than one document", 'remove the line "---"', line)
    if "could not determine a constructor" in message:
        return BadYaml(*_NO_TAGS, line)
    if "mapping values are not allowed" in message:
        return BadYaml(
            'a ": " is inside a value, or the indentation is off', "quote a text that holds a colon", line
        )
    for part, said in _ABOUT_NAMES.items():
        if part in message:
            return BadYaml(*said, line)
    message = _QUOTED.sub("a text", message)
    hint = "quote a ${…} inside { }" if "flow mapping" in message and "'{'" in message else ""
    return BadYaml(f"this is not YAML: {message}", hint, line)


class _Dumper(yaml.SafeDumper):
    """Writes texts so that PyYAML, this reader and other readers of YAML 1.2 read them back as texts."""


def _represent_text(dumper: _Dumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if _is_no_text(text) else None)


_Dumper.add_representer(str, _represent_text)


def _is_no_text(plain: str) -> bool:
    patterns = _Loader.yaml_implicit_resolvers.get(plain[:1], [])
    return any(pattern.match(plain) for _, pattern in patterns) or bool(_OCTAL.match(plain))


def written(value: Any) -> str:
    """Plain values as YAML, which `parse` reads back as the same."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
