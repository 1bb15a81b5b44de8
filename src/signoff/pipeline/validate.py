"""The fields of one node, or of the pipeline itself, against their model: a config, or every problem.

Pydantic says what is wrong in its own words and by its own paths; here they become ours. No value
that came from a `${…}`, or stands in a secret field, is shown: messages show the reference instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from signoff.errors import Problem, is_bare
from signoff.pipeline.draft import DraftNode
from signoff.pipeline.model import Config
from signoff.pipeline.secrets import excerpt, holds_secret, register_secret
from signoff.pipeline.suggestions import did_you_mean, suggestion
from signoff.pipeline.variables import Expansion, literals

C = TypeVar("C", bound=Config)

Way = tuple[str | int, ...]
"""Keys and positions that lead to a value."""
_NOTHING = object()
_STAND_INS: tuple[object, ...] = ("not-known-not-known", _NOTHING, 1, "amqp://unknown/", "http://unknown/")
"""For a value that is not known: a text, also a key of some length; the default; a number; an address."""

_RANGES = {"literal_error", "enum", "value_error", "assertion_error", "multiple_of"}
_RANGE_PREFIXES = ("greater_than", "less_than", "string_pattern", "string_too", "too_", "finite")


def validate(
    model: type[C], node: DraftNode, label: str, expansion: Expansion
) -> tuple[C | None, list[Problem]]:
    """The config made of the node's fields; None when there are problems."""
    problems: list[Problem] = []
    register_literals(model, node.fields)
    problems += _without_value(model, node, label)
    unresolved: list[Way] = []
    expanded = _expand(node.fields, model, node, label, expansion, problems, unresolved)
    unset = {problem.line for problem in problems}
    try:
        config = _made(model, expanded, unresolved)
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False)
        found = _translate(details, model, node, label, expansion)
        # A value that is missing for want of its variable need not be reported a second time.
        problems += [problem for problem in found if problem.line not in unset or not problem.line]
        return None, problems
    return (None if problems else config), problems


def _without_value(model: type[Config], node: DraftNode, label: str) -> list[Problem]:
    """A secret that is written with nothing behind it was to be asked for: it does not mean none."""
    by_alias = _by_alias(model)
    bare = [
        key for key, value in node.fields.items() if value is None and is_bare(node.field_lines.get(key, 0))
    ]
    empty = [key for key in bare if holds_secret(by_alias.get(key))]
    hint = "write one, or leave the field out"
    return [
        node.problem("bad-value", f'{label} field "{key}": it has no value', at=key, hint=hint)
        for key in empty
    ]


