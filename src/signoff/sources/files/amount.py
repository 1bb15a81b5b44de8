"""How much of what is to be read was read, in bytes on disk, for the progress of a run that has an end."""

from __future__ import annotations


class Amount:
    """The files of a run by their sizes, each counted once."""

    def __init__(self) -> None:
        self._left: dict[str, int] = {}
        """Bytes that are to be read of each file that is not done with."""
        self._total = 0
        self._done = 0

    def found(self, path: str, size: int) -> None:
        """So many bytes of it are to be read."""
        if size > 0 and path not in self._left:
            self._left[path] = size
            self._total += size

    def done(self, path: str) -> None:
        """It was read to its end, or is gone."""
        self._done += self._left.pop(path, 0)

    def read(self, path: str | None, count: int) -> tuple[int, int]:
        """The bytes that were read, with so many of this file, and all that are to be."""
        here = 0 if path is None else min(max(count, 0), self._left.get(path, 0))
        return self._done + here, self._total
