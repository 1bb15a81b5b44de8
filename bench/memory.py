"""Whether memory and ledger stay flat while millions of events pass.

    .venv/bin/python bench/memory.py [--events 5000000] [--json FILE]

Runs a real pipeline (`signoff run --once`: generate, parse, filter, files and SQLite), looks once a second
at the memory of the engine's Python, its JVM and the intake, and at the bytes of the ledger, and compares
the second half of the run with its first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

PIPELINE = """
name: memory
sources:
  incoming: {{type: generate, count: {events}, malformed: 0.0001}}
transforms:
  parsed: {{type: parse_json, input: incoming, schema: "stationId BIGINT, dataPointId INT, alarmId INT"}}
  chosen: {{type: filter, input: parsed, where: alarmId = 303}}
sinks:
  archive: {{type: files, input: parsed, path: ./archive, format: parquet}}
  table: {{type: sqlite, input: chosen, path: ./alarms.db, table: alarms}}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="signoff-memory-") as name:
        result = measure(Path(name), given.events)
    print(json.dumps(result))
    if given.json:
        given.json.write_text(json.dumps(result, indent=2) + "\n")


def measure(directory: Path, events: int) -> dict[str, object]:
    (directory / "memory.yaml").write_text(PIPELINE.format(events=events))
    command = [str(Path(sys.executable).with_name("signoff")), "run", "memory.yaml", "--once", "--quiet"]
    run = subprocess.Popen(command, cwd=directory)
    samples: list[dict[str, float]] = []
    while run.poll() is None:
        if (sample := look(directory)) is not None:
            samples.append(sample)
            print(" ".join(f"{key}={value:,.1f}" for key, value in sample.items()), flush=True)
        time.sleep(1)
    half = len(samples) // 2
    first, second = samples[half // 2 : half], samples[half:]
    ratios = {
        key: round(statistics.median(s[key] for s in second) / statistics.median(s[key] for s in first), 3)
        for key in samples[0]
        if key != "settled" and len(first) > 2
    }
    return {
        "events": events,
        "exit_code": run.returncode,
        "second_half_to_first": ratios,
        "last": samples[-1],
    }


def look(directory: Path) -> dict[str, float] | None:
    """Megabytes by process, and of the ledger; None until the engine is up."""
    from signoff.ledger.ledger import Ledger

    state = directory / "state"
    try:
        engine = psutil.Process(json.loads((state / "engine.json").read_text())["pid"])
        jvm = next(child for child in engine.children() if child.name() == "java")
        intake = psutil.Process(json.loads((state / "intake/incoming/status.json").read_text())["pid"])
        with Ledger(state / "ledger.db", readonly=True) as ledger:
            settled = ledger.settled_upto("incoming")
        if not settled:
            return None
        return {
            "settled": float(settled),
            "engine_mb": engine.memory_info().rss / 1e6,
            "jvm_mb": jvm.memory_info().rss / 1e6,
            "workers_mb": sum(w.memory_info().rss for w in jvm.children(recursive=True)) / 1e6,
            "intake_mb": intake.memory_info().rss / 1e6,
            "ledger_mb": sum(path.stat().st_size for path in state.glob("ledger.db*")) / 1e6,
        }
    except (FileNotFoundError, StopIteration, psutil.NoSuchProcess, ValueError):
        return None


if __name__ == "__main__":
    main()
