"""Appending, group commit, roll, the size limit, and a disk without room."""

from __future__ import annotations

import errno
import os
import resource
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from signoff import durable
from signoff.errors import LogError, LogFull, LogNoSpace
from signoff.log import LogReader, LogWriter, trim
from signoff.log import writer as writer_module
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.log.segment import list_segments, segment_path
from signoff.pipeline.model import LogSettings
from tests.log.events import batch, numbered, payload, payloads, segments, small_settings, write


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a call of the system fail with an error number, until it is told to stop."""

    def fail(call: str, number: int) -> Any:
        def broken(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        original = getattr(os, call)
        monkeypatch.setattr(writer_module.os, call, broken)
        return lambda: monkeypatch.setattr(writer_module.os, call, original)

    return fail


def test_sequences_go_on_without_gaps_across_appends_and_reopening(directory: Path, settings: Any) -> None:
    writer = LogWriter(directory, settings)
    assert [writer.append(numbered(0, 3)), writer.append(numbered(3, 2))] == [0, 3]
    assert (writer.next_sequence, writer.durable_sequence, writer.last) == (5, 0, (None, None))
    assert writer.sync() == 5
    writer.close()

    again = LogWriter(directory, settings)
    assert (again.next_sequence, again.durable_sequence, again.last) == (5, 5, (1, 4))
    assert again.append(numbered(5, 1)) == 5
    again.close()
    assert payloads(directory, 0, 6) == [payload(number) for number in range(6)]


def test_sync_is_due_when_its_time_or_its_bytes_have_come(directory: Path) -> None:
    clock = Clock()
    writer = LogWriter(directory, small_settings(sync_ms=20, sync_bytes=5000), now=clock)
    assert writer.sync_due_in() is None
    writer.append(numbered(0, 1))
    assert writer.sync_due_in() == pytest.approx(0.020)
    clock.now += 0.015
    assert writer.sync_due_in() == pytest.approx(0.005)
    clock.now += 1
    assert writer.sync_due_in() == 0
    writer.sync()
    assert writer.sync_due_in() is None
    writer.append(numbered(1, 1, size=6000))
    assert writer.sync_due_in() == 0
    writer.close()


def test_empty_batch_is_taken_and_changes_nothing(directory: Path, settings: Any) -> None:
    writer = LogWriter(directory, settings)
    assert writer.append(numbered(0, 0)) == 0
    assert writer.sync_due_in() is None
    assert writer.sync() == 0
    writer.close()


def test_many_small_appends_share_one_frame_and_one_fsync(
    directory: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    original = os.fdatasync
    monkeypatch.setattr(writer_module.os, "fdatasync", lambda file: (synced.append(file), original(file)))
    writer = LogWriter(directory, settings)
    for number in range(50):
        writer.append(numbered(number, 1))
    writer.sync()
    writer.close()
    assert len(synced) == 1
    assert [events.num_rows for _, events in LogReader(directory).read(0, 50)] == [50]


def test_large_batch_is_cut_into_frames_a_reader_can_hold(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_FRAME_BYTES", 10_000)
    writer = LogWriter(directory, small_settings())
    sizes = [10, 9000, 9000, 30_000, 10, 10]
    writer.append(batch([payload(number, size) for number, size in enumerate(sizes)]))
    writer.close()
    frames = [events.column(0).to_pylist() for _, events in LogReader(directory).read(0, 6)]
    assert [value for frame in frames for value in frame] == [
        payload(n, size) for n, size in enumerate(sizes)
    ]
    assert all(len(frame) == 1 or sum(map(len, frame)) < 10_000 for frame in frames)


def test_segment_is_finished_once_it_is_large_and_the_log_goes_on_in_the_next(
    directory: Path, settings: Any
) -> None:
    write(directory, 3000, settings, group=100)
    starts = [int(path.stem) for path in segments(directory)]
    assert len(starts) >= 3
    assert starts[0] == 0
    assert all(path.stat().st_size >= settings.segment_bytes for path in segments(directory)[:-1])
    assert payloads(directory, 0, 3000) == [payload(number) for number in range(3000)]


def test_second_writer_is_refused_while_the_first_is_open(directory: Path, settings: Any) -> None:
    writer = LogWriter(directory, settings)
    with pytest.raises(LogError, match=r"log-locked.*another process"):
        LogWriter(directory, settings)
    writer.close()
    LogWriter(directory, settings).close()


@pytest.mark.parametrize("wrong", ["column", "null"])
def test_events_of_another_shape_are_refused(directory: Path, settings: Any, wrong: str) -> None:
    writer = LogWriter(directory, settings)
    events = numbered(0, 1)
    if wrong == "column":
        events = pa.RecordBatch.from_pydict({"payload": ["text"]})
    else:
        nothing = pa.array([None], pa.binary())
        events = pa.RecordBatch.from_arrays([nothing, *events.columns[1:]], schema=events.schema)
    with pytest.raises(LogError, match="log-schema"):
        writer.append(events)
    assert writer.next_sequence == 0
    writer.close()


def test_full_log_takes_nothing_until_it_is_trimmed(directory: Path) -> None:
    writer = LogWriter(directory, small_settings(max_bytes=1024**2))
    with pytest.raises(LogFull, match=r"log-full.*nothing is lost"):
        for _ in range(2000):
            writer.append(numbered(writer.next_sequence, 10, size=100))
            writer.sync()
    full_at = writer.next_sequence
    assert writer.durable_sequence == full_at
    assert 1024**2 <= writer.size_bytes < 1.2 * 1024**2
    with pytest.raises(LogFull):
        writer.append(numbered(full_at, 1))

    assert trim(directory, full_at) > 0
    assert writer.append(numbered(full_at, 1)) == full_at
    writer.close()


def test_settled_events_that_are_to_be_remembered_stay_while_there_is_room(directory: Path) -> None:
    writer = LogWriter(directory, small_settings(max_bytes=4 * 1024**2))
    for _ in range(60):
        writer.append(numbered(writer.next_sequence, 100, size=100))
        writer.sync()
    settled = writer.next_sequence
    trim(directory, settled, spare=2000, room_bytes=2 * 1024**2)
    assert 0 < LogReader(directory).first() <= settled - 2000
    before = LogReader(directory).first()
    assert trim(directory, settled, spare=2000, room_bytes=2 * 1024**2) == 0
    assert trim(directory, settled, spare=10, kept_from=before, room_bytes=2 * 1024**2) == 0
    trim(directory, settled, spare=2000, room_bytes=256 * 1024)
    assert before < LogReader(directory).first()
    assert writer.size_bytes <= 256 * 1024
    assert trim(directory, before, spare=0) == 0
    writer.close()


def test_a_full_log_never_keeps_what_is_settled(directory: Path) -> None:
    settings = small_settings(max_bytes=1024**2)
    writer = LogWriter(directory, settings)
    for _ in range(100):
        writer.append(numbered(writer.next_sequence, 500, size=100))
        writer.sync()
        trim(directory, writer.durable_sequence, spare=10**9, room_bytes=settings.max_bytes // 2)
    writer.close()


def test_events_not_synced_yet_count_towards_the_limit(directory: Path) -> None:
    writer = LogWriter(directory, small_settings(max_bytes=1024**2))
    with pytest.raises(LogFull):
        for _ in range(100):
            writer.append(numbered(writer.next_sequence, 1, size=50_000))
    assert 20 <= writer.next_sequence <= 21
    writer.close()


def test_event_larger_than_the_log_passes_through_it(directory: Path) -> None:
    writer = LogWriter(directory, small_settings(max_bytes=1024**2))
    for number in range(3):
        writer.append(numbered(number, 1, size=3 * 1024**2))
        with pytest.raises(LogFull):
            writer.append(numbered(number + 1, 1))
        writer.sync()
        assert payloads(directory, number, number + 1) == [payload(number, 3 * 1024**2)]
        trim(directory, number + 1)
    assert writer.last == (1, 2)
    writer.close()
    again = LogWriter(directory, small_settings())
    assert (again.next_sequence, again.last) == (3, (1, 2))
    again.close()


@pytest.mark.parametrize("call", ["pwrite", "fdatasync"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_without_room_nothing_is_lost_or_torn_and_the_next_sync_succeeds(
    directory: Path, settings: Any, failing: Any, call: str, number: int
) -> None:
    writer = LogWriter(directory, settings)
    writer.append(numbered(0, 5))
    writer.sync()
    size = segments(directory)[-1].stat().st_size
    mend = failing(call, number)
    writer.append(numbered(5, 5))
    for _ in range(2):
        with pytest.raises(LogNoSpace, match=r"5 events wait in memory"):
            writer.sync()
    assert segments(directory)[-1].stat().st_size == size
    with pytest.raises(LogNoSpace):
        writer.append(numbered(10, 1))
    assert (writer.durable_sequence, writer.next_sequence, LogReader(directory).head()) == (5, 10, 5)
    assert writer.sync_due_in() is not None

    mend()
    assert writer.sync() == 10
    assert writer.append(numbered(10, 1)) == 10
    writer.close()
    assert payloads(directory, 0, 11) == [payload(number) for number in range(11)]


def test_other_failure_of_the_disk_keeps_the_events_too(directory: Path, settings: Any, failing: Any) -> None:
    writer = LogWriter(directory, settings)
    writer.append(numbered(0, 5))
    mend = failing("fdatasync", errno.EIO)
    with pytest.raises(LogError, match=r"log-io.*check the disk") as caught:
        writer.sync()
    assert not isinstance(caught.value, LogFull)
    mend()
    assert writer.sync() == 5
    writer.close()


def test_partial_write_against_a_real_file_size_limit_is_undone(directory: Path, settings: Any) -> None:
    writer = LogWriter(directory, settings)
    writer.append(numbered(0, 5))
    writer.sync()
    size = segments(directory)[-1].stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer.append(numbered(5, 100, size=200))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 5000, hard))
    try:
        with pytest.raises(LogNoSpace):
            writer.sync()
        assert segments(directory)[-1].stat().st_size == size
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert writer.sync() == 105
    writer.close()
    assert payloads(directory, 5, 105) == [payload(number, 200) for number in range(5, 105)]


def test_failed_roll_leaves_the_log_going_on_in_the_old_segment(
    directory: Path, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter(directory, settings)
    with monkeypatch.context() as patch:
        patch.setattr(writer_module.os, "replace", no_room)
        writer.append(numbered(0, 1, size=settings.segment_bytes))
        assert writer.sync() == 1
        assert [path.name for path in directory.iterdir() if ".log" in path.name] == [f"{0:020}.log"]
    writer.append(numbered(1, 1))
    assert writer.sync() == 2
    assert [int(path.stem) for path in segments(directory)] == [0, 2]
    writer.close()
    assert payloads(directory, 0, 2) == [payload(0, settings.segment_bytes), payload(1)]


@pytest.mark.case(24)
@pytest.mark.parametrize("call", ["sync_directory", "open"])
def test_trim_never_removes_the_segment_that_is_written_to(
    directory: Path, settings: Any, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The engine trims whenever it likes, also between the name of a new segment and what fails after it."""
    writer = LogWriter(directory, settings)
    owner, open_ = (writer_module.os, os.open) if call == "open" else (writer_module, None)

    def trimmed(place: object, *more: Any) -> int:
        if open_ is not None and not str(place).endswith(f"{1:020}.log"):
            return open_(place, *more)  # type: ignore[call-overload, no-any-return]
        trim(directory, 1)
        raise OSError(errno.EMFILE, "Too many open files")

    writer.append(numbered(0, 1, size=settings.segment_bytes))
    with monkeypatch.context() as patch:
        patch.setattr(owner, call, trimmed)
        if call == "sync_directory":
            patch.setattr(durable, call, trimmed)
        assert writer.sync() == 1
        trim(directory, 1)
        if call == "sync_directory":
            writer.append(numbered(1, 1))
            with pytest.raises(LogError, match="Too many open files"):
                writer.sync()
            assert writer.durable_sequence == 1, "what is in a file that has no durable name is not durable"
        else:
            writer.append(numbered(1, 1))
    assert writer.sync() == 2
    assert payloads(directory, 1, 2) == [payload(1)]
    writer.close()
    again = LogWriter(directory, settings)
    assert again.durable_sequence == 2
    again.close()


