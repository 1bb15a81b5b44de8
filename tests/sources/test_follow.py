"""Following files through rotation: every line once, whatever happens to the file or to the process."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from signoff.errors import SourceError
from signoff.sources.contract import Resume, Source
from signoff.sources.events import Piece
from signoff.sources.files import follow as file_follow
from signoff.sources.files import tail as file_tail
from signoff.sources.files.config import FilesConfig
from signoff.sources.files.tail import Tail
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
def path(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path / "logs" / "app.log"


def opened(base: Path, resume: Resume | None = None, *, once: bool = False, **fields: object) -> Source:
    settings = {"path": "logs/app.log", "follow": True, "poll_ms": 10, "rotate_wait_ms": 0, **fields}
    source = FilesConfig.model_validate(settings).build(base)
    source.open(context(base, once=once), resume or Resume(0))
    return source


def write(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def take(source: Source) -> list[bytes]:
    return payloads(drain(source, patience=3))


def test_lines_are_events_as_soon_as_they_are_complete(tmp_path: Path, path: Path) -> None:
    source = opened(tmp_path)
    assert take(source) == [], "the file may come later"
    write(path, "one\ntwo\nthr")
    assert take(source) == [b"one", b"two"]
    assert take(source) == []
    write(path, "ee\n\r\nfour\r\n")
    assert take(source) == [b"three", b"four"]
    source.close()


def test_a_renamed_file_is_read_to_its_end_before_it_is_let_go(tmp_path: Path, path: Path) -> None:
    source = opened(tmp_path, rotate_wait_ms=60_000)
    write(path, "one\n")
    assert take(source) == [b"one"]
    write(path, "two\nthr")
    path.rename(path.with_suffix(".1"))
    write(path, "new\n")
    assert sorted(take(source)) == [b"new", b"two"]
    write(path.with_suffix(".1"), "ee\nlast")  # whoever writes has not opened the new one yet
    assert take(source) == [b"three"]
    assert len(source._files) == 2  # type: ignore[attr-defined]
    source.close()


def test_the_last_line_of_a_rotated_file_needs_no_newline(tmp_path: Path, path: Path) -> None:
    source = opened(tmp_path)
    write(path, "one\nlast")
    batches = receive(source, 1)
    path.rename(path.with_suffix(".1"))
    write(path, "new\nnot whole")
    batches += receive(source, 2)
    assert payloads(batches) == [b"one", b"last", b"new"]
    log(source, batches)
    assert take(source) == []
    assert [file.known.path for file in source._files] == ["logs/app.log"]  # type: ignore[attr-defined]
    source.close()


@pytest.mark.parametrize("back", ["the same", "on another disk", "another file"])
def test_a_file_whose_mount_was_away_goes_on_and_is_not_taken_for_rotated(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch, back: str
) -> None:
    """Another directory stands for what is below a mount point, and says that it is on another disk."""
    away, disks = tmp_path / "away", [1]
    monkeypatch.setattr(file_follow, "disk_of", lambda _: disks[-1])
    source = opened(tmp_path)
    write(path, "one\ntwo\nthr")
    assert take(source) == [b"one", b"two"]
    path.parent.rename(away)
    path.parent.mkdir()
    disks.append(2)
    assert take(source) == [], "not even the line that was begun"
    path.parent.rmdir()
    if back == "the same":
        away.rename(path.parent)
        disks.append(1)
    else:
        shutil.copytree(away, path.parent)  # other inodes
        disks.append(3)
    if back == "another file":
        path.write_text("new\n")
        assert sorted(take(source)) == [b"new", b"thr"]
    else:
        write(path, "ee\n")
        assert take(source) == [b"three"]
        write(path, "four\n")
        assert take(source) == [b"four"]
    assert len(source._files) == (2 if back == "another file" else 1)  # type: ignore[attr-defined]
    source.close()


@pytest.mark.parametrize("grown", [False, True])
def test_copy_and_truncate_is_noticed_and_said(
    tmp_path: Path, path: Path, caplog: pytest.LogCaptureFixture, grown: bool
) -> None:
    source = opened(tmp_path)
    write(path, "one\ntwo\n")
    assert take(source) == [b"one", b"two"]
    shutil.copy(path, path.with_suffix(".1"))
    os.truncate(path, 0)
    with caplog.at_level(logging.WARNING):
        write(path, "three\nfour\nfive\n" if grown else "3\n")
        assert take(source) == ([b"three", b"four", b"five"] if grown else [b"3"])
    assert "was truncated after 8 bytes" in caplog.text
    write(path, "six\n")
    assert take(source) == [b"six"]
    source.close()


def test_a_line_that_was_begun_when_the_file_was_truncated_is_an_event(tmp_path: Path, path: Path) -> None:
    source = opened(tmp_path)
    write(path, "one\nbegun")
    assert take(source) == [b"one"]
    os.truncate(path, 0)
    assert take(source) == [b"begun"]
    source.close()


@pytest.mark.parametrize("before", ["", "one\n", f"{'header ' * 50}\n"])
def test_a_line_that_was_begun_is_not_glued_to_one_that_is_written_after_a_truncation(
    tmp_path: Path, path: Path, caplog: pytest.LogCaptureFixture, before: str
) -> None:
    """Also if the file begins with the same line again, so that the bytes at the position are the same."""
    source = opened(tmp_path)
    write(path, f"{before}user=alice amount=10 ")
    lines = before.encode().splitlines()
    assert take(source) == lines
    os.truncate(path, 0)
    with caplog.at_level(logging.WARNING):
        write(path, f"{before}user=bob transfer amount=99 to=carol\n")
        assert take(source) == [b"user=alice amount=10 ", *lines, b"user=bob transfer amount=99 to=carol"]
    assert f"was truncated after {len(before)} bytes" in caplog.text
    source.close()


@pytest.mark.parametrize("most", [1, 2, 3])
def test_empty_lines_between_two_reads_lose_none_of_the_lines_behind_them(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Also if there is room for no more lines than are empty, and the file goes on beyond the chunk."""
    monkeypatch.setattr(file_tail, "CHUNK_BYTES", 20)
    lines = [b"", b"", b"", *(b"%d" % n if n % 4 else b"" for n in range(100))]
    path.write_bytes(b"\n".join(lines) + b"\n")
    tail, read = Tail(path, 0, 100), []
    while (piece := tail.read(most)) is not None:
        read += piece.payload.to_pylist()
    assert read == [line for line in lines if line]
    tail.close()


