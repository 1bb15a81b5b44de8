"""The wiring of a graph: inputs, outputs, circles, and nodes nobody reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from signoff.catalog import default
from signoff.pipeline.load import load
from tests.pipeline.toys import GOOD, graph_of, only_problem, problems_of, said


def pipeline(transforms: str, sinks: str, sources: str = "  s: {type: lines, path: x}\n") -> str:
    return f"name: t\nsources:\n{sources}transforms:\n{transforms}sinks:\n{sinks}"


def test_an_unknown_input_is_reported_alone_with_the_name_that_was_meant(tmp_path: Path) -> None:
    text = pipeline(
        "  parsed: {type: keep, input: s, where: a}\n", "  t: {type: table, input: parsd, table: t}\n"
    )
    assert said(only_problem(tmp_path, text)) == (
        'alarms.yaml:7 [unknown-input] sink "t" reads "parsd", which does not exist; did you mean "parsed"?'
    )


def test_a_sink_without_input_is_a_problem(tmp_path: Path) -> None:
    problem = only_problem(tmp_path, GOOD + "  lone: {type: table, table: x}\n")
    assert said(problem).startswith(
        'alarms.yaml:25 [missing-input] sink "lone" has no input; add input: NAME'
    )


def test_a_sink_cannot_be_read(tmp_path: Path) -> None:
    problem = only_problem(tmp_path, GOOD + "  after: {type: table, input: all, table: x}\n")
    assert (problem.code, problem.message) == ("unknown-input", 'sink "after" reads "all", which is a sink')


def test_a_source_takes_no_input(tmp_path: Path) -> None:
    problem = only_problem(tmp_path, GOOD.replace("path: ./in", "path: ./in\n    input: parsed"))
    assert 'source "incoming" has no field "input"' in str(problem)


@pytest.mark.parametrize(
    ("written", "hint"),
    [
        ("kinds.hihg", 'did you mean "kinds.high"?'),
        ("kinds", "write one of kinds.high, kinds.low"),
        ("parsed.high", "write parsed"),
        ("incoming.x", "write incoming"),
    ],
)
def test_an_output_that_does_not_exist_is_a_problem(tmp_path: Path, written: str, hint: str) -> None:
    problem = only_problem(tmp_path, GOOD + f"  more: {{type: table, input: {written}, table: x}}\n")
    assert (problem.code, problem.hint) == ("unknown-output", hint)


def test_the_same_input_twice_is_a_problem(tmp_path: Path) -> None:
    problem = only_problem(tmp_path, GOOD.replace("[kinds.high, kinds.low]", "[kinds.high, kinds.high]"))
    assert (problem.code, problem.line) == ("duplicate-input", 23)


def test_a_cycle_is_reported_once_with_its_way(tmp_path: Path) -> None:
    text = pipeline(
        "  a: {type: keep, inputs: [s, c], where: x}\n"
        "  b: {type: keep, input: a, where: x}\n"
        "  c: {type: keep, input: b, where: x}\n",
        "  t: {type: table, input: b, table: t}\n",
    )
    problem = only_problem(tmp_path, text)
    assert (problem.code, problem.line) == ("cycle", 5)
    assert "a → b → c → a" in problem.message


def test_a_node_that_reads_itself_is_a_cycle(tmp_path: Path) -> None:
    text = pipeline(
        "  a: {type: keep, inputs: [s, a], where: x}\n", "  t: {type: table, input: a, table: t}\n"
    )
    assert "a → a" in only_problem(tmp_path, text).message


def test_two_circles_are_two_problems(tmp_path: Path) -> None:
    text = pipeline(
        "  a: {type: keep, inputs: [s, a], where: x}\n  b: {type: keep, inputs: [a, b], where: x}\n",
        "  t: {type: table, input: b, table: t}\n",
    )
    assert [problem.code for problem in problems_of(tmp_path, text)] == ["cycle", "cycle"]


def test_a_transform_or_source_nobody_reads_is_unreachable(tmp_path: Path) -> None:
    text = GOOD.replace("sinks:", "  idle: {type: keep, input: parsed, where: a}\nsinks:").replace(
        "transforms:", "  unused: {type: lines, path: x}\ntransforms:"
    )
    assert [problem.message for problem in problems_of(tmp_path, text)] == [
        'nothing reads source "unused"',
        'nothing reads transform "idle"',
    ]


def test_an_output_nobody_reads_is_a_warning_only(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, GOOD.replace("[kinds.high, kinds.low]", "[kinds.high]"))
    (warning,) = graph.warnings
    assert said(warning).startswith(
        'alarms.yaml:14 [unused-output] nothing reads the output "low" of transform "kinds"'
    )


RABBIT = """
name: alarms
sources:
  incoming: {type: rabbitmq, url: "amqp://localhost/", queues: [a]%s}
sinks:
  out:
    type: console
    input: incoming
    retry: {%s}
