"""The disk of these tests forgets exactly what POSIX does not promise."""

from __future__ import annotations

import random
import stat

import pytest

from tests.powerloss.disk import ROOT, Disk

FILE, FOLDER = stat.S_IFREG | 0o644, stat.S_IFDIR | 0o755


def made(*changes: tuple[object, ...]) -> Disk:
    """A disk with a file `a` (number 2) and a directory `d` (3), after these changes."""
    disk = Disk()
    disk.apply(("create", ROOT, "a", 2, FILE, 0))
    disk.apply(("create", ROOT, "d", 3, FOLDER, 0))
    for change in changes:
        disk.apply(change)
    return disk


def contents(disk: Disk) -> dict[str, bytes]:
    return {path: bytes(inode.data) for path, inode in disk.files()}


WRITE = ("write", 2, 0, b"text", 0)


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ([WRITE], {}),
        ([WRITE, ("sync", 2)], {}),
        ([WRITE, ("sync", ROOT)], {"/a": b""}),
        ([WRITE, ("sync", 2), ("sync", ROOT)], {"/a": b"text"}),
        ([WRITE, ("sync", 2), ("sync", ROOT), ("write", 2, 4, b"!", 0)], {"/a": b"text"}),
        ([WRITE, ("sync", 2), ("sync", ROOT), ("truncate", 2, 1, 0)], {"/a": b"text"}),
        ([("sync", ROOT), ("remove", ROOT, "a")], {"/a": b""}),
        ([("sync", ROOT), ("remove", ROOT, "a"), ("sync", ROOT)], {}),
    ],
)
def test_a_file_and_its_name_are_synced_each_for_itself(
    changes: list[tuple[object, ...]], left: dict[str, bytes]
) -> None:
    assert contents(made(*changes).survivors()) == left


@pytest.mark.parametrize("synced", [ROOT, 3])
def test_a_rename_is_durable_with_either_directory_and_whole(synced: int) -> None:
    disk = made(("sync", ROOT), ("rename", ROOT, "a", 3, "b"))
    assert set(contents(disk.survivors())) == {"/a"}
    disk.apply(("sync", synced))
    assert set(contents(disk.survivors())) == {"/d/b"}
    disk.apply(("sync", 3 if synced == ROOT else ROOT))
    assert set(contents(disk.survivors())) == {"/d/b"}


def test_what_was_synced_survives_every_chance_and_a_rename_is_never_halved() -> None:
    changes = [WRITE, ("sync", 2), ("sync", ROOT), ("write", 2, 0, b"TEXT", 0), ("rename", ROOT, "a", 3, "b")]
    found = set()
    for seed in range(200):
        ((path, content),) = contents(made(*changes).survivors(random.Random(seed))).items()
        found.add((path, content))
    assert found == {(path, text) for path in ("/a", "/d/b") for text in (b"text", b"TEXT")}


def test_what_survives_is_a_disk_that_can_be_used_on() -> None:
    disk = made(WRITE, ("sync", 2), ("sync", ROOT)).survivors()
    disk.apply(("create", 3, "c", disk.following, FILE, 0))
    assert set(contents(disk)) == {"/a", "/d/c"} and set(contents(disk.survivors())) == {"/a"}
