"""The files source: formats, what becomes of a file, files that grow, crashes between steps."""

from __future__ import annotations

import bz2
import errno
import gzip
import io
import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from signoff.clock import ClockWatch
from signoff.errors import SourceError
from signoff.sources.contract import EndOfSource, Resume, Settlement, Source
from signoff.sources.files import content as file_content
from signoff.sources.files import moves as file_moves
from signoff.sources.files import settling as file_settling
from signoff.sources.files import source as files
from signoff.sources.files.compressed import Damaged, Unpacked
from signoff.sources.files.config import FilesConfig
from signoff.sources.files.csv_rows import CsvReader
from signoff.testing.conformance.sources import (
    acknowledged,
    context,
    drain,
    errors,
    log,
    payloads,
    receive,
    resume_after,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


def opened(base: Path, resume: Resume | None = None, *, once: bool = True, **fields: object) -> Source:
    settings = {"path": "in/*", "settle_ms": 0, "poll_ms": 10, **fields}
    source = FilesConfig.model_validate(settings).build(base)
    source.open(context(base, once=once), resume or Resume(0))
    return source


def read(base: Path, **fields: object) -> tuple[list[bytes], list[str | None]]:
    source = opened(base, **fields)
    batches = drain(source)
    source.close()
    return payloads(batches), errors(batches)


def test_a_line_is_an_event_and_empty_lines_are_none(tmp_path: Path, folder: Path) -> None:
    (folder / "a.jsonl").write_bytes(b'{"a":1}\n\n{"a":2}\r\n\r\n{"a":3}')
    assert read(tmp_path) == ([b'{"a":1}', b'{"a":2}', b'{"a":3}'], [None] * 3)


def test_an_event_carries_its_file_as_header(tmp_path: Path, folder: Path) -> None:
    (folder / "a.txt").write_bytes(b"x\ny\n")
    source = opened(tmp_path)
    (batch,) = drain(source)
    assert batch.column("headers").to_pylist() == [[("file", "in/a.txt")]] * 2
    source.close()


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path, folder: Path) -> None:
    (folder / "a.jsonl").write_bytes(b"\xef\xbb\xbfone\ntwo\n")
    (folder / "b.csv").write_bytes(b"\xef\xbb\xbfa,b\n1,2\n")
    assert read(tmp_path)[0] == [b"one", b"two", b'{"a":"1","b":"2"}']


def test_files_are_read_oldest_first(tmp_path: Path, folder: Path) -> None:
    for age, name in enumerate(["c", "a", "b"]):
        (folder / name).write_text(name)
        os.utime(folder / name, (1000 - age, 1000 - age))
    assert read(tmp_path)[0] == [b"b", b"a", b"c"]


def test_compressed_lines_are_read_and_resumed(tmp_path: Path, folder: Path) -> None:
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(b"one\ntwo\nthree\n"))
    source = opened(tmp_path)
    first = source.receive(1, 1)
    assert first is not None
    source.close()
    source = opened(tmp_path, resume_after([first]))
    assert payloads([first, *drain(source)]) == [b"one", b"two", b"three"]
    source.close()


def test_suffixes_are_the_same_in_capitals(tmp_path: Path, folder: Path) -> None:
    (folder / "a.CSV").write_text("id\n1\n")
    (folder / "b.CSV.GZ").write_bytes(gzip.compress(b"id\n2\n"))
    assert read(tmp_path, path="in/*.CSV*")[0] == [b'{"id":"1"}', b'{"id":"2"}']


@pytest.mark.parametrize(("path", "found"), [("in/*.settled", b"batch-7.settled"), ("in/.*", b".7.settled")])
def test_only_what_the_source_itself_has_put_aside_is_passed_over(
    tmp_path: Path, folder: Path, path: str, found: bytes
) -> None:
    for name in ("batch-7.settled", ".7.settled", ".0af1-17.settled"):
        (folder / name).write_text(f"{name}\n")
    assert read(tmp_path, path=path)[0] == [found]


def test_csv_rows_become_objects_of_strings(tmp_path: Path, folder: Path) -> None:
    (folder / "a.csv").write_text('id;note\n1;"two\nlines; and a ""quote"""\n\n2;é\n')
    found, _ = read(tmp_path, delimiter=";")
    assert [json.loads(row) for row in found] == [
        {"id": "1", "note": 'two\nlines; and a "quote"'},
        {"id": "2", "note": "é"},
    ]


def test_bad_csv_rows_are_events_with_an_error_and_their_neighbours_are_fine(
    tmp_path: Path, folder: Path
) -> None:
    (folder / "a.csv").write_bytes(b'id,note\n1,a\n2\n3,"never closed\n4,d\n5,\xff\n6,"x"y\n7,g\n')
    found, wrong = read(tmp_path)
    assert [json.loads(row)["id"] for row, error in zip(found, wrong, strict=True) if not error] == list(
        "147"
    )
    bad = {row: error for row, error in zip(found, wrong, strict=True) if error}
    assert bad[b"2\n"] == "row has 1 fields, the header has 2"
    assert "not CSV" in str(bad[b'3,"never closed\n'])
    assert bad[b"5,\xff\n"] == "row is not valid UTF-8"
    assert b'6,"x"y\n' in bad


def test_csv_without_a_header_has_numbered_names(tmp_path: Path, folder: Path) -> None:
    (folder / "a.csv").write_text("1,2\n")
    assert read(tmp_path, header=False)[0] == [b'{"_c0":"1","_c1":"2"}']


def test_a_huge_csv_row_is_cut_and_the_next_one_is_fine(tmp_path: Path, folder: Path) -> None:
    (folder / "a.csv").write_text("a\n" + "x" * 5000 + "\nok\n")
    found, wrong = read(tmp_path, max_event_bytes=1000)
    assert found[1] == b'{"a":"ok"}'
    assert "5001 bytes" in str(wrong[0])


@pytest.mark.parametrize(
    "name", ["a.csv", "a.parquet", "a.jsonl", "a.jsonl.gz", "a.jsonl.bz2", "a.jsonl.zst", "a.csv.zstd"]
)
def test_reading_goes_on_after_any_event(tmp_path: Path, folder: Path, name: str) -> None:
    rows = [{"n": str(n), "text": "line\nbreak" if n % 3 else "plain"} for n in range(12)]
    write(folder / name, rows)
    for stop in range(1, 12):
        base = tmp_path / str(stop)
        base.mkdir()
        (base / "in").symlink_to(folder)
        source = opened(base)
        first = [source.receive(1, 1) for _ in range(stop)]
        source.close()
        assert all(first)
        source = opened(base, resume_after(first))
        assert [json.loads(row) for row in payloads([*first, *drain(source)])] == rows
        source.close()


