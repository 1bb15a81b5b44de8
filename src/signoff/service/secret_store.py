"""Secrets of a tenant: written through the API, never read through it; on disk only encrypted.

The key is a file of the service (`home`), so a backup of a tenant's directory alone shows nothing. A run gets
them in its environment, as `SIGNOFF_SECRET_<NAME>`, where `${secret:NAME}` finds them.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from signoff.durable import write_whole
from signoff.errors import SignoffError
from signoff.pipeline.variables import SECRET_VARIABLE


class SecretStore:
    """One encrypted file, replaced whole."""

    def __init__(self, path: Path, key: bytes) -> None:
        self._path, self._fernet, self._lock = path, Fernet(key), threading.Lock()

    def names(self) -> list[str]:
        return sorted(self._read())

    def put(self, name: str, value: str) -> None:
        with self._lock:
            self._write({**self._read(), name: value})

    def remove(self, name: str) -> bool:
        """Whether it was there."""
        with self._lock:
            found = self._read()
            if name not in found:
                return False
            del found[name]
            self._write(found)
            return True

    def environment(self) -> dict[str, str]:
        """As a run gets them."""
        return {SECRET_VARIABLE + name: value for name, value in self._read().items()}

    def _read(self) -> dict[str, str]:
        try:
            sealed = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            found: dict[str, str] = json.loads(self._fernet.decrypt(sealed))
        except InvalidToken:
            raise SignoffError(
                f"[service-key] {self._path} was not written with the key of this service; put the key file "
                "back that belongs to this home"
            ) from None
        return found

    def _write(self, secrets: dict[str, str]) -> None:
        write_whole(self._path, self._fernet.encrypt(json.dumps(secrets).encode()))
