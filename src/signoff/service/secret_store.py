"""Secrets of a tenant: written through the API, never read through it; on disk only encrypted.

The key is a file of the service (`home`), so a backup of a tenant's directory alone shows nothing. A run gets
them in memory (`handed_secrets`), where `${secret:NAME}` finds them.

Every value that this service has seen, also one that was replaced or removed since, is masked in all that the
service answers about the tenant: a run goes on with the old one until it is started again.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken

from signoff.durable import write_whole
from signoff.errors import SignoffError
from signoff.pipeline.secrets import Register

MOST_SECRETS = 500
"""Each of them is looked for in all that is answered."""
MOST_BYTES = 64 * 1024
"""Of one value, as UTF-8."""


class Unfit(SignoffError):
    """A secret that is not kept, and why."""


class SecretStore:
    """One encrypted file, replaced whole."""

    def __init__(self, path: Path, key: bytes) -> None:
        self._path, self._fernet, self._lock = path, Fernet(key), threading.Lock()
        self._masked: Register | None = None

    def names(self) -> list[str]:
        return sorted(self._read())

    def put(self, name: str, value: str) -> None:
        """Raises Unfit."""
        if "\0" in value:
            raise Unfit("the character U+0000 is in it, which may not be in a value")
        if len(value.encode()) > MOST_BYTES:
            raise Unfit(f"it has more than {MOST_BYTES} bytes as UTF-8")
        register = self.register()
        with self._lock:
            found = self._read()
            if name not in found and len(found) >= MOST_SECRETS:
                raise Unfit(f"there are {MOST_SECRETS} secrets already")
            register.add(value)
            self._write({**found, name: value})

    def remove(self, name: str) -> bool:
        """Whether it was there."""
        with self._lock:
            found = self._read()
            if name not in found:
                return False
            del found[name]
            self._write(found)
            return True

    def values(self) -> dict[str, str]:
        """By name, for a process that runs or checks a pipeline."""
        return self._read()

    def register(self) -> Register:
        """What is masked in answers; of this tenant only."""
        with self._lock:
            if self._masked is None:
                found = Register()
                with suppress(SignoffError):  # whoever needs a value is told
                    found.add(*self._read().values())
                self._masked = found
            return self._masked

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
