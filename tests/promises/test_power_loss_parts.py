"""Case 45 for each part by itself, without Spark: what it has said is durable survives a loss of power.

A part does its work in a directory that nobody has made, on a disk that knows what was fsynced. The power is
cut in the moment it returns.
"""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from signoff.durable import make_directory
from signoff.engine.delivery.receipts import read_receipts, receipts_directory, write_receipt
from signoff.ledger import DeadLetters, Ledger
from signoff.link.handover import LinkPlace
from signoff.link.notes import LinkNotes
from signoff.log import LogReader, LogWriter, exclude, trim
from signoff.log.exclusions import excluded
from signoff.sinks.contract import BatchRef, Part
from signoff.sinks.files.sink import FilesSink
from signoff.sinks.sqlite import SqliteSink
from signoff.sources.files.moves import move, sync
from signoff.sources.files.registry import FileRegistry, Found
from signoff.stateful.lost_state import LostState
from signoff.stateful.watermarks import Watermarks
from signoff.transforms.window.watermark_rule import WatermarkRule
from tests.ledger.attempts import attempt
from tests.ledger.test_dead_letters import letter
from tests.link.test_handover import hand_on, ids, sink_at
from tests.log.events import numbered, payload, payloads, small_settings
from tests.powerloss.disk import Disk, changes, replay
from tests.powerloss.mount import Mounted, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=f"no disk that forgets: {missing()}")

BATCH = BatchRef("incoming", 0, 3)
ROWS = pa.record_batch({"event_id": ["a", "b", "c"], "n": pa.array([1, 2, 3], pa.int64())})

Check = Callable[[Path], None]


@pytest.fixture
def survives(tmp_path: Path) -> Iterator[Callable[[Callable[[Path], None], Check], None]]:
    """Do something, cut the power, and look at what is left: without luck, and with some."""

    def see(act: Callable[[Path], None], check: Check) -> None:
        image = pickle.dumps(Disk())
        with Mounted(image, tmp_path / "disk", tmp_path / "journal") as disk:
            act(disk.directory / "state" / "below")
        recorded = changes(tmp_path / "journal")
        for seed in (None, *range(8)):
            after = replay(image, recorded).survivors(None if seed is None else random.Random(seed))
            copy = tmp_path / f"left-{seed}"
            _export(after, copy)
            check(copy / "state" / "below")

    yield see


def _export(disk: Disk, directory: Path) -> None:
    for path, inode in disk.files():
        target = directory / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(inode.data)


Survives = Callable[[Callable[[Path], None], Check], None]


@pytest.mark.case(45)
def test_events_in_a_log_survive_a_loss_of_power(survives: Survives) -> None:
    def act(place: Path) -> None:
        place.mkdir(parents=True)  # by somebody who does not sync
        writer = LogWriter(place / "log", small_settings())
        for first in range(0, 60, 10):
            writer.append(numbered(first, 10, size=4000))
            writer.sync()
            if first == 30:
                trim(place / "log", 25)
        writer.append(numbered(60, 10))  # not synced: nobody was told

    def check(place: Path) -> None:
        with closing(LogWriter(place / "log", small_settings())) as writer:
            assert 60 <= writer.next_sequence <= 70
        assert payloads(place / "log", 30, 60) == [payload(number, 4000) for number in range(30, 60)]

    survives(act, check)


@pytest.mark.case(45)
def test_exclusions_survive_a_loss_of_power(survives: Survives) -> None:
    def act(place: Path) -> None:
        LogWriter(place / "log", small_settings()).close()
        exclude(place / "log", [3])
        exclude(place / "log", [5])

    survives(act, lambda place: _equal(set(excluded(place / "log")), {3, 5}))


@pytest.mark.case(45)
def test_ledger_and_dead_letters_survive_a_loss_of_power(survives: Survives) -> None:
    def act(place: Path) -> None:
        ledger, letters = Ledger(place / "ledger.db"), DeadLetters(place / "dead_letters.db")
        for first in range(0, 300, 3):
            letters.add([letter(first + 1)])
            attempt(ledger, first, first + 3, delivered=[first, first + 2], dead_lettered=[first + 1])

    def check(place: Path) -> None:
        with Ledger(place / "ledger.db") as ledger, DeadLetters(place / "dead_letters.db") as letters:
            assert ledger.settled_upto("incoming") == 300
            assert len(letters.list()) == 100

    survives(act, check)


@pytest.mark.case(45)
def test_what_a_link_was_handed_survives_a_loss_of_power(survives: Survives) -> None:
    def act(place: Path) -> None:
        sink = sink_at(LinkPlace(place / "log", place / "notes"))
        sink.prepare()
        hand_on(sink, BATCH, range(0, 2), range(2, 3))
        hand_on(sink, BatchRef("incoming", 3, 5), range(3, 5))

    def check(place: Path) -> None:
        link = LinkPlace(place / "log", place / "notes")
        sink = sink_at(link)
        sink.prepare()
        assert ids(link) == [f"incoming/{n}" for n in range(5)]
        hand_on(sink, BATCH, range(0, 3))  # the ledger may not know it yet
        assert len(ids(link)) == 5
        sink.release()
        with closing(LinkNotes(link.database)) as notes:
            assert len(notes.each()) == 2

    survives(act, check)


