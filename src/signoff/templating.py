"""Texts made from rows: what sinks send to people and to services that want a form of their own.

One template language, Jinja2 in its sandbox, and one rule for each kind of text, so that whatever stands in a
row stays a value:

    text         as it is
    html         escaped; markup is what the template itself says, and no filter or tag turns that off
    slack        `&`, `<` and `>` escaped, as Slack asks for: a row cannot mention a channel or hide a link
    structures   JSON or a form, of which only the texts are templates: it is always valid

A row's content is never compiled. A template sees the row and nothing else: no time, no chance, no files, so
that what is sent again is the same text. Values look as they do in JSON (see `json_text`), and a null
is no text. A template that fails for a row raises TemplateFailed, and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from math import isfinite
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, JsonValue
from pydantic.fields import FieldInfo
from typing_extensions import TypeAliasType

Escape = Literal["text", "html", "slack"]
Values = Mapping[str, Any]

MOST_CHARACTERS = 10 * 1024 * 1024
"""Longest text a template may make."""
_FILTERS = frozenset(
    [
        "abs",
        "batch",
        "capitalize",
        "count",
        "d",
        "default",
        "dictsort",
        "e",
        "escape",
        "first",
        "float",
        "format",
        "groupby",
        "indent",
        "int",
        "items",
        "join",
        "last",
        "length",
        "list",
        "lower",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "replace",
        "reverse",
        "round",
        "select",
        "selectattr",
        "slice",
        "sort",
        "string",
        "striptags",
        "sum",
        "title",
        "trim",
        "truncate",
        "unique",
        "upper",
        "urlencode",
        "wordcount",
        "wordwrap",
    ]
)
"""Without those that are different each time (`random`), or make markup of a value (`safe`)."""
_GLOBALS = ("range", "dict", "namespace")
_SLACK = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


class TemplateFailed(Exception):
    """A template gives no text for these values."""


class Figure(float):
    """A number with a fraction, as it was written: arithmetic is that of floats, every digit is shown."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Figure:
        made = super().__new__(cls, text)
        made.text = text
        return made

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[type[Figure], tuple[str]]:
        return Figure, (self.text,)


def read_values(line: bytes | str) -> dict[str, Any]:
    """The values of a row that was written as JSON."""
    found: dict[str, Any] = json.loads(line, parse_float=Figure)
    return found


def of_row(row: Mapping[str, Any]) -> Values:
    """What a template about one row may name: its columns, and `row` for all of them together."""
    return {"row": row, **row}


def render(source: str, values: Values, escape: Escape = "text") -> str:
    """The text that a template makes of these values. Raises TemplateFailed."""
    try:
        text: str = _compiled(source, escape).render(values)
        text.encode()
    except Exception as error:
        raise TemplateFailed(_words(error)) from error
    if len(text) > MOST_CHARACTERS:
        raise TemplateFailed(f"the text is longer than {MOST_CHARACTERS} characters")
    return text


def fill(structure: JsonValue, values: Values, escape: Escape = "text") -> JsonValue:
    """The structure with its templates filled in. One that is a single `{{ … }}` keeps the value's type:
    a number stays a number, and a text of digits a text. Raises TemplateFailed."""
    if isinstance(structure, str):
        whole = _expression(structure)
        if whole is None:
            return render(structure, values, escape)
        return _plain(_value(whole, values), escape)
    if isinstance(structure, Mapping):
        return {key: fill(part, values, escape) for key, part in structure.items()}
    if isinstance(structure, list):
        return [fill(part, values, escape) for part in structure]
    return structure


