"""Values have types, and one text by which a run is known."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from signoff.errors import PipelineError
from signoff.jobs.parameters import asked, from_json, to_json
from signoff.jobs.run import load_job
from signoff.pipeline.job_settings import ParameterType, read_value, text_of
from tests.jobs.scenes import write_job


@pytest.mark.parametrize(
    ("kind", "given", "value"),
    [
        ("bigint", "7", 7),
        ("int", 7, 7),
        ("double", "1.50", 1.5),
        ("boolean", "TRUE", True),
        ("string", 7, "7"),
        ("date", "2021-05-01", date(2021, 5, 1)),
        ("timestamp", "2021-05-01T12:00:00+02:00", datetime(2021, 5, 1, 10, tzinfo=UTC)),
        ("timestamp", "2021-05-01 10:00", datetime(2021, 5, 1, 10, tzinfo=UTC)),
        ("bigint", None, None),
    ],
)
def test_a_value_is_read_by_its_type(kind: ParameterType, given: object, value: object) -> None:
    assert read_value(kind, given) == value


@pytest.mark.parametrize(
    ("kind", "given"),
    [("bigint", "7.5"), ("int", str(2**31)), ("date", "1.5.2021"), ("boolean", "yes"), ("double", "nan"),
     ("timestamp", "today"), ("bigint", True)],
)  # fmt: skip
def test_a_value_of_another_type_is_refused(kind: ParameterType, given: object) -> None:
    with pytest.raises(ValueError, match=f"is no {kind}"):
        read_value(kind, given)


def test_the_same_moment_written_in_two_ways_is_the_same_run(tmp_path: Path) -> None:
    sinks = {"f": {"type": "files", "input": "results", "path": "./o"}}
    changes = {"parameters": {"at": "timestamp"}, "key": ["at"], "transforms": {}, "sinks": sinks}
    graph = load_job(write_job(tmp_path, **changes))
    one = asked(graph, {"at": "2021-05-01T12:00:00+02:00"})
    assert one.key == asked(graph, {"at": "2021-05-01 10:00:00"}).key == "failures@at=2021-05-01T10:00:00Z"


def test_only_key_parameters_say_which_run_it_is(tmp_path: Path) -> None:
    graph = load_job(write_job(tmp_path))
    assert asked(graph, {"day": "2021-05-01", "least": 3}).key == "failures@day=2021-05-01"
    assert asked(graph, {"day": "2021-05-01"}).values["least"] == 0


def test_null_is_not_the_text_null(tmp_path: Path) -> None:
    sinks = {"f": {"type": "files", "input": "results", "path": "./o"}}
    named = {"who": {"type": "string", "default": None}}
    graph = load_job(write_job(tmp_path, parameters=named, key=["who"], transforms={}, sinks=sinks))
    assert asked(graph, {}).key != asked(graph, {"who": "null"}).key


def test_all_that_is_wrong_with_values_is_said_at_once(tmp_path: Path) -> None:
    graph = load_job(write_job(tmp_path))
    with pytest.raises(PipelineError) as caught:
        asked(graph, {"least": "few", "dya": "2021-05-01"})
    said = [problem.message for problem in caught.value.problems]
    assert [problem.code for problem in caught.value.problems] == ["bad-parameter"] * 3
    assert 'no parameter "dya"' in said[0] and "needs a value" in said[1] and "is no bigint" in said[2]


def test_values_come_back_from_a_record_as_they_were(tmp_path: Path) -> None:
    graph = load_job(write_job(tmp_path))
    values = asked(graph, {"day": "2021-05-01", "least": 2}).values
    assert from_json(graph.settings.parameters, to_json(values)) == values
    assert text_of(values["day"]) == "2021-05-01"


def test_a_parameter_that_is_new_has_its_default_in_a_run_that_is_not_done(tmp_path: Path) -> None:
    graph = load_job(write_job(tmp_path))
    kept = to_json({"day": asked(graph, {"day": "2021-05-01"}).values["day"], "gone": "x"})
    assert from_json(graph.settings.parameters, kept)["least"] == 0, "not null: it stands in paths, too"


@pytest.mark.parametrize("kept", ['{"day": "yesterday"}', "{}"])
def test_a_value_that_the_job_does_not_take_any_more_is_an_error_that_says_so(
    tmp_path: Path, kept: str
) -> None:
    graph = load_job(write_job(tmp_path))
    with pytest.raises(PipelineError, match="a run is not done yet"):
        from_json(graph.settings.parameters, kept)