def _expand(
    fields: Mapping[str, Any],
    model: type[Config],
    node: DraftNode,
    label: str,
    expansion: Expansion,
    problems: list[Problem],
    unresolved: list[Way],
) -> dict[str, Any]:
    by_alias = _by_alias(model)

    def walk(value: Any, way: Way, secret: bool) -> Any:
        if isinstance(value, str):
            at = ".".join(map(str, way))

            def fail(message: str, hint: str, code: str = "secret-not-set") -> None:
                text = f'{label} field "{at}": {message}'
                problems.append(node.problem(code, text, at=at, hint=hint))

            before = expansion.unresolved
            text = expansion.expand(value, secret=secret, fail=fail)
            if expansion.unresolved > before:
                unresolved.append(way)
            return text
        if isinstance(value, Mapping):
            return {key: walk(part, (*way, key), secret) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return [walk(part, (*way, index), secret) for index, part in enumerate(value)]
        return value

    return {key: walk(value, (key,), secret=holds_secret(by_alias.get(key))) for key, value in fields.items()}


def _made(model: type[C], fields: dict[str, Any], unresolved: list[Way]) -> C:
    """The config. Where a reference that stands for itself will not do, something that does stands for it:
    whoever only looks at a pipeline needs its nodes and names. Raises what is wrong in spite of that."""
    # All that is wrong may be wrong for want of one of them: a key that is too short, a number that is none.
    for way in unresolved:
        found = _wrong(model, fields, way)
        for stand_in in _STAND_INS if found > (0, 0, 0) else ():
            tried = _with(fields, way, stand_in)
            if (left := _wrong(model, tried, way)) < found:
                fields, found = tried, left
    return model.model_validate(fields)


def _wrong(model: type[BaseModel], fields: Mapping[str, Any], way: Way) -> tuple[int, int, int]:
    """How much is wrong with the field the way begins with, with others, and with all of them together: that
    comes to light only when each is right by itself."""
    try:
        model.model_validate(fields)
    except ValidationError as error:
        places = [detail["loc"][:1] for detail in error.errors(include_url=False, include_context=False)]
        here, together = places.count(way[:1]), places.count(())
        return here, len(places) - here - together, together
    return 0, 0, 0


def _with(value: Any, way: Way, stand_in: object) -> Any:
    """A copy in which something else stands there, or nothing."""
    step, *rest = way
    copied: Any = dict(value) if isinstance(value, Mapping) else list(value)
    if rest:
        copied[step] = _with(copied[step], tuple(rest), stand_in)
    elif stand_in is _NOTHING:
        del copied[step]
    else:
        copied[step] = stand_in
    return copied


def register_literals(model: type[BaseModel], fields: Mapping[str, Any]) -> None:
    """Secrets that stand in the file as they are must be known before an error message can hold them."""
    by_alias = _by_alias(model)

    def walk(annotation: object, value: Any) -> None:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel) and isinstance(value, Mapping):
            register_literals(annotation, value)
        elif isinstance(value, Mapping):
            for part in value.values():
                walk(annotation, part)
        elif isinstance(value, list | tuple):
            for part in value:
                walk(annotation, part)
        elif isinstance(value, str | int | float) and "://" not in str(value):
            for literal in literals(str(value)):
                register_secret(literal)

    for key, value in fields.items():
        if key in by_alias and holds_secret(by_alias[key]):
            walk(by_alias[key], value)


def _by_alias(model: type[BaseModel]) -> dict[str, object]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _translate(
    details: list[ErrorDetails], model: type[Config], node: DraftNode, label: str, expansion: Expansion
) -> list[Problem]:
    """One problem for each place: a union reports once for each of its members."""
    grouped: dict[tuple[str, str], list[ErrorDetails]] = {}
    for detail in details:
        path = _path(detail, node.fields)
        grouped.setdefault((path, detail["type"] if detail["type"] == "missing" else ""), []).append(detail)
    for path, kind in list(grouped):
        if any(other.startswith(f"{path}.") for other, _ in grouped):
            del grouped[path, kind]  # another member of the union came further, and says more
    problems = []
    unknown = [path for (path, _), group in grouped.items() if group[0]["type"] == "extra_forbidden"]
    meant = {_meant(path, model) for path in unknown}
    for (path, kind), group in grouped.items():
        if kind == "missing" and path in meant:
            continue  # it is there, misspelt, and reported as unknown
        problem = _problem(path, group, model, node, label)
        problems.append(
            Problem(
                problem.code,
                expansion.conceal(problem.message),
                expansion.conceal(problem.hint),
                problem.file,
                problem.line,
            )
        )
    return problems


def _meant(path: str, model: type[Config]) -> str:
    parent, _, key = path.rpartition(".")
    close = did_you_mean(key, _fields_at(model, parent)) or ""
    return f"{parent}.{close}" if parent else close


def _problem(
    path: str, group: list[ErrorDetails], model: type[Config], node: DraftNode, label: str
) -> Problem:
    detail = group[0]
    parent, _, key = path.rpartition(".")
    owner = f'{label} field "{parent}"' if parent else label
    if detail["type"] == "extra_forbidden":
        known = _fields_at(model, parent)
        hint = suggestion(key, known, "its fields are")
        return node.problem("unknown-field", f'{owner} has no field "{key}"', at=path, hint=hint)
    if detail["type"] == "missing":
        hint = _fields_at(model, parent).get(key, "")
        return node.problem("missing-field", f'{owner} needs the field "{key}"', at=path, hint=hint)
    said = " or ".join(dict.fromkeys(_in_our_words(one) for one in group))
    code = "bad-value" if all(_is_range(one["type"]) for one in group) else "wrong-type"
    if not path:
        return node.problem("bad-value", f"{label}: {said}", at=_field_named_in(said, node))
    own = all(one["type"] in ("value_error", "assertion_error") for one in group)
    if own:
        return node.problem(code, f'{label} field "{path}": {said}', at=path)
    value = _value_at(node.fields, path)
    secret = holds_secret(_by_alias(model).get(path.partition(".")[0]))
    got = "" if secret else f", not {_shown(value)}"
    hint = "" if secret else _hint(path, group, value)
    return node.problem(code, f'{label} field "{path}" must be {said}{got}', at=path, hint=hint)


