"""Tokens of a tenant: what each may do, until when. Of a token only a hash is kept.

A token is `signoff_<id>_<secret>`, the secret of 256 random bits, so that a plain hash protects it as well
as a slow one would. It is shown once, when it is made. What may be done grows: `view` looks, `operate` also
starts, stops, replays and drops, `administer` also submits and deletes pipelines, and keeps secrets and
tokens.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from signoff.durable import write_whole

Role = Literal["view", "operate", "administer"]
ROLES: tuple[Role, ...] = get_args(Role)
_SHAPE = re.compile(r"signoff_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


@dataclass(frozen=True)
class Token:
    """One token, without its secret."""

    id: str
    name: str
    role: Role
    hash: str
    made_at: float
    expires_at: float | None = None
    revoked_at: float | None = None

    def may(self, role: Role) -> bool:
        return ROLES.index(self.role) >= ROLES.index(role)

    def holds(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class LastAdministrator(Exception):
    """Without this token nobody could make another one."""


class Tokens:
    """The tokens of one tenant, in a file that is replaced whole. A token that was revoked stays in it, so
    that the trail of what was done with it can be read."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock, self._lock = path, clock, threading.Lock()
        self._tokens: dict[str, Token] = {}
        if path.exists():
            self._tokens = {each["id"]: Token(**each) for each in json.loads(path.read_bytes())}

    def make(self, name: str, role: Role, expires_at: float | None = None) -> tuple[Token, str]:
        """A new token, and what its holder sends."""
        token, sent = self.draft(name, role, expires_at)
        self.add(token)
        return token, sent

    def draft(self, name: str, role: Role, expires_at: float | None = None) -> tuple[Token, str]:
        """The same, but it may be used only when it was added."""
        identity, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        token = Token(identity, name, role, _hash(secret), self._clock(), expires_at)
        return token, f"signoff_{identity}_{secret}"

    def add(self, token: Token) -> None:
        with self._lock:
            self._write({**self._tokens, token.id: token})

    def find(self, sent: str) -> Token | None:
        """The token that was sent, if it is one and may be used."""
        shape = _SHAPE.fullmatch(sent)
        token = self._tokens.get(shape[1]) if shape else None
        if shape is None or token is None or not hmac.compare_digest(_hash(shape[2]), token.hash):
            return None
        return token if token.holds(self._clock()) else None

    def get(self, identity: str) -> Token | None:
        """A token by its id, if it may be used."""
        token = self._tokens.get(identity)
        return token if token is not None and token.holds(self._clock()) else None

    def all(self) -> list[Token]:
        return list(self._tokens.values())

    def revoke(self, identity: str) -> bool:
        """Whether there was such a token. From now on nobody can use it. Raises LastAdministrator."""
        with self._lock:
            token = self._tokens.get(identity)
            if token is None:
                return False
            if self._administers(token) and not self.administered(but=identity):
                raise LastAdministrator
            if token.revoked_at is None:
                self._write({**self._tokens, identity: replace(token, revoked_at=self._clock())})
            return True

    def administered(self, but: str = "") -> bool:
        """Whether anybody, but this one, may make and revoke tokens."""
        return any(self._administers(each) for each in self._tokens.values() if each.id != but)

    def _administers(self, token: Token) -> bool:
        return token.may("administer") and token.holds(self._clock())

    def _write(self, tokens: dict[str, Token]) -> None:
        write_whole(self._path, json.dumps([asdict(each) for each in tokens.values()], indent=1).encode())
        self._tokens = tokens


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
