"""Receipts are there while their batch is not finished, and what they say holds when it is done again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from signoff.engine.delivery.receipts import (
    read_receipts,
    receipts_directory,
    remove_stray_receipts,
    valid_receipts,
    write_receipt,
)
from signoff.link.handover import LinkPlace
from signoff.sinks.contract import BatchRef, Part
from signoff.sinks.files.sink import FilesSink
from signoff.transforms.row_results import RowResult, result_text
from tests.engine.killed_pass import BATCH, Frame, Killed, run
from tests.link.test_handover import ids, sink_at


def test_receipts_of_a_batch_that_was_recorded_before_a_kill_are_removed_at_the_start(tmp_path: Path) -> None:
    finished, unfinished, other = (BatchRef(*ref) for ref in (("a", 0, 4), ("a", 4, 8), ("ab", 0, 4)))
    for batch in (finished, unfinished, other):
        receipts_directory(tmp_path, batch).mkdir(parents=True)
    remove_stray_receipts(tmp_path, "a", [unfinished])
    left = {path.name for path in (tmp_path / "receipts").iterdir()}
    assert left == {unfinished.key, other.key}


def in_the_file(sink: FilesSink) -> list[str]:
    lines = sink.file_of(BATCH).read_text().splitlines()
    return sorted(json.loads(line)["event_id"] for line in lines)


EVERYTHING = [f"incoming/{number}" for number in range(8)]
HALVES = [range(4), range(4, 8)]


def test_a_row_that_comes_after_a_kill_is_not_taken_for_one_that_was_committed_before(tmp_path: Path) -> None:
    sink = FilesSink(tmp_path / "out")
    waits = {7: result_text(RowResult.WAITS, "not now")}
    with pytest.raises(Killed):
        run(tmp_path, sink, Frame(HALVES, waits), receipts=[0], record=False)
    assert in_the_file(sink) == EVERYTHING[:7]
    known = run(tmp_path, FilesSink(tmp_path / "out"), Frame(HALVES))
    assert known.settled and list(known.delivered) == list(range(8))
    assert in_the_file(sink) == EVERYTHING


def test_a_part_that_a_receipt_names_is_no_other_of_a_run_with_more_cores(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run(tmp_path, FilesSink(tmp_path / "out"), Frame(HALVES, order=[1]), receipts=[1])
    sink = FilesSink(tmp_path / "out")
    known = run(tmp_path, sink, Frame([range(2), range(2, 5), range(5, 8)]))
    assert known.settled and list(known.delivered) == list(range(8))
    assert in_the_file(sink) == EVERYTHING


def test_a_part_of_a_link_that_a_receipt_names_is_no_other_of_a_run_with_more_cores(tmp_path: Path) -> None:
    place = LinkPlace(tmp_path / "link", tmp_path / "notes")
    with pytest.raises(Killed):
        run(tmp_path, sink_at(place), Frame(HALVES, order=[1]), receipts=[1])
    known = run(tmp_path, sink_at(place), Frame([range(2), range(2, 5), range(5, 8)]))
    assert known.settled and list(known.delivered) == list(range(8))
    assert ids(place) == EVERYTHING


def test_a_receipt_does_not_count_for_a_step_that_was_repaired_since(tmp_path: Path) -> None:
    sink = FilesSink(tmp_path / "out")
    with pytest.raises(Killed):
        run(tmp_path, sink, Frame(HALVES, {1: "bad"}, order=[0]), receipts=[0])
    known = run(tmp_path, sink, Frame(HALVES), form="repaired")
    assert known.settled and list(known.delivered) == list(range(8))
    assert in_the_file(sink) == EVERYTHING


def test_a_file_that_was_committed_before_a_kill_is_gone_if_nothing_comes_to_its_sink_any_more(
    tmp_path: Path,
) -> None:
    sink = FilesSink(tmp_path / "out")
    with pytest.raises(Killed):
        run(tmp_path, sink, Frame(HALVES), receipts=[0, 1], record=False)
    assert in_the_file(sink) == EVERYTHING
    known = run(tmp_path, sink, Frame(HALVES, dict.fromkeys(range(8), "bad")), form="changed")
    assert known.settled and not known.delivered
    assert not sink.file_of(BATCH).exists()


def test_a_receipt_counts_for_the_same_pipeline(tmp_path: Path) -> None:
    sink = FilesSink(tmp_path / "out")
    with pytest.raises(Killed):
        run(tmp_path, sink, Frame(HALVES, order=[0]), receipts=[0])
    (before,) = (tmp_path / "out" / ".parts").rglob("00000-*")
    before.write_text(before.read_text().replace("v1", "written once"))
    run(tmp_path, sink, Frame(HALVES))
    assert in_the_file(sink) == EVERYTHING
    assert "written once" in sink.file_of(BATCH).read_text()


def test_receipts_of_another_form_or_of_a_sink_that_is_gone_are_removed(tmp_path: Path) -> None:
    for number, (sink, form) in enumerate([("a", "old"), ("a", "new"), ("b", "new"), ("gone", "old")]):
        write_receipt(tmp_path, sink, Part(BATCH, number, 0), (number, number), [], form)
    write_receipt(tmp_path, "a", Part(BATCH, 4, 0), (4, 4), [])  # as an earlier release has
    found = valid_receipts(tmp_path, {"a": "new", "b": "old", "c": "new"})
    assert [(receipt.sink, receipt.partition) for receipt in found] == [("a", 1)]
    assert read_receipts(tmp_path) == found
