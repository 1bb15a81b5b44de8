"""What the models say about themselves: for the terminal, for `docs/reference.md`, for editors.

Everything here is read from the JSON Schema that pydantic makes of a model, so validation and
documentation cannot disagree.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from signoff.pipeline.model import KINDS, Catalog, Kind, NodeConfig, SinkConfig, SourceConfig, TransformConfig
from signoff.pipeline.settings import Settings
from signoff.pipeline.tests_block import Case

_REFERENCE = {"type": "string", "pattern": r"\$\{"}
_WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "null": "null",
}
_SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_BASES: dict[Kind, type[NodeConfig]] = {
    "source": SourceConfig,
    "transform": TransformConfig,
    "sink": SinkConfig,
}
_EXPLAINED: dict[Kind, str] = {
    "source": "A place events come from.",
    "transform": "A step from rows to rows.",
    "sink": "A place that signs for events.",
}

COLUMNS = {
    "payload": (
        "STRING",
        "The event itself as text; `BINARY` with `encoding: binary`.",
    ),
    "headers": (
        "MAP<STRING, STRING>",
        "What came with it: a file's name, HTTP headers, a message's properties.",
    ),
    "message_id": ("STRING", "The id it came with, where it has one; else null."),
    "received_at": ("TIMESTAMP", "When it was received; never earlier than that of the event before it."),
}
"""What every source gives of an event, with types of Spark SQL."""


@dataclass(frozen=True, slots=True)
class FieldDoc:
    """One field as a user sees it."""

    name: str
    """Nested ones as `retry.attempts`."""
    type: str
    required: bool
    default: str
    text: str
    common: bool
    """Whether every node of this kind has it, and it means the same for all."""


class _Schema(GenerateJsonSchema):
    """Functions have no form in a file: a field that also takes one is described without it."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012 - as in the base

    def callable_schema(self, schema: core_schema.CallableSchema) -> JsonSchemaValue:
        return {"type": "string", "description": "module:function"}


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema of one model."""
    return model.model_json_schema(by_alias=True, schema_generator=_Schema)


def fields_of(model: type[BaseModel], kind: Kind | None = None) -> list[FieldDoc]:
    """The fields of a type: its own first, then those every node of its kind has."""
    schema = schema_of(model)
    common = _names(_BASES[kind]) - _redefined(model, _BASES[kind]) if kind else set()
    found = [field for field in _fields(schema, schema, "", common) if field.name != "type"]
    return [field for field in found if not field.common] + [field for field in found if field.common]


_REPEATED_NAME = r"^[A-Za-z{][A-Za-z0-9_{}]*$"
"""Of a node, also of one with `for_each`."""
_FOR_EACH = {
    "type": ["object", "array"],
    "description": "The node stands for several: {region: [north, south]}, or a list of mappings.",
}
_OF_SEVERAL_FILES: dict[str, Any] = {
    "include": {
        "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        "description": "Further files of the same pipeline, relative to this one.",
    },
    "profiles": {
        "type": "object",
        "additionalProperties": {"type": ["object", "null"]},
        "description": "Changes by name, chosen with --profile or SIGNOFF_PROFILE.",
    },
    "pipeline": {"type": "string", "description": "In a file with tests only: the pipeline they are of."},
}


def pipeline_schema(catalog: Catalog) -> dict[str, Any]:
    """The JSON Schema of a whole pipeline file, for editors."""
    settings = schema_of(Settings)
    definitions: dict[str, Any] = dict(settings.pop("$defs", {}))
    properties = dict(settings["properties"])
    for kind in KINDS:
        choices = []
        for name, model in catalog.usable(kind)[0].items():
            schema = _with_own_definitions(schema_of(model), f"{kind}_{name}", definitions)
            schema["properties"] = {**schema["properties"], "type": {"const": name}, "for_each": _FOR_EACH}
            schema["required"] = list(dict.fromkeys(["type", *schema.get("required", [])]))
            schema["title"] = f"{name} {kind}"
            schema["description"] = model.summary
            definitions[f"{kind}_{name}"] = schema
            choices.append({"$ref": f"#/$defs/{kind}_{name}"})
        properties[f"{kind}s"] = {
            "type": "object",
            "description": _EXPLAINED[kind],
            "propertyNames": {"pattern": _REPEATED_NAME},
            "additionalProperties": {"oneOf": choices},
        }
    test = schema_of(Case)
    definitions.update(test.pop("$defs", {}))
    del test["properties"]["name"], test["properties"]["given"]["items"], test["properties"]["given"]["type"]
    definitions["test"] = {**test, "required": ["given"]}
    properties["tests"] = {"type": "object", "additionalProperties": {"$ref": "#/$defs/test"}}
    properties |= _OF_SEVERAL_FILES
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Signoff pipeline",
        "type": "object",
        "anyOf": [
            {"required": ["name", "sources", "sinks"]},
            {"required": ["include"]},
            {"required": ["pipeline", "tests"]},
        ],
        "additionalProperties": False,
        "patternProperties": {"^x-": {}},
        "properties": _with_references(properties),
        "$defs": _with_references(definitions),
    }


def _with_own_definitions(schema: dict[str, Any], owner: str, definitions: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type without the definitions it needs, which are added to all others: under a name of
    its own where another type has something else under the same one."""
    own: dict[str, Any] = schema.pop("$defs", {})
    taken = {name for name, content in own.items() if definitions.get(name, content) != content}
    if taken:
        text = json.dumps([schema, own])
        for name in taken:
            text = text.replace(f'"#/$defs/{name}"', f'"#/$defs/{owner}_{name}"')
        schema, own = json.loads(text)
    definitions.update({f"{owner}_{name}" if name in taken else name: each for name, each in own.items()})
    return schema


