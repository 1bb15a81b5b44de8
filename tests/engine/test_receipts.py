"""Receipts are there as long as their batch is not finished."""

from __future__ import annotations

from pathlib import Path

from signoff.engine.receipts import receipts_directory, remove_stray_receipts
from signoff.sinks.contract import BatchRef


def test_receipts_of_a_batch_that_was_recorded_before_a_kill_are_removed_at_the_start(tmp_path: Path) -> None:
    finished, unfinished, other = (BatchRef(*ref) for ref in (("a", 0, 4), ("a", 4, 8), ("ab", 0, 4)))
    for batch in (finished, unfinished, other):
        receipts_directory(tmp_path, batch).mkdir(parents=True)
    remove_stray_receipts(tmp_path, "a", [unfinished])
    left = {path.name for path in (tmp_path / "receipts").iterdir()}
    assert left == {unfinished.key, other.key}
