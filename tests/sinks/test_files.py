"""Files: complete or not there, also when the disk is full or a task is lost."""

from __future__ import annotations

import itertools
import json
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from signoff.errors import PermanentError, TransientError
from signoff.sinks.contract import BatchRef, Part
from signoff.sinks.files import commit as file_commit
from signoff.sinks.files import parts as file_parts
from signoff.sinks.files.partitions import directory_of
from signoff.sinks.files.sink import FilesSink, FilesSinkConfig, Format
from signoff.sinks.owners import OthersRows
from signoff.testing.conformance.rows import batch_ref, numbered, write_batch, write_part
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
    monkeypatch.setattr(file_parts, "ROW_GROUP_BYTES", numbered(100).nbytes + 1)
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


def test_values_are_escaped_as_hive_and_spark_do() -> None:
    assert (
        directory_of(["day", "a=b"], ["2021-05-01 10:00", "x/y%z\n"])
        == "day=2021-05-01 10%3A00/a%3Db=x%2Fy%25z%0A"
    )
    assert directory_of(["k"], [None]) == directory_of(["k"], [""]) == "k=__HIVE_DEFAULT_PARTITION__"
    assert directory_of(["k"], ["é {}[]^*?#'\"\\"]) == "k=é %7B}%5B%5D%5E%2A%3F%23%27%22%5C"


def partitioned(rows: pa.RecordBatch, *values: list[str | None]) -> pa.RecordBatch:
    for number, column in enumerate(values):
        rows = rows.append_column(f"_partition_{number}", pa.array(column, pa.string()))
    return rows


def test_rows_go_to_directories_by_their_values_and_without_the_columns(tmp_path: Path) -> None:
    config = FilesSinkConfig(path="out", format="parquet", partition_by=("text",))
    assert config.expressions() == {"_partition_0": "`text`"}
    sink = config.build(tmp_path)
    sink.prepare()
    rows = partitioned(numbered(5), ["a", None, "b/c", "a", "x" * 300])
    refusals = write_batch(sink, rows, batch_ref())
    assert [(one.index, one.transient) for one in refusals] == [(4, False)]
    hive = ds.partitioning(pa.schema([("text", pa.string())]), flavor="hive")
    found = pq.read_table(tmp_path / "out", partitioning=hive).sort_by("number").to_pydict()
    assert found["number"] == [0, 1, 2, 3]
    assert found["text"] == ["a", None, "b/c", "a"]
    names = sorted(str(file.relative_to(tmp_path / "out")) for file in (tmp_path / "out").glob("text=*/*"))
    assert names[0] == "text=__HIVE_DEFAULT_PARTITION__/incoming-000000000000-000000000010.parquet"
    assert len(names) == 3 and names[2].startswith("text=b%2Fc/")


def test_rows_whose_path_would_be_too_long_are_refused_and_no_others(tmp_path: Path) -> None:
    """No file system takes them, now or later; and what fits to the byte is taken."""
    names = [f"p{number}" for number in range(17)]
    sink = FilesSinkConfig(path="out", partition_by=dict.fromkeys(names, "x")).build(tmp_path)
    sink.prepare()
    room = 4095 - len(str(tmp_path / "out" / f"{batch_ref().key}-00000.jsonl")) - 1
    others = len("/".join(f"{name}={'v' * 235}" for name in names[:-1])) + len("/p16=")
    fits = "v" * (room - others)
    values = [["v" * 250, "v" * 235, "v" * 235] for _ in names[:-1]] + [["v" * 250, fits, fits + "v"]]
    refusals = write_batch(sink, partitioned(numbered(3), *values), batch_ref())
    assert [(one.index, one.transient) for one in refusals] == [(0, False), (2, False)]
    assert [json.loads(line)["number"] for line in read_below(tmp_path / "out")] == [1]


def read_below(directory: Path) -> list[str]:
    found = []
    for base, _, files in os.walk(directory):
        found += [Path(base, name).read_text() for name in files if name.endswith(".jsonl")]
    return [line for text in found for line in text.splitlines()]


def test_a_computed_value_with_the_name_of_a_column_is_refused(tmp_path: Path) -> None:
    sink = FilesSinkConfig(path="out", partition_by={"text": "upper(text)"}).build(tmp_path)
    with pytest.raises(PermanentError, match="another name"):
        write_batch(sink, partitioned(numbered(1), ["A"]))