def test_close_syncs_what_is_pending_and_may_be_called_twice(directory: Path, settings: Any) -> None:
    writer = LogWriter(directory, settings)
    writer.append(numbered(0, 2))
    writer.close()
    writer.close()
    assert LogReader(directory).head() == 2


def _at(*micros: int) -> pa.RecordBatch:
    rows = [{"payload": b"x", "received_at": moment} for moment in micros]
    return pa.RecordBatch.from_pylist(rows, schema=EVENT_SCHEMA)


def _times(directory: Path) -> list[int]:
    log = LogReader(directory)
    read = log.read(log.first(), log.head(), ["received_at"])
    return [moment.value for _, events in read for moment in events.column("received_at")]


@pytest.mark.parametrize(
    "between", ["one writer", "two writers", "a new segment", "a segment of an old release"]
)
def test_times_of_receipt_never_go_backwards(tmp_path: Path, between: str) -> None:
    small = "segment" in between
    settings = LogSettings(max_bytes=1024**2, segment_bytes=64 * 1024)
    writer = LogWriter(tmp_path, settings)
    writer.append(_at(*([7_200_000_000] * (5000 if small else 3))))
    writer.sync()
    if between != "one writer":
        writer.close()
        last = segment_path(tmp_path, list_segments(tmp_path)[-1])
        if small:
            assert last.stat().st_size == 64, "the newest segment is empty"
        if between == "a segment of an old release":
            last.write_bytes(last.read_bytes()[:52] + bytes(12))
        writer = LogWriter(tmp_path, settings)
    writer.append(_at(3_600_000_000, 3_600_000_001))
    writer.append(_at(7_300_000_000, 7_200_000_001))
    writer.close()
    assert _times(tmp_path)[-4:] == [7_200_000_000, 7_200_000_000, 7_300_000_000, 7_300_000_000]


def test_a_clock_that_is_behind_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = LogWriter(tmp_path, LogSettings())
    for moment in (7_200_000_000, 1, 2, 7_200_000_001, 3):
        writer.append(_at(moment))
    writer.close()
    assert caplog.text.count("behind the last event's time of receipt") == 2
