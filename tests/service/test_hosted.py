"""A hosted pipeline is brought to what it was asked to be, whatever its runs do and whoever is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from signoff.catalog import default
from signoff.pipeline.graph import Graph
from signoff.pipeline.load import load
from signoff.pipeline.overlays import Layers
from signoff.service import hosted as hosted_module
from signoff.service.hosted import Hosted, Seen
from signoff.service.record import Record, RecordFile, Stopping, Update
from signoff.service.run_process import RunProcess, find_run
from signoff.service.secret_store import SecretStore
from tests.servers import wait_until

pytestmark = pytest.mark.servers

PRETENDED = (sys.executable, "-m", "tests.service.pretended_run")
TEXT = """name: alarms
sources:
  incoming: {type: files, path: ./in/*.jsonl}
sinks:
  out: {type: files, input: incoming, path: ./out}
"""
Make = Callable[..., Hosted]


def text(behaviour: str) -> str:
    return f"{TEXT}x-run: {behaviour}\n"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "alarms"
    if (run := find_run(tmp_path / "alarms")) is not None:
        run.signal(signal.SIGKILL)


@pytest.fixture
def make(place: Path) -> Iterator[Make]:
    """A hosted pipeline; called again, one of a service that was started anew."""
    services: list[Hosted] = []
    store = SecretStore(place.parent / "secrets", Fernet.generate_key())

    def made(behaviour: str = "steady", record: Record | None = None) -> Hosted:
        records = RecordFile(place)
        if (known := records.read()) is None:
            records.make()
            records.add_text(1, text(behaviour))
            known = record or Record("running", 1)
            records.write(known)

        def graph(record: Record) -> Graph:
            texts = {str(records.file): records.text(record.revision)}
            return load(records.file, default(), {}, require_secrets=False, layers=Layers(), texts=texts)

        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        services.append(Hosted(place, lambda: environ, store, graph, known, PRETENDED))
        return services[-1]

    yield made
    for service in services:
        if service._child is not None:
            service._child.kill()
            service._child.wait()


def until(hosted: Hosted, holds: Callable[[Seen], bool]) -> Seen:
    """Take steps until it is so."""

    def stepped() -> Seen | None:
        hosted.step()
        seen = hosted.seen()
        return seen if holds(seen) else None

    found: Seen = wait_until(stepped, 60, "the pipeline")
    return found


def in_state(state: str) -> Callable[[Seen], bool]:
    return lambda seen: seen.state == state and seen.record.update is None


def test_a_run_is_found_again_by_another_service_and_ends_when_it_is_asked(make: Make) -> None:
    first = until(make(), in_state("running"))
    again = make()
    seen = again.seen()
    assert (seen.state, seen.run) == ("running", first.run)
    until(again, in_state("running"))
    again.stop()
    assert until(again, in_state("stopped")).run is None


def test_what_was_asked_for_is_on_disk_before_it_is_done(make: Make) -> None:
    one = make(record=Record("stopped", 1))
    one.start()
    until(make(), in_state("running"))  # the service that was asked is gone
    make().stop()
    until(make(), in_state("stopped"))


def test_a_run_that_is_killed_is_launched_again_and_later_each_time(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted_module, "_FIRST_WAIT_S", 0.05)
    one = make()
    for crashes in (1, 2):
        before = until(one, in_state("running")).run
        assert before is not None
        os.kill(before.pid, signal.SIGKILL)
        until(one, lambda seen: seen.run is not None and seen.run != before)  # noqa: B023
        assert one.seen().crashes == crashes


def test_a_crash_loop_waits_between_its_runs(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosted_module, "_FIRST_WAIT_S", 1000.0)
    one = make("crashes")
    seen = until(one, in_state("waiting"))
    assert seen.crashes == 1
    assert "revision 1 is crashes" in seen.why


def test_a_pipeline_that_says_it_cannot_be_run_is_left_alone_until_it_is_started(make: Make) -> None:
    one = make("refuses")
    seen = until(one, in_state("failed"))
    assert "revision 1 is refuses" in seen.why
    one.step()
    assert one.seen().state == "failed"
    one.start()
    assert one.seen().state == "starting"
    until(one, in_state("failed"))


def test_a_run_that_does_not_end_is_killed_when_its_time_is_up(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted_module, "_ABORT_S", 0.1)
    one = make("stubborn")
    until(one, in_state("running"))
    one.stop(within_s=0.1)
    until(one, in_state("stopped"))


def test_an_update_is_done_when_the_new_run_is_up(make: Make, place: Path) -> None:
    one = make()
    before = until(one, in_state("running")).run
    one.change(text("steady") + "# new\n")
    seen = until(one, in_state("running"))
    assert seen.run != before
    assert seen.record.revision == 2
    assert seen.record.last_update is not None
    assert seen.record.last_update.result == "done"
    assert "# new" in (place / "alarms.yaml").read_text()


@pytest.mark.parametrize("behaviour", ["crashes", "refuses", "never_ready", "stops"])
def test_an_update_that_does_not_start_is_rolled_back(
    make: Make, monkeypatch: pytest.MonkeyPatch, behaviour: str, place: Path
) -> None:
    one = make()
    until(one, in_state("running"))
    if behaviour == "never_ready":
        monkeypatch.setattr(hosted_module, "START_S", 0.5)
    one.change(text(behaviour))
    until(one, lambda seen: seen.record.update is None)
    monkeypatch.undo()
    seen = until(one, in_state("running"))
    assert seen.record.revision == 1
    assert seen.record.last_update is not None
    assert seen.record.last_update.result == "rolled_back"
    assert f"revision 2 is {behaviour}" in seen.record.last_update.reason
    assert "steady" in (place / "alarms.yaml").read_text()
    one.change(text("steady") + "# third\n")
    assert until(one, in_state("running")).record.revision == 3


@pytest.mark.parametrize("behaviour", ["steady", "crashes"])
@pytest.mark.parametrize("steps", [0, 1, 2, 4, 8])
def test_an_update_goes_on_although_the_service_is_killed_after_any_step(
    make: Make, behaviour: str, steps: int
) -> None:
    one = make()
    until(one, in_state("running"))
    one.change(text(behaviour) + "# new\n")
    for _ in range(steps):
        one.step()
    seen = until(make(), in_state("running"))  # another service
    wanted = {"steady": (2, "done"), "crashes": (1, "rolled_back")}[behaviour]
    assert seen.record.last_update is not None
    assert (seen.record.revision, seen.record.last_update.result) == wanted


def test_a_pipeline_that_is_stopped_in_an_update_has_the_new_text_and_does_not_run(make: Make) -> None:
    one = make()
    until(one, in_state("running"))
    one.change(text("steady") + "# new\n")
    one.stop()
    seen = until(one, in_state("stopped"))
    assert seen.record.revision == 2
    assert seen.record.last_update is not None
    assert seen.record.last_update.result == "stopped"


def test_a_stopped_pipeline_is_changed_at_once(make: Make, place: Path) -> None:
    one = make(record=Record("stopped", 1))
    one.change(text("steady") + "# new\n")
    assert one.seen().record.revision == 2
    assert "# new" in (place / "alarms.yaml").read_text()


def test_a_run_of_an_old_text_that_was_launched_too_late_is_replaced(make: Make, place: Path) -> None:
    one = make()
    before = until(one, in_state("running")).run
    records = RecordFile(place)
    records.add_text(2, text("steady") + "# new\n")
    records.write(Record("running", 2))
    seen = until(make(), lambda seen: in_state("running")(seen) and seen.run != before)
    assert seen.run is not None
    assert seen.run.revision == 2


def test_a_record_is_read_as_it_was_written(place: Path) -> None:
    records = RecordFile(place)
    assert records.read() is None
    records.make()
    record = Record("running", 3, Stopping(1.0, 2.0, 17), Update(3, 2, "starting", 5.0))
    records.write(record)
    assert RecordFile(place).read() == record


def test_an_update_during_a_drain_does_not_end_it(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one = make("drains")
    before = until(one, in_state("running")).run
    assert before is not None
    one.stop(within_s=3600)
    until(one, lambda seen: seen.record.stopping is not None and seen.record.stopping.signalled is not None)
    one.change(text("steady"))
    for _ in range(5):
        one.step()
    stopping = one.record.stopping
    assert (stopping.signalled, stopping.within_s) == (before.pid, 3600.0)  # type: ignore[union-attr]
    assert one.log.tail().count("is asked to stop") == 1
    assert find_run(one.directory) == before


def test_a_drain_is_over_in_its_own_time_whatever_the_clock_of_the_machine_says(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make("drains")
    until(one, in_state("running"))
    one.stop(within_s=3600)
    until(one, lambda seen: seen.record.stopping is not None and seen.record.stopping.signalled is not None)
    sent: list[int] = []
    monkeypatch.setattr(RunProcess, "signal", lambda _, number: sent.append(number))
    now = hosted_module.time.time
    monkeypatch.setattr(hosted_module.time, "time", lambda: now() + 1e6)
    for _ in range(3):
        one.step()
    monkeypatch.undo()
    assert sent == []


def test_a_new_text_has_its_time_to_start_whatever_the_clock_of_the_machine_says(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make()
    until(one, in_state("running"))
    one.change(text("never_ready"))
    new = until(one, lambda seen: seen.run is not None and seen.run.revision == 2).run
    now = hosted_module.time.time
    monkeypatch.setattr(hosted_module.time, "time", lambda: now() + 1e6)
    for _ in range(3):
        one.step()
    assert find_run(one.directory) == new


def test_a_record_of_another_start_of_the_machine_ends_its_run_in_time(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosted_module, "_ABORT_S", 0.1)
    one = make("stubborn")
    run = until(one, in_state("running")).run
    assert run is not None
    one.records.write(Record("stopped", 1, Stopping(1e12, 0.1, run.pid)))
    until(make(), in_state("stopped"))


def test_a_run_that_was_not_seen_when_it_was_to_stop_ends_all_the_same(make: Make) -> None:
    one = make()
    until(one, in_state("running"))
    one.records.write(Record("stopped", 1))  # a service that was killed had not seen it yet
    assert until(make(), in_state("stopped")).run is None


def test_a_run_that_cannot_be_launched_waits_and_says_why(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = make()
    monkeypatch.setattr(one, "_launcher", ("/nothing/of/this/name",))
    seen = until(one, lambda seen: seen.crashes > 0)
    assert seen.state == "waiting"
    assert "/nothing/of/this/name" in seen.why


def test_nothing_is_written_for_a_pipeline_that_was_removed(make: Make, place: Path) -> None:
    one = make(record=Record("stopped", 1))
    one.removed = True
    place.rename(place.with_name("removed"))
    for change in (one.start, one.stop, lambda: one.change(text("steady"))):
        with pytest.raises(hosted_module.Removed):
            change()
    one.step()
    assert not place.exists()


def test_line_ends_of_a_text_stay_as_they_are(place: Path) -> None:
    records = RecordFile(place)
    records.make()
    records.add_text(1, "name: x\r\nsources:\r")
    assert records.text(1) == "name: x\r\nsources:\r"
