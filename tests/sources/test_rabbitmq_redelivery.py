"""Recognising messages, and the durable note of refusals."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from signoff.log.event_schema import EVENT_SCHEMA
from signoff.sources.events import event_batch, piece
from signoff.sources.rabbitmq.redelivery import EarlierRefusal, Orphans, Refusals, digest, digests

NONE = BitMap64()
HEADERS_TYPE = EVENT_SCHEMA.field("headers").type


def orphans(*messages: tuple[str | None, bytes], first: int = 10, without: tuple[int, ...] = ()) -> Orphans:
    made = Orphans()
    ids, bodies = zip(*messages, strict=True)
    made.add(first, event_batch(piece(bodies, range(len(bodies)), {}), message_ids=ids), BitMap64(without))
    return made


def test_a_message_is_recognised_once() -> None:
    known = orphans(("a", b"1"), ("b", b"2"))
    assert known.claim("b", b"2", "", NONE) == 11
    assert known.claim("b", b"2", "", NONE) is None
    assert known.claim("a", b"1", "", NONE) == 10
    assert not known


def test_the_same_id_with_another_body_is_another_message() -> None:
    assert orphans(("a", b"1")).claim("a", b"2", "", NONE) is None


def test_a_message_without_an_id_is_never_recognised() -> None:
    assert not orphans((None, b"1"))


def test_a_message_published_twice_is_recognised_twice() -> None:
    known = orphans(("a", b"1"), ("a", b"1"), ("a", b"1"))
    assert len(known) == 3
    assert known.lowest() == 10
    assert known.claim("a", b"1", "", BitMap64([11]), below=11) == 12, "the one that is still owed"
    assert [known.claim("a", b"1", "", BitMap64([11]), below=11) for _ in range(2)] == [10, 11]
    assert known.lowest() is None
    assert known.claim("a", b"1", "", NONE) is None


def test_the_same_message_in_two_queues_is_two_messages() -> None:
    known = Orphans(by_queue=True)
    headers = pa.array([[("x", "y"), ("rabbitmq.queue", name)] for name in ("one", "two")], HEADERS_TYPE)
    events = event_batch(piece([b"1", b"1"], range(2), {}), message_ids=["a", "a"], headers=headers)
    known.add(10, events, BitMap64())
    assert [known.claim("a", b"1", queue, NONE) for queue in ("three", "two", "one")] == [None, 11, 10]
    assert len(set(digests(10, events, [10, 11], by_queue=True).values())) == 2
    assert len(set(digests(10, events, [10, 11]).values())) == 1


def test_a_refused_event_is_no_orphan() -> None:
    assert orphans(("a", b"1"), ("b", b"2"), without=(10,)).claim("a", b"1", "", NONE) is None


def test_settled_events_are_forgotten_and_owed_ones_are_not() -> None:
    known = orphans(("a", b"1"), ("a", b"1"), ("b", b"2"), ("c", b"3"))
    known.forget(BitMap64([12]), below=11)
    assert (
        known.claim("a", b"1", "", NONE),
        known.claim("b", b"2", "", NONE),
        known.claim("c", b"3", "", NONE),
    ) == (11, None, 13)
    assert not known


def test_what_is_no_longer_in_the_log_is_known_on_the_next_channel_too() -> None:
    known = orphans(("a", b"1"), ("b", b"2"), ("c", b"3"), ("d", b"4"))
    assert known.claim("b", b"2", "", NONE) == 11  # what it was answered with may be lost with the channel
    after = orphans(("d", b"4"), first=13)
    after.adopt(known, 13, BitMap64([12]))
    messages = (("a", b"1"), ("b", b"2"), ("c", b"3"), ("d", b"4"))
    assert [after.claim(*message, "", NONE) for message in messages] == [10, 11, None, 13]
    assert not after


def test_refusals_outlive_the_process(tmp_path: Path) -> None:
    notes = Refusals(tmp_path / "note", 0)
    notes.note([EarlierRefusal(5, digest("a", b"1"), 1), EarlierRefusal(6, "", 0)])
    again = Refusals(tmp_path / "note", 0)
    assert again.sequences == BitMap64([5, 6])
    assert again.requeued(digest("a", b"1")) == 1
    assert again.requeued("") == 0
    notes.close()
    again.close()


def test_a_line_torn_by_a_crash_does_not_count(tmp_path: Path) -> None:
    notes = Refusals(tmp_path / "note", 0)
    notes.note([EarlierRefusal(5, "x", 1), EarlierRefusal(6, "y", 1)])
    notes.close()
    os.truncate(tmp_path / "note", (tmp_path / "note").stat().st_size - 4)
    again = Refusals(tmp_path / "note", 0)
    assert again.sequences == BitMap64([5])
    again.note([EarlierRefusal(7, "z", 1)])
    again.close()
    third = Refusals(tmp_path / "note", 0)
    assert third.sequences == BitMap64([5, 7])
    third.close()


def test_a_note_that_cannot_be_written_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Refusals(tmp_path / "note", 0)
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", _no_room)
        with pytest.raises(OSError):
            notes.note([EarlierRefusal(5, "x", 1)])
    assert not notes.sequences
    assert (tmp_path / "note").stat().st_size == 0
    notes.close()


def _no_room(_: int) -> None:
    raise OSError(28, "No space left on device")
