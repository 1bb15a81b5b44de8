"""Parts of a state directory that do not belong together are refused; what is given up is accounted for."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyroaring import BitMap64

from signoff.catalog import default
from signoff.engine.state_dir import copies, identity
from signoff.engine.state_dir.giving_up import drop, reset, stranded
from signoff.engine.state_dir.identity import StateIdentity
from signoff.errors import StateError
from signoff.ledger import Follower, Ledger
from signoff.ledger.audit import audit
from signoff.ledger.batch_state import Done
from signoff.ledger.sequences import from_range
from signoff.log import LogReader, LogWriter
from signoff.log.event_schema import EVENT_SCHEMA
from signoff.log.segment import SegmentHeader, list_segments, segment_path
from signoff.pipeline.graph import Graph
from signoff.pipeline.load import load
from signoff.pipeline.model import LogSettings
from signoff.sources.files.config import FilesConfig
from signoff.stateful.key_index import FILE, KeyIndex

PIPELINE = """
name: tested
state: ./state
sources: {incoming: {type: files, path: ./in}}
sinks: {archive: {type: files, input: incoming, path: ./out}}
"""


class Place:
    """A pipeline, its state directory, and runs of it that take a batch of what was received."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.file = directory / "pipeline.yaml"
        self.file.write_text(PIPELINE)
        self.state = directory / "state"
        self.log = self.state / "log" / "incoming"

    @property
    def graph(self) -> Graph:
        return load(self.file, default())

    def ledger(self) -> Ledger:
        return Ledger(self.state / "ledger.db")

    def check(self) -> None:
        with self.ledger() as ledger:
            StateIdentity(self.state, ledger, LogReader).check(["incoming"])

    def run(
        self, received: int, settled: int | None = None, *, sources: tuple[str, ...] = ("incoming",)
    ) -> None:
        """A run that receives some events, and settles all that are there or only so many."""
        with self.ledger() as ledger:
            belonging = StateIdentity(self.state, ledger, LogReader)
            belonging.check(sources)
            belonging.begin(sources)
            for source in sources:
                end = receive(self.state / "log" / source, received)
                settle(ledger, source, end if settled is None else settled)

    def backup(self, to: Path) -> Path:
        return Path(shutil.copytree(self.state, to))

    def audit(self) -> dict[str, int]:
        found = audit(self.graph, LogReader)
        assert found.balanced, found.findings
        return found.total.as_dict()


def receive(log: Path, number: int, at: int = 0) -> int:
    writer = LogWriter(log, LogSettings())
    if number:
        first = writer.next_sequence
        rows = [{"payload": b"x", "received_at": at, "unit": 1, "position": first + n} for n in range(number)]
        writer.append(pa.RecordBatch.from_pylist(rows, schema=EVENT_SCHEMA))
    writer.close()
    return LogReader(log).head()


def settle(ledger: Ledger, source: str, upto: int) -> None:
    start = ledger.books(source).next
    if start < upto:
        ledger.open_batch(source, start, upto, ["archive"])
        done = {"archive": Done()}
        every = from_range(start, upto)
        ledger.record(source, start, upto, delivered=every, outcomes=(), sinks=done, owed=BitMap64())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "one")


def refused(place: Place, *words: str) -> None:
    with pytest.raises(StateError) as caught:
        place.check()
    for word in ("[state-mixed]", "nothing was received", *words):
        assert word in str(caught.value)


def test_what_belongs_together_goes_on_run_after_run(place: Place) -> None:
    for _ in range(3):
        place.run(5, settled=None)
    assert place.audit()["delivered"] == 15


@pytest.mark.parametrize("part", ["log/incoming", "intake/incoming"])
def test_a_part_that_was_moved_away_is_missed(place: Place, part: str) -> None:
    place.run(10)
    (place.state / part).rename(place.state / "away")
    refused(place, part, "moved away", "signoff sources reset FILE incoming")


def test_a_log_that_was_begun_anew_by_hand_is_not_taken_for_the_old_one(place: Place) -> None:
    place.run(10)
    shutil.rmtree(place.log)
    receive(place.log, 20)
    refused(place, "was replaced")