def test_a_truncation_between_reading_and_handing_out_is_noticed(tmp_path: Path, path: Path) -> None:
    """What is remembered is what was read, and not what is in its place by then."""
    write(path, "one\ntwo\n")
    tail = Tail(path, 0, 100)
    given = tail._lines.take

    def take_late(most: int) -> Piece | None:
        if (lines := given(most)) is not None:
            path.write_text("other\nlines\n")
        return lines

    tail._lines.take = take_late  # type: ignore[method-assign]
    lines = tail.read(10)
    assert lines is not None and lines.payload.to_pylist() == [b"one", b"two"]
    assert tail.truncated()
    tail.close()


@pytest.mark.parametrize("downtime", ["rename", "twice", "truncate", "nothing", "replaced"])
def test_reading_goes_on_after_a_restart(tmp_path: Path, path: Path, downtime: str) -> None:
    write(path, "one\ntwo\n")
    source = opened(tmp_path)
    batches = receive(source, 2)
    log(source, batches)
    source.close()
    write(path, "three\n")
    expected = [b"three"]
    if downtime in ("rename", "twice"):
        path.rename(path.with_name("app.log-2024"))
        write(path, "new\n")
        expected = [b"three", b"new"]
    if downtime == "twice":
        path.rename(path.with_suffix(".1"))
        path.write_text("newest\n")
        expected = [b"three", b"newest"]  # what came and went is nowhere where it is looked for
    if downtime in ("truncate", "replaced"):
        if downtime == "replaced":
            path.unlink()
        path.write_text("other\nlines\n")
        expected = [b"other", b"lines"]
    source = opened(tmp_path, resume_after(batches))
    assert take(source) == expected
    source.close()


