"""Parquet files with odd values, odd types and broken bytes: one bad row is one letter, and reading ends."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from signoff.sources.events import Piece
from signoff.sources.files.content import ContentFile
from signoff.sources.files.parquet_rows import ParquetReader
from signoff.sources.files.reader import Shape


def read(path: Path, position: int = 0, max_events: int = 3) -> tuple[list[bytes], list[str | None], str]:
    content = ContentFile(path)
    reader = ParquetReader(content, Shape("parquet", 1 << 20), position)
    rows: list[bytes] = []
    errors: list[str | None] = []
    before = position
    for _ in range(100_000):
        piece: Piece | None = reader.read(max_events)
        if piece is None:
            break
        assert all(int(one) > before for one in piece.positions)
        before = int(piece.positions[-1]) if len(piece) else before
        rows += piece.payload.to_pylist()
        errors += [piece.errors.get(index) for index in range(len(piece))]
    else:
        raise AssertionError("reading does not come to an end")
    damaged = reader.damaged
    reader.close()
    content.close()
    return rows, errors, damaged


def values(tmp_path: Path, array: pa.Array, **options: Any) -> tuple[list[Any], list[str | None]]:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": range(len(array)), "v": array}), path, **options)
    rows, errors, damaged = read(path)
    assert not damaged
    found = [json.loads(row) for row in rows]
    assert [row["n"] for row in found] == list(range(len(array)))
    return [row["v"] for row in found], errors


@pytest.mark.case(46)
@pytest.mark.parametrize(
    ("array", "bad"),
    [
        (pa.array([0, 3_000_000, 1], pa.int32()).cast(pa.date32()), 1),
        (pa.array([0, 2**60, 1], pa.int64()).cast(pa.timestamp("us")), 1),
        (pa.array([0, -(2**60), 1], pa.int64()).cast(pa.timestamp("ms", "UTC")), 1),
        (pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xff\xfe", b"c"]).buffers()), 1),
        (pa.array([[1], [3_000_000], []], pa.list_(pa.int32())).cast(pa.list_(pa.date32())), 1),
    ],
    ids=["date", "timestamp", "zoned timestamp", "text", "nested date"],
)
def test_one_value_that_cannot_be_had_is_one_letter_and_its_neighbours_are_delivered(
    tmp_path: Path, array: pa.Array, bad: int
) -> None:
    _, errors = values(tmp_path, array)
    assert [number for number, error in enumerate(errors) if error] == [bad]
    assert str(errors[bad]).startswith("column 'v' (")


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (
            pa.array([0, 1_619_863_200_123_456_789, 1_619_863_200_000_000_000], pa.timestamp("ns")),
            ["1970-01-01T00:00:00", "2021-05-01T10:00:00.123456789", "2021-05-01T10:00:00"],
        ),
        (
            pa.array([1_619_863_200_000_000_001, -1], pa.timestamp("ns", "UTC")),
            ["2021-05-01T10:00:00.000000001Z", "1969-12-31T23:59:59.999999999Z"],
        ),
        (
            pa.array([1_619_863_200_000_000_001], pa.timestamp("ns", "Europe/Berlin")),
            ["2021-05-01T12:00:00.000000001+02:00"],
        ),
        (pa.array([1, 86_399_999_999_999], pa.time64("ns")), ["00:00:00.000000001", "23:59:59.999999999"]),
        (pa.array([dt.time(1, 2, 3)], pa.time32("s")), ["01:02:03"]),
        (pa.array([1.5, float("nan"), float("inf"), float("-inf")]), [1.5, "NaN", "Infinity", "-Infinity"]),
        (pa.array([[float("nan")], [1.0]]), [["NaN"], [1.0]]),
        (pa.array([2**64 - 1, 0], pa.uint64()), [2**64 - 1, 0]),
        (pa.array([Decimal("1.10"), None], pa.decimal128(38, 2)), ["1.10", None]),
        (pa.array([b"\x00\xff", None], pa.binary()), ["AP8=", None]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        (pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())), [[["k", 1]], []]),
        (pa.array([{"a": [{"b": None}]}, None]), [{"a": [{"b": None}]}, None]),
        (pa.array([None, None], pa.null()), [None, None]),
    ],
    ids=str,
)
def test_odd_types_are_json(tmp_path: Path, array: pa.Array, expected: list[Any]) -> None:
    assert values(tmp_path, array) == (expected, [None] * len(expected))


def test_durations_and_ids_are_text(tmp_path: Path) -> None:
    found, errors = values(tmp_path, pa.array([1_000_000_001, 1_000_000_000], pa.duration("ns")))
    assert (found, errors) == (["0:00:01.000000001", "0:00:01"], [None, None])
    number = uuid.UUID(int=7)
    array = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([number.bytes], pa.binary(16)))
    assert values(tmp_path, array) == ([str(number)], [None])


def test_two_columns_of_one_name_are_an_error_of_the_file(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"])
    pq.write_table(table, tmp_path / "a.parquet")
    _, errors, damaged = read(tmp_path / "a.parquet")
    assert len(errors) == 1
    assert damaged == "file has two columns 'a'"


@pytest.mark.parametrize("rows", [0, 1])
def test_a_file_without_rows_or_with_one(tmp_path: Path, rows: int) -> None:
    pq.write_table(pa.table({"a": pa.array([7] * rows, pa.int64())}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == ([b'{"a":7}'] * rows, [None] * rows, "")


def test_a_broken_row_group_is_one_letter_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"a": [f"{number:04d}" * 50 for number in range(400)]})
    pq.write_table(table, path, row_group_size=100, compression="snappy", use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    begin = column.data_page_offset + 30
    data[begin : begin + 200] = b"\xff" * 200
    path.write_bytes(data)
    rows, errors, damaged = read(path, max_events=1000)
    assert damaged
    assert [error for error in errors if error] == [damaged]
    assert "(row group 1)" in damaged
    assert sum(error is None for error in errors) >= 300
    assert rows[-1] == b'{"a":"' + b"0399" * 50 + b'"}'
    after = read(path, position=250)
    assert len(after[0]) == 150


TABLE = pa.table(
    {
        "id": list(range(40)),
        "text": [f"text {number}" for number in range(40)],
        "when": pa.array(range(40), pa.timestamp("ns")),
        "list": [[number, None] for number in range(40)],
        "map": pa.array([[("a", number)] for number in range(40)], pa.map_(pa.string(), pa.int64())),
    }
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    edits=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=8),
    cut=st.integers(0, 40),
    compression=st.sampled_from(["none", "snappy", "gzip"]),
)
def test_no_bytes_keep_reading_from_its_end(
    tmp_path: Path, edits: list[tuple[int, int]], cut: int, compression: str
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(TABLE, path, row_group_size=10, compression=compression)
    data = bytearray(path.read_bytes())
    for place, value in edits:
        data[place % len(data)] = value
    path.write_bytes(data[: len(data) - cut] if cut > 30 else data)
    _, errors, damaged = read(path)
    assert not damaged or errors.count(damaged) == 1


@pytest.mark.case(46)
def test_a_small_file_of_large_rows_is_read_a_few_rows_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    long = pa.array(["x" * 100_000, "y"])
    rows = long.take(pa.array([0] * 3_000 + [1] * 2_000))
    pq.write_table(pa.table({"v": rows}), path, compression="zstd")
    assert path.stat().st_size < 2_000
    del rows
    content = ContentFile(path)
    before = most = pa.total_allocated_bytes()
    reader = ParquetReader(content, Shape("parquet", 1 << 20), 0)
    count = steps = 0
    while (piece := reader.read(1_000)) is not None:
        count, steps = count + len(piece), steps + 1
        most = max(most, pa.total_allocated_bytes())
    reader.close()
    content.close()
    assert count == 5_000
    assert most - before < 40 * 1024**2
    assert steps < 200, "many rows at a time where they are small"
