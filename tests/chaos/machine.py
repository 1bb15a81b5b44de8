"""What a pipeline under chaos runs on: a disk of fixed size that can be full, and a clock that can jump.

The disk is a tmpfs of its own below the run's directory, which takes root. The clock is that of a small
library (`clock.c`) that all processes of the run are started with, which takes a C compiler.
"""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from shutil import which
from typing import Self

DISK_BYTES = 3 * 2**30
_CLOCK = Path(__file__).with_name("clock.c")


class Machine:
    """Both, for the run in a directory."""

    def __init__(
        self, directory: Path, kinds: Collection[str] = ("disk", "clock"), disk_bytes: int = DISK_BYTES
    ) -> None:
        """`kinds`: of faults that are wanted. Without these, disk and clock are those that are there."""
        self.disk = directory / "disk"
        self.disk.mkdir(parents=True, exist_ok=True)
        self.lacks: dict[str, str] = {}
        """Kinds of faults that are not possible here, and why."""
        self._ballast = self.disk / "ballast"
        self._offset_file = directory / "clock"
        self._offset = 0.0
        self.command: list[str] = []
        """What a command is started with, to have the machine's clock."""
        self._mounted = "disk" in kinds and self._mount(disk_bytes)
        if "clock" in kinds:
            self._find_clock(directory)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.free_disk()

    def fill_disk(self) -> int:
        """Leave no room at all; returns how much that took."""
        with self._ballast.open("ab") as file:
            while free := os.statvfs(self.disk).f_bavail * os.statvfs(self.disk).f_frsize:
                size = os.fstat(file.fileno()).st_size
                with suppress(OSError):  # somebody else was faster
                    os.posix_fallocate(file.fileno(), size, min(free, 64 * 2**20))
            return os.fstat(file.fileno()).st_size

    def free_disk(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def step_clock(self, seconds: float) -> float:
        """Returns by how much the clock is wrong then."""
        self._offset += seconds
        with self._offset_file.open("r+b") as file:
            file.write(struct.pack("=q", round(self._offset * 1e9)))
        return self._offset

    def unmount(self) -> None:
        """What is on the disk is gone then."""
        if self._mounted:
            subprocess.run(["umount", "-l", str(self.disk)], check=False)

    def _mount(self, size: int) -> bool:
        if os.geteuid() != 0:
            self.lacks["disk"] = "only root can mount a disk of fixed size"
            return False
        options = f"size={size},mode=0700"
        command = ["mount", "-t", "tmpfs", "-o", options, "signoff-chaos", str(self.disk)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            self.lacks["disk"] = f"a tmpfs cannot be mounted: {done.stderr.strip()}"
        return not done.returncode

    def _find_clock(self, directory: Path) -> None:
        compiler = which("cc") or which("gcc") or which("clang")
        if compiler is None:
            self.lacks["clock"] = "there is no C compiler for a clock that can be set"
            return
        library = directory / "clock.so"
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(_CLOCK), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            self.lacks["clock"] = f"the clock cannot be compiled: {done.stderr.strip()[:200]}"
            return
        self._offset_file.write_bytes(bytes(8))
        self.command = ["env", f"LD_PRELOAD={library}", f"SIGNOFF_CLOCK={self._offset_file}"]