@pytest.mark.case(24)
@pytest.mark.parametrize("seed", range(4))
def test_every_line_comes_once_through_kills_and_rotation_by_rename(
    tmp_path: Path, path: Path, seed: int
) -> None:
    """At each kill the log holds some of what was handed out, and the source goes on after that."""
    dice = random.Random(seed)
    written: list[str] = []
    logged: list[pa.RecordBatch] = []
    names = ["a.log", "b.log", "c.log"]
    source = opened(tmp_path, path="logs/*.log")
    for _ in range(60):
        for _ in range(dice.randrange(4)):
            line = f"{len(written)}-{'x' * dice.randrange(30)}"
            written.append(line)
            write(path.with_name(dice.choice(names)), line + "\n")
        what = dice.random()
        if what < 0.15:
            name = path.with_name(dice.choice(names))
            if name.exists():
                source._look()  # type: ignore[attr-defined]  # a file that came and went was never there
                name.rename(name.with_suffix(f".{len(written)}-{dice.random()}"))
        elif what < 0.4:
            batches = drain(source, patience=2)
            kept = batches[: dice.randrange(len(batches) + 1)]
            if dice.random() < 0.5:
                log(source, kept, sum(map(len, logged)))
            elif kept:
                kept[-1] = kept[-1].slice(0, dice.randrange(1, len(kept[-1]) + 1))
            logged += kept
            source.close()  # nothing is written on closing: as good as a kill
            source = opened(tmp_path, resume_after(logged) if logged else None, path="logs/*.log")
        elif what < 0.8:
            batch = source.receive(dice.randrange(1, 6), 0.02)
            if batch is not None:
                source.logged(sum(map(len, logged)), len(batch))
                logged.append(batch)
    batches = drain(source, patience=4)
    source.close()
    found = payloads([*logged, *batches])
    assert sorted(found) == sorted(line.encode() for line in written)


def test_a_rotated_file_that_the_glob_finds_as_well_is_read_once(tmp_path: Path, path: Path) -> None:
    source = opened(tmp_path, path="logs/app*")
    write(path, "one\n")
    assert take(source) == [b"one"]
    path.rename(path.with_name("app.log.1"))
    write(path, "two\n")
    assert take(source) == [b"two"]
    write(path.with_name("app.log.1"), "late\n")
    assert take(source) == [b"late"]
    path.with_name("app.log.1").rename(path.with_name("app.log.2"))
    path.with_name("app.log.3.gz").write_bytes(b"no text")
    assert take(source) == []
    source.close()


def test_a_copied_project_goes_on_where_it_stood(tmp_path: Path, path: Path) -> None:
    write(path, "one\n")
    source = opened(tmp_path)
    batches = receive(source, 1)
    log(source, batches)
    source.close()
    copy = tmp_path.with_name(tmp_path.name + "-copy")
    shutil.copytree(tmp_path, copy)
    write(copy / "logs" / "app.log", "two\n")
    source = opened(copy, resume_after(batches))
    assert take(source) == [b"two"]
    source.close()


def test_a_run_that_takes_what_is_there_leaves_the_line_that_is_not_whole(tmp_path: Path, path: Path) -> None:
    write(path, "one\ntw")
    source = opened(tmp_path, once=True)
    batches = drain(source)
    assert payloads(batches) == [b"one"]
    log(source, batches)
    source.close()
    write(path, "o\n")
    source = opened(tmp_path, resume_after(batches), once=True)
    assert take(source) == [b"two"]
    source.close()


def test_a_line_that_is_too_long_is_one_event_with_an_error(tmp_path: Path, path: Path) -> None:
    source = opened(tmp_path, max_event_bytes=1024)
    write(path, "x" * 3_000_000)
    assert take(source) == []
    write(path, "x\nnext\n")
    batches = receive(source, 2)
    assert payloads(batches)[1] == b"next"
    assert "3000001 bytes" in str(errors(batches)[0])
    source.close()


def test_a_followed_file_is_drained_when_its_lines_are_settled(tmp_path: Path, path: Path) -> None:
    write(path, "one\ntwo\n")
    source = opened(tmp_path, once=True)
    batches = drain(source)
    log(source, batches)
    source.settle(acknowledged(1))
    assert not source.drained()
    source.close()
    source = opened(tmp_path, resume_after(batches), once=True)
    assert not source.drained()
    source.settle(acknowledged(0, 1))
    assert source.drained()
    source.close()


