"""A batch that is handed on is in the link's log whole and once, wherever the process dies."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from signoff.batch import OF_LETTERS
from signoff.errors import Discarded, LogError, StateError, TransientError
from signoff.link.handover import HandoverSink, LinkPlace
from signoff.link.notes import Handed, LinkNotes
from signoff.log import LogReader, LogWriter, writer
from signoff.log.head import HeadFile
from signoff.sinks.contract import BatchRef, Part

FIRST = BatchRef("incoming", 0, 10)
SECOND = BatchRef("incoming", 10, 20)
THIRD = BatchRef("incoming", 20, 30)


@pytest.fixture
def place(tmp_path: Path) -> LinkPlace:
    return LinkPlace(tmp_path / "log", tmp_path / "notes")


def sink_at(place: LinkPlace, **settings: object) -> HandoverSink:
    options = {"max_bytes": 1024**2, "when_full": "block"} | settings
    return HandoverSink("a", place, **options)  # type: ignore[arg-type]


def parts(sink: HandoverSink, batch: BatchRef, *tasks: range) -> list[bytes]:
    """What the tasks of a batch leave behind; each handles these events."""
    written = []
    for number, events in enumerate(tasks):
        writer = sink.open(Part(batch, number, attempt=number))
        writer.write(
            pa.record_batch(
                {
                    "event_id": [f"{batch.source}/{n}" for n in events],
                    "n": pa.array(events, pa.int64()),
                    "_origin": pa.array(events, pa.int64()),
                }
            )
        )
        part = writer.close()
        assert part is not None
        written.append(part)
    return written


def hand_on(sink: HandoverSink, batch: BatchRef, *tasks: range) -> None:
    sink.commit(batch, parts(sink, batch, *tasks))


def ids(place: LinkPlace) -> list[str]:
    log = LogReader(place.log)
    return [one for _, events in log.read(0, log.head()) for one in events.column("message_id").to_pylist()]


def test_rows_of_several_tasks_are_appended_in_order(place: LinkPlace) -> None:
    sink = sink_at(place)
    hand_on(sink, FIRST, range(0, 5), range(5, 10))
    assert ids(place) == [f"incoming/{n}" for n in range(10)]
    event = LogReader(place.log).lookup([3])[3]
    assert event["payload"] == b'{"n":3}' and event["position"] == 3
    sink.release()


def test_rows_are_received_when_they_are_appended_and_time_never_goes_backwards(place: LinkPlace) -> None:
    sink = sink_at(place)
    early = parts(sink, FIRST, range(10))
    hand_on(sink, SECOND, range(10, 20))
    sink.commit(FIRST, early)  # written before the other, appended after it
    log = LogReader(place.log)
    times = [event["received_at"] for event in log.lookup(range(20)).values()]
    assert ids(place)[0] == "incoming/10" and times == sorted(times)
    sink.release()


def test_a_batch_that_comes_again_is_recognised(place: LinkPlace) -> None:
    for _ in range(3):
        sink = sink_at(place)
        hand_on(sink, FIRST, range(10))
        hand_on(sink, FIRST, range(10))
        sink.release()
    assert len(ids(place)) == 10
    assert not list(place.parts.iterdir())


def test_a_batch_that_was_noted_and_never_appended_is_appended_when_it_comes_again(
    place: LinkPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_at(place)
    hand_on(sink, FIRST, range(10))
    with monkeypatch.context() as patch:
        patch.setattr(LogWriter, "sync", _dies_when(lambda log: log.next_sequence > 10))
        with pytest.raises(KeyboardInterrupt):
            hand_on(sink, SECOND, range(10, 20))
    again = _after_a_kill(sink, place)
    hand_on(again, SECOND, range(10, 20))
    assert ids(place) == [f"incoming/{n}" for n in range(20)]
    again.release()


@pytest.mark.parametrize("frames", [1, 2, 3])
def test_what_is_half_in_the_log_is_cut_off_and_nobody_has_seen_it(
    place: LinkPlace, monkeypatch: pytest.MonkeyPatch, frames: int
) -> None:
    monkeypatch.setattr("signoff.log.writer._FRAME_BYTES", 512)
    sink = sink_at(place)
    hand_on(sink, FIRST, range(10))
    written = 0

    def write(*args: object) -> int:
        nonlocal written
        if written == frames:
            raise KeyboardInterrupt
        written += 1
        return real(*args)  # type: ignore[arg-type]

    real = writer._write
    with monkeypatch.context() as patch:
        patch.setattr(writer, "_write", write)
        with pytest.raises(KeyboardInterrupt):
            hand_on(sink, SECOND, range(10, 20))
    assert LogReader(place.log).head() == 10
    again = _after_a_kill(sink, place)
    again.prepare()
    assert LogReader(place.log).scan() == 10, "what was half there is gone"
    hand_on(again, SECOND, range(10, 20))
    assert ids(place) == [f"incoming/{n}" for n in range(20)]
    again.release()


def test_a_full_link_holds_back_or_drops_as_it_is_told(place: LinkPlace) -> None:
    waits, drops = sink_at(place), sink_at(place, when_full="drop_newest")
    start = 0
    with pytest.raises(TransientError, match="log-full"):
        while True:
            hand_on(waits, BatchRef("incoming", start, start + 9000), range(start, start + 9000))
            start += 9000
    held = LogReader(place.log).head()
    waits.release()
    with pytest.raises(Discarded, match="the buffer is full"):
        hand_on(drops, BatchRef("incoming", start, start + 1), range(start, start + 1))
    assert LogReader(place.log).head() == held == start
    drops.release()


def test_nothing_is_left_of_tries_that_came_to_nothing(place: LinkPlace) -> None:
    sink = sink_at(place)
    for start in range(0, 30_000, 9000):
        batch = BatchRef("incoming", start, start + 9000)
        for _ in range(3):
            with contextlib.suppress(TransientError):
                hand_on(sink, batch, range(start, start + 9000))
    assert not list(place.parts.iterdir())
    sink.release()


def test_rows_of_tasks_that_shuffled_them_are_appended_in_the_order_of_the_events(place: LinkPlace) -> None:
    sink = sink_at(place)
    hand_on(sink, FIRST, range(0, 10, 2), range(1, 10, 2))
    assert ids(place) == [f"incoming/{n}" for n in range(10)]
    sink.release()


def test_events_that_found_no_room_on_the_disk_are_appended_once_there_is_some(
    place: LinkPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_at(place)

    def full(_: LogWriter) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(LogWriter, "_commit", full)
        with pytest.raises(TransientError, match="log-no-space"):
            hand_on(sink, FIRST, range(10))
        with pytest.raises(TransientError, match="log-no-space"):
            hand_on(sink, SECOND, range(10, 20))
    hand_on(sink, SECOND, range(10, 20))
    hand_on(sink, FIRST, range(10))
    assert ids(place) == [f"incoming/{n}" for n in (*range(10, 20), *range(10))]
    sink.release()


@pytest.mark.parametrize("where", [(LogWriter, "_commit"), (HeadFile, "publish")])
def test_rows_whose_commit_failed_do_not_go_out_by_another_commit_nor_at_the_end(
    place: LinkPlace, monkeypatch: pytest.MonkeyPatch, where: tuple[type, str]
) -> None:
    sink = sink_at(place)
    hand_on(sink, FIRST, range(2))
    given_up = BatchRef("incoming", 0, 10, replay=2**32)
    _fails_once(monkeypatch, where, lambda: hand_on(sink, given_up, range(3, 10)))
    hand_on(sink, SECOND, range(10, 12))
    _fails_once(monkeypatch, where, lambda: hand_on(sink, given_up, range(3, 10)))
    sink.release()
    assert ids(place) == [f"incoming/{n}" for n in (0, 1, 10, 11)]
    assert LogReader(place.log).scan() == 4, "nor are they found later"
    again = sink_at(place)
    hand_on(again, given_up, range(3, 4))
    assert ids(place)[4:] == ["incoming/3"], "when they are asked for again they are new"
    again.release()


@pytest.mark.parametrize("where", [(LogWriter, "_commit"), (HeadFile, "publish")])
def test_a_sign_is_not_taken_for_a_row_whose_commit_failed(
    place: LinkPlace, monkeypatch: pytest.MonkeyPatch, where: tuple[type, str]
) -> None:
    sink = sink_at(place)
    hand_on(sink, FIRST, range(2))
    _fails_once(monkeypatch, where, lambda: hand_on(sink, SECOND, range(10, 11)))
    _fails_once(monkeypatch, where, lambda: sink.append_sign("~mark/1", b"{}"), LogError)
    sink.append_sign("~mark/2", b"{}")
    hand_on(sink, SECOND, range(10, 11))
    assert ids(place) == ["incoming/0", "incoming/1", "~mark/2", "incoming/10"]
    sink.release()


@pytest.mark.parametrize("failing", [("fdatasync", "ftruncate"), ("fdatasync",)])
def test_rows_whose_commit_failed_are_not_found_after_a_kill_though_the_file_still_has_them(
    place: LinkPlace, monkeypatch: pytest.MonkeyPatch, failing: tuple[str, ...]
) -> None:
    sink = sink_at(place)
    hand_on(sink, FIRST, range(2))
    with monkeypatch.context() as patch:
        for name in failing:
            patch.setattr(os, name, _broken)
        with pytest.raises(TransientError, match="log-io"):
            hand_on(sink, SECOND, range(10, 12))
        assert len(_notes_of(place)) == 2, "it is known what is to be cut off"
        # Whoever is next has no other way than over what is to be cut off first.
        with pytest.raises(TransientError, match="log-io"):
            hand_on(sink, THIRD, range(20, 22))
        with pytest.raises(LogError, match="log-io"):
            sink.append_sign("~mark/1", b"{}")
        assert [each.batch for each in _notes_of(place)] == [FIRST, SECOND]
    again = _after_a_kill(sink, place)
    again.prepare()
    assert ids(place) == ["incoming/0", "incoming/1"] and LogReader(place.log).scan() == 2
    hand_on(again, THIRD, range(20, 22))
    assert ids(place)[2:] == ["incoming/20", "incoming/21"]
    again.release()


def test_rows_of_a_commit_are_not_given_up_if_neither_the_log_nor_the_notes_can_say_that_they_are_not_there(
    place: LinkPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise StateError("disk I/O error")

    sink = sink_at(place)
    with monkeypatch.context() as patch:
        for name in ("fdatasync", "ftruncate"):
            patch.setattr(os, name, _broken)
        patch.setattr(LinkNotes, "withdraw", refused)
        for _ in range(2):
            with pytest.raises(StateError, match="disk I/O error"):  # no SinkError: the engine begins anew
                hand_on(sink, FIRST, range(2))
    again = _after_a_kill(sink, place)
    hand_on(again, FIRST, range(2))
    assert ids(place) == ["incoming/0", "incoming/1"]
    again.release()


def _broken(*_: object) -> None:
    raise OSError(5, "Input/output error")


def _notes_of(place: LinkPlace) -> list[Handed]:
    notes = LinkNotes(place.database)
    try:
        return notes.each()
    finally:
        notes.close()


def _fails_once(
    monkeypatch: pytest.MonkeyPatch,
    where: tuple[type, str],
    what: Callable[[], object],
    error: type[Exception] = TransientError,
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(error, match="log-no-space"):
        patch.setattr(*where, full)
        what()


def test_a_pickled_sink_holds_nothing_open(place: LinkPlace) -> None:
    sink = sink_at(place)
    sink.prepare()
    copy = pickle.loads(pickle.dumps(sink))
    assert copy.open(Part(FIRST, 0, 0)) is not None
    with pytest.raises(TransientError, match="log-locked"):
        copy.commit(FIRST, [])
    sink.release()


def test_answers_only_grow_and_survive(place: LinkPlace) -> None:
    place.notes.mkdir()
    notes = LinkNotes(place.database)
    notes.answer(BitMap64([0, 1, 2, 7]), {7: ("no", False)})
    notes.answer(BitMap64([3, 7]), {7: ("no", False)})
    notes.close()
    again = LinkNotes(place.database)
    assert list(again.settled()) == [0, 1, 2, 3, 7]
    assert again.answered(5, 10).refused == {7: ("no", False)}
    again.close()


def _dies_when(condition: object) -> object:
    real = LogWriter.sync

    def sync(self: LogWriter) -> int:
        if condition(self):  # type: ignore[operator]
            raise KeyboardInterrupt
        return real(self)

    return sync


def _after_a_kill(sink: HandoverSink, place: LinkPlace) -> HandoverSink:
    """A sink of a new process: what the old one had in memory is gone, and so is its lock."""
    log = sink._log
    assert log is not None
    log._pending, log._pending_bytes, log._torn = [], 0, False
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogWriter, "sync", lambda self: self.durable_sequence)
        sink.release()
    return sink_at(place)


def test_a_batch_that_has_more_rows_when_it_comes_again_lacks_none_and_repeats_none(place: LinkPlace) -> None:
    sink = sink_at(place)
    hand_on(sink, FIRST, range(0, 4))
    for rows in (range(0, 6), range(0, 6), range(2, 8)):
        hand_on(sink, FIRST, rows)
    assert ids(place) == [f"incoming/{n}" for n in range(8)]
    sink.release()
    notes = LinkNotes(place.database)
    assert [(one.first, one.last, list(one.origins)) for one in notes.each()] == [
        (0, 4, [0, 1, 2, 3]),
        (4, 6, [4, 5]),
        (6, 8, [6, 7]),
    ]
    notes.close()


def test_rows_that_come_on_their_own_are_recognised_if_they_came_with_their_batch_before(
    place: LinkPlace,
) -> None:
    sink = sink_at(place)
    hand_on(sink, FIRST, range(4))
    hand_on(sink, replace(FIRST, replay=1), range(3, 6))
    hand_on(sink, replace(FIRST, replay=2), range(4, 7))
    hand_on(sink, FIRST, range(8))
    hand_on(sink, replace(SECOND, replay=1), range(10, 12))
    assert ids(place) == [f"incoming/{n}" for n in (*range(8), 10, 11)]
    hand_on(sink, replace(FIRST, replay=OF_LETTERS), range(2))
    assert ids(place)[10:] == ["incoming/0", "incoming/1"], "a letter comes again because its row failed here"
    sink.release()


def test_rows_may_have_columns_that_are_called_like_those_of_the_engine(place: LinkPlace) -> None:
    sink = sink_at(place)
    writer = sink.open(Part(FIRST, 0, 0))
    columns = [pa.array(["incoming/3"]), pa.array(["theirs"]), pa.array([7]), pa.array([3], pa.int64())]
    writer.write(pa.RecordBatch.from_arrays(columns, ["event_id", "event_id", "_origin", "_origin"]))
    part = writer.close()
    assert part is not None
    sink.commit(FIRST, [part])
    (event,) = LogReader(place.log).lookup([0]).values()
    assert (event["message_id"], event["position"]) == ("incoming/3", 3)
    assert event["payload"] == b'{"event_id":"theirs","_origin":7}'
