"""Bodies of requests that are still arriving, and the memory they take.

Invariants: what is reserved for a body is given back however its request ends, or goes on with the request
into the inbox; one client address has more than half of the room only while nobody else needs it; a body
that does not come forward makes room for one that does, and one that was given up is never taken for a whole
one. Used by the server's thread only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from signoff.sources.http.requests import WAITING_BYTES, Inbox, Reply, turned_away

_CLIENT_BYTES = WAITING_BYTES // 2
_STALLED_S = 2.0
_FORWARD_BYTES = 64 * 1024
"""A body from which less than this has come in the last seconds is stalled."""


class Rejected(Exception):
    """The request is answered at once."""

    def __init__(self, answer: Reply) -> None:
        self.answer = answer
        super().__init__(answer.body.get("error"))


class Upload:
    """One body."""

    def __init__(self, uploads: Uploads, client: str) -> None:
        self.client, self._uploads = client, uploads
        self.size = 0
        """Bytes that are reserved for it."""
        self.body = bytearray()
        self.cut: Callable[[], None] = lambda: None
        """Ends the reading of it."""
        self.ended = False
        """It was given up: what still comes of it is not the body."""
        self.forward_at, self._forward_size = uploads.clock(), 0

    def add(self, chunk: bytes) -> None:
        """Keep what has come; raises Rejected when there is no room for it."""
        self.require_whole()
        self._uploads.reserve(self, len(chunk))
        self.size += len(chunk)
        self.body += chunk
        if self.size - self._forward_size >= _FORWARD_BYTES:
            self.forward_at, self._forward_size = self._uploads.clock(), self.size

    def require_whole(self) -> None:
        """Raise Rejected when the body was given up, since then a part of it is missing. The reading may come
        to its end before it is cut off."""
        if self.ended:
            error = "the body came too slowly, and others needed its room; nothing was taken"
            raise Rejected(Reply(408, {"error": error}, {"Connection": "close"}))

    def hand_over(self) -> None:
        """The bytes are the inbox's now."""
        self._uploads.forget(self)
        self.size = 0

    def end(self) -> None:
        """Give back what is still reserved. May be called again."""
        self._uploads.forget(self)
        self.ended = True
        size, self.size = self.size, 0
        self.body = bytearray()
        self._uploads.inbox.release(size)


class Uploads:
    """All bodies that are arriving."""

    def __init__(self, inbox: Inbox, clock: Callable[[], float] = time.monotonic) -> None:
        self.inbox, self.clock = inbox, clock
        self._open: dict[Upload, None] = {}

    def begin(self, client: str) -> Upload:
        upload = Upload(self, client)
        self._open[upload] = None
        return upload

    def forget(self, upload: Upload) -> None:
        self._open.pop(upload, None)

    def reserve(self, upload: Upload, more: int) -> None:
        """Reserve more bytes for a body. Where there is no room, those that are stalled make it, then those
        of an address that has more than its half."""
        others = [each for each in self._open if each is not upload]
        while not self.inbox.reserve(more):
            if self._cut_slowest(others):
                continue
            own = [each for each in others if each.client == upload.client]
            if any(each.size for each in own) and self._together(own) + upload.size + more > _CLIENT_BYTES:
                error = "too many bytes of requests from your address have not arrived completely yet"
                raise Rejected(Reply(429, {"error": f"{error}; nothing was taken"}, {"Retry-After": "1"}))
            if not self._cut_greediest(others):
                error = "more requests than the log takes at the moment; nothing was taken"
                raise Rejected(turned_away(error))

    @staticmethod
    def _together(uploads: Iterable[Upload]) -> int:
        return sum(each.size for each in uploads)

    def _cut_slowest(self, uploads: Iterable[Upload]) -> bool:
        """Give up the body that is stalled for longest; false where none is."""
        before = self.clock() - _STALLED_S
        stalled = [each for each in uploads if each.size and each.forward_at < before]
        if not stalled:
            return False
        self._cut(stalled)
        return True

    def _cut_greediest(self, uploads: Iterable[Upload]) -> bool:
        """Give up a body of an address that has more than its half of the room, with others; false where
        there is none."""
        by_client: dict[str, list[Upload]] = {}
        for each in uploads:
            if each.size:
                by_client.setdefault(each.client, []).append(each)
        for bodies in by_client.values():
            if len(bodies) > 1 and self._together(bodies) > _CLIENT_BYTES:
                self._cut(bodies)
                return True
        return False

    @staticmethod
    def _cut(uploads: Iterable[Upload]) -> None:
        slowest = min(uploads, key=lambda upload: upload.forward_at)
        slowest.end()
        slowest.cut()