@pytest.mark.case(45)
def test_marks_of_time_and_the_file_registry_survive_a_loss_of_power(survives: Survives) -> None:
    def act(place: Path) -> None:
        marks = Watermarks(place / "links" / "marks.db", WatermarkRule(0), ["incoming"])
        marks.reach(5_000)
        marks.stamp(BATCH)
        make_directory(place / "intake")  # as the intake does
        registry = FileRegistry(place / "intake" / "files.db")
        (file,) = registry.add([Found("in/a", 7)])
        file.first_seq = 12
        registry.save([file])

    def check(place: Path) -> None:
        marks = Watermarks(place / "links" / "marks.db", WatermarkRule(0), ["incoming"])
        assert marks.mark == 5_000 and marks.stamp_at("incoming", 1) == 5_000
        marks.close_store()
        with closing(FileRegistry(place / "intake" / "files.db")) as registry:
            assert [file.first_seq for file in registry.files.values()] == [12]

    survives(act, check)


@pytest.mark.case(45)
def test_what_a_files_sink_has_committed_survives_a_loss_of_power(survives: Survives) -> None:
    def act(place: Path) -> None:
        sink = FilesSink(place / "out")
        sink.prepare()
        written = []
        for partition in (0, 1):
            writer = sink.open(Part(BATCH, partition, 0))
            writer.write(ROWS)
            part = writer.close()
            assert part is not None
            written.append(part)
        sink.commit(BATCH, written)

    def check(place: Path) -> None:
        (file,) = (place / "out").glob("*.jsonl")
        assert len(file.read_text().splitlines()) == 6

    survives(act, check)


@pytest.mark.case(45)
def test_a_commit_that_was_interrupted_before_its_sync_is_synced_when_it_comes_again(
    survives: Survives, monkeypatch: pytest.MonkeyPatch
) -> None:
    def act(place: Path) -> None:
        sink = FilesSink(place / "out")
        sink.prepare()
        writer = sink.open(Part(BATCH, 0, 0))
        writer.write(ROWS)
        part = writer.close()
        assert part is not None
        with monkeypatch.context() as patched:
            patched.setattr("signoff.sinks.files.commit.sync_directory", lambda _: None)
            sink.commit(BATCH, [part])
        sink.commit(BATCH, [part])

    survives(act, lambda place: _equal(len(list((place / "out").glob("*.jsonl"))), 1))


@pytest.mark.case(45)
def test_what_a_sqlite_sink_has_written_survives_a_loss_of_power(survives: Survives) -> None:
    def act(place: Path) -> None:
        sink = SqliteSink(place / "out" / "rows.db", "events")
        sink.prepare()
        writer = sink.open(Part(BATCH, 0, 0))
        writer.write(ROWS)

    def check(place: Path) -> None:
        with closing(SqliteSink(place / "out" / "rows.db", "events").connect()) as database:
            assert database.execute("SELECT sum(n) FROM events").fetchone() == (6,)

    survives(act, check)


@pytest.mark.case(45)
def test_a_file_that_was_moved_is_there_once_and_one_that_was_deleted_stays_away(survives: Survives) -> None:
    def act(place: Path) -> None:
        sink = FilesSink(place)  # as good as anything to make a directory durable
        sink.prepare()
        for name in ("moved", "deleted"):
            with (place / name).open("w") as file:
                file.write(name)
                file.flush()
                os.fsync(file.fileno())
        move(place / "moved", "moved", place / "far" / "away")
        (place / "deleted").unlink()
        sync([place / "gone", place, place / "far" / "away"])

    def check(place: Path) -> None:
        found = {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()}
        assert found == {"far/away/moved"}
        assert (place / "far/away/moved").read_text() == "moved"

    survives(act, check)


@pytest.mark.case(45)
def test_a_receipt_is_whole_or_not_there(survives: Survives) -> None:
    def act(place: Path) -> None:
        write_receipt(receipts_directory(place, BATCH), "table", Part(BATCH, 0, 0), (0, 2), [])

    def check(place: Path) -> None:
        for receipt in read_receipts(receipts_directory(place, BATCH)):
            assert receipt.span == (0, 2)

    survives(act, check)


@pytest.mark.case(45)
def test_that_a_state_was_given_up_survives_a_loss_of_power(survives: Survives) -> None:
    def act(place: Path) -> None:
        link = LinkPlace(place / "log", place / "notes")
        sink_at(link).prepare()
        loss = LostState(link)
        loss.note(7)
        loss.give_up()

    survives(act, lambda place: _equal(LostState(LinkPlace(place / "log", place / "notes")).given_up, 7))


@pytest.mark.case(45)
def test_the_head_of_a_log_is_never_ahead_of_it(survives: Survives) -> None:
    def act(place: Path) -> None:
        writer = LogWriter(place / "log", small_settings())
        for first in range(0, 50, 5):
            writer.append(numbered(first, 5))
            writer.sync()

    def check(place: Path) -> None:
        assert LogReader(place / "log").scan() == 50
        with closing(LogWriter(place / "log", small_settings())) as writer:
            assert writer.next_sequence == 50

    survives(act, check)


def _equal(found: object, expected: object) -> None:
    assert found == expected