def json_text(value: Any) -> str:
    """A value as JSON, with every digit; numbers that JSON does not know are texts. Raises TemplateFailed."""
    if isinstance(value, Figure):
        return value.text
    if isinstance(value, float) and not isfinite(value):
        return json.dumps({"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[repr(value)])
    if value is None or isinstance(value, bool | int | float | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        pairs = (f"{json_text(str(key))}: {json_text(one)}" for key, one in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(json_text(one) for one in value) + "]"
    raise TemplateFailed(f"a {type(value).__name__} is no value of JSON")


def names_in(structure: JsonValue) -> frozenset[str]:
    """The names that the templates of a structure, or a single one, take from outside."""
    if isinstance(structure, str):
        return _names(structure)
    parts: Iterable[JsonValue] = ()
    if isinstance(structure, dict):
        parts = structure.values()
    elif isinstance(structure, list):
        parts = structure
    return frozenset[str]().union(*map(names_in, parts))


def columns_in(**fields: JsonValue) -> dict[str, str]:
    """The columns of a row that templates name, each with the field that names it."""
    return {
        name: field
        for field, structure in reversed(fields.items())
        for name in sorted(names_in(structure) - {"row", *_GLOBALS})
    }


def _checked(structure: JsonValue) -> JsonValue:
    names_in(structure)
    return structure


def _checked_text(source: str) -> str:
    names_in(source)
    return source


Template = Annotated[str, AfterValidator(_checked_text)]
"""A text with `{{ column }}` in it."""
JsonTemplate = Annotated[JsonValue, AfterValidator(_checked)]
"""Anything JSON can hold; each text in it is a template."""


def has_template(field: object) -> bool:
    """Whether a field of a config, however deep, is or holds a template."""
    if isinstance(field, FieldInfo):
        return any(map(has_template, field.metadata)) or has_template(field.annotation)
    if isinstance(field, AfterValidator):
        return field.func in (_checked, _checked_text)
    if isinstance(field, type) and issubclass(field, BaseModel):
        return any(map(has_template, field.model_fields.values()))
    if isinstance(field, TypeAliasType):
        return False  # a value of JSON, which refers to itself
    return any(map(has_template, (*get_args(field), *getattr(field, "__metadata__", ()))))


@cache
def _environment(escape: Escape) -> Any:
    try:
        from jinja2 import StrictUndefined
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ModuleNotFoundError:
        install = 'pip install "signoff[templates]"'
        raise ValueError(f"templates need jinja2, which is not installed: {install}") from None
    made = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined,
        autoescape=escape == "html",
        finalize=_FINALIZE[escape],
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters = {name: made.filters[name] for name in _FILTERS} | {"one_line": _one_line}
    made.globals = {name: made.globals[name] for name in _GLOBALS}
    return made


@cache
def _compiled(source: str, escape: Escape) -> Any:
    return _environment(escape).from_string(source)


@cache
def _names(source: str) -> frozenset[str]:
    """Raises ValueError for a text that is no template, or one that asks for more than values."""
    environment = _environment("text")
    from jinja2 import TemplateSyntaxError, meta, nodes

    try:
        tree = environment.parse(source)
        environment.compile(source)  # knows the filters
    except TemplateSyntaxError as error:
        raise ValueError(f"line {error.lineno} of the template: {error.message}") from None
    for unwanted, what in ((nodes.EvalContextModifier, "autoescape"), (nodes.Include, "include")):
        if tree.find(unwanted):
            raise ValueError(f"{what} cannot be used in a template of a pipeline")
    if tree.find((nodes.Import, nodes.FromImport, nodes.Extends)):
        raise ValueError("a template of a pipeline cannot use another one")
    return frozenset(meta.find_undeclared_variables(tree)) - {*_GLOBALS}


@cache
def _expression(source: str) -> str | None:
    """What stands between the braces of a text that is nothing else."""
    from jinja2 import nodes

    text = source.strip()
    body = _environment("text").parse(text).body
    if len(body) != 1 or not isinstance(body[0], nodes.Output) or len(body[0].nodes) != 1:
        return None
    if isinstance(body[0].nodes[0], nodes.TemplateData):
        return None
    inner = text[2:-2]
    inner = inner[1:] if inner[:1] in "-+" else inner  # whitespace control, not a sign
    return inner[:-1] if inner[-1:] in "-+" else inner


@cache
def _compiled_expression(expression: str) -> Any:
    return _environment("text").compile_expression(expression, undefined_to_none=False)


def _value(expression: str, values: Values) -> Any:
    try:
        value = _compiled_expression(expression)(values)
        if type(value).__name__ == "StrictUndefined":
            str(value)  # says what is missing
    except Exception as error:
        raise TemplateFailed(_words(error)) from error
    return value


def _plain(value: Any, escape: Escape) -> JsonValue:
    """A value as it may stand in a structure, its texts escaped."""
    value = list(value) if isinstance(value, Iterator) else value
    if isinstance(value, str):
        return str(_FINALIZE[escape](value))
    if isinstance(value, Mapping):
        return {str(key): _plain(one, escape) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one, escape) for one in value]
    json_text(value)
    return value  # type: ignore[no-any-return]


def _shown(value: Any) -> Any:
    """What stands in a text for a value: nothing for null, and JSON for what is not a text."""
    if value is None:
        return ""
    value = list(value) if isinstance(value, Iterator) else value
    if isinstance(value, bool | Mapping | list | tuple):
        return json_text(value)
    return value if isinstance(value, str) else str(value)


def _for_slack(value: Any) -> str:
    return str(_shown(value)).translate(_SLACK)


_FINALIZE: dict[Escape, Callable[[Any], Any]] = {"text": _shown, "html": _shown, "slack": _for_slack}


def _one_line(value: Any) -> str:
    """For headers: line ends, and whatever else is blank, as single blanks."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(_shown(value))).split())


def _words(error: Exception) -> str:
    return f"{error}" or type(error).__name__
