"""What of a checkpoint is relied on after a loss of power: what was synced, and nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from signoff.engine.spark.checkpoint_sync import SyncedFiles

pytestmark = pytest.mark.case(45)


class Spark:
    """Writes what Spark writes for the batches of a query with state."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("metadata", "{}")

    def write(self, name: str, content: str = "whole") -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_text(content)

    def plan(self, batch: int) -> None:
        self.write(f"offsets/{batch}")

    def compute(self, batch: int) -> None:
        for partition in (0, 1):
            self.write(f"state/0/{partition}/{batch + 1}.delta")

    def commit(self, batch: int) -> None:
        self.write(f"commits/{batch}")

    def files(self) -> set[str]:
        return {str(path.relative_to(self.path)) for path in self.path.rglob("*") if path.is_file()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "counts"


def test_what_was_not_synced_is_removed_however_whole_it_looks(path: Path) -> None:
    synced = SyncedFiles(path)
    synced.begin()
    spark = Spark(path)
    for batch in range(3):
        spark.plan(batch)
        synced.sync(batch)
        spark.compute(batch)
        spark.commit(batch)
    before = spark.files()
    SyncedFiles(path).restore(committed=3)
    removed = before - spark.files()
    assert removed == {"commits/2", "state/0/0/3.delta", "state/0/1/3.delta"}, (
        "batch 2 is done again, with its own range and the state that batch 1 has left"
    )
    assert SyncedFiles(path).done == 2


def test_what_is_synced_without_a_next_batch_is_done_for_good(path: Path) -> None:
    synced = SyncedFiles(path)
    synced.begin()
    spark = Spark(path)
    spark.plan(0)
    synced.sync(0)
    spark.compute(0)
    spark.commit(0)
    synced.sync(1)
    before = spark.files()
    again = SyncedFiles(path)
    again.restore(committed=1)
    assert spark.files() == before and again.done == 1


def test_a_range_that_was_not_synced_is_chosen_anew(path: Path) -> None:
    synced = SyncedFiles(path)
    synced.begin()
    spark = Spark(path)
    spark.plan(0)
    synced.sync(0)
    spark.compute(0)
    spark.commit(0)
    synced.sync(1)
    spark.plan(1)
    spark.write("state/0/0/1.snapshot", "torn")
    SyncedFiles(path).restore(committed=1)
    assert "offsets/1" not in spark.files() and "offsets/0" in spark.files()
    assert "state/0/0/1.snapshot" not in spark.files() and "state/0/0/1.delta" in spark.files()


def test_state_of_a_later_batch_is_removed_although_it_is_listed(path: Path) -> None:
    synced = SyncedFiles(path)
    synced.begin()
    spark = Spark(path)
    spark.plan(0)
    spark.compute(0)
    spark.write("state/0/0/2.zip")
    spark.plan(1)
    spark.plan(2)
    synced.sync(1)
    SyncedFiles(path).restore(committed=1)
    assert {"state/0/0/2.zip", "offsets/2"}.isdisjoint(spark.files())
    assert {"state/0/0/1.delta", "offsets/1"} <= spark.files()


def test_a_torn_end_of_the_list_is_as_if_it_were_not_there(path: Path) -> None:
    synced = SyncedFiles(path)
    synced.begin()
    spark = Spark(path)
    spark.plan(0)
    synced.sync(0)
    spark.commit(0)
    spark.compute(0)
    whole = path.with_name("counts.synced").stat().st_size
    synced.sync(1)
    os.truncate(path.with_name("counts.synced"), whole + 40)
    again = SyncedFiles(path)
    again.restore(committed=1)
    assert again.done == 0 and "commits/0" not in spark.files() and "offsets/0" in spark.files()
    again.sync(1)
    assert SyncedFiles(path).done == 1, "what is appended later is not behind the torn line"


def test_a_checkpoint_of_an_earlier_version_is_taken_as_it_is(path: Path) -> None:
    spark = Spark(path)
    for batch in range(2):
        spark.plan(batch)
        spark.compute(batch)
        spark.commit(batch)
    before = spark.files()
    synced = SyncedFiles(path)
    synced.restore(committed=2)
    assert spark.files() == before and synced.done == 2


def test_files_and_their_directories_are_synced_before_they_are_listed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = SyncedFiles(path)
    synced.begin()
    spark = Spark(path)
    spark.plan(0)
    spark.compute(0)
    done: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: done.append(str(Path(f"/proc/self/fd/{file}").readlink())))
    synced.sync(0)
    wanted = {str(path / name) for name in spark.files()}
    parents = {str(parent) for name in wanted for parent in Path(name).parents if parent != Path("/")}
    ours = {parent for parent in parents if parent.startswith(str(path))} | {str(path.parent)}
    assert wanted | ours <= set(done)
    places = {name: done.index(name) for name in wanted | ours}
    assert max(places[name] for name in wanted) < min(places[name] for name in ours)
    assert done[-1] == str(path.with_name("counts.synced"))
    done.clear()
    spark.commit(0)
    synced.sync(1)
    commits = {str(path / "commits/0"), str(path / "commits"), str(path)}
    assert set(done) == commits | {str(path.with_name("counts.synced"))}, (
        "what is synced already is let alone"
    )
