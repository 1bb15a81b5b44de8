"""What a crash leaves behind, and what damage looks like."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from signoff.errors import LogCorrupt, LogError
from signoff.log import LogReader, LogWriter
from signoff.log import writer as writer_module
from signoff.log.segment import pack_frame
from tests.log.events import numbered, payload, payloads, segments, small_settings, write


class Crash(BaseException):
    """The process ends here: nothing after this line is executed."""


def crash_during_sync(directory: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> tuple[Path, int]:
    """Write `count` events that are never reported durable; returns the segment and its durable size."""
    writer = LogWriter(directory, small_settings())
    segment = segments(directory)[-1]
    durable = segment.stat().st_size
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(writer_module.os, "fdatasync", _crash)
        writer.append(numbered(writer.next_sequence, count))
        writer.sync()
    _abandon(writer)
    return segment, durable


def _crash(_: int) -> None:
    raise Crash


def _abandon(writer: LogWriter) -> None:
    writer._pending = []
    writer._torn = False
    writer.close()


def test_torn_tail_is_cut_off_wherever_the_write_stopped(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(directory, 20)
    segment, durable = crash_during_sync(directory, monkeypatch, 3)
    whole = segment.read_bytes()
    for size in [*range(durable, len(whole), 9), len(whole) - 1]:
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(directory, copy)
        (copy / segment.name).write_bytes(whole[:size])
        writer = LogWriter(copy, small_settings())
        assert (writer.next_sequence, writer.last, segments(copy)[-1].stat().st_size) == (
            20,
            (1, 19),
            durable,
        )
        writer.close()


def test_whole_frame_that_was_not_reported_durable_is_kept(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(directory, 20)
    crash_during_sync(directory, monkeypatch, 3)
    assert LogReader(directory).head() == 20
    writer = LogWriter(directory, small_settings())
    assert (writer.next_sequence, LogReader(directory).head()) == (23, 23)
    writer.close()
    assert payloads(directory, 20, 23) == [b"20", b"21", b"22"]


def test_whole_frame_that_does_not_follow_the_one_before_is_cut_off(directory: Path) -> None:
    write(directory, 20)
    segment = segments(directory)[-1]
    size = segment.stat().st_size
    with segment.open("ab") as file:
        file.writelines(pack_frame(25, numbered(25, 3)))
    writer = LogWriter(directory, small_settings())
    assert (writer.next_sequence, segment.stat().st_size) == (20, size)
    writer.close()


def test_segment_that_was_begun_but_not_named_is_removed(directory: Path) -> None:
    write(directory, 5)
    leftover = directory / "00000000000000000005.log.tmp"
    leftover.write_bytes(b"half a hea")
    LogWriter(directory, small_settings()).close()
    assert not leftover.exists()


def test_log_whose_last_segment_is_new_and_empty_goes_on(directory: Path, settings: Any) -> None:
    writer = LogWriter(directory, settings)
    writer.append(numbered(0, 1, size=settings.segment_bytes))
    writer.sync()
    writer.close()
    assert segments(directory)[-1].stat().st_size == 64
    again = LogWriter(directory, settings)
    assert (again.append(numbered(1, 1)), again.last) == (1, (1, 0))
    again.close()


def test_every_flipped_bit_is_noticed_or_harmless(directory: Path, tmp_path: Path) -> None:
    write(directory, 40, group=10)
    expected = payloads(directory, 0, 40)
    segment = segments(directory)[0]
    whole = segment.read_bytes()
    noticed = 0
    for bit in random.Random(7).sample(range(len(whole) * 8), 600):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        segment.write_bytes(damaged)
        try:
            assert payloads(directory, 0, 40) == expected
        except LogError:
            noticed += 1
    assert noticed > 400  # the rest is padding


def test_damage_below_the_durable_end_is_not_mistaken_for_a_torn_tail(directory: Path) -> None:
    write(directory, 40, group=10)
    segment = segments(directory)[0]
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-200])
    with pytest.raises(LogCorrupt, match=r"events 30 to 39 were durable"):
        LogWriter(directory, small_settings())
    assert len(segment.read_bytes()) == len(whole) - 200
    with pytest.raises(LogCorrupt, match=r"event 30 at byte"):
        payloads(directory, 0, 40)
    assert payloads(directory, 0, 30) == [payload(number) for number in range(30)]


def test_lost_segments_are_not_mistaken_for_a_new_log(directory: Path) -> None:
    write(directory, 40)
    segments(directory)[0].unlink()
    with pytest.raises(LogCorrupt, match="40 events were logged, but no segment is left"):
        LogWriter(directory, small_settings())


def test_lost_segment_in_the_middle_is_noticed(directory: Path) -> None:
    write(directory, 3000, group=100)
    segments(directory)[1].unlink()
    with pytest.raises(LogCorrupt):
        payloads(directory, 0, 3000)


def test_log_of_another_format_is_refused(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(directory, 4)
    monkeypatch.setattr("signoff.log.segment.VERSION", 2)
    with pytest.raises(LogError, match=r"log-version.*format 1.*reads format 2"):
        payloads(directory, 0, 4)


_APPENDER = """
import sys
from pathlib import Path
from signoff.log import LogWriter
from tests.log.events import numbered, small_settings

writer = LogWriter(Path(sys.argv[1]), small_settings(max_bytes=64 * 1024**2))
print(writer.next_sequence, flush=True)
while True:
    for _ in range(3):
        writer.append(numbered(writer.next_sequence, 17, size=40))
    print(writer.sync(), flush=True)
"""


@pytest.mark.crash
def test_everything_reported_durable_survives_sigkill_in_order_and_nothing_is_invented(
    directory: Path,
) -> None:
    generator = random.Random(11)
    reported = 0
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", _APPENDER, str(directory)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert int(process.stdout.readline()) >= reported
        reports = [process.stdout.readline() for _ in range(generator.randrange(1, 60))]
        process.kill()
        reports += process.stdout.readlines()
        process.wait()
        process.stdout.close()
        reported = max([reported, *(int(line) for line in reports if line.endswith("\n"))])

        assert LogReader(directory).head() >= reported
        writer = LogWriter(directory, small_settings())
        end = writer.next_sequence
        writer.close()
        assert end >= reported
        assert end - reported <= 2 * 51
        assert payloads(directory, 0, end) == [payload(number, 40) for number in range(end)]
    assert len(segments(directory)) > 1
