"""In the place of `signoff run`, without Spark: holds the run lock as the launcher does, and says of itself
what a run says of its engine and its source, and behaves as the text asks (`x-run: crashes`, …)."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from signoff.service.launch import NOT_WANTED, TAKEN
from signoff.service.record import RecordFile
from signoff.service.run_process import hold, write_name


def _drains(*_: object) -> None:
    sys.stderr.write("it is asked to stop\n")
    sys.stderr.flush()


_ON_TERM = {"stubborn": signal.SIG_IGN, "drains": _drains}


def main(directory: Path, revision: int) -> int:
    lock = hold(directory)
    if lock is None:
        return TAKEN
    write_name(lock, revision)
    records = RecordFile(directory)
    record = records.read()
    if record is None or record.wanted != "running" or record.revision != revision:
        return NOT_WANTED
    text = records.put_in_force(record).read_text()
    behaviour = next((line.split()[1] for line in text.splitlines() if line.startswith("x-run:")), "steady")
    sys.stderr.write(f"revision {revision} is {behaviour}\n")
    sys.stderr.flush()
    if behaviour == "refuses":
        return 2
    if behaviour == "crashes":
        return 1
    if behaviour == "never_ready":
        time.sleep(1000)
    if behaviour in ("stubborn", "drains"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    engine = subprocess.Popen(["sleep", "1000"])
    try:
        signal.signal(signal.SIGTERM, _ON_TERM.get(behaviour, lambda *_: sys.exit(0)))
        state = directory / "state"
        (state / "intake/incoming").mkdir(parents=True, exist_ok=True)
        (state / "engine.json").write_text(json.dumps({"pid": engine.pid, "state": "running"}))
        if behaviour == "stops":  # an engine that finds its plan wrong says so on its way out
            (state / "engine.json").write_text(json.dumps({"pid": engine.pid, "state": "stopped"}))
        status = {"pid": engine.pid, "state": "receiving"}
        (state / "intake/incoming/status.json").write_text(json.dumps(status))
        if behaviour == "stops":
            time.sleep(1)
            return 2
        time.sleep(1000)
    finally:
        engine.kill()
        engine.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