"""


def rabbit_warnings(tmp_path: Path, source: str, retry: str) -> list[str]:
    file = tmp_path / "alarms.yaml"
    file.write_text(RABBIT % (source, retry))
    return [said(warning) for warning in load(file, default()).warnings]


def test_a_sink_that_may_retry_for_longer_than_the_broker_waits_is_a_warning(tmp_path: Path) -> None:
    (warning,) = rabbit_warnings(tmp_path, "", "attempts: 100")
    assert warning.startswith(
        'alarms.yaml:9 [consumer-timeout] sink "out" may retry for 2751.1 s (100 attempts, waits up to '
        '30000 ms), but source "incoming" gets its events again after 1800 s'
    )
    assert rabbit_warnings(tmp_path, "", "attempts: 50") == []
    assert rabbit_warnings(tmp_path, ", acknowledge: logged", "attempts: 100") == []


def test_a_sink_that_asks_for_ever_is_a_warning_where_the_source_names_its_timeout(tmp_path: Path) -> None:
    assert rabbit_warnings(tmp_path, "", "max_ms: 30000") == []
    (warning,) = rabbit_warnings(tmp_path, ", consumer_timeout: 10m", "max_ms: 30000")
    assert "retries for ever" in warning and "600 s" in warning


def test_sources_transforms_and_sinks_share_one_set_of_names(tmp_path: Path) -> None:
    problem = only_problem(tmp_path, GOOD + "  parsed: {type: table, input: parsed, table: x}\n")
    assert problem.message == 'sink "parsed" has the name of a transform in line 7'


@pytest.mark.parametrize("name", ["base-station", "1st", "a.b", "a/b", "ä", "a b"])
def test_names_that_cannot_be_part_of_an_event_id_are_refused(tmp_path: Path, name: str) -> None:
    problem = only_problem(tmp_path, GOOD + f"  {name}: {{type: table, input: parsed, table: x}}\n")
    assert (problem.code, problem.line) == ("bad-name", 25)


def test_an_output_with_a_bad_name_is_refused(tmp_path: Path) -> None:
    text = GOOD.replace("low: a <= 5", "lo-w: a <= 5").replace("kinds.low", "kinds.lo-w")
    assert only_problem(tmp_path, text).code == "bad-name"


def test_two_sinks_with_the_same_target_are_refused(tmp_path: Path) -> None:
    problem = only_problem(tmp_path, GOOD.replace("table: some", "table: everything"))
    assert problem.message == 'sink "some" writes to the same place as sink "all"'


def test_a_pipeline_needs_a_source_and_a_sink(tmp_path: Path) -> None:
    assert [problem.code for problem in problems_of(tmp_path, "name: a\n")] == [
        "missing-source",
        "missing-sink",
    ]


def test_acknowledgements_are_decided_by_source_then_by_pipeline(tmp_path: Path) -> None:
    sources = (
        "  s: {type: lines, path: x}\n  o: {type: lines, path: x, acknowledgements: %s}\n  d: {type: dice}\n"
    )
    text = pipeline(
        "  k: {type: keep, inputs: [s, o, d], where: x}\n", "  t: {type: table, input: k, table: t}\n"
    )
    text = text.replace("  s: {type: lines, path: x}\n", sources)
    graph = graph_of(tmp_path, text % "false")
    assert [graph.acknowledges(name) for name in ("s", "o", "d")] == [True, False, False]
    graph = graph_of(tmp_path, "acknowledgements: false\n" + text % "true")
    assert [graph.acknowledges(name) for name in ("s", "o", "d")] == [False, True, False]


@pytest.mark.parametrize(
    ("source", "settings", "why"),
    [
        ("type: dice", "", "(dice) has acknowledge_within, but cannot be acknowledged"),
        ("type: lines\n    path: x\n    acknowledgements: false", "", "but its acknowledgements are off"),
        ("type: lines\n    path: x", "acknowledgements: false\n", "but its acknowledgements are off"),
    ],
)
def test_events_cannot_expire_where_nobody_would_be_told(
    tmp_path: Path, source: str, settings: str, why: str
) -> None:
    text = settings + GOOD.replace(
        "type: lines\n    path: ./in", f"{source}\n    acknowledge_within: 30s\n    encoding: utf-8"
    )
    problem = only_problem(tmp_path, text)
    assert problem.code == "cannot-expire"
    assert why in said(problem)
    assert "acknowledge_within" in text.splitlines()[problem.line - 1]


def test_the_time_until_an_event_expires_is_a_duration_and_not_zero(tmp_path: Path) -> None:
    def text(within: str) -> str:
        return GOOD.replace("path: ./in", f"path: ./in\n    acknowledge_within: {within}")

    times = [graph_of(tmp_path, text(within)).sources["incoming"] for within in ("500ms", "2m", "7", "null")]
    assert [getattr(source.config, "acknowledge_within", 0) for source in times] == [0.5, 120.0, 7.0, None]
    assert only_problem(tmp_path, text("0s")).code == "bad-value"
    assert "write 30s, 500ms or 2m" in said(only_problem(tmp_path, text("soon")))


def test_http_has_its_time_also_where_acknowledgements_are_off(tmp_path: Path) -> None:
    """There it is how long a request waits for its answer, and has always had a default."""
    file = tmp_path / "alarms.yaml"
    file.write_text(
        "name: t\nacknowledgements: false\nsources:\n  s: {type: http, acknowledge_within: 2s}\n"
        "sinks:\n  t: {type: console, input: s}\n"
    )
    assert load(file, default()).warnings == ()


@pytest.mark.parametrize(("within", "warned"), [("29m", 0), ("30m", 1)])
def test_a_source_that_waits_longer_than_its_broker_is_a_warning(
    tmp_path: Path, within: str, warned: int
) -> None:
    file = tmp_path / "alarms.yaml"
    file.write_text(
        "name: t\nsources:\n  s:\n    type: rabbitmq\n    url: amqp://broker/\n    queues: q\n"
        f"    acknowledge_within: {within}\nsinks:\n"
        "  t: {type: console, input: s, retry: {attempts: 1000}}\n"
    )
    warnings = load(file, default()).warnings
    assert [(warning.code, warning.line) for warning in warnings] == [("consumer-timeout", 7)] * warned


def test_a_source_that_cannot_acknowledge_cannot_be_told_to(tmp_path: Path) -> None:
    text = GOOD.replace("type: lines\n    path: ./in", "type: dice\n    acknowledgements: true")
    assert said(only_problem(tmp_path, text)).startswith(
        'alarms.yaml:5 [cannot-acknowledge] source "incoming" (dice) cannot be acknowledged'
    )