def write(path: Path, rows: list[dict[str, str]]) -> None:
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=5)
        return
    if ".csv" in path.suffixes:
        lines = "n,text\n" + "".join(f'{row["n"]},"{row["text"]}"\n' for row in rows)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines.encode()))
    elif path.suffix == ".bz2":
        path.write_bytes(bz2.compress(lines[:20].encode()) + bz2.compress(lines[20:].encode()))
    elif path.suffix in (".zst", ".zstd"):
        codec = pa.Codec("zstd")
        path.write_bytes(
            b"".join(codec.compress(part.encode(), asbytes=True) for part in (lines[:20], lines[20:]))
        )
    else:
        path.write_text(lines)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.parquet", b"not parquet"),
        ("a.jsonl.gz", gzip.compress(random.Random(1).randbytes(5000), mtime=0)[:-900]),
        ("a.jsonl.bz2", bz2.compress(random.Random(1).randbytes(5000))[:-900]),
        ("a.jsonl.bz2", b"not bzip2"),
        ("a.jsonl.bz2", bz2.compress(b"one\n") + b"BZh\x79" + bz2.compress(b"two\n")[4:]),
        ("a.jsonl.bz2", bz2.compress(b"one\n") + b"two\nthree\n"),
        ("a.jsonl.gz", gzip.compress(b"one\n", mtime=0) + b"two\nthree\n"),
        ("a.jsonl.zst", pa.Codec("zstd").compress(b"one\n", asbytes=True) + b"two\nthree\n"),
        ("a.jsonl.zst", pa.Codec("zstd").compress(random.Random(1).randbytes(5000), asbytes=True)[:-900]),
        ("a.csv.zst", b"not zstd"),
        ("a.csv", b"a,a\n1,2\n"),
    ],
)
def test_a_damaged_file_is_an_event_with_an_error_and_is_never_deleted(
    tmp_path: Path, folder: Path, name: str, content: bytes
) -> None:
    (folder / name).write_bytes(content)
    (folder / "z.jsonl").write_text("next\n")
    source = opened(tmp_path, on_acknowledge="delete")
    batches = drain(source)
    assert errors(batches)[-2:][0]
    assert payloads(batches)[-1] == b"next"
    end = log(source, batches)
    source.settle(acknowledged(*range(end)))
    assert [path.name for path in folder.iterdir()] == [name]
    source.close()


def test_a_stream_that_is_damaged_stays_damaged() -> None:
    stream = Unpacked(io.BytesIO(b"not zstd"), ".zst")
    for _ in range(3):  # the decompressor itself would give bytes of nobody the second time, without an end
        with pytest.raises(Damaged, match="ZSTD"):
            stream.read(10)


# What becomes of a file


def test_a_file_is_moved_when_its_last_event_is_settled_and_not_before(tmp_path: Path, folder: Path) -> None:
    (folder / "a.jsonl").write_text("1\n2\n3\n")
    source = opened(tmp_path, on_acknowledge="move")
    log(source, drain(source))
    source.settle(acknowledged(0, 2))
    assert (folder / "a.jsonl").exists()
    source.settle(acknowledged(1))
    assert (folder / "acknowledged" / "a.jsonl").read_text() == "1\n2\n3\n"
    assert not (folder / "a.jsonl").exists()
    source.close()


def test_a_file_that_was_not_read_to_its_end_keeps_no_stopped_run_waiting(
    tmp_path: Path, folder: Path
) -> None:
    (folder / "a.jsonl").write_text("1\n2\n3\n")
    source = opened(tmp_path, on_acknowledge="move")
    log(source, receive(source, 2, max_events=2))
    source.settle(acknowledged(0))
    source.settle(acknowledged(1))
    assert not source.drained(), "the rest of it is still to come"
    source.stop()
    assert source.drained()
    source.close()
    assert (folder / "a.jsonl").exists()


def test_moving_never_overwrites(tmp_path: Path, folder: Path) -> None:
    (folder / "acknowledged").mkdir()
    (folder / "acknowledged" / "a.jsonl").write_text("other")
    (folder / "a.jsonl").write_text("1\n")
    source = opened(tmp_path, on_acknowledge="move")
    log(source, drain(source))
    source.settle(acknowledged(0))
    assert (folder / "acknowledged" / "a.jsonl").read_text() == "other"
    assert (folder / "acknowledged" / "a-1.jsonl").read_text() == "1\n"
    source.close()


def test_a_file_can_be_deleted(tmp_path: Path, folder: Path) -> None:
    (folder / "a.jsonl").write_text("1\n")
    source = opened(tmp_path, on_acknowledge="delete")
    log(source, drain(source))
    source.settle(acknowledged(0))
    assert list(folder.iterdir()) == []
    source.close()


def test_a_file_with_a_refused_event_goes_its_own_way(tmp_path: Path, folder: Path) -> None:
    (folder / "a.jsonl").write_text("1\n2\n")
    (folder / "b.jsonl").write_text("3\n")
    source = opened(tmp_path, path="in/*.jsonl", on_acknowledge="delete", on_refuse="move", refused_to="bad")
    log(source, drain(source))
    source.settle(Settlement(BitMap64([0, 2]), {1: "no"}))
    assert [path.name for path in (tmp_path / "bad").iterdir()] == ["a.jsonl"]
    assert list(folder.iterdir()) == []
    source.close()


def test_a_refusal_is_remembered_across_a_restart(tmp_path: Path, folder: Path) -> None:
    (folder / "a.jsonl").write_text("1\n2\n")
    source = opened(tmp_path, on_acknowledge="delete")
    batches = drain(source)
    log(source, batches)
    source.settle(Settlement(BitMap64(), {0: "no"}))
    source.close()
    source = opened(tmp_path, resume_after(batches), on_acknowledge="delete")
    source.settle(acknowledged(0, 1))  # after long the ledger no longer tells why
    assert (folder / "a.jsonl").exists()
    assert source.drained()
    source.close()


def test_a_refusal_that_there_was_no_room_to_note_is_noted_when_it_is_told_again(
    tmp_path: Path, folder: Path
) -> None:
    (folder / "a.jsonl").write_text("1\n2\n")
    source = opened(tmp_path, on_acknowledge="delete")
    batches = drain(source)
    log(source, batches)
    refused = Settlement(BitMap64(), {0: "no"})
    with pytest.MonkeyPatch.context() as disk:
        disk.setattr(source._registry, "save", no_room)  # type: ignore[attr-defined]
        with pytest.raises(OSError, match="no room"):
            source.settle(refused)
    source.settle(refused)
    source.close()
    source = opened(tmp_path, resume_after(batches), on_acknowledge="delete")
    source.settle(acknowledged(0, 1))
    assert (folder / "a.jsonl").exists()
    source.close()


