"""Under which ids the next try of a run sends its rows; the numbers of rows alone, without a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from signoff.jobs import repeats
from signoff.jobs.compute import as_events
from signoff.jobs.outputs import second_half
from signoff.jobs.records import Output, Record
from signoff.jobs.run import load_job
from signoff.jobs.state_dir import run_directory
from signoff.pipeline.graph import Graph
from tests.jobs.scenes import JOB, write_job


@pytest.fixture
def half(tmp_path: Path) -> Graph:
    return half_with(tmp_path)


def half_with(directory: Path, **fields: Any) -> Graph:
    sink = {"type": "http", "input": "big", "url": "http://127.0.0.1:1/", **fields}
    return second_half(load_job(write_job(directory, sinks={"web": sink, "t": JOB["sinks"]["table"]})))


def edition(half: Graph, number: int, first: int, values: list[int], state: str = "failed") -> Record:
    """With its rows as a run leaves them."""
    record = Record(
        "key", number, "person", json.dumps({"day": "x"}), (None, None), state, 1, 0.0, 0.0, None, 0.0, {},
        None, {"by_station": Output(len(values), "", ("part",), first)}, {}, "",
    )  # fmt: skip
    parts = run_directory(half.state, record.id) / "parts"
    parts.mkdir(parents=True)
    events = as_events(pa.record_batch({"n": pa.array(values)}))
    with pa.ipc.new_stream(parts / "part", events.schema) as stream:
        stream.write_batch(events)
    return record


def ids(half: Graph, record: Record) -> list[int]:
    """The numbers of the ids of its rows, at the sink that knows ids."""
    found = repeats.of(half, record)
    assert found.keys() <= {"web"}
    numbers = list(range(*record.ranges["by_station"]))
    for first, there, rows in found.get("web", {}).get("by_station", ()):
        for place in range(rows):
            numbers[first + place - record.ranges["by_station"][0]] = there + place
    return numbers


def test_equal_rows_have_the_ids_of_before_each_its_own(half: Graph) -> None:
    first = edition(half, 1, 0, [7, 8, 9, 7])
    repeats.note(half, first, None)
    assert ids(half, first) == [0, 1, 2, 3]
    second = edition(half, 2, 4, [9, 7, 7, 7, 5])
    repeats.note(half, second, first)
    assert ids(half, second) == [2, 0, 3, 7, 8]
    third = edition(half, 3, 9, [8, 5, 7], "computed")
    repeats.note(half, third, second)
    assert ids(half, third) == [1, 8, 0]
    repeats.note(half, third, second)  # after a kill
    assert ids(half, third) == [1, 8, 0]


@pytest.mark.parametrize("before", [{"state": "done"}, {"parameters": '{"day": "y"}'}])
def test_a_run_that_is_not_the_next_try_of_one_that_failed_has_new_ids(
    half: Graph, before: dict[str, str]
) -> None:
    first = edition(half, 1, 0, [7, 8])
    repeats.note(half, first, None)
    second = edition(half, 2, 2, [7, 8])
    repeats.note(half, second, replace(first, **before))  # type: ignore[arg-type]
    assert ids(half, second) == [2, 3]


def test_of_a_cancelled_run_only_rows_that_were_in_the_log_are_known(half: Graph) -> None:
    """The others were sent to nobody, and rows of the next run have their numbers."""
    first = edition(half, 1, 0, [7, 8, 9])
    repeats.note(half, first, None)
    some = {"by_station": replace(first.outputs["by_station"], rows=1)}
    second = edition(half, 2, 1, [5, 9, 7])
    repeats.note(half, second, replace(first, state="cancelled", outputs=some))
    assert ids(half, second) == [1, 2, 0]


def test_a_sink_that_was_changed_has_new_ids_until_the_run_is_done(half: Graph, tmp_path: Path) -> None:
    """What it sent meanwhile may have the id of another message, so changing it back does not help."""
    first = edition(half, 1, 0, [7])
    repeats.note(half, first, None)
    patient = half_with(tmp_path, retry={"attempts": 3}, on_failure="refuse")
    second = edition(half, 2, 1, [7])
    repeats.note(patient, second, first)
    assert ids(patient, second) == [0], "how it is retried is no part of what it sends"
    other = half_with(tmp_path, headers={"X-Version": "2"})
    third = edition(half, 3, 2, [7])
    repeats.note(other, third, second)
    assert ids(other, third) == [2]
    fourth = edition(half, 4, 3, [7])
    repeats.note(half, fourth, third)
    assert ids(half, fourth) == [3]
    assert ids(half, second) == [0]
    repeats.forget(half.state, second)
    assert ids(half, second) == [1]
