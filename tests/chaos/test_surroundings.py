"""What surrounds a chaos run does as the faults say: wires stall and are cut, disks fill up, clocks jump."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.machine import Machine
from tests.chaos.wire import wire_to


@pytest.fixture
def echo() -> Iterator[int]:
    """The port of a server that says everything again."""

    def serve() -> None:
        while True:
            try:
                there, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=_answer, args=(there,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


def _answer(there: socket.socket) -> None:
    with there, suppress(ConnectionResetError):
        while data := there.recv(100):
            there.sendall(data)


def test_a_wire_that_stalls_loses_nothing_and_one_that_is_cut_resets(echo: int) -> None:
    with wire_to(echo) as wire, socket.create_connection(("127.0.0.1", wire.port)) as client:
        client.sendall(b"a")
        assert client.recv(1) == b"a"
        wire.stall()
        client.sendall(b"b")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(1)
        wire.resume()
        client.settimeout(30)
        assert client.recv(1) == b"b"
        assert wire.cut() == 1
        with pytest.raises(ConnectionResetError):
            client.recv(1)


def test_a_full_disk_takes_nothing_and_has_room_again(tmp_path: Path) -> None:
    with Machine(tmp_path, disk_bytes=2**20) as machine:
        if "disk" in machine.lacks:
            pytest.skip(machine.lacks["disk"])
        try:
            assert machine.fill_disk() > 2**19
            with pytest.raises(OSError, match="No space left"):
                (machine.disk / "more").write_bytes(bytes(5000))
            machine.free_disk()
            (machine.disk / "more").write_bytes(bytes(5000))
        finally:
            machine.unmount()


def test_a_clock_that_jumps_is_seen_by_processes_that_run_and_waits_are_not(tmp_path: Path) -> None:
    with Machine(tmp_path, disk_bytes=2**20) as machine:
        machine.unmount()
        if "clock" in machine.lacks:
            pytest.skip(machine.lacks["clock"])
        program = (
            "import sys, time\n"
            "for line in sys.stdin:\n"
            "    time.sleep(0.01); print(time.time(), time.monotonic(), flush=True)"
        )
        command = [*machine.command, sys.executable, "-c", program]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None and process.stdout is not None
            seen = []
            for step in (0, -3600, 7200):
                machine.step_clock(step)
                print(file=process.stdin, flush=True)
                seen.append([float(value) for value in process.stdout.readline().split()])
            process.stdin.close()
        (first, began), (second, _), (third, ended) = seen
        assert -3600 <= second - first < -3500 and 7200 <= third - second < 7300
        assert 0 < ended - began < 100
