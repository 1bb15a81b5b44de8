"""`python -m signoff.service.launch DIRECTORY REVISION SECRETS`: becomes the run of a hosted pipeline.

It takes the pipeline's run lock, says who it is, looks whether the run is still wanted, and is replaced
(`exec`) by `signoff run`, which keeps the lock and the pid, and gets the secrets (`handed_secrets`). So there
is no moment in which a run is alive and a service, also one that was started just now, does not see it, and
there are never two.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from signoff.service.handed_secrets import take
from signoff.service.record import RecordFile
from signoff.service.run_process import hold, write_name

TAKEN, NOT_WANTED = 75, 76
"""Exit codes: another run has the lock; the record says something else by now."""
DRAIN_S = 24 * 3600
"""How long a run finishes what is in flight; the service asks again when its own time is up."""


def main(directory: Path, revision: int, secrets: int) -> int:
    """Returns an exit code, or not at all."""
    lock = hold(directory)
    if lock is None:
        return TAKEN
    write_name(lock, revision)  # at once: whoever looks sees that there is somebody
    records = RecordFile(directory)
    record = records.read()
    if record is None or record.wanted != "running" or record.revision != revision:
        return NOT_WANTED
    file = records.put_in_force(record)
    take(secrets)
    os.set_inheritable(lock, True)
    os.chdir(directory)
    program = [sys.executable, "-m", "signoff.cli", "run", file.name]
    return os.execv(
        sys.executable, [*program, "--quiet", "--log-format", "json", "--drain-seconds", str(DRAIN_S)]
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