def describe_text(name: str, kind: Kind, model: type[NodeConfig]) -> str:
    """One type for the terminal."""
    lines = [f"{name} ({kind})", f"  {model.summary or _EXPLAINED[kind]}", ""]
    lines += _indented(example(name, kind, model))
    for title, common in (("Fields", False), (f"Fields of every {kind}", True)):
        fields = [field for field in fields_of(model, kind) if field.common == common]
        if fields:
            lines += ["", title]
        for field in fields:
            default = "required" if field.required else f"default {field.default}"
            lines.append(f"  {field.name}: {field.type}; {default}")
            lines += _indented(field.text, "      ")
    if kind == "source":
        lines += ["", "Columns of its rows"]
        lines += [f"  {column} {of_type}: {text}" for column, (of_type, text) in COLUMNS.items()]
    return "\n".join(lines) + "\n"


def describe_markdown(catalog: Catalog) -> str:
    """The text of `docs/reference.md`."""
    parts = [
        "# Reference of a pipeline file\n",
        "Every field, its type and its default, made from the models themselves by "
        "`signoff describe --all --markdown`. How the parts work together is explained in "
        "[pipeline.md](pipeline.md).\n",
        "## The pipeline\n",
        _table(fields_of(Settings)),
    ]
    for kind in KINDS:
        types, _ = catalog.usable(kind)
        parts.append(f"## {kind.capitalize()}s\n\n{_EXPLAINED[kind]}\n")
        common = [f for f in fields_of(_BASES[kind]) if f.name != "type"]
        parts.append(f"Every {kind} has `type` and these fields:\n")
        parts.append(_table(common))
        if kind == "source":
            parts.append(_columns())
        for name, model in types.items():
            own = [field for field in fields_of(model, kind) if not field.common]
            parts.append(f"### {kind} `{name}`\n\n{model.summary}\n")
            parts.append(f"```yaml\n{example(name, kind, model)}\n```\n")
            if own:
                parts.append(_table(own))
    return "\n".join(parts)


def example(name: str, kind: Kind, model: type[NodeConfig]) -> str:
    """A node of this type in YAML: the model's own example, else its required fields."""
    lines = [f"my_{kind}:", f"  type: {name}"]
    if kind != "source":
        lines.append("  input: NAME")
    if model.example:
        return "\n".join([*lines, *_indented(model.example.strip("\n"))])
    required = [field for field in fields_of(model, kind) if field.required and "." not in field.name]
    lines += [f"  {field.name}: {'{…}' if field.type.startswith('mapping') else '…'}" for field in required]
    return "\n".join(lines)


