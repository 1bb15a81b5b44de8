"""Rows of one key reach a sink in order, whatever happens to one of them."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from signoff.engine.delivery.order import KeyOrder


def rows(*keys: str | None) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array(keys, pa.string()), "n": range(len(keys))})


def test_rows_of_one_key_are_not_written_together() -> None:
    rounds = [list(chosen) for chosen in KeyOrder(("key",)).rounds(rows("a", "b", "a", None, "a", None))]
    assert rounds == [[0, 1, 3], [2, 5], [4]]


def test_after_a_row_was_left_no_later_one_of_its_key_is_written() -> None:
    order, batch = KeyOrder(("key",)), rows("a", "b", "a", "b")
    written = []
    for chosen in order.rounds(batch):
        written += list(chosen)
        some = batch.take(pa.array(chosen))
        order.leave(some, [index for index, key in enumerate(some["key"].to_pylist()) if key == "a"])
    assert written == [0, 1, 3]
    assert [list(chosen) for chosen in order.rounds(rows("a", "c"))] == [[1]], "nor of the next rows"


@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=40))
def test_every_row_is_written_once_and_in_the_order_of_its_key(keys: list[str | None]) -> None:
    written = [int(index) for chosen in KeyOrder(("key",)).rounds(rows(*keys)) for index in chosen]
    assert sorted(written) == list(range(len(keys)))
    for key in set(keys):
        mine = [index for index in written if keys[index] == key]
        assert mine == sorted(mine)
