"""Reading ranges and slices, single events, trimming and exclusions."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap64

from signoff.errors import LogCorrupt, LogError
from signoff.log import LogReader, LogWriter, exclude, excluded, trim
from tests.log.events import RECEIVED_AT, numbered, payload, payloads, segments, small_settings, write


def test_log_that_does_not_exist_yet_is_empty(directory: Path) -> None:
    reader = LogReader(directory)
    assert (reader.head(), reader.first(), list(reader.read(0, 0)), reader.lookup([0])) == (0, 0, [], {})
    assert reader.slices(0, 0, 2) == []


def test_any_range_is_read_in_order(directory: Path) -> None:
    write(directory, 2000, group=70)
    reader = LogReader(directory)
    for start, end in [(0, 2000), (0, 1), (69, 71), (1999, 2000), (350, 351), (500, 500), (13, 1801)]:
        expected = start
        for first, events in reader.read(start, end):
            assert first == expected
            assert events.column("position").to_pylist() == list(range(first, first + events.num_rows))
            expected += events.num_rows
        assert expected == end


def test_only_the_columns_asked_for_are_read(directory: Path) -> None:
    write(directory, 3)
    ((_, events),) = LogReader(directory).read(0, 3, ["unit", "payload"])
    assert events.schema.names == ["unit", "payload"]


def test_events_share_the_memory_of_the_mapped_file(directory: Path) -> None:
    import gc

    import pyarrow as pa

    write(directory, 500)
    gc.collect()  # of what other tests have left
    before = pa.total_allocated_bytes()
    held = list(LogReader(directory).read(0, 500))
    assert pa.total_allocated_bytes() <= before
    assert held[0][1].column("payload")[3].as_py() == b"3"


def test_reader_sees_what_becomes_durable_later_and_nothing_before(directory: Path, settings: Any) -> None:
    writer, reader = LogWriter(directory, settings), LogReader(directory)
    for first in range(0, 2000, 100):
        writer.append(numbered(first, 100))
        assert reader.head() == first
        with pytest.raises(LogError, match="log-range"):
            reader.read(first, first + 1)
        writer.sync()
        assert reader.head() == first + 100
        assert sum(events.num_rows for _, events in reader.read(first, first + 100)) == 100
    writer.close()


@pytest.mark.parametrize("count", [1, 2, 3, 7, 100])
def test_slices_cover_a_range_evenly_and_survive_pickling(directory: Path, count: int) -> None:
    write(directory, 1500, group=40)
    parts = LogReader(directory).slices(11, 1490, count)
    assert (parts[0].start, parts[-1].end, len(parts)) == (11, 1490, count)
    read: list[bytes] = []
    for part in pickle.loads(pickle.dumps(parts)):
        assert abs((part.end - part.start) - 1479 / count) <= 1
        for _, events in LogReader(directory).read_slice(part):
            read.extend(events.column("payload").to_pylist())
    assert read == [payload(number) for number in range(11, 1490)]


def test_one_reader_reads_slices_and_ranges_in_any_order(directory: Path) -> None:
    write(directory, 400, group=10)
    reader = LogReader(directory)
    parts = reader.slices(0, 400, 8)
    for part in reversed(parts):
        assert sum(events.num_rows for _, events in reader.read_slice(part)) == 50
    assert sum(events.num_rows for _, events in reader.read(0, 400)) == 400


def test_reader_pickles_as_its_directory(directory: Path) -> None:
    write(directory, 10)
    reader = LogReader(directory)
    list(reader.read(0, 10))
    assert pickle.loads(pickle.dumps(reader)).head() == 10


def test_lookup_finds_single_events_and_leaves_out_what_is_not_there(directory: Path) -> None:
    write(directory, 1000, group=30)
    found = LogReader(directory).lookup([999, 3, 31, 3, 1000, 10**12])
    assert sorted(found) == [3, 31, 999]
    assert found[31] == {
        "payload": b"31",
        "headers": {"n": "31"},
        "message_id": "m31",
        "received_at": RECEIVED_AT,
        "unit": 1,
        "position": 31,
        "error": None,
    }


def test_damaged_or_lost_head_file_is_replaced_by_a_scan(directory: Path) -> None:
    write(directory, 700)
    (directory / "head").write_bytes(b"nonsense")
    assert LogReader(directory).head() == 700
    (directory / "head").unlink()
    assert LogReader(directory).head() == 700
    LogWriter(directory, small_settings()).close()
    assert (directory / "head").exists()


def test_range_past_an_old_head_file_is_read_if_the_events_are_whole(directory: Path) -> None:
    write(directory, 10)
    old = (directory / "head").read_bytes()
    write(directory, 10)
    (directory / "head").write_bytes(old)
    assert payloads(directory, 5, 20) == [payload(number) for number in range(5, 20)]


def test_trim_removes_whole_segments_below_and_never_the_last(directory: Path) -> None:
    write(directory, 3000, group=100)
    starts = [int(path.stem) for path in segments(directory)]
    assert trim(directory, starts[1] - 1) == 0
    freed = segments(directory)[0].stat().st_size
    assert trim(directory, starts[1]) == freed
    assert LogReader(directory).first() == starts[1]
    trim(directory, 10**9)
    assert [int(path.stem) for path in segments(directory)] == starts[-1:]
    writer = LogWriter(directory, small_settings())
    assert (writer.next_sequence, writer.last) == (3000, (1, 2999))
    writer.close()


def test_trimmed_events_are_named_in_the_error(directory: Path) -> None:
    write(directory, 3000, group=100)
    reader = LogReader(directory)
    trim(directory, 3000)
    with pytest.raises(LogError, match=r"log-trimmed.*events 0 to 9.*settled and removed"):
        reader.read(0, 10)
    assert reader.lookup([0]) == {}


def test_batches_stay_readable_after_their_segment_is_trimmed(directory: Path) -> None:
    write(directory, 3000, group=100)
    held = list(LogReader(directory).read(0, 100))
    trim(directory, 3000)
    assert held[0][1].column("payload")[99].as_py() == b"99"


def test_exclusions_add_up_and_survive(directory: Path) -> None:
    write(directory, 10)
    assert excluded(directory) == BitMap64()
    exclude(directory, [3])
    exclude(directory, [5, 3, 2**40])
    assert excluded(directory) == BitMap64([3, 5, 2**40])


def test_exclusions_of_trimmed_events_are_forgotten(directory: Path) -> None:
    write(directory, 3000, group=100)
    kept = int(segments(directory)[1].stem)
    exclude(directory, [1, 2, kept])
    trim(directory, kept)
    exclude(directory, [kept + 5])
    assert excluded(directory) == BitMap64([kept, kept + 5])


def test_damaged_exclusions_are_reported(directory: Path) -> None:
    write(directory, 10)
    exclude(directory, [3])
    path = directory / "excluded"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    with pytest.raises(LogCorrupt, match="log-corrupt"):
        excluded(directory)


def test_several_threads_look_up_and_cut_at_the_same_time(directory: Path) -> None:
    write(directory, 4000, group=3)
    reader = LogReader(directory)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            asked = [n * 37 % 3900 for n in range(400)]
            cut = threads.map(lambda n: reader.slices(n, n + 90, 3), asked)
            found = threads.map(lambda n: reader.lookup([n, n + 90]), asked)
            assert [[(part.start, part.end) for part in parts] for parts in cut] == [
                [(n, n + 30), (n + 30, n + 60), (n + 60, n + 90)] for n in asked
            ]
            assert [sorted(events) for events in found] == [[n, n + 90] for n in asked]
    finally:
        sys.setswitchinterval(before)
