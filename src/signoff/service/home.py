"""The home of a service: all it keeps, below one directory, readable by its user only.

HOME/service.lock            one service at a time
HOME/key                     encrypts the secrets of tenants
HOME/tenants/default/        the tenant that is there from the first start
    administrator-token      written once, for the first who comes; may be removed
    tokens.json              hashes (see `tokens`)
    secrets                  encrypted (see `secret_store`)
    trail.jsonl              who changed what
    pipelines/NAME/          see `record`
    removed/                 pipelines that were deleted, on their way out
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from cryptography.fernet import Fernet

from signoff.durable import make_directory, write_whole
from signoff.errors import StateError
from signoff.private import make_private

DEFAULT = "default"


class Home:
    """The directory, and the lock on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self._lock: int | None = None

    def acquire(self) -> None:
        """Make it, or take it over; raises StateError while another service has it."""
        try:
            make_directory(self.directory.parent)
            make_private(self.directory)
            self.directory.chmod(0o700)
            lock = os.open(self.directory / "service.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            why = error.strerror or error
            raise StateError(f"the home {self.directory} cannot be made or written to: {why}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise StateError(
                f"another service has the home {self.directory}; give this one a home of its own"
            ) from None
        self._lock = lock

    def release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def key(self) -> bytes:
        """The key that secrets are encrypted with; made at the first start."""
        path = self.directory / "key"
        if not path.exists():
            write_whole(path, Fernet.generate_key())
        return path.read_bytes().strip()

    def tenant(self, name: str) -> Path:
        return self.directory / "tenants" / name
