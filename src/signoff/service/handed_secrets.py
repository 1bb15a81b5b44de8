"""How the secrets of a tenant reach a process that needs them: as a file in memory, without a name. Other
users cannot open it; other processes of the same user can, by /proc.

Not in the environment: that is bounded (2 MiB for all of it, 128 KiB for each), so that one long secret would
keep every process from starting, and Java and Spark show it. Not on disk, where they are encrypted only.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from signoff.pipeline.variables import KEPT_SECRETS

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@contextmanager
def handed_over(secrets: Mapping[str, str]) -> Iterator[int]:
    """A descriptor to be passed on to one process, which calls `take`; nobody can change what it holds."""
    file = os.memfd_create("signoff-secrets", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(file, "wb", closefd=False) as content:
            content.write(json.dumps(dict(secrets)).encode())
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        yield file
    finally:
        os.close(file)


def take(file: int) -> None:
    """For the process that got it: have `${secret:NAME}` find the secrets, also in what this process becomes
    and starts, for as long as it lives."""
    os.set_inheritable(file, True)
    os.environ[KEPT_SECRETS] = f"/proc/{os.getpid()}/fd/{file}"
