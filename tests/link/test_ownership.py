"""A link has one writer and one reader: whoever else comes is refused before anything is taken for his."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyroaring import BitMap64

from signoff.durable import make_directory
from signoff.errors import SourceError, StateError
from signoff.ledger import Ledger
from signoff.ledger.sequences import from_range
from signoff.link.handover import HandoverSink, LinkPlace
from signoff.link.notes import LinkNotes
from signoff.link.ownership import claim_writing
from signoff.link.source import PipelineSource
from signoff.log import LogReader
from signoff.sinks.contract import BatchRef
from signoff.sources.contract import Resume, Settlement, SourceContext
from tests.link.test_handover import FIRST, hand_on, sink_at


@pytest.fixture
def place(tmp_path: Path) -> LinkPlace:
    return LinkPlace(tmp_path / "link" / "log", tmp_path / "link")


@pytest.fixture
def ledgers(tmp_path: Path) -> Iterator[list[Ledger]]:
    made = [Ledger(tmp_path / name / "ledger.db") for name in ("one", "two")]
    yield made
    for ledger in made:
        ledger.close()


def claim(place: LinkPlace, ledger: Ledger, pipeline: str = "alarms") -> None:
    def knows(batch: BatchRef) -> bool:
        return ledger.batch(batch.source, batch.start, batch.end) is not None

    claim_writing(place, pipeline, ledger.store.path.parent, ledger, knows)


def write(place: LinkPlace, batch: BatchRef = FIRST) -> HandoverSink:
    sink = sink_at(place)
    hand_on(sink, batch, range(batch.start, batch.end))
    return sink


def answer(place: LinkPlace, upto: int) -> None:
    notes = LinkNotes(place.database)
    notes.answer(from_range(0, upto), {})
    notes.close()


@pytest.mark.case(44)
def test_a_second_writer_is_refused_while_rows_of_the_first_wait_and_the_first_goes_on(
    place: LinkPlace, ledgers: list[Ledger]
) -> None:
    first, second = ledgers
    claim(place, first)
    write(place).release()
    for name in ("alarms", "others"):  # a fresh state of the same pipeline, and another pipeline
        with pytest.raises(StateError, match=r"link-writer.*10 rows.*not settled"):
            claim(place, second, name)
    claim(place, first)
    claim(place, first)
    assert len(LinkNotes(place.database).find(FIRST)) == 1, "what it has handed on is still its own"


def test_a_fresh_state_may_write_when_all_is_answered_and_its_batches_are_not_taken_for_old_ones(
    place: LinkPlace, ledgers: list[Ledger]
) -> None:
    first, second = ledgers
    claim(place, first)
    write(place).release()
    answer(place, 10)
    with pytest.raises(StateError, match=r"link-writer.*has not read"):
        claim(place, second, "others")
    claim(place, second)
    write(place).release()
    notes = LinkNotes(place.database)
    assert [(each.first, each.last) for each in notes.each()] == [(10, 20)], "appended, not recognised"
    notes.close()
    with pytest.raises(StateError, match="link-writer"):
        claim(place, first)


def test_another_writer_is_refused_while_one_is_writing(place: LinkPlace, ledgers: list[Ledger]) -> None:
    claim(place, ledgers[0])
    sink = sink_at(place)
    sink.prepare()
    with pytest.raises(StateError, match=r"link-writer.*is writing to this link now"):
        claim(place, ledgers[1])
    sink.release()
    claim(place, ledgers[1])


def test_a_copy_of_a_state_directory_is_another_writer_once_the_original_has_gone_on(
    place: LinkPlace, tmp_path: Path
) -> None:
    original = Ledger(tmp_path / "one" / "ledger.db")
    claim(place, original)
    original.close()
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    with Ledger(tmp_path / "one" / "ledger.db") as again:
        claim(place, again)
        write(place).release()
    with Ledger(tmp_path / "copy" / "ledger.db") as copy, pytest.raises(StateError, match="link-writer"):
        claim(place, copy)


def test_a_link_of_a_release_that_knew_no_writers_is_adopted_by_whoever_knows_its_batches(
    place: LinkPlace, ledgers: list[Ledger]
) -> None:
    first, second = ledgers
    first.open_batch("incoming", 0, 10, ["out"])
    write(place).release()
    with pytest.raises(StateError, match="link-writer"):
        claim(place, second)
    claim(place, first)


def test_a_link_whose_disk_is_away_is_not_begun_anew_in_its_place(
    place: LinkPlace, ledgers: list[Ledger], tmp_path: Path
) -> None:
    ledger = ledgers[0]
    claim(place, ledger)
    place.notes.rename(tmp_path / "away")  # before anything was handed on
    for _ in range(2):
        with pytest.raises(StateError, match=r"link-gone.*is its disk mounted"):
            claim(place, ledger)
        assert not place.notes.exists(), "nothing is made that the disk would hide"
    make_directory(place.notes)
    LinkNotes(place.database).close()  # as its reader does, that is started first
    with pytest.raises(StateError, match="link-gone"):
        claim(place, ledger)
    shutil.rmtree(place.notes)
    (tmp_path / "away").rename(place.notes)
    claim(place, ledger)
    write(place).release()
    moved = LinkPlace(tmp_path / "moved" / "log", tmp_path / "moved")
    place.notes.rename(moved.notes)
    claim(moved, ledger)
    claim(place, ledger)  # with the old path it is a new link


@pytest.mark.parametrize("failing", ["add_token", "set_writer"])
def test_a_first_claim_that_is_interrupted_is_repeated(
    place: LinkPlace, ledgers: list[Ledger], monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LinkNotes if failing == "set_writer" else Ledger, failing, dies)
        claim(place, ledgers[0])
    claim(place, ledgers[0])
    claim(place, ledgers[0])


# -- the reader


def reader(place: LinkPlace, directory: Path, taken: int | None = None) -> PipelineSource:
    """A reader that has taken so many rows before."""
    source = PipelineSource(place.notes)
    resume = Resume(0, None, None) if taken is None else Resume(taken, None, taken - 1)
    source.open(SourceContext("rows", directory, once=True, base=directory), resume)
    return source


def test_a_reader_in_whose_place_another_has_read_is_refused(place: LinkPlace, tmp_path: Path) -> None:
    write(place).release()
    reader(place, tmp_path / "a").close()
    reader(place, tmp_path / "a", taken=5).close()
    reader(place, tmp_path / "b").close()  # begins with what is not settled: nothing is lost
    with pytest.raises(SourceError, match="link-reader"):
        reader(place, tmp_path / "a", taken=5)
    again = reader(place, tmp_path / "b", taken=3)
    again.settle(Settlement(BitMap64([0, 1])))
    again.close()


def test_a_copy_of_a_reader_and_one_whose_rows_are_gone_are_refused(
    place: LinkPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(place).release()
    reader(place, tmp_path / "a").close()
    shutil.copytree(tmp_path / "a", tmp_path / "copy")
    reader(place, tmp_path / "a", taken=2).close()
    with pytest.raises(SourceError, match="link-reader"):
        reader(place, tmp_path / "copy", taken=2)
    monkeypatch.setattr(LogReader, "first", lambda _: 5)  # rows below were settled, and removed
    with pytest.raises(SourceError, match=r"link-reader.*taken only those up to 2"):
        reader(place, tmp_path / "a", taken=2)


@pytest.mark.parametrize("how", ["another path", "another link at the path"])
def test_rows_of_a_link_that_was_never_read_are_not_answered_by_the_numbers_of_another(
    place: LinkPlace, tmp_path: Path, how: str
) -> None:
    write(place).release()
    first = reader(place, tmp_path / "a")
    first.receive(5, 0)
    first.settle(Settlement(from_range(0, 5)))
    first.close()
    other = LinkPlace(tmp_path / "other" / "log", tmp_path / "other")
    write(other).release()
    if how == "another link at the path":
        place.notes.rename(tmp_path / "away")
        other.notes.rename(place.notes)
        other = place
    for _ in range(2):  # refused again, whatever the first attempt has written
        with pytest.raises(SourceError, match=r"link-reader.*never from this one.*sources reset FILE rows"):
            reader(other, tmp_path / "a", taken=5)
    notes = LinkNotes(other.database)
    assert notes.answered_upto() == 0 and notes.reader() is None
    notes.close()
    after_a_reset = PipelineSource(other.notes)
    after_a_reset.open(SourceContext("rows", tmp_path / "a", once=True, base=tmp_path), Resume(5, None, None))
    events = after_a_reset.receive(100, 0)
    assert events is not None and events.num_rows == 10, "all of them"
    after_a_reset.settle(Settlement(from_range(0, 6)))  # five of the link before, and the first of this one
    after_a_reset.close()
    notes = LinkNotes(other.database)
    assert notes.answered_upto() == 1
    notes.close()


def test_a_link_that_was_moved_is_read_on_where_it_is_now(place: LinkPlace, tmp_path: Path) -> None:
    write(place).release()
    reader(place, tmp_path / "a").close()
    place.notes.rename(tmp_path / "moved")
    moved = reader(LinkPlace(tmp_path / "moved" / "log", tmp_path / "moved"), tmp_path / "a", taken=5)
    events = moved.receive(100, 0)
    assert events is not None and events.column("position").to_pylist() == [5, 6, 7, 8, 9]
    moved.close()


def test_a_reader_that_was_reset_leaves_out_what_was_answered_beyond_the_first_gap(
    place: LinkPlace, tmp_path: Path
) -> None:
    write(place).release()
    first = reader(place, tmp_path / "a")
    first.receive(100, 0)
    first.settle(Settlement(BitMap64([0, 3, 4]), {7: "no"}))
    first.close()

    again = PipelineSource(place.notes)
    context = SourceContext("rows", tmp_path / "a", once=True, base=tmp_path)
    again.open(context, Resume(10, None, None))
    received = again.receive(100, 0)
    assert received is not None and received.column("position").to_pylist() == [1, 2, 5, 6, 8, 9]
    again.settle(Settlement(from_range(0, 12), {13: "bad"}))  # ten of the log before, and rows 1, 2 and 6
    again.close()
    write(place, BatchRef("incoming", FIRST.end, FIRST.end + 2)).release()
    third = PipelineSource(place.notes)
    third.open(context, Resume(16, None, 9))
    received = third.receive(100, 0)
    assert received is not None and received.column("position").to_pylist() == [10, 11]
    notes = LinkNotes(place.database)
    assert list(notes.settled()) == [0, 1, 2, 3, 4, 6, 7]
    assert notes.answered(0, 12).refused == {6: ("bad", False), 7: ("no", False)}
    third.settle(Settlement(from_range(0, 18) - BitMap64([13]), {13: "bad"}))
    assert notes.answered_upto() == 12 and third.drained()
    assert notes.answered(0, 12).refused.keys() == {6, 7}
    notes.close()
    third.close()


@pytest.mark.case(45)
def test_a_reader_goes_on_though_a_loss_of_power_has_left_an_older_head_of_the_link(
    place: LinkPlace, tmp_path: Path
) -> None:
    write(place).release()
    head = place.log / "head"
    older = head.read_bytes()
    write(place, BatchRef("incoming", FIRST.end, FIRST.end + 2)).release()
    end = LogReader(place.log).head()
    reader(place, tmp_path / "a").close()
    head.write_bytes(older)
    assert LogReader(place.log).head() < end
    reader(place, tmp_path / "a", taken=end).close()
    with pytest.raises(SourceError, match=rf"the link ends at {end}, but rows up to {end + 1} were taken"):
        reader(place, tmp_path / "a", taken=end + 1)
