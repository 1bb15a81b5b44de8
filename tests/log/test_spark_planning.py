"""What Spark's planner asks of the source; needs no Java."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

import pyspark_signoff
from signoff.errors import LogError
from signoff.log import LogReader, columns, exclude, trim
from signoff.log.columns import to_rows, united
from signoff.log.spark import LogDataSource
from tests.log.events import batch, numbered, payload, segments, write


def stream(directory: Path, **options: Any) -> Any:
    given = {"path": str(directory), **{name: str(value) for name, value in options.items()}}
    source = LogDataSource(given)
    return source.streamReader(source.schema())


def at(sequence: int) -> dict[str, int]:
    return {"sequence": sequence}


def test_source_is_found_under_its_name() -> None:
    assert pyspark_signoff.DefaultSource.name() == "signoff"


def test_limits_of_spark_and_of_the_options_are_respected(directory: Path) -> None:
    write(directory, 100)
    reader = stream(directory, maxEventsPerBatch=30)
    assert reader.getDefaultReadLimit() == ReadMaxRows(30)
    assert stream(directory).getDefaultReadLimit() == ReadAllAvailable()
    assert reader.latestOffset(at(0), ReadMaxRows(30)) == at(30)
    assert reader.latestOffset(at(90), ReadMaxRows(30)) == at(100)
    assert reader.latestOffset(at(100), ReadMaxRows(30)) == at(100)
    assert reader.latestOffset(at(0), ReadAllAvailable()) == at(100)
    assert reader.latestOffset(at(90), ReadMinRows(11)) == at(90)
    assert reader.latestOffset(at(90), ReadMinRows(10)) == at(100)
    assert reader.reportLatestOffset() == at(100)


def test_a_batch_is_bounded_by_the_bytes_it_takes_from_the_log(directory: Path) -> None:
    write(directory, 1000)
    size = LogReader(directory).size(0, 1000)
    assert size == sum(file.stat().st_size for file in directory.glob("*.log"))
    reader = stream(directory, maxBytesPerBatch=str(size // 4))
    assert 200 <= reader.latestOffset(at(0), ReadAllAvailable())["sequence"] <= 300
    assert reader.latestOffset(at(900), ReadAllAvailable()) == at(1000)
    assert stream(directory, maxBytesPerBatch="1").latestOffset(at(0), ReadAllAvailable()) == at(1)


def test_available_now_ends_where_the_log_ended_at_the_start(directory: Path) -> None:
    write(directory, 100)
    reader = stream(directory)
    reader.prepareForTriggerAvailableNow()
    write(directory, 50)
    assert reader.latestOffset(at(0), ReadAllAvailable()) == at(100)
    assert reader.latestOffset(at(120), ReadAllAvailable()) == at(120)


def test_new_query_starts_where_it_is_told_or_at_the_first_event_kept(directory: Path) -> None:
    write(directory, 3000, group=100)
    assert stream(directory).initialOffset() == at(0)
    assert stream(directory, startingSequence=7).initialOffset() == at(7)
    kept = int(segments(directory)[1].stem)
    trim(directory, kept)
    assert stream(directory).initialOffset() == at(kept)


def test_path_without_a_log_is_an_error_and_not_a_silent_source(directory: Path) -> None:
    with pytest.raises(LogError, match="log-missing"):
        stream(directory).initialOffset()


def test_checkpoint_past_the_end_of_the_log_is_an_error(directory: Path) -> None:
    write(directory, 10)
    with pytest.raises(LogError, match=r"log-range.*read up to 11, but the log ends at 10"):
        stream(directory).latestOffset(at(11), ReadAllAvailable())


def test_checkpoint_past_an_old_head_file_is_not(directory: Path) -> None:
    write(directory, 10)
    old = (directory / "head").read_bytes()
    write(directory, 10)
    (directory / "head").write_bytes(old)
    assert stream(directory).latestOffset(at(15), ReadAllAvailable()) == at(20)


def test_small_range_is_one_partition_and_a_large_one_as_many_as_asked_for(directory: Path) -> None:
    write(directory, 30_000, group=5000)
    reader = stream(directory, parallelism=8)
    assert len(reader.partitions(at(0), at(10_000))) == 1
    assert len(reader.partitions(at(0), at(30_000))) == 3
    assert len(stream(directory, parallelism=2).partitions(at(0), at(30_000))) == 2
    assert reader.partitions(at(5), at(5)) == []


def test_partitions_carry_all_a_worker_needs_and_leave_out_excluded_events(directory: Path) -> None:
    write(directory, 20_000, group=5000)
    exclude(directory, [3, 15_000])
    reader = stream(directory, parallelism=2)
    partitions = pickle.loads(pickle.dumps(reader.partitions(at(0), at(20_000))))
    worker = pickle.loads(pickle.dumps(reader))
    assert [partition.left_out for partition in partitions] == [(3,), (15_000,)]
    read = [
        sequence
        for partition in partitions
        for rows in worker.read(partition)
        for sequence in rows.column("_sequence").to_pylist()
    ]
    assert read == [number for number in range(20_000) if number not in (3, 15_000)]


def test_range_of_excluded_events_only_gives_no_rows(directory: Path) -> None:
    write(directory, 2)
    exclude(directory, [0, 1])
    reader = stream(directory)
    (partition,) = reader.partitions(at(0), at(2))
    assert list(reader.read(partition)) == []


def test_tiny_frames_are_put_together_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_UNITE_ROWS", 100)
    frames = [to_rows(number, numbered(number, 1), "utf-8") for number in range(220)]
    whole = list(united(frames))
    assert [rows.num_rows for rows in whole] == [100, 100, 20]
    assert whole[1].column("payload")[0].as_py() == payload(100).decode()


@pytest.mark.parametrize(
    "bad", [b"\xff", b"\xc3", b"a\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\x80"]
)
def test_every_kind_of_bad_utf8_is_one_rows_error(bad: bytes) -> None:
    rows = to_rows(0, batch([b"fine", bad, "ö\0€😀".encode()]), "utf-8")
    assert rows.column("payload").to_pylist() == ["fine", None, "ö\0€😀"]
    first, error, last = rows.column("error").to_pylist()
    assert (first, last) == (None, None)
    assert error.startswith("payload is not valid UTF-8 (byte 0x")


def test_error_of_the_source_is_kept_when_the_payload_is_bad_too() -> None:
    events = batch([b"\xff"])
    events = events.set_column(6, events.schema.field(6), pa.array(["too large"]))
    rows = to_rows(0, events, "utf-8")
    assert rows.column("error").to_pylist() == ["too large"]


@pytest.mark.parametrize(("error", "told"), [("ConnectionResetError", False), ("ValueError", True)])
def test_the_process_that_plans_ends_without_a_word_when_spark_has_hung_up(
    directory: Path, error: str, told: bool
) -> None:
    write(directory, 1)
    program = f"""
from signoff.log.spark import LogDataSource
source = LogDataSource({{"path": {str(directory)!r}}})
reader = source.streamReader(source.schema())
try:
    raise {error}
finally:
    reader.stop()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode != 0, error in done.stderr) == (told, told)
