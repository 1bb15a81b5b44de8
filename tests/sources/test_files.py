"""The files source: formats, what becomes of a file, files that grow, crashes between steps."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from signoff.errors import SourceError
from signoff.sources.contract import EndOfSource, Resume, Settlement, Source
from signoff.sources.files import FilesConfig
from tests.sources.offers import acknowledged, context, drain, errors, log, payloads, resume_after


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


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.jsonl", "a.jsonl.gz"])
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
    elif path.suffix == ".csv":
        path.write_text("n,text\n" + "".join(f'{row["n"]},"{row["text"]}"\n' for row in rows))
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        path.write_text(lines)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.parquet", b"not parquet"),
        ("a.jsonl.gz", gzip.compress(random.Random(1).randbytes(5000))[:-900]),
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