@pytest.mark.parametrize("fields", [{"format": "csv"}, {"on_acknowledge": "delete"}, {"on_refuse": "move"}])
def test_what_cannot_be_followed_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="follow"):
        FilesConfig.model_validate({"path": "in/*", "follow": True, **fields})


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EIO, errno.EACCES])
def test_a_directory_that_cannot_be_looked_into_is_named_and_nothing_is_gone_from_there(
    tmp_path: Path, path: Path, code: int
) -> None:
    (path.parent / "deep").mkdir()
    deep = path.parent / "deep" / "b.log"
    write(path, "one\n")
    write(deep, "two\n")
    source = opened(tmp_path, path="logs/**/*.log")
    batches = drain(source)
    log(source, batches)
    assert sorted(payloads(batches)) == [b"one", b"two"]
    scandir = os.scandir

    def failing(directory: str) -> Any:
        if directory.endswith("deep"):
            raise OSError(code, os.strerror(code), directory)
        return scandir(directory)

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(os, "scandir", failing)
        write(path.with_name("c.log"), "three\n")
        write(deep, "four\n")
        assert sorted(take(source)) == [b"four", b"three"], "the others are followed"
        assert f"cannot look into {deep.parent}: {os.strerror(code)}" in source.trouble()
        path.unlink()
        log(source, [], len(batches))
        assert take(source) == []
        open_ = [file.known.path for file in source._files]  # type: ignore[attr-defined]
        assert "logs/deep/b.log" in open_
        assert (code == errno.EACCES) == ("logs/app.log" not in open_), (
            "what is closed says nothing of others"
        )
    assert take(source) == [], "nothing is read again"
    assert source.trouble() == ""
    source.close()


@pytest.mark.parametrize("fails", ["scandir", "open"])
def test_a_restart_that_cannot_tell_how_far_a_file_was_read_says_so(
    tmp_path: Path, path: Path, fails: str
) -> None:
    write(path, "one\n")
    source = opened(tmp_path)
    batches = receive(source, 1)
    log(source, batches)
    source.close()
    path.rename(path.with_suffix(".1"))
    real = getattr(os, fails)

    def failing(place: Any, *args: Any, **options: Any) -> Any:
        if str(place) in (str(path), str(path.parent), str(path.with_suffix(".1"))):
            raise OSError(errno.EIO, "Input/output error")
        return real(place, *args, **options)

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr(os, fails, failing)
        with pytest.raises(SourceError, match=r"cannot read .*logs.*: Input/output error"):
            opened(tmp_path, resume_after(batches))
    source = opened(tmp_path, resume_after(batches), path="logs/app.*")
    assert take(source) == []
    source.close()


def test_files_beyond_the_limit_of_open_files_wait_and_are_named(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_follow, "descriptors", lambda: 2)
    for n in range(3):
        write(path.with_name(f"{n}.log"), f"of {n}\n")
        os.utime(path.with_name(f"{n}.log"), (1000 + n, 1000 + n))
    source = opened(tmp_path, path="logs/*.log")
    batches = drain(source)
    log(source, batches)
    assert payloads(batches) == [b"of 0", b"of 1"]
    assert "logs/2.log: too many files are followed" in source.trouble()
    path.with_name("0.log").unlink()
    assert take(source) == [b"of 2"]
    assert source.trouble() == ""
    source.close()


@pytest.mark.parametrize("moved_to", ["logs/app.log.1", "logs/old/app.log.1"])
@pytest.mark.parametrize("copied", [False, True])
def test_a_rotated_file_is_not_read_again_after_a_restart_or_a_copy(
    tmp_path: Path, path: Path, moved_to: str, copied: bool
) -> None:
    (path.parent / "old").mkdir()
    write(path, "".join(f"old line {n}\n" for n in range(50)))
    source = opened(tmp_path, path="logs/**/app.log*")
    batches = receive(source, 50)
    path.rename(tmp_path / moved_to)
    write(path, "new\n")
    batches += drain(source)
    log(source, batches)
    source.close()
    base = tmp_path
    if copied:
        base = tmp_path.with_name(tmp_path.name + "-copy")
        shutil.copytree(tmp_path, base)
    write(base / moved_to, "late\n")
    source = opened(base, resume_after(batches), path="logs/**/app.log*")
    assert take(source) == [b"late"]
    source.close()


def test_a_place_that_the_log_told_is_noted_before_lines_of_another_file(tmp_path: Path, path: Path) -> None:
    """The note of the last lines is not synced: a power cut may take it."""
    write(path, "one\ntwo\n")
    source = opened(tmp_path, path="logs/*.log")
    batches = receive(source, 2)
    log(source, batches)
    source._notes._db.execute("DELETE FROM places")  # type: ignore[attr-defined]
    source.close()
    source = opened(tmp_path, resume_after(batches), path="logs/*.log")
    write(path.with_name("b.log"), "other\n")
    batches += receive(source, 1)
    log(source, batches)
    source.close()
    source = opened(tmp_path, resume_after(batches), path="logs/*.log")
    assert payloads([*batches, *drain(source)]) == [b"one", b"two", b"other"]
    source.close()


