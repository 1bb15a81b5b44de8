"""A run over files says on a terminal how far it is, and how long it still takes, before it has read them."""

from __future__ import annotations

import fcntl
import gzip
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.promises.product import SIGNOFF, Product

pytestmark = pytest.mark.spark

MIB = 1024**2
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_a_terminal(product: Product, columns: int) -> str:
    """What `signoff run --once` writes to a terminal of this width, line by line."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    settings = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    command = [str(SIGNOFF), "run", "--once", str(product.file)]
    written = b""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env={**settings, "TERM": "xterm"}
    ) as process:
        os.close(theirs)
        with suppress(OSError):  # the terminal is closed: the run has ended
            while data := os.read(ours, 65536):
                written += data
    os.close(ours)
    assert process.returncode == 0, written.decode(errors="replace")
    return ESCAPES.sub("", written.decode(errors="replace")).replace("\r", "\n")


def test_a_run_over_files_has_a_bar_with_the_time_left_while_it_reads(real: Callable[..., Product]) -> None:
    product = real(
        sources={
            "incoming": {
                "type": "files",
                "path": "./in/*",
                "log": {"max_bytes": 2 * MIB, "segment_bytes": MIB // 4},
                "max_bytes_per_batch": MIB,
            }
        },
        sinks={"archive": {"type": "files", "input": "incoming", "path": "./out"}},
    )
    lines = b"".join(
        b'{"n": %d, "text": "%s"}\n' % (n, os.urandom(50).hex().encode()) for n in range(120_000)
    )
    (product.directory / "in").mkdir(exist_ok=True)
    (product.directory / "in" / "a.jsonl.gz").write_bytes(gzip.compress(lines, 1))
    shown = on_a_terminal(product, 80).splitlines()
    bars = [line for line in shown if re.search(r"\d+ % +[\d.,]+( M)? of about .* left", line)]
    assert bars, "\n".join(shown[-200:])
    assert max(map(len, bars)) <= 80
    totals = [int(re.search(r"about ([\d,]+)", bar)[1].replace(",", "")) for bar in bars]  # type: ignore[index]
    assert all(100_000 < total < 140_000 for total in totals), totals
    assert product.account()["delivered"] == 120_000