def test_a_log_of_another_state_directory_is_refused(place: Place, tmp_path: Path) -> None:
    place.run(10)
    other = Place(tmp_path / "other")
    other.run(10)
    shutil.rmtree(place.log)
    shutil.copytree(other.log, place.log)
    refused(place, "comes from another state directory")


def test_a_ledger_that_is_gone_or_of_another_state_is_refused(place: Place, tmp_path: Path) -> None:
    place.run(10)
    (place.state / "ledger.db").rename(tmp_path / "away.db")
    refused(place, "another ledger.db")
    other = Place(tmp_path / "other")
    other.run(10)
    for file in place.state.glob("ledger.db*"):
        file.unlink()
    shutil.copy(other.state / "ledger.db", place.state)
    refused(place, "comes from another state directory")


@pytest.mark.parametrize(
    ("part", "said"), [("log", "older than the ledger"), ("ledger.db", "ledger is older")]
)
def test_parts_of_different_backups_are_refused(place: Place, tmp_path: Path, part: str, said: str) -> None:
    place.run(10)
    backup = place.backup(tmp_path / "backup")
    place.run(10)
    old, new = backup / part, place.state / part
    shutil.rmtree(new) if new.is_dir() else [file.unlink() for file in place.state.glob("ledger.db*")]
    shutil.copytree(old, new) if old.is_dir() else shutil.copy(old, new)
    refused(place, said)


def test_one_backup_of_everything_is_as_good_as_what_was_there(place: Place, tmp_path: Path) -> None:
    place.run(10)
    backup = place.backup(tmp_path / "backup")
    place.run(10)
    shutil.rmtree(place.state)
    shutil.copytree(backup, place.state)
    place.run(10)
    assert place.audit()["delivered"] == 20


def test_the_numbers_are_looked_at_where_there_are_no_stamps(place: Place) -> None:
    """A state directory of before there were stamps: adopted, if it is whole."""
    receive(place.log, 10)
    with place.ledger() as ledger:
        settle(ledger, "incoming", 10)
    place.check()
    shutil.rmtree(place.log)
    receive(place.log, 3)
    refused(place, "ends at 3", "up to 10")


def test_a_log_that_lacks_events_which_are_not_settled_is_refused(place: Place) -> None:
    receive(place.log, 10)
    with place.ledger() as ledger:
        ledger.open_batch("incoming", 0, 10, ["archive"])
    segment_path(place.log, 0).unlink()
    (place.log / "head").unlink()
    LogWriter(place.log, LogSettings()).close()
    segment_path(place.log, 0).unlink()
    receive_at(place.log, 10)
    refused(place, "begins at 10", "from 0 on are not settled")


def receive_at(log: Path, first: int) -> None:
    from signoff.log.new_log import begin_anew

    begin_anew(log, SegmentHeader(first, (None, None)), log.parent.parent / "away")


def test_a_kill_while_parts_are_stamped_leaves_a_state_that_can_be_used(place: Place) -> None:
    place.run(10)
    stamps = {
        part: (place.state / part / "identity").read_text() for part in ("log/incoming", "intake/incoming")
    }
    place.run(10)
    with place.ledger() as ledger, ledger.store.write() as db:
        db.execute("UPDATE identity SET beginning = run, run = run - 1")
    (place.state / "log/incoming" / "identity").write_text(stamps["log/incoming"])
    place.run(10)
    (place.state / "log/incoming" / "identity").write_text(stamps["log/incoming"])
    refused(place, "older than the ledger")


class Killed(BaseException):
    pass


FULL = OSError(errno.ENOSPC, "No space left on device")
SOURCES = ("incoming", "second")


