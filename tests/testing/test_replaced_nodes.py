"""What a test exchanges in a pipeline, and what it leaves alone. Without Spark."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from signoff.catalog import default
from signoff.errors import PipelineError
from signoff.pipeline.graph import Graph
from signoff.pipeline.load import load
from signoff.pipeline.tests_block import Case
from signoff.testing import running
from signoff.testing.fixed_now import EXPRESSIONS, with_now
from signoff.testing.replaced_nodes import rigged
from signoff.transforms.lookup.tables import TABLES

NOW = datetime(2100, 1, 1, tzinfo=UTC)
CASE = Case.model_validate({"name": "one", "given": {"s": ["a"]}})
HEAD = "name: p\nsources: {s: {type: files, path: './in/*.jsonl'}}\ntransforms:\n"


def graph_of(directory: Path, text: str) -> Graph:
    (directory / "p.yaml").write_text(HEAD + text)
    return load(directory / "p.yaml", default(), {}, require_secrets=False)


def test_the_time_of_a_test_is_put_into_expressions_only(tmp_path: Path) -> None:
    graph = graph_of(
        tmp_path,
        "  p: {type: parse_json, input: s, schema: 'current_date DATE, x INT'}\n"
        "  k: {type: parse_regex, input: s, patterns: '(?P<a>now()) current_date'}\n"
        "  v: {type: validate, input: p, rules: {r: {where: x < now(), reason: current_date must be set}}}\n"
        "  f: {type: filter, input: v, where: 'current_date = DATE(t)'}\n"
        "sinks: {o: {type: console, inputs: [f, k]}}\n",
    )
    found: dict[str, Any] = {
        name: with_now(node.config, NOW)  # type: ignore[type-var]
        for name, node in graph.transforms.items()
    }
    assert found["p"].schema_ == "current_date DATE, x INT"
    assert found["k"].patterns == ("(?P<a>now()) current_date",)
    rule = found["v"].rules["r"]
    assert (rule.where, rule.reason) == (
        "x < TIMESTAMP'2100-01-01T00:00:00.000000Z'",
        "current_date must be set",
    )
    assert found["f"].where == "DATE'2100-01-01' = DATE(t)"


def test_every_field_with_an_expression_is_known() -> None:
    """A new step with SQL in it is noticed by what its fields say of themselves."""
    said = {
        (name, field)
        for name, model in default().transforms.items()
        for field, info in model.model_fields.items()
        if re.search(
            r"SQL (expression|condition|aggregates)|pairs|[Nn]ame to condition", info.description or ""
        )
        or "pairs of Spark SQL" in " ".join((info.description or "").split())
    }
    assert said - {("parse_key_value", "into"), ("parse_key_value", "pair_separator")} == {
        (name, field) for name, fields in EXPRESSIONS.items() for field in fields
    }


def test_a_table_on_a_server_is_refused_and_may_be_exchanged_for_a_file(tmp_path: Path) -> None:
    lookup = "  l: {type: lookup, input: s, from: {PLACE}, keys: [payload], columns: [name]}\n"
    text = lookup + "sinks: {o: {type: console, input: l}}\n"
    graph = graph_of(tmp_path, text.replace("PLACE", "url: '${DB}', table: stations"))
    with pytest.raises(PipelineError) as raised:
        rigged(graph, CASE, tmp_path / "state", "run", None)  # type: ignore[arg-type]
    (problem,) = raised.value.problems
    assert (problem.code, int(problem.line)) == ("bad-table", 4)
    assert "transforms.l.from={path: table.csv}" in problem.hint
    graph = graph_of(tmp_path, text.replace("PLACE", "path: t.csv"))
    assert "l" in rigged(graph, CASE, tmp_path / "state", "run", None).nodes  # type: ignore[arg-type]


def test_each_test_reads_the_reference_tables_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Done(Exception):
        pass

    read: list[pa.Table] = []

    def look(*_: Any) -> None:
        table = TABLES.get("l", str(tmp_path), lambda: pa.table({"k": [len(read)]}), None).table
        read.append(table)
        raise Done

    monkeypatch.setattr(running, "rigged", look)
    graph = graph_of(
        tmp_path, "  f: {type: filter, input: s, where: 'true'}\nsinks: {o: {type: console, input: f}}\n"
    )
    for _ in range(2):
        with pytest.raises(Done):
            running.run_case(graph, CASE, spark=object())  # type: ignore[arg-type]
    assert [table.to_pylist() for table in read] == [[{"k": 0}], [{"k": 1}]]


def test_the_expressions_of_a_sink_are_computed_and_are_no_part_of_its_rows(tmp_path: Path) -> None:
    graph = graph_of(
        tmp_path,
        "  f: {type: filter, input: s, where: 'true'}\nsinks:\n"
        "  o: {type: rabbitmq, input: f, url: '${AMQP}', exchange: e, routing_key: 'a || current_date'}\n"
        "  u: {type: files, input: f, path: ./out, partition_by: {day: '${DAY}', b: 'raise_error(b)'}}\n",
    )
    nodes = rigged(graph, CASE, tmp_path / "state", "run", None).nodes  # type: ignore[arg-type]
    collect: Any = nodes["o"].config
    ((name, sql),) = collect.expressions().items()
    assert sql == "a || DATE'2100-01-01'"
    writer = collect.build(tmp_path).open(None)
    assert not writer.write(pa.RecordBatch.from_pydict({"a": ["x"], name: ["k"]}))
    assert pa.ipc.open_stream(writer.close()).read_all().to_pylist() == [{"a": "x"}]
    other: Any = nodes["u"].config
    assert list(other.expressions().values()) == ["raise_error(b)"], "what is not known cannot be computed"