def test_a_directory_that_cannot_be_looked_into_is_named_and_fails_a_run_that_takes_what_is_there(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.jsonl").write_text("1\n")

    def failing(directory: str) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    source, forever = opened(tmp_path), opened(tmp_path, once=False, path="in/**/*")
    with monkeypatch.context() as broken:
        broken.setattr(os, "scandir", failing)
        with pytest.raises(SourceError, match=r"cannot look into .*in: Too many open files"):
            source.receive(1000, 1)
        assert drain(forever) == []
        assert "Too many open files" in forever.trouble()
    source.close()
    assert payloads(drain(forever)) == [b"1"]
    assert forever.trouble() == ""
    forever.close()


def no_room(*_: object) -> None:
    raise OSError(errno.ENOSPC, "no room to note files")


@pytest.mark.parametrize("when", ["add", "forget"])
def test_what_was_read_when_there_was_no_room_for_the_next_files_is_handed_out(
    tmp_path: Path, folder: Path, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of four files two are registered at a time; the third is gone when it comes to it."""
    monkeypatch.setattr(files, "REGISTERED", 2 if when == "add" else 4)
    for number in range(4):
        (folder / str(number)).write_text(f"{number}\n")
        os.utime(folder / str(number), (1000 + number, 1000 + number))
    source = opened(tmp_path, once=False, on_acknowledge="delete")
    while not source._looked:  # type: ignore[attr-defined]
        source._look(time.monotonic())  # type: ignore[attr-defined]
    expected = [b"0", b"1", b"2", b"3"]
    if when == "forget":
        (folder / "2").unlink()
        expected.remove(b"2")
    else:
        source._waiting.extend(  # type: ignore[attr-defined]
            source._registry.add([source._found.popleft() for _ in range(2)])  # type: ignore[attr-defined]
        )
    with monkeypatch.context() as disk:
        disk.setattr(source._registry, when, no_room)  # type: ignore[attr-defined]
        first = source.receive(1000, 60)
        assert first is not None and payloads([first]) == [b"0", b"1"]
        with pytest.raises(OSError, match="no room"):
            source.receive(1000, 60)
    batches = [first, *drain(source)]
    assert payloads(batches) == expected
    log(source, batches)
    source.settle(acknowledged(0, 1))
    left = ["3"] if when == "forget" else ["2", "3"]
    assert sorted(path.name for path in folder.iterdir()) == left, "numbers are those of the log"
    source.close()


def test_an_empty_file_is_acknowledged_at_once(tmp_path: Path, folder: Path) -> None:
    (folder / "a.jsonl").write_text("")
    source = opened(tmp_path, on_acknowledge="move")
    assert drain(source) == []
    assert (folder / "acknowledged" / "a.jsonl").exists()
    assert source.drained()
    source.close()


def test_moved_files_are_not_found_again_by_a_recursive_glob(tmp_path: Path, folder: Path) -> None:
    (folder / "a.jsonl").write_text("1\n")
    source = opened(tmp_path, path="in/**/*.jsonl", on_acknowledge="move", once=False)
    log(source, drain(source, patience=5))
    source.settle(acknowledged(0))
    assert drain(source, patience=10) == []
    source.close()


# Files that are known


@pytest.mark.parametrize("target", ["in/x/../done", "other/done", "done"])
def test_moved_files_are_not_found_again_however_the_way_there_is_spelled(
    tmp_path: Path, folder: Path, target: str
) -> None:
    (folder / "x").mkdir()
    (folder / "done").mkdir()
    (tmp_path / "other").symlink_to("in")
    (tmp_path / "done").symlink_to("in/done")
    (folder / "a.txt").write_text("1\n")
    source = opened(tmp_path, once=False, path="in/**/*.txt", on_acknowledge="move", move_to=target)
    found, end = serve(source)
    assert (found, serve(source, end)[0]) == ([b"1"], [])
    assert [file.name for file in (folder / "done").iterdir()] == ["a.txt"]
    source.close()


@pytest.mark.parametrize("path", ["in/**", "in/**/*.txt", "./**/in/**/*.txt"])
def test_a_file_is_read_once_though_links_lead_to_it_in_circles(
    tmp_path: Path, folder: Path, path: str
) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    for directory in (folder / "deep", outside):
        directory.mkdir()
        (directory / "a.txt").write_text(f"{directory.name.rpartition('-')[2]}\n")
        for number in range(3):  # a glob would go 40 levels deep along each, in every order
            (directory / f"loop{number}").symlink_to(".")
    source = opened(tmp_path, once=False, path=path)
    assert serve(source)[0] == [b"deep"]
    (folder / "latest").symlink_to("deep")  # while it runs
    (folder / "up").symlink_to("..")
    (folder / "link").symlink_to(outside)
    assert serve(source, 1)[0] == [b"outside"]
    source.close()


def test_a_directory_link_that_the_pattern_needs_is_followed(tmp_path: Path, folder: Path) -> None:
    (folder / "2024").mkdir()
    (folder / "2024" / "a.txt").write_text("1\n")
    (folder / "latest").symlink_to("2024")
    (folder / "here").symlink_to(".")
    assert read(tmp_path, path="in/latest/*.txt")[0] == [b"1"]
    shutil.rmtree(tmp_path / "own")
    assert read(tmp_path, path="in/here/2024/*.txt")[0] == [b"1"]


def test_many_files_of_one_name_are_moved_with_few_looks_each(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 400
    for number in range(count):
        (folder / str(number)).mkdir()
        (folder / str(number) / "a.txt").write_text(f"{number}\n")
    looks = 0
    exists = os.path.lexists

    def counted(path: object) -> bool:
        nonlocal looks
        looks += 1
        return exists(path)  # type: ignore[arg-type]

    monkeypatch.setattr(os.path, "lexists", counted)
    source = opened(tmp_path, path="in/*/a.txt", on_acknowledge="move", move_to="done")
    batches = drain(source)
    log(source, batches)
    source.settle(acknowledged(*range(count)))
    while not source.drained():
        source.tend()
    source.close()
    assert sorted(int(file.read_text()) for file in (tmp_path / "done").iterdir()) == list(range(count))
    assert {"a.txt", "a-1.txt", f"a-{count - 1}.txt"} <= {file.name for file in (tmp_path / "done").iterdir()}
    assert looks < 25 * count


def test_a_file_that_another_process_puts_there_at_the_same_moment_is_not_overwritten(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.txt").write_text("mine\n")
    done = tmp_path / "done"
    done.mkdir()
    exists = os.path.lexists

    def beaten(path: object) -> bool:
        there = exists(path)  # type: ignore[arg-type]
        if Path(str(path)) == done / "a.txt" and not there:
            (done / "a.txt").write_text("theirs\n")
        return there

    monkeypatch.setattr(os.path, "lexists", beaten)
    source = opened(tmp_path, once=False, on_acknowledge="move", move_to="done")
    serve(source)
    source.close()
    assert {file.name: file.read_text() for file in done.iterdir()} == {
        "a.txt": "theirs\n", "a-1.txt": "mine\n"
    }  # fmt: skip


def test_a_deleted_file_is_not_forgotten_before_its_directory_is_synced(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.txt").write_text("1\n")
    source = opened(tmp_path, on_acknowledge="delete")
    batches = drain(source)
    log(source, batches)
    failing = True

    def sync(directory: Path) -> None:
        if failing:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(file_moves, "sync_directory", sync)
    monkeypatch.setattr(file_settling, "PATIENCE_S", 0.0)
    source.settle(acknowledged(0))
    assert not source.drained()
    assert "Input/output error" in source.trouble()
    (folder / "a.txt").write_text("1\n")  # as it is again if the power goes now
    again = opened(tmp_path, resume_after(batches))
    assert drain(again) == [], "it is known, and put away again"
    again.close()
    failing = False
    source.tend()
    assert source.drained() and source.trouble() == ""
    source.close()


def test_a_file_that_could_be_neither_moved_nor_put_back_is_moved_later(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.txt").write_text("1\n")
    source = opened(tmp_path, once=False, on_acknowledge="move")
    monkeypatch.setattr(file_settling, "PATIENCE_S", 0.0)

    def fails(*_: object) -> Path:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(file_settling, "move", fails)
        patch.setattr(file_settling, "put_back", fails)
        batches = receive(source, 1)
        log(source, batches)
        source.settle(acknowledged(0))
        assert "Input/output error" in source.trouble()
    for _ in range(3):
        source.tend()
    assert [file.name for file in (folder / "acknowledged").iterdir()] == ["a.txt"]
    assert source.drained()
    source.close()


def test_a_kept_file_is_read_once_across_restarts(tmp_path: Path, folder: Path) -> None:
    (folder / "a.jsonl").write_text("1\n2\n")
    source = opened(tmp_path)
    batches = drain(source)
    log(source, batches)
    source.settle(acknowledged(0, 1))
    source.close()
    os.utime(folder / "a.jsonl")
    source = opened(tmp_path, resume_after(batches))
    assert drain(source) == []
    source.close()


def test_a_kept_file_that_grows_is_read_on(tmp_path: Path, folder: Path) -> None:
    path = folder / "a.jsonl"
    path.write_text("1\n2\n")
    source = opened(tmp_path, once=False)
    log(source, drain(source, patience=5))
    source.settle(acknowledged(0, 1))
    with path.open("a") as file:
        file.write("3\n")
    assert payloads(drain(source, patience=10)) == [b"3"]
    source.close()


def test_a_kept_file_that_is_replaced_is_read_anew(tmp_path: Path, folder: Path) -> None:
    path = folder / "a.jsonl"
    path.write_text("1\n2\n")
    source = opened(tmp_path, once=False)
    log(source, drain(source, patience=5))
    path.write_text("8\n9\n")
    os.utime(path, (1, 1))
    assert payloads(drain(source, patience=10)) == [b"8", b"9"]
    source.close()


@pytest.mark.parametrize(("changed", "again"), [("1\n7\n3\n", 3), ("1\n7\n3\n4\n", 4), ("1\n2\n3\n4\n", 1)])
def test_a_kept_file_that_is_corrected_in_place_is_named_when_it_is_read_anew(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture, changed: str, again: int
) -> None:
    path = folder / "orders.jsonl"
    path.write_text("1\n")
    source = opened(tmp_path, once=False)
    log(source, drain(source, patience=5))
    with path.open("a") as file:
        file.write("2\n3\n")
    log(source, drain(source, patience=10), 1)
    source.close()
    path.write_text(changed)
    os.utime(path, (1, 1))
    source = opened(tmp_path, Resume(3, 2, 6, 3), once=False)
    assert len(payloads(drain(source, patience=10))) == again
    warnings = [record.message for record in caplog.records]
    if again == 1:  # it has only grown
        assert warnings == []
    else:
        (warning,) = warnings
        assert "in/orders.jsonl has changed since it was read (3 events)" in warning
        assert "dead-letters resubmit" in warning
    source.close()


def test_a_file_in_the_place_of_one_that_was_deleted_is_no_reason_for_a_warning(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "a.jsonl"
    path.write_text("1\n")
    source = opened(tmp_path, once=False, on_acknowledge="delete")
    log(source, drain(source, patience=5))
    replace(path, "2\n")
    assert payloads(drain(source, patience=10)) == [b"2"]
    assert not caplog.records
    source.close()


def test_a_file_that_grew_after_it_was_read_is_not_put_away_before_its_rest_is_settled(
    tmp_path: Path, folder: Path
) -> None:
    path = folder / "a.jsonl"
    path.write_text("1\n")
    source = opened(tmp_path, once=False, on_acknowledge="delete")
    log(source, drain(source, patience=5))
    with path.open("a") as file:
        file.write("2\n")
    source.settle(acknowledged(0))
    assert path.exists()
    rest = drain(source, patience=10)
    assert payloads(rest) == [b"2"]
    log(source, rest, 1)
    source.settle(acknowledged(1))
    assert not path.exists()
    source.close()


def test_a_file_that_is_still_being_written_waits(tmp_path: Path, folder: Path) -> None:
    (folder / "old.jsonl").write_text("old\n")
    os.utime(folder / "old.jsonl", (1, 1))
    (folder / "new.jsonl").write_text("new\n")
    source = opened(tmp_path, once=False, settle_ms=600_000)
    assert payloads(drain(source, patience=5)) == [b"old"]
    source.close()


def test_a_file_from_the_future_is_read_when_it_stays_as_it_is(tmp_path: Path, folder: Path) -> None:
    (folder / "a.jsonl").write_text("1\n")
    os.utime(folder / "a.jsonl", (4e9, 4e9))
    source = opened(tmp_path, once=False, settle_ms=30)
    assert payloads(drain(source, patience=20)) == [b"1"]
    source.close()


def test_a_file_that_vanishes_before_it_is_read_is_passed_over(tmp_path: Path, folder: Path) -> None:
    (folder / "a.jsonl").write_text("1\n")
    (folder / "b.jsonl").write_text("2\n")
    source = opened(tmp_path)
    (folder / "a.jsonl").unlink()
    assert payloads(drain(source)) == [b"2"]
    source.close()


def test_what_replaced_a_half_read_file_is_read_as_another_file(tmp_path: Path, folder: Path) -> None:
    (folder / "a.jsonl").write_text("1\n2\n3\n")
    source = opened(tmp_path)
    first = source.receive(1, 1)
    source.close()
    (folder / "b").write_text("7\n8\n")
    (folder / "b").rename(folder / "a.jsonl")
    source = opened(tmp_path, resume_after([first]))
    assert payloads(drain(source)) == [b"7", b"8"]
    source.close()


@pytest.mark.parametrize("path", ["nowhere/*.jsonl", "in/missing.jsonl", "nowhere"])
def test_a_path_that_does_not_exist_is_an_error_that_names_it(
    tmp_path: Path, folder: Path, path: str
) -> None:
    with pytest.raises(SourceError, match=rf"does not exist.*{path.partition('*')[0]}"):
        opened(tmp_path, path=path)


def test_many_small_files_share_a_batch(tmp_path: Path, folder: Path) -> None:
    for number in range(200):
        (folder / f"{number:03d}.jsonl").write_text(f"{number}\n")
    source = opened(tmp_path)
    batches = []
    try:
        while True:
            batches.append(source.receive(1000, 600))
    except EndOfSource:
        pass
    assert len(batches) == 1
    assert len(batches[0]) == 200
    source.close()


# Files that are replaced, while they are read and after it


def replace(path: Path, content: str) -> None:
    """As careful writers do: whole, by a rename."""
    path.with_name(".new").write_text(content)
    path.with_name(".new").rename(path)


def lines(count: int, letter: str) -> str:
    return "".join(f"{letter}{number:09d}\n" for number in range(count))


LARGE = 2000
"""Lines of 11 bytes: more than is compared at the edges of a file."""


def same_edges(count: int, letter: str) -> str:
    """As large as `lines(count, "a")`, with the same first and last 4 KiB."""
    text = lines(count, "a")
    return text[:5500] + lines(count, letter)[5500:-5500] + text[-5500:]


def serve(source: Source, first: int = 0) -> tuple[list[bytes], int]:
    """Read and settle all there is."""
    batches = drain(source, patience=10)
    end = log(source, batches, first)
    source.settle(acknowledged(*range(first, end)))
    return payloads(batches), end


@pytest.mark.case(46)
@pytest.mark.parametrize("way", ["delete", "move", "keep"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.jsonl.gz"])
def test_a_file_that_is_replaced_while_it_is_read_is_read_too(
    tmp_path: Path, folder: Path, way: str, name: str
) -> None:
    path, new = folder / name, folder / ".new"
    write(path, [{"n": str(n), "text": "old"} for n in range(500)])
    write(folder / f".{name}", [{"n": str(n), "text": "new"} for n in range(500)])
    (folder / f".{name}").rename(new)
    source = opened(tmp_path, once=False, on_acknowledge=way)
    first = receive(source, 100, max_events=100)
    new.rename(path)
    first += receive(source, 400, max_events=100)
    end = log(source, first)
    source.settle(acknowledged(*range(500)))
    rest = drain(source, patience=20)
    found = [json.loads(row)["text"] for row in payloads([*first, *rest])]
    assert found == ["old"] * 500 + ["new"] * 500
    log(source, rest, end)
    source.settle(acknowledged(*range(500, 1000)))
    assert path.exists() == (way == "keep")
    source.close()


@pytest.mark.parametrize("way", ["delete", "move", "keep"])
@pytest.mark.parametrize("how", ["rename", "in place"])
def test_a_file_of_the_same_size_and_edges_is_read_anew(
    tmp_path: Path, folder: Path, way: str, how: str
) -> None:
    path = folder / "a.jsonl"
    path.write_text(lines(LARGE, "a"))
    source = opened(tmp_path, once=False, on_acknowledge=way)
    first = drain(source, patience=5)
    log(source, first)
    other, times = same_edges(LARGE, "b"), path.stat()
    if how == "rename":
        replace(path, other)
    else:
        path.write_text(other)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    source.settle(acknowledged(*range(LARGE)))
    assert path.exists()
    found, _ = serve(source, LARGE)
    assert "\n".join(row.decode() for row in found) + "\n" == other
    assert path.exists() == (way == "keep")
    source.close()


def test_an_equal_file_that_takes_the_place_of_one_not_yet_deleted_is_a_delivery_of_its_own(
    tmp_path: Path, folder: Path
) -> None:
    path = folder / "a.jsonl"
    path.write_text("1\n")
    source = opened(tmp_path, once=False, on_acknowledge="delete")
    log(source, drain(source, patience=5))
    replace(path, "1\n")
    second = drain(source, patience=10)
    assert payloads(second) == [b"1"]
    log(source, second, 1)
    source.settle(acknowledged(0))
    assert path.exists()
    source.settle(acknowledged(1))
    assert not path.exists()
    source.close()


def test_a_file_that_is_replaced_at_the_moment_of_its_deletion_is_read(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "a.jsonl"
    path.write_text("1\n")
    source = opened(tmp_path, once=False, on_acknowledge="delete")
    log(source, drain(source, patience=5))
    rename = Path.rename

    def late(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        if self == path:
            replace(path, "2\n")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", late)
    source.settle(acknowledged(0))
    assert path.read_text() == "2\n"
    assert serve(source, 1)[0] == [b"2"]
    assert list(folder.iterdir()) == []
    source.close()


def test_what_a_crash_left_aside_is_put_back_and_finished(tmp_path: Path, folder: Path) -> None:
    (folder / "a.jsonl").write_text("1\n")
    source = opened(tmp_path, on_acknowledge="delete")
    batches = drain(source)
    log(source, batches)
    (file,) = source._registry.files.values()  # type: ignore[attr-defined]
    token = source._registry.token  # type: ignore[attr-defined]
    source.close()
    (folder / "a.jsonl").rename(folder / f".{token}-{file.unit}.settled")
    source = opened(tmp_path, resume_after(batches), on_acknowledge="delete")
    assert [path.name for path in folder.iterdir()] == ["a.jsonl"]
    source.settle(acknowledged(0))
    assert list(folder.iterdir()) == []
    source.close()


# A file whose name was given to another one while it was aside


def put_aside(base: Path, source: Source) -> Path:
    """As a kill leaves it: renamed aside, and nothing else done."""
    (file,) = source._registry.files.values()  # type: ignore[attr-defined]
    aside = file_moves.aside_of(base / file.path, source._registry.token, file.unit)  # type: ignore[attr-defined]
    (base / file.path).rename(aside)
    return aside


@pytest.mark.case(24)
@pytest.mark.parametrize("way", ["delete", "move"])
@pytest.mark.parametrize("kills", [1, 3])
def test_a_file_whose_name_was_taken_while_it_was_aside_is_not_read_again_after_a_kill(
    tmp_path: Path, folder: Path, way: str, kills: int
) -> None:
    path = folder / "a.jsonl"
    path.write_text("1\n2\n")
    source = opened(tmp_path, on_acknowledge=way)
    batches = drain(source)
    log(source, batches)
    aside = put_aside(tmp_path, source)
    path.write_text("3\n")
    for kill in range(kills):
        source.close()
        source = opened(tmp_path, resume_after(batches), on_acknowledge=way)
        if kill < kills - 1:  # killed again with the file aside, and its next name was taken, too
            (free,) = (file for file in folder.glob("a-*.jsonl") if file.read_text() == "1\n2\n")
            free.rename(aside)
            free.write_text("3\n")
    found = drain(source)
    assert payloads(found) == [b"3"] * kills
    log(source, found, 2)
    source.settle(acknowledged(*range(2 + kills)))
    assert source.drained()
    assert list(folder.glob("*.jsonl")) == []
    assert len(list(folder.glob("acknowledged/*"))) == (kills + 1 if way == "move" else 0)
    source.close()


@pytest.mark.case(24)
def test_a_kill_between_the_two_steps_of_putting_a_file_back_makes_it_no_other_file(
    tmp_path: Path, folder: Path
) -> None:
    path = folder / "a.jsonl"
    path.write_text("1\n")
    source = opened(tmp_path, on_acknowledge="delete")
    batches = drain(source)
    log(source, batches)
    os.link(put_aside(tmp_path, source), path)
    source.close()
    source = opened(tmp_path, resume_after(batches), on_acknowledge="delete")
    assert [file.name for file in folder.iterdir()] == ["a.jsonl"]
    assert drain(source) == []
    source.settle(acknowledged(0))
    assert list(folder.iterdir()) == []
    source.close()


def test_a_file_aside_is_put_back_also_when_files_are_kept_by_now(tmp_path: Path, folder: Path) -> None:
    path = folder / "a.jsonl"
    path.write_text("1\n")
    source = opened(tmp_path, on_acknowledge="delete")
    batches = drain(source)
    log(source, batches)
    put_aside(tmp_path, source)
    source.close()
    source = opened(tmp_path, resume_after(batches))
    assert path.read_text() == "1\n"
    assert drain(source) == []
    source.close()


def test_a_file_that_cannot_be_moved_is_not_read_again_if_its_name_was_taken_meanwhile(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "a.jsonl"
    path.write_text("1\n")
    monkeypatch.setattr(file_settling, "PATIENCE_S", 0.0)
    source = opened(tmp_path, once=False, on_acknowledge="move")
    log(source, drain(source, patience=5))

    def fails(*_: object) -> Path:
        path.write_text("2\n")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(file_settling, "move", fails)
        source.settle(acknowledged(0))
    found, end = serve(source, 1)
    assert found == [b"2"]
    assert end == 2
    while not source.drained():
        source.tend()
    assert list(folder.glob("*.jsonl")) == []
    moved = sorted(file.read_text() for file in (folder / "acknowledged").iterdir())
    assert moved == ["1\n", "2\n"]
    source.close()


@pytest.mark.parametrize("change", ["touched", "grown", "rewritten"])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_file_that_changes_while_it_is_aside_and_its_name_is_taken_is_read_as_far_as_it_is_new(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, change: str, restarted: bool
) -> None:
    path, text = folder / "a.jsonl", lines(LARGE, "a")
    path.write_text(text)
    source = opened(tmp_path, once=False, on_acknowledge="delete")
    batches = drain(source, patience=5)
    log(source, batches)
    os.utime(path, (1, 1))  # so that it is compared
    monkeypatch.setattr(file_content, "STEP_BYTES", 4096)
    hash_on, steps = file_content.ContentFile.hash_on, 0

    def late(self: file_content.ContentFile, upto: int | None = None) -> bool:
        nonlocal steps
        ended, steps = hash_on(self, upto), steps + 1
        if steps == 1:
            path.write_text("next\n")
            if change == "grown":
                os.pwrite(descriptor, b"more\n", len(text))
            elif change == "rewritten":
                os.pwrite(descriptor, b"b", 0)
            os.utime(self.path, (2, 2))
        return ended

    descriptor = os.open(path, os.O_RDWR)
    with monkeypatch.context() as patched:
        patched.setattr(file_content.ContentFile, "hash_on", late)
        source.settle(acknowledged(*range(LARGE)))
        while steps < 1 or source._put_away._checked is not None:  # type: ignore[attr-defined]
            source.tend()
    os.close(descriptor)
    if restarted:
        source.close()
        source = opened(tmp_path, resume_after(batches), once=False, on_acknowledge="delete")
        source.settle(acknowledged(*range(LARGE)))
    found, _ = serve(source, LARGE)
    again = [b"b" + text.encode()[1:10], *text.encode().split()[1:]]
    new = {"touched": [], "grown": [b"more"], "rewritten": again}[change]
    assert sorted(found) == sorted([*new, b"next"])
    while not source.drained():
        source.tend()
    assert list(folder.iterdir()) == []
    source.close()


def test_a_free_name_is_none_under_which_another_file_was_read(tmp_path: Path, folder: Path) -> None:
    (folder / "a-1.jsonl").write_text("other\n")
    os.utime(folder / "a-1.jsonl", (1, 1))
    source = opened(tmp_path, path="in/a-*.jsonl")
    batches = drain(source)
    log(source, batches)
    source.settle(acknowledged(0))
    source.close()
    (folder / "a-1.jsonl").unlink()  # kept, and away for now: it is still known
    (folder / "a.jsonl").write_text("1\n")
    source = opened(tmp_path, resume_after(batches), path="in/*.jsonl", on_acknowledge="delete")
    more = drain(source)
    assert payloads(more) == [b"1"]
    log(source, more, 1)
    batches += more
    file = source._registry.newest["in/a.jsonl"]  # type: ignore[attr-defined]
    token = source._registry.token  # type: ignore[attr-defined]
    source.close()
    (folder / "a.jsonl").rename(file_moves.aside_of(folder / "a.jsonl", token, file.unit))
    (folder / "a.jsonl").write_text("2\n")
    for _ in range(2):
        source = opened(tmp_path, resume_after(batches), path="in/*.jsonl", on_acknowledge="delete")
        more = drain(source)
        batches += more
        log(source, more, 2) if more else None
        source.close()
    assert payloads(batches) == [b"other", b"1", b"2"]


# Files that go on


def test_copy_and_truncate_loses_nothing_that_is_written_afterwards(tmp_path: Path, folder: Path) -> None:
    path = folder / "a.jsonl"
    path.write_text(lines(LARGE, "a"))
    source = opened(tmp_path, once=False)
    assert len(serve(source)[0]) == LARGE
    path.write_text(same_edges(LARGE, "c") + "more\n")  # truncated, and larger than before by the next look
    found, _ = serve(source, LARGE)
    assert "\n".join(row.decode() for row in found) + "\n" == same_edges(LARGE, "c") + "more\n"
    source.close()


def test_a_file_that_grows_while_it_is_read_is_read_on(tmp_path: Path, folder: Path) -> None:
    path = folder / "a.jsonl"
    path.write_text(lines(100, "a"))
    source = opened(tmp_path, once=False, on_acknowledge="delete")
    first = receive(source, 10, max_events=10)
    with path.open("a") as file:
        file.write(lines(50, "b"))
    found = [*first, *drain(source, patience=20)]
    assert b"\n".join(payloads(found)).decode() + "\n" == lines(100, "a") + lines(50, "b")
    log(source, found)
    source.settle(acknowledged(*range(150)))
    assert not path.exists()
    source.close()


def test_a_half_read_file_that_grew_is_gone_on_with_after_a_crash(tmp_path: Path, folder: Path) -> None:
    path = folder / "a.jsonl"
    path.write_text(lines(100, "a"))
    source = opened(tmp_path)
    first = source.receive(10, 1)
    assert first is not None
    source.close()
    with path.open("a") as file:
        file.write("more\n")
    source = opened(tmp_path, resume_after([first]))
    found = payloads([first, *drain(source)])
    assert b"\n".join(found).decode() == lines(100, "a") + "more"
    source.close()


def test_a_half_read_file_that_was_rewritten_in_place_is_read_anew_after_a_crash(
    tmp_path: Path, folder: Path
) -> None:
    path = folder / "a.jsonl"
    path.write_text(lines(LARGE, "a"))
    source = opened(tmp_path)
    first = source.receive(10, 1)
    assert first is not None
    source.close()
    path.write_text(same_edges(LARGE, "b"))
    source = opened(tmp_path, resume_after([first]))
    assert b"\n".join(payloads(drain(source))).decode() + "\n" == same_edges(LARGE, "b")
    source.close()


def test_a_large_file_that_grows_often_is_not_read_from_its_beginning_each_time(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signoff.sources.files.search.COMPARED_BYTES_PER_S", 1)
    path = folder / "a.jsonl"
    path.write_text(lines(200_000, "a"))
    source = opened(tmp_path, once=False)
    _, end = serve(source)
    read_bytes = 0
    pread = os.pread

    def counted(descriptor: int, size: int, offset: int) -> bytes:
        nonlocal read_bytes
        data = pread(descriptor, size, offset)
        read_bytes += len(data)
        return data

    monkeypatch.setattr(os, "pread", counted)
    for number in range(10):
        with path.open("a") as file:
            file.write(f"{number}\n")
        found, end = serve(source, end)
        assert found == [str(number).encode()]
    assert read_bytes < 3 * path.stat().st_size
    source.close()


def test_a_project_that_is_moved_reads_no_kept_file_again(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "in").mkdir(parents=True)
    (old / "in" / "a.jsonl").write_text("1\n2\n")
    source = opened(old)
    batches = drain(source)
    log(source, batches)
    source.settle(acknowledged(0, 1))
    source.close()
    shutil.copytree(old, new)  # other inodes, other times
    shutil.rmtree(old)
    source = opened(new, resume_after(batches))
    assert drain(source) == []
    (new / "in" / "b.jsonl").write_text("3\n")
    source.close()
    source = opened(new, resume_after(batches))
    assert payloads(drain(source)) == [b"3"]
    source.close()


@pytest.mark.parametrize("way", ["move", "delete", "keep"])
def test_a_copy_with_new_inodes_goes_on_with_files_that_are_not_settled(tmp_path: Path, way: str) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "in").mkdir(parents=True)
    for name in ("a", "b", "c"):
        (old / "in" / f"{name}.jsonl").write_text(f"{name}\n")
    source = opened(old, on_acknowledge=way)
    batches = drain(source)
    log(source, batches)
    source.close()
    shutil.copytree(old, new)
    (new / "in" / "c.jsonl").write_text("C\n")
    source = opened(new, resume_after(batches), once=False, on_acknowledge=way)
    assert payloads(drain(source, patience=10)) == [b"C"], "one that is another now is read, the others not"
    log(source, [], 3)
    source.settle(acknowledged(0, 1, 2, 3))
    while not source.drained():
        source.tend()
    left = [] if way != "keep" else ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert sorted(file.name for file in (new / "in").glob("*.jsonl")) == left
    assert len(list((old / "in").iterdir())) == 3
    source.close()


def test_a_file_that_vanishes_and_comes_back_is_not_read_again(tmp_path: Path, folder: Path) -> None:
    path = folder / "a.jsonl"
    path.write_text("1\n")
    source = opened(tmp_path, once=False)
    assert serve(source)[0] == [b"1"]
    path.rename(tmp_path / "elsewhere")
    assert serve(source, 1)[0] == []
    (tmp_path / "elsewhere").rename(path)
    assert serve(source, 1)[0] == []
    source.close()


def test_links_are_files_of_their_own_and_only_the_link_goes(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "target").write_text("1\n")
    (folder / "soft.jsonl").symlink_to("../target")
    os.link(tmp_path / "target", folder / "hard.jsonl")
    source = opened(tmp_path, once=False, on_acknowledge="delete")
    assert serve(source)[0] == [b"1", b"1"]
    assert list(folder.iterdir()) == []
    assert (tmp_path / "target").read_text() == "1\n"
    source.close()


def test_one_file_that_cannot_be_read_keeps_no_other_from_being_read(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        (folder / name).write_text(name)
    open_ = os.open

    def refusing(path: object, *args: object, **more: object) -> int:
        if str(path).endswith("/b"):
            raise PermissionError(13, "Permission denied")
        return open_(path, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refusing)
    source = opened(tmp_path, once=False)
    found, end = serve(source)
    assert sorted(found) == [b"a", b"c"]
    assert "cannot read in/b: Permission denied" in source.trouble()
    monkeypatch.setattr(os, "open", open_)
    assert serve(source, end)[0] == [b"b"]
    assert source.trouble() == ""
    source.close()
    monkeypatch.setattr(os, "open", refusing)
    (folder / "b").write_text("again")
    source = opened(tmp_path, Resume(3, 3, 1))
    with pytest.raises(SourceError, match="in/b"):
        for _ in range(100):
            source.receive(10, 0.01)
    source.close()


def test_a_name_that_is_not_utf8_stops_nothing(tmp_path: Path, folder: Path) -> None:
    name = os.fsdecode(b"a\xff.jsonl")
    (folder / name).write_text("1\n")
    source = opened(tmp_path, once=False)
    batches = drain(source, patience=5)
    assert batches[0].column("headers").to_pylist() == [[("file", "in/a�.jsonl")]]
    source.close()
    source = opened(tmp_path, resume_after(batches), once=False, on_acknowledge="delete")
    source.settle(acknowledged(0))
    assert list(folder.iterdir()) == []
    source.close()


def test_a_damaged_csv_file_is_one_letter_however_often_it_is_looked_at(tmp_path: Path, folder: Path) -> None:
    (folder / "a.csv").write_text("a,a\n" + "1,2\n" * 10)
    source = opened(tmp_path, once=False)
    assert len(serve(source)[0]) == 1
    assert serve(source, 1)[0] == []
    source.close()


# Many files


def test_settling_many_files_looks_at_each_a_fixed_number_of_times(tmp_path: Path, folder: Path) -> None:
    count = 2000
    for number in range(count):
        (folder / f"{number:05d}.jsonl").write_text(f"{number}\n")
    source = opened(tmp_path, on_acknowledge="delete")
    log(source, drain(source))
    order = list(range(count))
    random.Random(3).shuffle(order)
    for sequence in order:
        source.settle(acknowledged(sequence))
    assert list(folder.iterdir()) == []
    assert source.drained()
    assert source._open.steps <= 2 * count  # type: ignore[attr-defined]
    source.close()


def test_settling_many_files_at_once_is_done_in_slices(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signoff.sources.files.settling.SLICE_S", 0.0)
    monkeypatch.setattr("signoff.sources.files.settling.LONGEST_S", 0.0)
    for number in range(100):
        (folder / f"{number:05d}.jsonl").write_text(f"{number}\n")
    source = opened(tmp_path, on_acknowledge="move", move_to="done")
    log(source, drain(source))
    source.settle(acknowledged(*range(100)))
    assert 0 < len(list((tmp_path / "done").iterdir())) < 100
    assert not source.drained()
    for _ in range(10):
        source.tend()
    assert source.drained()
    assert len(list((tmp_path / "done").iterdir())) == 100
    source.close()


def test_a_look_at_many_kept_files_goes_on_in_steps_and_rests(tmp_path: Path, folder: Path) -> None:
    for number in range(500):
        (folder / f"{number:05d}.jsonl").write_text("x\n")
    source = opened(tmp_path, once=False, poll_ms=10)
    serve(source)
    search = source._search  # type: ignore[attr-defined]
    while search._look is not None:  # one that was under way
        search.step(0.0)
    before, search.look_at = search.looked_at, 0.0
    assert search.step(0.0) is None
    assert search.looked_at - before < 100
    while search.step(0.0) is None:
        pass
    assert search.looked_at - before == 500
    assert search.look_at > time.monotonic() + 0.5 * 4 * search._spent
    source.close()


# Progress


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.jsonl.gz", "a.csv.zst", "a.parquet"])
def test_progress_is_the_share_of_the_bytes_on_disk_that_were_read(
    tmp_path: Path, folder: Path, name: str
) -> None:
    noise = random.Random(1)
    rows = [{"n": str(n), "text": noise.randbytes(200).hex()} for n in range(1000)]
    for count in range(4):
        write(folder / f"{count}{name}", rows)
    total = sum(path.stat().st_size for path in folder.iterdir())
    source = opened(tmp_path)
    assert source.progress() is None, "nothing was looked at yet"
    shares, events = [], 0
    with suppress(EndOfSource):
        while True:
            batch = source.receive(250, 1)
            events += 0 if batch is None else len(batch)
            done, known = source.progress() or (0, 0)
            assert known == total
            shares.append((events / 4000, done / known))
    assert len(shares) >= 16
    ahead = 0.25 if name == "a.csv.zst" else 0.06  # of a small file all is unpacked at once
    assert all(abs(of_events - of_bytes) < ahead for of_events, of_bytes in shares), shares
    assert source.progress() == (total, total)
    source.close()


def test_progress_counts_what_is_left_after_a_restart_and_files_that_are_gone(
    tmp_path: Path, folder: Path
) -> None:
    for number in range(4):
        (folder / f"{number}").write_text(lines(100, "a"))
        os.utime(folder / f"{number}", (1000 + number, 1000 + number))
    source = opened(tmp_path)
    first = receive(source, 150, max_events=50)
    assert source.progress() == (1650, 4400)
    source.close()
    (folder / "3").unlink()
    source = opened(tmp_path, resume_after(first))
    rest = drain(source)
    assert sum(map(len, rest)) == 150
    assert source.progress() == (1650, 1650)
    source.close()
    assert opened(tmp_path, once=False).progress() is None, "it has no end"


@pytest.mark.parametrize("step", [3600, -3600])
def test_a_clock_that_is_set_makes_no_file_look_complete(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    source = opened(tmp_path, once=False, settle_ms=60_000)
    search = source._search  # type: ignore[attr-defined]
    search._trusted_from -= 3600  # it runs for an hour
    search._clock = ClockWatch(lambda: time.time())
    (folder / "new.jsonl").write_text("half of a li")
    later = time.time() + step
    monkeypatch.setattr("time.time", lambda: later)
    assert payloads(drain(source, patience=5)) == []


@pytest.mark.parametrize("path", ["in/*.jsonl", "in/**/*.jsonl", "in", "in/a.jsonl", "*/a.jsonl"])
def test_brackets_in_the_name_of_the_project_are_no_wildcards(tmp_path: Path, path: str) -> None:
    own, other = tmp_path / "proj[1]" / "in", tmp_path / "proj1" / "in"
    for folder, text in (own, "own\n"), (other, "of another project\n"):
        folder.mkdir(parents=True)
        (folder / "a.jsonl").write_text(text)
    source = opened(tmp_path / "proj[1]", path=path, on_acknowledge="delete")
    assert serve(source)[0] == [b"own"]
    assert not (own / "a.jsonl").exists()
    assert (other / "a.jsonl").exists()
    source.close()


def test_a_directory_with_brackets_in_its_name_is_read_and_one_that_is_missing_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "in[1]").mkdir()
    (tmp_path / "in[1]" / "a.jsonl").write_text("1\n")
    assert read(tmp_path, path="in[1]")[0] == [b"1"]
    (tmp_path / "p[2]").mkdir()
    with pytest.raises(SourceError, match=r"p\[2\]/in does not exist"):
        opened(tmp_path / "p[2]", path="in/*.jsonl")


@pytest.mark.case(46)
@pytest.mark.parametrize("way", ["delete", "move"])
@pytest.mark.parametrize("change", ["rewritten", "touched"])
def test_a_file_that_changes_while_it_is_compared_goes_only_if_it_holds_what_was_read(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, way: str, change: str
) -> None:
    path, text = folder / "a.jsonl", lines(LARGE, "a")
    path.write_text(text)
    source = opened(tmp_path, once=False, on_acknowledge=way)
    log(source, drain(source, patience=5))
    os.utime(path, (1, 1))  # so that it is compared
    monkeypatch.setattr(file_content, "STEP_BYTES", 4096)
    hash_on, steps = file_content.ContentFile.hash_on, 0

    def late(self: file_content.ContentFile, upto: int | None = None) -> bool:
        nonlocal steps
        ended, steps = hash_on(self, upto), steps + 1
        if steps == 1:
            if change == "rewritten":
                os.pwrite(descriptor, b"b", 0)
            os.utime(self.path, (2, 2))
        return ended

    descriptor = os.open(path, os.O_RDWR)
    with monkeypatch.context() as patched:
        patched.setattr(file_content.ContentFile, "hash_on", late)
        source.settle(acknowledged(*range(LARGE)))
        while not source.drained():
            source.tend()
    os.close(descriptor)
    assert steps > 1
    assert path.exists() == (change == "rewritten")
    found, _ = serve(source, LARGE)
    assert found == ([] if change == "touched" else [b"b" + text.encode()[1:10], *text.encode().split()[1:]])
    assert not path.exists()
    source.close()


def test_a_bad_csv_row_is_kept_whole_unless_it_is_larger_than_an_event_may_be(
    tmp_path: Path, folder: Path
) -> None:
    many, quote, odd = (b"1,2," + b"x" * 100_000, b'1,"a"' + b"y" * 100_000, b"1," + b"\xff" * 100_000)
    (folder / "a.csv").write_bytes(b"a,b\n" + b"\n".join((many, quote, odd, b"3,4")) + b"\n")
    found, wrong = read(tmp_path)
    assert found == [many + b"\n", quote + b"\n", odd + b"\n", b'{"a":"3","b":"4"}']
    assert all(wrong[:3]) and not any("only the beginning" in str(error) for error in wrong)


@pytest.mark.parametrize("further", [0, 1, 2, 3])
def test_a_bad_csv_row_that_is_cut_says_so(tmp_path: Path, folder: Path, further: int) -> None:
    row = b"1,2," + b"x" * (996 + further)
    for name, end in ("a.csv", b"\n"), ("b.csv", b""):
        (folder / name).write_bytes(b"a,b\n" + row + end)
    for payload, error in zip(*read(tmp_path, max_event_bytes=1000), strict=True):
        assert len(payload) <= 1000
        assert (payload.rstrip() == row) == ("only the beginning is kept" not in str(error)) == (further == 0)


@pytest.mark.parametrize("end", [b"", b'"x\n', b"x" * 2000 + b"\n"], ids=["end", "error", "limit"])
def test_csv_lines_that_all_leave_a_quote_open_are_parsed_a_few_times_each(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    path, parsed = folder / "a.csv", 0
    path.write_bytes(b"a,b\n" + b'b","\n' * 300 + end + b'5,"two\nlines"\n')
    lines_of = CsvReader._lines

    def counted(self: CsvReader) -> Iterator[str]:
        nonlocal parsed
        for line in lines_of(self):
            parsed += 1
            yield line

    monkeypatch.setattr(CsvReader, "_lines", counted)
    found, wrong = read(tmp_path, max_event_bytes=2000)
    assert found[:300] == [b'b","\n'] * 300 and all(wrong[:300])
    assert (found[-1], wrong[-1]) == (b'{"a":"5","b":"two\\nlines"}', None)
    assert parsed < 1500
