"""The graph as a picture, and the types as reference and schema."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from signoff.pipeline import draw
from signoff.pipeline.describe import describe_markdown, describe_text, fields_of, pipeline_schema
from tests.pipeline.toys import CATALOG, GOOD, Table, graph_of


def test_the_tree_shows_every_node_once_in_full(tmp_path: Path) -> None:
    assert draw.text(graph_of(tmp_path, GOOD)) == (
        "alarms\n"
        "▶ incoming  lines  ./in\n"
        "└─ · parsed  parse  a INT, b STRING\n"
        "   ├─ · kinds  split  high, low\n"
        "   │  ├─ high → ■ some  table  some\n"
        "   │  └─ low → ■ some (see above)\n"
        "   └─ ■ all  table  everything\n"
    )


def test_the_tree_has_a_form_for_terminals_without_lines(tmp_path: Path) -> None:
    picture = draw.plain(draw.text(graph_of(tmp_path, GOOD)))
    assert picture.isascii()
    assert "|  |- high" in picture


def test_mermaid_has_every_node_and_every_edge(tmp_path: Path) -> None:
    picture = draw.mermaid(graph_of(tmp_path, GOOD))
    assert picture.startswith("flowchart LR\n")
    assert '  sink_all[("all<br/><small>table</small>")]' in picture
    assert "  transform_kinds -- high --> sink_some" in picture
    assert picture.count("-->") == 5


def test_a_picture_holds_no_secret(tmp_path: Path) -> None:
    text = GOOD.replace("path: ./in", "path: http://u:${PW}@host/x")
    graph = graph_of(tmp_path, text, {"PW": "drawn-password"})
    assert "drawn-password" not in draw.text(graph) + draw.mermaid(graph)
    assert "http://u:***@host/x" in draw.text(graph)


def test_a_description_has_own_fields_first_then_those_of_every_sink() -> None:
    fields = {field.name: field for field in fields_of(Table, "sink")}
    assert next(iter(fields)) == "table"
    assert fields["table"].required and not fields["table"].common
    assert fields["retry.attempts"].type == "whole number ≥ 1 or null"
    assert fields["retry.attempts"].common
    assert fields["url"].type == "text (secret) or null"
    text = describe_text("table", "sink", Table)
    assert "my_sink:\n    type: table\n    input: NAME\n    table: …" in text


def test_every_type_and_every_field_is_in_the_reference() -> None:
    text = describe_markdown(CATALOG)
    for kind in ("source", "transform", "sink"):
        for name, model in CATALOG.of(kind).items():
            assert f"### {kind} `{name}`" in text
            assert all(f"| `{field.name}` |" in text for field in fields_of(model, kind))


def test_the_schema_knows_the_fields_of_each_type() -> None:
    schema = pipeline_schema(CATALOG)
    json.dumps(schema)
    choices = schema["properties"]["sinks"]["additionalProperties"]["oneOf"]
    assert choices == [{"$ref": "#/$defs/sink_table"}]
    table = schema["$defs"]["sink_table"]
    assert table["required"] == ["type", "table"]
    assert table["properties"]["type"] == {"const": "table"}
    assert {"type": "string", "pattern": r"\$\{"} in table["properties"]["first"]["anyOf"]
    assert "schema" in schema["$defs"]["transform_parse"]["properties"]


def test_configs_never_change_and_know_no_other_fields() -> None:
    config = Table(table="t")
    with pytest.raises(ValidationError):
        config.table = "u"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Table(table="t", tabel="u")  # type: ignore[call-arg]
