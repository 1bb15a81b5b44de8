"""The disk of the state directory is full: everything stays up, and goes on when there is room."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.spark

SIZE = 48 * 1024**2
HTTP = {"type": "http", "port": 0, "acknowledge_within": "8s"}
PARSED = {"type": "parse_json", "input": "incoming", "schema": "n BIGINT, t TIMESTAMP"}
COUNTS = {
    "type": "window", "input": "parsed", "time": "t", "size": "1m", "aggregates": {"events": "count(*)"},
}  # fmt: skip


class Disk:
    """A small file system of its own."""

    def __init__(self, place: Path) -> None:
        self._filler = place / "filler"

    def fill(self) -> None:
        """Leave no byte."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (1024**2, 4096, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    assert error.errno == errno.ENOSPC

    def free(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "signoff-test", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted: {done.stderr.strip()}")
    try:
        yield Disk(place)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def careless() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def processes(product: Any) -> list[int | None]:
    return [product.engine_pid(), product.jvm_pid(), product.intake_pid()]


def open_to_others(directory: Path) -> list[str]:
    found = []
    for path in [directory, *directory.rglob("*")]:
        try:
            if stat.S_IMODE(path.lstat().st_mode) & 0o077:
                found.append(str(path))
        except FileNotFoundError:
            continue
    return found


@pytest.mark.case(29)
def test_a_full_disk_keeps_every_process_alive_answers_in_time_and_lets_go(real, disk, careless, tmp_path):
    product = real(
        sources={"incoming": HTTP},
        transforms={"parsed": PARSED, "counts": COUNTS},
        sinks={
            "archive": {"type": "files", "input": "parsed", "path": "out"},
            "results": {"type": "files", "input": "counts", "path": "counted"},
        },
        state="./disk/state",
    )
    product.state = tmp_path / "disk" / "state"
    running = product.start()
    running.wait_for(lambda: product.status()["engine"] == "running")
    running.wait_for(lambda: _accepted(product, 1))
    running.wait_for(lambda: list((product.state / "checkpoints").rglob("commits/*")))
    assert open_to_others(product.state) == [], "whatever the umask, and whoever made it"
    assert stat.S_IMODE(next((product.directory / "out").glob("*.jsonl")).stat().st_mode) == 0o666
    before = processes(product)
    assert None not in before

    disk.fill()
    for n in (2, 3):
        began = time.monotonic()
        answer = product.post([{"n": n, "t": "2026-01-01T00:01:00Z"}]).result(timeout=120)
        assert answer.status_code == 503, answer.text
        assert time.monotonic() - began < 60, "not for ever: acknowledge_within is 8 s"
    running.wait_for(lambda: "no room" in running.output or "the disk is full" in running.output)
    assert all(pid is not None and psutil.pid_exists(pid) for pid in before), running.output

    disk.free()
    running.wait_for(lambda: _accepted(product, 4))
    assert processes(product) == before, f"no process was started again:\n{running.output}"
    running.wait_for(lambda: product.account()["in_flight"] == 0)
    running.terminate()
    account = product.account()
    assert account["delivered"] + account["expired"] == account["received"]
    assert {1, 4} <= {row["n"] for row in product.rows()}


def _accepted(product: Any, n: int) -> bool:
    answer = product.post([{"n": n, "t": "2026-01-01T00:02:00Z"}]).result(timeout=120)
    return bool(answer.status_code == 200)