@pytest.mark.parametrize("format_", ["jsonl", "csv", "parquet"])
def test_files_keep_to_their_limits_also_when_parts_are_put_together(tmp_path: Path, format_: Format) -> None:
    sink = FilesSinkConfig(path="out", format=format_, max_file_rows=40).build(tmp_path)
    sink.prepare()
    parts = [
        write_part(sink, numbered(n, 25 * at), batch_ref(), at)[1] for at, n in enumerate((25, 25, 90, 5))
    ]
    sink.commit(batch_ref(), [part for part in parts if part is not None])
    assert visible(tmp_path / "out") == [
        f"incoming-000000000000-000000000010-{n:05d}.{format_}" for n in range(5)
    ]
    if format_ != "parquet":
        lines = [file.read_text().splitlines() for file in sorted((tmp_path / "out").glob("in*.*"))]
        head = 1 if format_ == "csv" else 0
        assert [len(one) - head for one in lines] == [25, 25, 40, 40, 15]


@pytest.mark.parametrize("format_", ["jsonl", "csv", "parquet"])
def test_files_are_near_the_bytes_they_may_have(tmp_path: Path, format_: Format) -> None:
    sink = FilesSinkConfig(path="out", format=format_, max_file_bytes=20_000, compression="none").build(
        tmp_path
    )
    sink.prepare()
    rows = numbered(3_000)
    writer = sink.open(Part(batch_ref(), 0, 0))
    for start in range(0, 3_000, 500):
        writer.write(rows.slice(start, 500))
    part = writer.close()
    assert part is not None
    sink.commit(batch_ref(), [part])
    sizes = [file.stat().st_size for file in sorted((tmp_path / "out").glob("in*.*"))]
    assert max(sizes) <= 20_000
    assert len(sizes) < 3 * sum(sizes) / 20_000


def test_csv_tells_null_from_empty_and_quotes_what_needs_it(tmp_path: Path) -> None:
    rows = pa.record_batch(
        {"event_id": ["e/0", "e/1", "e/2"], "a,b": ["", None, 'x;"y"\n'], "n": [1.5, None, 2.0]}
    )
    sink = FilesSinkConfig(path="out", format="csv").build(tmp_path)
    sink.prepare()
    write_batch(sink, rows, batch_ref())
    assert (
        sink.file_of(batch_ref()).read_text() == 'event_id,"a,b",n\ne/0,"",1.5\ne/1,,\ne/2,"x;""y""\n",2.0\n'
    )
    sink = FilesSinkConfig.model_validate(
        {
            "path": "2",
            "format": "csv",
            "delimiter": ";",
            "header": False,
            "quote": "all",
            "null_value": "NULL",
        }
    ).build(tmp_path)
    sink.prepare()
    write_batch(sink, rows.slice(1, 1), batch_ref())
    assert sink.file_of(batch_ref()).read_text() == '"e/1";NULL;NULL\n'


@pytest.mark.parametrize(
    "fields",
    [
        {"partition_by": ["event_id"]},
        {"format": "csv", "compression": "snappy"},
        {"delimiter": '"'},
        {"null_value": "a,b"},
    ],
)
def test_what_no_reader_could_read_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        FilesSinkConfig.model_validate({"path": "out", **fields})


@pytest.mark.case(25)
@pytest.mark.parametrize("again", ["the same parts", "written again", "other values", "undivided"])
def test_a_commit_that_is_killed_at_any_step_is_finished_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """Also if the batch is written anew with rows that belong elsewhere by now."""
    steps = 0
    while killed_and_repeated(tmp_path / str(steps), monkeypatch, steps, again):
        steps += 1
        assert steps < 60, "it has no end"
    assert steps > 8, "a commit has more steps than that"


def killed_and_repeated(place: Path, monkeypatch: pytest.MonkeyPatch, step: int, again: str) -> bool:
    config = FilesSinkConfig(path="out", partition_by={"kind": "kind"}, max_file_rows=2)
    sink = config.build(place)
    sink.prepare()
    rows, kinds = numbered(6), list[str | None](["a", "b", "b"])
    halves = [partitioned(rows.slice(at, 3), kinds) for at in (0, 3)]
    parts = [write_part(sink, half, batch_ref(), at)[1] or b"" for at, half in enumerate(halves)]
    killed = killed_at(step, monkeypatch, lambda: sink.commit(batch_ref(), parts))
    sink = (FilesSinkConfig(path="out") if again == "undivided" else config).build(place)
    try:
        if again != "the same parts":
            raise TransientError("write the batch again")
        sink.commit(batch_ref(), parts)
    except TransientError:
        moved = kinds * 2 if again in ("the same parts", "written again") else list[str | None]("cccccc")
        write_batch(sink, rows if again == "undivided" else partitioned(rows, moved), batch_ref(), attempt=9)
    files = [file for file in (place / "out").rglob("*.jsonl") if ".parts" not in file.parts]
    found = [json.loads(line)["number"] for file in files for line in file.read_text().splitlines()]
    assert sorted(found) == list(range(6)), (step, files)
    assert list((place / "out" / ".parts").iterdir()) == []
    return killed