def test_a_place_that_the_log_told_holds_though_the_next_batch_has_lines_of_that_file(
    tmp_path: Path, path: Path
) -> None:
    """Killed twice, each time when a part of a batch is in the log."""
    write(path, "one\ntwo\nthree\n")
    source = opened(tmp_path, path="logs/*.log")
    logged = [receive(source, 3)[0].slice(0, 2)]
    source.close()
    write(path.with_name("b.log"), "other\n")
    source = opened(tmp_path, resume_after(logged), path="logs/*.log")
    source._look()  # type: ignore[attr-defined]
    source._files.reverse()  # type: ignore[attr-defined]
    batch = receive(source, 2)[0]
    assert payloads([batch]) == [b"other", b"three"]
    logged.append(batch.slice(0, 1))
    source.close()
    source = opened(tmp_path, resume_after(logged), path="logs/*.log")
    assert payloads([*logged, *drain(source)]) == [b"one", b"two", b"other", b"three"]
    source.close()


def no_room(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "no room to note files")


@pytest.mark.parametrize("when", ["note", "add", "logged"])
def test_lines_that_there_was_no_room_to_note_are_handed_out_later(
    tmp_path: Path, path: Path, when: str
) -> None:
    write(path, "one\ntwo\n")
    source = opened(tmp_path)
    batches: list[pa.RecordBatch] = []
    with pytest.MonkeyPatch.context() as disk:
        disk.setattr(source._notes, when, no_room)  # type: ignore[attr-defined]
        for _ in range(3):
            with contextlib.suppress(OSError):
                batches += drain(source, patience=1)
            log(source, batches)  # it has room of its own: this must not fail
            source._look_at = 0.0  # type: ignore[attr-defined]
    write(path, "three\n")
    batches += drain(source)
    source.close()
    assert payloads(batches) == [b"one", b"two", b"three"]
    source = opened(tmp_path, resume_after(batches))
    assert take(source) == []
    source.close()


def test_a_truncation_that_there_was_no_room_to_note_is_noted_later(tmp_path: Path, path: Path) -> None:
    source = opened(tmp_path)
    write(path, "one\nbegun")
    assert take(source) == [b"one"]
    os.truncate(path, 0)
    with pytest.MonkeyPatch.context() as disk, contextlib.suppress(OSError):
        disk.setattr(source._notes, "forget", no_room)  # type: ignore[attr-defined]
        drain(source)
    write(path, "new\n")
    assert take(source) == [b"begun", b"new"]
    source.close()


def test_files_of_two_file_systems_are_not_taken_for_one(
    tmp_path: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have the same inode, as on two new file systems."""
    for name in ("a.log", "b.log"):
        write(path.with_name(name), f"of {name}\n")

    def elsewhere(real: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def stat(*args: Any, **options: Any) -> os.stat_result:
            found = real(*args, **options)
            times = {"st_mtime_ns": found.st_mtime_ns, "st_ctime_ns": found.st_ctime_ns}
            return os.stat_result((found.st_mode, 7, found.st_ino, *tuple(found)[3:]), times)

        return stat

    source = opened(tmp_path, path="logs/*.log")
    with monkeypatch.context() as mounted:
        mounted.setattr(os, "stat", elsewhere(os.stat))
        mounted.setattr(os, "fstat", elsewhere(os.fstat))
        assert sorted(take(source)) == [b"of a.log", b"of b.log"]
        assert take(source) == []
    source.close()


def test_lines_that_were_read_and_wait_when_the_file_is_truncated_are_events(
    tmp_path: Path, path: Path
) -> None:
    write(path, "".join(f"{n}\n" for n in range(5000)) + "last")
    source = opened(tmp_path)
    batch = source.receive(100, 1)
    assert batch is not None
    os.truncate(path, 0)
    source._look_at = 0.0  # type: ignore[attr-defined]
    rest = drain(source)
    assert max(map(len, rest)) <= 1000
    assert payloads([batch, *rest]) == [b"%d" % n for n in range(5000)] + [b"last"]
    write(path, "new\n")
    assert take(source) == [b"new"]
    assert not source._cut  # type: ignore[attr-defined]
    source.close()
