"""A step that may hold events for ever, or for longer than their source waits, is refused with the sums."""

from __future__ import annotations

from pathlib import Path

import pytest

from signoff.catalog import default
from signoff.errors import PipelineError
from signoff.pipeline.load import load

RABBIT = "{type: rabbitmq, url: 'amqp://localhost', queues: [q]}"
FILES = "{type: files, path: in/*}"
HTTP = "{type: http, port: 0, acknowledge_within: 5m}"


def codes(tmp_path: Path, source: str, window: str, sink: str = "", more: str = "") -> list[tuple[str, str]]:
    file = tmp_path / "p.yaml"
    file.write_text(f"""
name: p
sources:
  incoming: {source}
transforms:
  counts: {{type: window, input: incoming, size: 10m, aggregates: {{n: count(*)}}, {window}}}
sinks:
  out: {{type: console, input: counts{sink}}}{more}
""")
    try:
        load(file, default())
    except PipelineError as error:
        return [(problem.code, problem.message) for problem in error.problems]
    return []


@pytest.mark.case(35)
@pytest.mark.parametrize(
    ("source", "window", "code", "says"),
    [
        (RABBIT, "allowed_lateness: 15m, acknowledge: delivered", "may-deadlock",
         "200000 / 1500 s = 133.3 a second"),
        (FILES, "acknowledge: delivered", "may-deadlock", "bytes of its log"),
        (RABBIT, "acknowledge: delivered", "may-deadlock",
         "200000 events (prefetch) or "),
        (RABBIT, "allowed_lateness: 15m, acknowledge: delivered, idle_after: 3m", "held-too-long",
         "size 600 s + allowed_lateness 900 s + idle_after 180 s = 1680 s"),
        (HTTP, "acknowledge: delivered, idle_after: 1m", "held-too-long", "300 s (acknowledge_within)"),
    ],
)  # fmt: skip
def test_a_window_that_may_not_let_go_in_time_is_refused_with_the_arithmetic(
    tmp_path: Path, source: str, window: str, code: str, says: str
) -> None:
    ((found, message),) = codes(tmp_path, source, window)
    assert found == code and says in message


@pytest.mark.case(35)
@pytest.mark.parametrize("window", ["allowed_lateness: 15m", "acknowledge: delivered, idle_after: 1m"])
def test_a_window_that_lets_go_of_its_events_is_accepted(tmp_path: Path, window: str) -> None:
    assert codes(tmp_path, RABBIT, window) == []


def test_what_a_window_may_hold_at_most_is_said_where_it_waits_for_events_that_may_be_held_back(
    tmp_path: Path,
) -> None:
    assert codes(tmp_path, RABBIT, "acknowledge: delivered, idle_after: 1m") == []
    (warning,) = load(tmp_path / "p.yaml", default()).warnings
    assert warning.code == "may-deadlock" and "200000 / 660 s = 303 a second" in warning.message
    assert codes(tmp_path, RABBIT, "idle_after: 1m") == []
    assert load(tmp_path / "p.yaml", default()).warnings == ()


@pytest.mark.parametrize(
    ("acknowledge", "found"), [("save_point", ["cannot-refuse"]), ("delivered, idle_after: 1m", [])]
)
def test_a_sink_behind_a_save_point_cannot_refuse(tmp_path: Path, acknowledge: str, found: list[str]) -> None:
    file = tmp_path / "p.yaml"
    codes_found = [
        code for code, _ in codes(tmp_path, FILES, f"acknowledge: {acknowledge}", sink=", on_failure: refuse")
    ]
    assert codes_found == found, file.read_text()


def test_a_sink_for_late_events_may_refuse(tmp_path: Path) -> None:
    late = "\n  late: {type: console, input: counts.late, on_failure: refuse}"
    assert codes(tmp_path, FILES, "acknowledge: save_point", more=late) == []


def of_fold(tmp_path: Path, source: str, fold: str) -> list[tuple[str, str]]:
    file = tmp_path / "p.yaml"
    file.write_text(f"""
name: p
sources:
  incoming: {source}
transforms:
  orders: {{type: fold, input: incoming, keys: [payload], {fold}}}
sinks:
  out: {{type: console, input: orders}}
""")
    try:
        load(file, default())
    except PipelineError as error:
        return [(problem.code, problem.message) for problem in error.problems]
    return []


@pytest.mark.case(35)
@pytest.mark.parametrize(
    ("source", "fold", "code", "says"),
    [
        (RABBIT, "count: 2, acknowledge: delivered", "may-deadlock", "while 200000 events (prefetch)"),
        (FILES, "until: 'true', acknowledge: delivered", "may-deadlock", "bytes of its log"),
        (RABBIT, "timeout: 30m, acknowledge: delivered", "held-too-long",
         "timeout 1800 s = 1800 s, but \"incoming\" waits 0.9 x 1800 s = 1620 s"),
        (HTTP, "count: 2, timeout: 5m, acknowledge: delivered", "held-too-long",
         "300 s (acknowledge_within)"),
    ],
)  # fmt: skip
def test_a_fold_that_may_not_let_go_in_time_is_refused_with_the_arithmetic(
    tmp_path: Path, source: str, fold: str, code: str, says: str
) -> None:
    ((found, message),) = of_fold(tmp_path, source, fold)
    assert found == code and says in message


@pytest.mark.case(35)
@pytest.mark.parametrize("fold", ["count: 2", "count: 2, timeout: 1m, acknowledge: delivered"])
def test_a_fold_that_lets_go_of_its_events_is_accepted(tmp_path: Path, fold: str) -> None:
    assert of_fold(tmp_path, RABBIT, fold) == []


@pytest.mark.parametrize(
    ("fold", "says"),
    [
        ("on_error: drop", "no group would ever end"),
        ("count: 2, columns: {payload: '1'}", "two columns of the result"),
    ],
)
def test_a_fold_that_never_ends_or_names_a_column_twice_is_refused(
    tmp_path: Path, fold: str, says: str
) -> None:
    ((_, message),) = of_fold(tmp_path, FILES, fold)
    assert says in message