def killed_at(step: int, monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> bool:
    """Do it, but end at the step-th change of the disk; whether there are so many."""
    count = 0

    def guarded(function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count > step:
                raise KeyboardInterrupt
            return function(*args, **options)

        return call

    with monkeypatch.context() as patch:
        for owner, name in (
            (file_commit, "write_whole"), (file_commit, "make_directory"), (file_commit, "sync_file"),
            (file_commit, "sync_directory"), (file_commit, "_link"), (Path, "replace"), (Path, "unlink"),
            (shutil, "rmtree"),
        ):  # fmt: skip
            patch.setattr(owner, name, guarded(getattr(owner, name)))
        try:
            work()
        except KeyboardInterrupt:
            return True
    return False


LAYOUTS: list[dict[str, Any]] = [
    {},
    {"compression": "gzip"},
    {"compression": "zstd"},
    {"format": "csv"},
    {"format": "csv", "compression": "gzip"},
    {"format": "parquet"},
    {"max_file_rows": 5},
    {"max_file_rows": 1, "format": "csv"},
    {"partition_by": {"kind": "kind"}},
    {"partition_by": {"kind": "kind"}, "format": "parquet"},
    {"partition_by": {"kind": "kind"}, "max_file_rows": 1},
]


@pytest.mark.case(25)
def test_a_batch_that_is_replayed_in_another_layout_is_there_once(tmp_path: Path) -> None:
    """It was committed, a kill came before the ledger knew, and then the user has changed the sink."""
    kept = batch_ref(10, 20)
    write_layout({}, tmp_path, kept)
    alone = []
    for number, layout in enumerate(LAYOUTS):
        write_layout(layout, tmp_path / str(number), batch_ref())
        alone.append(files_below(tmp_path / str(number) / "out"))
    for stride, number in itertools.product((1, 3, 7), range(len(LAYOUTS))):
        then = number * stride % len(LAYOUTS)
        write_layout(LAYOUTS[then], tmp_path, batch_ref())
        assert files_below(tmp_path / "out") == alone[then] | {kept.key + ".jsonl"}, LAYOUTS[then]


@pytest.mark.case(25)
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_batch_that_has_no_rows_when_it_is_replayed_has_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: dict[str, Any]
) -> None:
    write_layout({}, tmp_path, batch_ref(10, 20))
    for step in range(20):
        sink = write_layout(layout, tmp_path, batch_ref())
        killed = killed_at(step, monkeypatch, lambda: sink.commit(batch_ref(), []))  # noqa: B023
        sink.commit(batch_ref(), [])
        assert files_below(tmp_path / "out") == {batch_ref(10, 20).key + ".jsonl"}, step
        if not killed:
            break
    else:
        pytest.fail("it has no end")
    assert step > 1 and not list((tmp_path / "out" / ".batches").glob(f"{batch_ref().key}*"))


def write_layout(layout: dict[str, Any], place: Path, batch: BatchRef) -> FilesSink:
    sink = FilesSinkConfig(path="out", **layout).build(place)
    sink.prepare()
    divided = "partition_by" in layout
    write_batch(sink, partitioned(numbered(2), ["a", "a"]) if divided else numbered(2), batch)
    return sink


def files_below(directory: Path) -> set[str]:
    files = [path.relative_to(directory) for path in directory.rglob("*") if path.is_file()]
    return {str(path) for path in files if not path.parts[0].startswith(".")}


def test_rows_of_a_query_are_of_one_job(tmp_path: Path) -> None:
    sink = FilesSink(tmp_path / "out")
    sink.refuse_others("failures", {"by_station"})
    assert not (tmp_path / "out").exists()
    for _ in range(2):
        sink.claim("failures", {"by_station", "other"})
    sink.claim("reports", {"third"})
    with pytest.raises(OthersRows, match='a query "by_station" of the job "failures"'):
        sink.claim("reports", {"by_station", "fourth"})
    sink.claim("more", {"fourth"})
    note = tmp_path / "out" / ".owners.json"
    with pytest.raises(OthersRows, match=f'give the place back: remove "by_station" from {note}'):
        sink.refuse_others("reports", {"by_station", "fifth"})
    sink.refuse_others("reports", {"fifth"})
    assert json.loads(note.read_bytes()) == {
        "by_station": "failures", "other": "failures", "third": "reports", "fourth": "more",
    }  # fmt: skip
    assert not list((tmp_path / "out").glob("[!.]*"))