def _hint(path: str, group: list[ErrorDetails], value: Any) -> str:
    if path == "input" and isinstance(value, list):
        return f"for several write inputs: [{', '.join(str(each) for each in value)}]"
    if any(one["type"] == "string_type" for one in group) and isinstance(value, int | float):
        return f'put it in quotes: "{_yaml_text(value)}"'
    return ""


def _path(detail: ErrorDetails, fields: Mapping[str, Any]) -> str:
    """The place in what the user wrote; pydantic puts names of union members in between."""
    value: Any = fields
    parts: list[str] = []
    for step in detail["loc"]:
        if _has(value, step):
            value = value[step]
        elif not (detail["type"] == "missing" and step == detail["loc"][-1]):
            continue
        parts.append(str(step))
    return ".".join(parts)


def _has(value: Any, step: str | int) -> bool:
    if isinstance(value, Mapping):
        return step in value
    return isinstance(value, list | tuple) and isinstance(step, int) and step < len(value)


def _value_at(fields: Mapping[str, Any], path: str) -> Any:
    value: Any = fields
    for step in _steps(fields, path):
        value = value[step]
    return value


def _steps(value: Any, path: str) -> list[Any]:
    """A path back into keys and positions; keys may hold dots themselves."""
    if not path:
        return []
    if isinstance(value, Mapping):
        for key in value:
            if path == str(key) or path.startswith(f"{key}."):
                return [key, *_steps(value[key], path[len(str(key)) + 1 :])]
    if isinstance(value, list | tuple):
        head, _, rest = path.partition(".")
        if head.isdigit() and int(head) < len(value):
            return [int(head), *_steps(value[int(head)], rest)]
    return []


def _fields_at(model: type[BaseModel], path: str) -> dict[str, str]:
    """The fields of the model that a path leads to, each with the first sentence of its docs."""
    current: type[BaseModel] = model
    for step in path.split(".") if path else []:
        inner = _model_in(_by_alias(current).get(step))
        if inner is None:
            return {}
        current = inner
    return {
        field.alias or name: (field.description or "").split(". ")[0].replace("\n", " ").rstrip(".")
        for name, field in current.model_fields.items()
    }


def _model_in(annotation: object) -> type[BaseModel] | None:
    if isinstance(annotation, type):
        return annotation if issubclass(annotation, BaseModel) else None
    for argument in getattr(annotation, "__args__", ()):
        found = _model_in(argument)
        if found:
            return found
    return None


def _in_our_words(detail: ErrorDetails) -> str:
    text = detail["msg"]
    text = re.sub(r"^(Value error|Assertion failed), ", "", text)
    text = re.sub(r"^Input should (be|have) ", lambda m: "" if m[1] == "be" else "something that has ", text)
    text = re.sub(r"^String should ", "a text that should ", text)
    return re.sub(r"(, unable to .*|, got .*)$", "", text)


def _is_range(kind: str) -> bool:
    return kind in _RANGES or kind.startswith(_RANGE_PREFIXES)


def _field_named_in(text: str, node: DraftNode) -> str:
    """A check over several fields names the one to look at in back quotes; that is the line to show."""
    named = re.findall(r"`([\w.]+)`", text)
    return next((name for name in named if name in node.field_lines), "")


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f'"{excerpt(value, 60)}"'
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return "nothing" if value is None else _yaml_text(value)


def _yaml_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