def interrupted(place: Place, after: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that comes to its end, by a kill or a full disk, when so many parts are stamped."""
    stamped = list[Path]()

    def write(path: Path, stamp: identity.Stamp) -> None:
        if len(stamped) == after:
            raise error
        stamped.append(path)
        write_stamp(path, stamp)

    write_stamp = identity._write_stamp
    with monkeypatch.context() as patched, place.ledger() as ledger, suppress(Killed):
        patched.setattr(identity, "_write_stamp", write)
        start = StateIdentity(place.state, ledger, LogReader)
        start.check(SOURCES)
        start.begin(SOURCES)


@pytest.mark.parametrize("error", [Killed(), FULL], ids=["killed", "full"])
@pytest.mark.parametrize("after", [(3, 1), (1, 3), (3, 2, 1, 0), (0, 4, 2)])
def test_starts_that_are_interrupted_one_after_the_other_leave_a_state_that_can_be_used(
    place: Place, after: tuple[int, ...], error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run(5, sources=SOURCES)
    for number in after:
        interrupted(place, number, error, monkeypatch)
    place.run(5, sources=SOURCES)
    place.run(5, sources=SOURCES)
    with place.ledger() as ledger:
        assert [ledger.books(source).next for source in SOURCES] == [15, 15]


def test_what_is_older_or_newer_than_all_interrupted_starts_is_refused(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run(5, sources=SOURCES)
    before = place.backup(tmp_path / "before")
    place.run(5, sources=SOURCES)
    for number in (3, 1):
        interrupted(place, number, Killed(), monkeypatch)
    between = place.backup(tmp_path / "between")
    shutil.rmtree(place.log)
    shutil.copytree(before / "log" / "incoming", place.log)
    refused(place, "log/incoming: it is older than the ledger")
    shutil.rmtree(place.log)
    shutil.copytree(between / "log" / "incoming", place.log)
    place.run(5, sources=SOURCES)
    for file in place.state.glob("ledger.db*"):
        file.unlink()
    shutil.copy(between / "ledger.db", place.state)
    refused(place, "log/incoming: the ledger is older than it", "intake/incoming")


def test_letters_of_another_state_are_refused_and_lost_ones_are_said(
    place: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from signoff.ledger import DeadLetters

    for each in (place, other := Place(tmp_path / "other")):
        each.run(1)
        DeadLetters(each.state / "dead_letters.db").close()
        each.run(1)
    for file in place.state.glob("dead_letters.db*"):
        file.unlink()
    place.check()
    assert "dead_letters.db: what the ledger knows was moved away" in caplog.text
    shutil.copy(other.state / "dead_letters.db", place.state)
    refused(place, "move dead_letters.db away")


# -- giving up


def damage(log: Path) -> None:
    """Make the last event of a log unreadable."""
    path = segment_path(log, list_segments(log)[-1])
    content = bytearray(path.read_bytes())
    content[-70] ^= 0xFF
    path.write_bytes(content)


def test_a_log_that_was_reset_goes_on_behind_all_numbers_and_the_source_hears_what_was_given_up(
    place: Place,
) -> None:
    place.run(10)
    place.run(0)
    receive(place.log, 5)
    damage(place.log)
    with place.ledger() as ledger:
        done = reset(place.graph, ledger, "incoming")
        assert (done.events, done.next_sequence) == (5, 15)
        settled = Follower(ledger, "incoming").poll()
        assert settled is not None
        assert sorted(settled.refused) == [10, 11, 12, 13, 14] and settled.transient == BitMap64(
            range(10, 15)
        )
        assert settled.acknowledged == BitMap64(range(10))
    assert done.aside is not None and list_segments(done.aside)
    place.run(3)
    assert LogReader(place.log).head() == 18
    assert place.audit() | {"delivered": 13, "refused": 5, "in_flight": 0} == place.audit()


def test_the_source_goes_on_after_the_last_event_that_can_be_read(place: Place) -> None:
    place.run(0)
    receive(place.log, 4)
    receive(place.log, 3)
    damage(place.log)
    with place.ledger() as ledger:
        assert reset(place.graph, ledger, "incoming").next_sequence == 7
    writer = LogWriter(place.log, LogSettings())
    assert writer.last == (1, 3) and writer.next_sequence == 7
    writer.close()


@pytest.mark.parametrize("log", ["whole", "damaged", "empty since it was reset"])
def test_a_reset_does_not_let_times_of_receipt_go_backwards(place: Place, log: str) -> None:
    latest = 1_600_000_000_000_000
    place.run(0)
    receive(place.log, 4, at=latest)
    if log == "damaged":
        receive(place.log, 3, at=latest)
        damage(place.log)
    for _ in range(2 if log == "empty since it was reset" else 1):
        with place.ledger() as ledger:
            end = reset(place.graph, ledger, "incoming").next_sequence
    receive(place.log, 2, at=latest - 3_600_000_000)  # the clock was set back by an hour
    ((_, events),) = LogReader(place.log).read(end, end + 2)
    assert events.column("received_at").cast(pa.int64()).to_pylist() == [latest, latest]


def test_a_log_that_is_gone_begins_behind_what_the_ledger_knows(place: Place) -> None:
    place.run(10, settled=7)
    shutil.rmtree(place.log)
    refused(place)
    with place.ledger() as ledger:
        assert reset(place.graph, ledger, "incoming").next_sequence == 7
    place.run(3)
    assert place.audit() == {**place.audit(), "received": 10, "delivered": 10}


def test_a_lost_ledger_can_be_begun_anew_behind_the_logs_numbers(place: Place) -> None:
    place.run(10)
    for file in place.state.glob("ledger.db*"):
        file.unlink()
    with place.ledger() as ledger:
        assert reset(place.graph, ledger, "incoming").next_sequence == 10
    place.run(2)
    assert place.audit() == {**place.audit(), "received": 12, "delivered": 2, "refused": 10}


def test_a_reset_may_be_repeated_and_interrupted(place: Place) -> None:
    place.run(10, settled=4)
    for _ in range(2):
        with place.ledger() as ledger:
            assert reset(place.graph, ledger, "incoming").next_sequence == 10
    shutil.rmtree(place.log)  # killed between the two renames
    with place.ledger() as ledger:
        assert reset(place.graph, ledger, "incoming").events == 0
    place.run(1)
    assert place.audit() == {**place.audit(), "delivered": 5, "refused": 6}


@pytest.mark.parametrize("kills", [(2,), (1,), (2, 1), (1, 2)])
def test_a_reset_that_was_killed_between_its_renames_has_not_forgotten_the_place(
    place: Place, kills: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    place.run(10, settled=4)
    for rename in kills:
        renames = iter(range(1, 3))

        def replace(old: Path, new: Path, last: int = rename, renames: Iterator[int] = renames) -> None:
            if next(renames) == last:
                raise Killed
            old.rename(new)

        with monkeypatch.context() as patched, place.ledger() as ledger, pytest.raises(Killed):
            patched.setattr("signoff.log.new_log.os", SimpleNamespace(replace=replace))
            reset(place.graph, ledger, "incoming")
    with place.ledger() as ledger:
        reset(place.graph, ledger, "incoming")
    writer = LogWriter(place.log, LogSettings())
    assert writer.last == (1, 9) and writer.next_sequence == 10
    writer.close()
    put_aside = sorted(path.name for path in (place.state / "given-up").iterdir())
    assert put_aside == ["incoming-1"], "the old log is kept, and nothing else"
    place.run(1)
    assert place.audit() == {**place.audit(), "delivered": 5, "refused": 6}


def test_the_place_of_a_reset_that_was_killed_long_ago_is_not_that_of_a_log_which_is_gone(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise Killed

    place.run(10)
    with monkeypatch.context() as patched, place.ledger() as ledger, pytest.raises(Killed):
        patched.setattr("signoff.log.new_log.os", SimpleNamespace(replace=killed))
        reset(place.graph, ledger, "incoming")
    place.run(5)  # with the old log, which was in its place still
    shutil.rmtree(place.log)
    with place.ledger() as ledger:
        assert reset(place.graph, ledger, "incoming").next_sequence == 15
    writer = LogWriter(place.log, LogSettings())
    assert writer.last == (None, None), "it begins from the start: nothing is left out"
    writer.close()


def test_a_source_that_left_the_pipeline_is_named_and_can_be_given_up(place: Place) -> None:
    place.run(10, settled=4)
    place.file.write_text(PIPELINE.replace("incoming", "renamed"))
    with place.ledger() as ledger:
        assert stranded(place.graph, ledger)["incoming"].in_flight == 6
        assert audit(place.graph, LogReader).stranded == ("incoming",)
        assert drop(place.graph, ledger, "incoming") == 6
        assert stranded(place.graph, ledger) == {}
    found = audit(place.graph, LogReader)
    assert found.balanced and found.accounts["incoming"].refused == 6 and not found.stranded


def test_a_source_that_left_before_any_batch_took_its_events_is_named_as_well(place: Place) -> None:
    place.run(10, settled=0)
    for file in place.state.glob("ledger.db*"):
        file.unlink()  # as if it had never known the source
    place.file.write_text(PIPELINE.replace("incoming", "renamed"))
    with place.ledger() as ledger:
        assert stranded(place.graph, ledger)["incoming"].in_flight == 10
    assert audit(place.graph, LogReader).accounts["incoming"].in_flight == 10


def test_a_torn_stamp_is_none(place: Place) -> None:
    place.run(1)
    (place.log / "identity").write_text(json.dumps({"state": 1})[:5])
    refused(place, "was replaced")


def made_keys(place: Place, *, stamped: bool) -> None:
    """An index of keys, as an engine makes it."""
    KeyIndex(place.state / FILE).close()
    if stamped:
        with place.ledger() as ledger:
            StateIdentity(place.state, ledger, LogReader).stamp(FILE)


def test_keys_that_belong_to_the_state_stay_run_after_run(place: Place) -> None:
    place.run(5)
    made_keys(place, stamped=True)
    for _ in range(2):
        place.run(5)
    assert (place.state / FILE).exists()
    (place.state / FILE).unlink()
    place.run(5)  # forgetting loses nothing


@pytest.mark.parametrize("stamped", [True, False])
def test_keys_of_another_state_are_put_aside(
    place: Place, tmp_path: Path, stamped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    other = Place(tmp_path / "other")
    other.run(5)
    place.run(5)
    made_keys(other, stamped=stamped)
    shutil.copy(other.state / FILE, place.state / FILE)
    place.check()
    assert not (place.state / FILE).exists()
    assert (place.state / f"{FILE}.aside-1").exists()
    assert "put aside" in caplog.text


def test_keys_that_are_older_than_the_ledger_are_put_aside(place: Place, tmp_path: Path) -> None:
    place.run(5)
    made_keys(place, stamped=True)
    shutil.copy(place.state / FILE, tmp_path / FILE)
    for _ in range(2):
        place.run(5)
    shutil.copy(tmp_path / FILE, place.state / FILE)
    place.run(5)
    assert not (place.state / FILE).exists()


OUTSIDE = PIPELINE.replace("./out", "/somewhere/out")


def begin(place: Place, pipeline: str = PIPELINE) -> str:
    """A run begins; returns the identity of its state."""
    place.file.write_text(pipeline)
    graph = place.graph
    with place.ledger() as ledger:
        parts = StateIdentity(graph.state, ledger, LogReader)
        nodes = {**graph.sources, **graph.sinks}
        parts.refuse_copy(graph.base, {name: node.config for name, node in nodes.items()})
        parts.check(graph.sources.keys())
        parts.begin(graph.sources)
        identity = parts._identity()
        assert identity is not None and identity.former is None
        return identity.state


def copied(place: Place, to: Path) -> Place:
    shutil.copytree(place.file.parent, to)
    return Place(to)


@pytest.mark.case(43)
def test_a_copy_that_shares_a_place_with_its_original_is_refused_until_that_is_gone(tmp_path: Path) -> None:
    place = Place(tmp_path / "one")
    before = begin(place, OUTSIDE)
    copy = copied(place, tmp_path / "two")
    with pytest.raises(StateError, match=r"state-copied.*outside of the project: archive"):
        begin(copy, OUTSIDE)
    assert begin(place, OUTSIDE) == before, "the original goes on"
    shutil.rmtree(place.file.parent)
    assert begin(copy, OUTSIDE) == before, "it was moved"
    copy.file.parent.rename(tmp_path / "three")
    shutil.copytree(tmp_path / "three", tmp_path / "two")
    assert begin(Place(tmp_path / "three"), OUTSIDE) == before, (
        "renamed: the same, though a copy has its place"
    )


@pytest.mark.case(43)
def test_a_copy_is_known_whatever_inodes_and_hosts_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inodes are numbered by file system, and a snapshot keeps them; a container has a new name each time."""
    place = Place(tmp_path / "one")
    begin(place, OUTSIDE)
    copy = copied(place, tmp_path / "two")
    noted = copies.Place.of(place.state, place.file.parent)
    now = copies.Place.of(copy.state, copy.file.parent)
    with place.ledger() as ledger:
        identity = StateIdentity(place.state, ledger, LogReader)._identity()
    assert identity is not None
    assert copies.is_copy(replace(noted, host="another"), now, identity.state)
    alike = replace(now, inode=noted.inode)
    assert not copies.is_copy(noted, alike, identity.state), "renamed, on the same file system"
    monkeypatch.setattr(copies, "_ledger_at", lambda state: (len(state), noted.inode))
    (tmp_path / "three, elsewhere").symlink_to(tmp_path / "two")
    elsewhere = replace(alike, path=str(tmp_path / "three, elsewhere" / "state"))
    assert copies.is_copy(noted, elsewhere, identity.state), "the same number on another file system"
    assert not copies.is_copy(noted, alike, identity.state), "the same one by another way"


@pytest.mark.case(43)
@pytest.mark.parametrize(
    ("config", "link"),
    [
        ({"path": "./in/*/*.jsonl"}, "in/day"),
        ({"path": "./in/**/*.jsonl"}, "in/deep/day"),
        ({"path": "./in/*.jsonl"}, "in/one.jsonl"),
        ({"path": "./in", "on_acknowledge": "move", "move_to": "./done"}, "done"),
        ({"path": "./none/*", "on_acknowledge": "move", "move_to": "./done"}, "done"),
        ({"path": "./in", "on_acknowledge": "move"}, "in/acknowledged"),
        ({"path": "./in", "on_refuse": "move", "refused_to": "./bad/files"}, "bad"),
    ],
)
def test_files_that_a_link_leads_to_outside_of_the_project_are_shared_with_its_copy(
    tmp_path: Path, config: dict[str, str], link: str
) -> None:
    project, files = tmp_path / "project", FilesConfig.model_validate(config)
    (project / "in" / "deep").mkdir(parents=True)
    (project / link).parent.mkdir(exist_ok=True)
    for place, belongs in ((project / "inside", True), (tmp_path / "outside", False)):
        place.touch() if link.endswith(".jsonl") else place.mkdir()
        (project / link).unlink(missing_ok=True)
        (project / link).symlink_to(place)
        assert files.belongs_to_project(project) == belongs


@pytest.mark.case(43)
def test_a_copied_state_in_the_same_project_is_refused(tmp_path: Path) -> None:
    place = Place(tmp_path / "one")
    begin(place)
    shutil.copytree(place.state, place.state.with_name("state2"))
    place.state = place.state.with_name("state2")
    with pytest.raises(StateError, match=r"state-copied.*its pipeline is the same"):
        begin(place, PIPELINE.replace("./state", "./state2"))


@pytest.mark.case(43)
def test_a_copy_of_a_whole_project_goes_on_as_a_state_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path / "one")
    before = begin(place)
    copy = copied(place, tmp_path / "two")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:  # between the new identity and the last part that has it
        patch.setattr(identity, "_write_stamp", killed)
        with pytest.raises(KeyboardInterrupt):
            begin(copy)
    renewed = begin(copy)
    assert renewed != before and begin(copy) == renewed and begin(place) == before
    shutil.rmtree(copy.log)
    shutil.copytree(place.log, copy.log)
    with pytest.raises(StateError, match="another state directory"):
        begin(copy)