def _names(model: type[BaseModel]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def _redefined(model: type[BaseModel], base: type[BaseModel]) -> set[str]:
    """Fields that a type has from its base and describes anew, because they mean more there."""
    fields, own = base.model_fields, model.model_fields
    texts = {name: own[name].description for name in fields if name in own}
    return {name for name, text in texts.items() if text and text != fields[name].description}


def _fields(
    schema: dict[str, Any], root: dict[str, Any], prefix: str, common: set[str]
) -> Iterator[FieldDoc]:
    required = set(schema.get("required", ()))
    for name, part in schema.get("properties", {}).items():
        is_common = name in common if not prefix else prefix.partition(".")[0] in common
        resolved = _resolved(part, root)
        text = part.get("description") or ""
        default = json.dumps(part["default"], ensure_ascii=False) if "default" in part else "none"
        nested = "properties" in resolved
        yield FieldDoc(
            prefix + name,
            "mapping" if nested else _type(part, root),
            name in required,
            "see below" if nested and "default" in part else default,
            text,
            is_common,
        )
        if nested:
            yield from _fields(resolved, root, f"{prefix}{name}.", common)


def _resolved(part: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """What a reference stands for; a choice between a model and null is the model."""
    if "$ref" in part:
        found: dict[str, Any] = root["$defs"][part["$ref"].rpartition("/")[2]]
        return found
    models = [choice for choice in part.get("anyOf", []) if "$ref" in choice]
    return _resolved(models[0], root) if len(models) == 1 else part


def _type(part: dict[str, Any], root: dict[str, Any]) -> str:
    if "$ref" in part:
        return "mapping" if "properties" in _resolved(part, root) else _type(_resolved(part, root), root)
    if "anyOf" in part:
        return " or ".join(dict.fromkeys(_type(choice, root) for choice in part["anyOf"]))
    if "enum" in part:
        return "one of " + ", ".join(f"`{choice}`" for choice in part["enum"])
    if "const" in part:
        return f"`{part['const']}`"
    kind = part.get("type")
    if kind == "array":
        return f"list of {_type(part['items'], root)}" if part.get("items") else "list"
    if kind == "object":
        inner = part.get("additionalProperties")
        return f"mapping of names to {_type(inner, root)}" if isinstance(inner, dict) and inner else "mapping"
    word = _WORDS.get(str(kind), "any value")
    return word + (" (secret)" if part.get("writeOnly") else "") + _bounds(part)


def _bounds(part: dict[str, Any]) -> str:
    bounds = [f"{sign} {part[key]}" for key, sign in _SIGNS.items() if key in part]
    return f" {', '.join(bounds)}" if bounds else ""


def _table(fields: list[FieldDoc]) -> str:
    lines = ["| field | type | default | |", "| --- | --- | --- | --- |"]
    for field in fields:
        default = "**required**" if field.required else f"`{field.default}`"
        text = " ".join(field.text.split()).replace("|", "\\|")
        lines.append(f"| `{field.name}` | {field.type} | {default} | {text} |")
    return "\n".join(lines) + "\n"


def _columns() -> str:
    lines = [
        "Its rows have these columns, which expressions can use:\n",
        "| column | type | |",
        "| --- | --- | --- |",
    ]
    lines += [f"| `{name}` | `{of_type}` | {text} |" for name, (of_type, text) in COLUMNS.items()]
    return "\n".join(lines) + "\n"


def _with_references(schema: Any) -> Any:
    """Numbers and booleans may also be written as `${NAME}`."""
    if isinstance(schema, list):
        return [_with_references(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") in ("integer", "number", "boolean"):
        kept = {key: schema[key] for key in ("description", "default", "title") if key in schema}
        bare = {key: part for key, part in schema.items() if key not in kept}
        return {**kept, "anyOf": [bare, _REFERENCE]}
    return {key: part if key == "default" else _with_references(part) for key, part in schema.items()}


def _indented(text: str, by: str = "  ") -> list[str]:
    return [by + line if line else "" for line in text.splitlines()]
