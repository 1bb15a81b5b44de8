"""What the contract says of every sink, asked of every sink by the same tests."""

from __future__ import annotations

import pickle
from operator import itemgetter

import pyarrow as pa
import pytest

from signoff.errors import SinkError, TransientError
from signoff.pipeline.model import Retry
from signoff.sinks import TYPES
from signoff.sinks.contract import EVENT_ID, Part
from signoff.sinks.retry import deliver
from tests.sinks.rows import (
    batch_ref,
    comparable,
    every_type,
    numbered,
    places,
    spoiled,
    write_batch,
    write_part,
)
from tests.sinks.targets import BROKERS, DATABASES, FILES, HTTP, Target


def _only(names: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("target", names, indirect=True)


UPSERTING = _only(FILES + DATABASES)
"""The others deliver at least once: a terminal, a webhook or a queue cannot take anything back."""
ATOMIC = _only([*FILES, "console"])
ROW_BY_ROW = _only(DATABASES + HTTP + BROKERS)
FALLIBLE = _only(FILES + DATABASES + HTTP + BROKERS)


def test_rows_of_every_type_come_back_as_they_were(target: Target) -> None:
    rows = every_type()
    assert write_batch(target.sink, rows) == []
    assert comparable(target.read(rows.schema)) == comparable(rows.to_pylist())


def test_slices_of_a_larger_batch_are_written_without_their_neighbours(target: Target) -> None:
    rows = every_type().slice(2, 2)
    assert write_batch(target.sink, rows) == []
    assert comparable(target.read(rows.schema)) == comparable(rows.to_pylist())


def test_sink_survives_the_way_to_an_executor(target: Target) -> None:
    target.sink = pickle.loads(pickle.dumps(target.sink))
    rows = numbered(3)
    assert write_batch(target.sink, rows) == []
    assert target.read(rows.schema) == rows.to_pylist()


@UPSERTING
def test_replayed_batch_takes_the_place_of_the_first(target: Target) -> None:
    write_batch(target.sink, numbered(5, text="first"), attempt=1)
    write_batch(target.sink, numbered(5, text="second"), attempt=2)
    assert target.read(numbered(0).schema) == numbered(5, text="second").to_pylist()


@UPSERTING
def test_commit_may_be_repeated(target: Target) -> None:
    rows = numbered(4)
    _, part = write_part(target.sink, rows, batch_ref())
    parts = [part] if part is not None else []
    target.sink.commit(batch_ref(), parts)
    target.sink.commit(batch_ref(), parts)
    assert target.read(rows.schema) == rows.to_pylist()


def test_parts_of_a_batch_are_united_in_the_order_of_their_partitions(target: Target) -> None:
    rows = numbered(9)
    written = [write_part(target.sink, rows.slice(3 * n, 3), batch_ref(), n, 70 - n)[1] for n in (2, 0, 1)]
    target.sink.commit(batch_ref(), [part for part in written if part is not None])
    assert target.read(rows.schema) == rows.to_pylist()


def test_batches_do_not_disturb_each_other(target: Target) -> None:
    write_batch(target.sink, numbered(2), batch_ref(0, 2))
    write_batch(target.sink, numbered(2, start=2), batch_ref(2, 4))
    assert target.read(numbered(0).schema) == numbered(4).to_pylist()


def test_rows_replayed_on_their_own_leave_the_rest_of_the_batch(target: Target) -> None:
    write_batch(target.sink, numbered(2), batch_ref(0, 3))
    write_batch(target.sink, numbered(1, start=2), batch_ref(0, 3, replay=1))
    assert sorted(target.read(numbered(0).schema), key=itemgetter("number")) == numbered(3).to_pylist()


def test_writes_of_one_task_add_up(target: Target) -> None:
    rows = numbered(6)
    writer = target.sink.open(Part(batch_ref(), 0, 0))
    for start in (0, 2, 4):
        assert list(writer.write(rows.slice(start, 2))) == []
    part = writer.close()
    target.sink.commit(batch_ref(), [part] if part is not None else [])
    assert target.read(rows.schema) == rows.to_pylist()


@ATOMIC
def test_atomic_sink_shows_nothing_before_commit(target: Target) -> None:
    _, part = write_part(target.sink, numbered(3), batch_ref())
    assert target.read(numbered(0).schema) == []
    assert part is not None


@ATOMIC
def test_aborted_part_of_an_atomic_sink_leaves_nothing(target: Target) -> None:
    writer = target.sink.open(Part(batch_ref(), 0, 1))
    writer.write(numbered(3))
    writer.abort()
    writer.abort()
    write_batch(target.sink, numbered(2), batch_ref())
    assert target.read(numbered(0).schema) == numbered(2).to_pylist()


def test_part_without_rows_is_nothing(target: Target) -> None:
    writer = target.sink.open(Part(batch_ref(), 0, 0))
    assert list(writer.write(numbered(0))) == []
    part = writer.close()
    target.sink.commit(batch_ref(), [part] if part is not None else [])
    assert target.read(numbered(0).schema) == []


def test_row_that_cannot_be_written_is_refused_alone_and_for_good(target: Target) -> None:
    rows = spoiled(10, {3, 7})
    refusals = write_batch(target.sink, rows)
    assert [(one.index, one.transient) for one in refusals] == [(3, False), (7, False)]
    assert "not valid UTF-8 (byte 0xff at 7)" in refusals[0].reason
    ids = [row[EVENT_ID] for row in target.read(rows.schema)]
    assert ids == [f"incoming/{number}" for number in range(10) if number not in (3, 7)]


def test_time_no_calendar_holds_is_refused_alone(target: Target) -> None:
    micros = pa.array([0, 2**62, None, -(2**62)], pa.int64())
    days = pa.array([0, 0, 2**30, 0], pa.int32())
    nested = pa.array([[0], [0], [0], [2**62]], pa.list_(pa.int64())).cast(
        pa.list_(pa.timestamp("us", "UTC"))
    )
    rows = pa.record_batch(
        {
            EVENT_ID: [f"incoming/{number}" for number in range(4)],
            "at": micros.cast(pa.timestamp("us", "UTC")),
            "day": days.cast(pa.date32()),
            "times": nested,
        }
    )
    refusals = write_batch(target.sink, rows)
    assert [(one.index, one.transient) for one in refusals] == [(1, False), (2, False), (3, False)]
    assert "years 1 to 9999" in refusals[0].reason
    assert len(target.read(rows.schema)) == 1


@FALLIBLE
def test_sink_that_is_down_fails_transiently_and_goes_on_when_it_is_back(target: Target) -> None:
    rows = numbered(6)
    target.down()
    try:
        refusals = write_batch(target.sink, rows)
        assert [(one.index, one.transient) for one in refusals] == [(index, True) for index in range(6)]
    except TransientError as error:
        assert str(error)
    finally:
        target.up()
    assert write_batch(target.sink, rows) == []
    assert target.read(rows.schema) == rows.to_pylist()


@ROW_BY_ROW
def test_open_writer_goes_on_after_the_sink_was_down(target: Target) -> None:
    writer = target.sink.open(Part(batch_ref(), 0, 0))
    assert list(writer.write(numbered(2))) == []
    target.down()
    down = deliver(writer, numbered(2, start=2), Retry(initial_ms=1, max_ms=1), budget_s=0.01)
    target.up()
    assert (places(down.taken), down.refused, down.left, down.exhausted) == ([], [], [0, 1], False)
    again = deliver(writer, numbered(2, start=2), Retry(), attempts_before=down.attempts)
    assert (places(again.taken), again.attempts) == ([0, 1], down.attempts + 1)
    writer.close()
    assert target.read(numbered(0).schema) == numbered(4).to_pylist()


def test_type_without_a_form_is_a_sink_error_that_names_it(target: Target) -> None:
    rows = pa.record_batch(
        {EVENT_ID: ["incoming/0"], "odd": pa.array([(1, 2, 3)], pa.month_day_nano_interval())}
    )
    with pytest.raises(SinkError, match=r"(?i)interval") as raised:
        write_batch(target.sink, rows)
    assert not isinstance(raised.value, TransientError)


@pytest.mark.parametrize("name", TYPES)
def test_every_type_describes_itself(name: str) -> None:
    config = TYPES[name]
    assert config.model_fields["type"].default == name
    assert config.summary.endswith(".")
    undocumented = [field for field, info in config.model_fields.items() if not info.description]
    assert set(undocumented) <= {"type", "retry", "method"}
