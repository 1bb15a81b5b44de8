"""Files: complete or not there, also when the disk is full or a task is lost."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from signoff.errors import PermanentError, TransientError
from signoff.sinks import files
from signoff.sinks.contract import Part
from signoff.sinks.files import FilesSink, FilesSinkConfig, Format
from tests.sinks.rows import batch_ref, numbered, write_batch, write_part
from tests.sinks.targets import FilesTarget, ParquetTarget


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """A real error of the operating system in the middle of a write, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def visible(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir() if not file.name.startswith("."))


def test_file_is_named_after_its_batch(tmp_path: Path) -> None:
    sink = FilesSinkConfig(path="out").build(tmp_path)
    sink.prepare()
    write_batch(sink, numbered(2), batch_ref(17, 19))
    assert visible(tmp_path / "out") == ["incoming-000000000017-000000000019.jsonl"]
    assert sink.file_of(batch_ref(17, 19)).read_text() == (
        '{"event_id":"incoming/0","number":0,"text":"row 0"}\n'
        '{"event_id":"incoming/1","number":1,"text":"row 1"}\n'
    )


def test_commit_clears_away_what_lost_tasks_left(tmp_path: Path) -> None:
    target = FilesTarget(tmp_path / "out")
    write_part(target.sink, numbered(3, text="lost"), batch_ref(), 0, attempt=1)
    _, part = write_part(target.sink, numbered(3), batch_ref(), 0, attempt=2)
    assert part is not None
    target.sink.commit(batch_ref(), [part])
    assert target.read(numbered(0).schema) == numbered(3).to_pylist()
    assert list((tmp_path / "out" / ".parts").iterdir()) == []


def test_disk_full_leaves_no_half_line_and_the_rows_can_be_written_again(tmp_path: Path) -> None:
    target = FilesTarget(tmp_path / "out")
    writer = target.sink.open(Part(batch_ref(), 0, 0))
    writer.write(numbered(10))
    with files_limited_to(3_000), pytest.raises(TransientError, match=r"cannot write to .*too large"):
        writer.write(numbered(90, start=10))
    writer.write(numbered(90, start=10))
    part = writer.close()
    assert part is not None
    target.sink.commit(batch_ref(), [part])
    assert target.read(numbered(0).schema) == numbered(100).to_pylist()


def test_disk_full_at_the_end_of_a_parquet_part_can_be_mended(tmp_path: Path) -> None:
    target = ParquetTarget(tmp_path / "out")
    writer = target.sink.open(Part(batch_ref(), 0, 0))
    writer.write(numbered(1_000))
    with files_limited_to(500), pytest.raises(TransientError, match="cannot write to"):
        writer.close()
    part = writer.close()
    assert part is not None
    target.sink.commit(batch_ref(), [part])
    assert target.read(numbered(0).schema) == numbered(1_000).to_pylist()


def test_large_parquet_part_is_written_in_pieces_and_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_BYTES", numbered(100).nbytes + 1)
    target = ParquetTarget(tmp_path / "out")
    writer = target.sink.open(Part(batch_ref(), 0, 0))
    for start in range(0, 1_200, 100):
        writer.write(numbered(100, start=start))
    part = writer.close()
    assert part is not None
    target.sink.commit(batch_ref(), [part])
    assert target.read(numbered(0).schema) == numbered(1_200).to_pylist()
    (file,) = (tmp_path / "out").glob("*.parquet")
    assert pq.ParquetFile(file).num_row_groups == 12


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_parts_that_disappeared_are_not_taken_for_a_batch_without_rows(
    tmp_path: Path, format_: Format
) -> None:
    sink = FilesSink(tmp_path, format_)
    _, part = write_part(sink, numbered(3), batch_ref())
    shutil.rmtree(tmp_path / ".parts")
    assert part is not None
    with pytest.raises(TransientError, match="disappeared"):
        sink.commit(batch_ref(), [part])
    assert visible(tmp_path) == []


def test_directory_that_cannot_be_made_is_told_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PermanentError, match=r"cannot create directory .*file/out"):
        FilesSinkConfig(path="file/out").build(tmp_path).prepare()


def test_compression_no_reader_of_jsonl_knows_is_refused() -> None:
    with pytest.raises(ValidationError, match="snappy is for parquet"):
        FilesSinkConfig(path="out", compression="snappy")
    assert FilesSinkConfig(path="out", compression="snappy", format="parquet")


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_a_batch_of_which_a_part_is_new_was_not_committed_before(tmp_path: Path, format_: Format) -> None:
    sink = FilesSink(tmp_path, format_)
    _, known = write_part(sink, numbered(3), batch_ref(), 0, attempt=1)
    _, before = write_part(sink, numbered(2, start=3), batch_ref(), 1, attempt=2)
    assert known is not None and before is not None
    sink.commit(batch_ref(), [known, before])
    _, new = write_part(sink, numbered(3, start=3), batch_ref(), 1, attempt=3)
    assert new is not None
    for _ in range(2):  # and nothing is done that would make it look like one
        with pytest.raises(TransientError, match="write the batch again"):
            sink.commit(batch_ref(), [known, new])
    _, again = write_part(sink, numbered(3), batch_ref(), 0, attempt=4)
    assert again is not None
    sink.commit(batch_ref(), [again, new])
    target = FilesTarget(tmp_path) if format_ == "jsonl" else ParquetTarget(tmp_path)
    assert target.read(numbered(0).schema) == numbered(6).to_pylist()


@pytest.mark.parametrize("format_", ["jsonl", "parquet"])
def test_a_part_of_an_earlier_run_is_not_overwritten_though_attempts_are_counted_anew(
    tmp_path: Path, format_: Format
) -> None:
    _, known = write_part(FilesSink(tmp_path, format_), numbered(2, start=2), batch_ref(), 1, attempt=1)
    sink = FilesSink(tmp_path, format_)
    sink.prepare()
    _, new = write_part(sink, numbered(2), batch_ref(), 1, attempt=1)
    assert known is not None and new is not None
    sink.commit(batch_ref(), [new, known])
    target = FilesTarget(tmp_path) if format_ == "jsonl" else ParquetTarget(tmp_path)
    found = target.read(numbered(0).schema)
    assert sorted(found, key=lambda row: str(row["event_id"])) == numbered(4).to_pylist()
    assert list((tmp_path / ".parts").iterdir()) == []
