"""How fast events get from files into the log: the real intake process, fsync on.

    python bench/intake.py [--events 2000000] [--files 8]

Writes JSONL files of 150-byte alarms, starts `python -m signoff.intake` on them, and waits until the
last event is durable. Prints one line of JSON. `events_per_s` is net of the start of the process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from signoff.intake import Instructions, Status, read_status
from signoff.sources.files.config import FilesConfig

LINE = (
    '{"stationId":%d,"dataPointId":121,"alarmId":308,"eventTime":"2017-02-18 18:28:05 UTC",'
    '"value":%.2f,"valueThreshold":240.0,"isActive":true}'
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=2_000_000)
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--directory", help="where to work; default: a temporary directory")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        print(json.dumps(measure(Path(directory), args.events, args.files)))


def measure(base: Path, events: int, files: int) -> dict[str, object]:
    """One intake process over that many events."""
    size = write_files(base / "in", events, files)
    config = FilesConfig(path="in/*.jsonl")
    instructions = Instructions.of("incoming", config, state=base / "state", base=base, once=True)
    with subprocess.Popen([sys.executable, "-m", "signoff.intake"], stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(instructions.encode())
        process.stdin.flush()
        usage = psutil.Process(process.pid)
        wait_for(instructions, process, lambda status: status.next_sequence > 0)
        started, cpu = time.perf_counter(), sum(usage.cpu_times()[:2])
        before = current(instructions).durable_sequence
        wait_for(
            instructions,
            process,
            lambda status: status.state == "ended" and status.durable_sequence == events,
        )
        seconds = time.perf_counter() - started
        cpu, peak = sum(usage.cpu_times()[:2]) - cpu, usage.memory_info().rss
        process.stdin.close()
    counted = events - before
    return {
        "bench": "intake", "events": events, "bytes_per_event": round(size / events, 1),
        "events_per_s": round(counted / seconds), "seconds": round(seconds, 3),
        "cpu_us_per_event": round(cpu / counted * 1e6, 2), "rss_mb": round(peak / 1e6),
    }  # fmt: skip


def write_files(directory: Path, events: int, files: int) -> int:
    directory.mkdir()
    size = 0
    for number in range(files):
        count = events // files + (number < events % files)
        text = "\n".join(LINE % (1161115016 + i % 1000, i % 997 / 3) for i in range(count)) + "\n"
        size += (directory / f"{number:04d}.jsonl").write_text(text)
    return size


def current(instructions: Instructions) -> Status:
    return read_status(instructions.directory) or Status(0, "receiving")


def wait_for(instructions: Instructions, process: subprocess.Popen[bytes], condition: object) -> None:
    assert callable(condition)
    while not condition(current(instructions)):
        if process.poll() is not None:
            raise SystemExit(f"the intake ended with {process.returncode}")
        time.sleep(0.002)


if __name__ == "__main__":
    main()
