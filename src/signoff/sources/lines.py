"""Bytes to lines, a chunk at a time.

What it keeps: every byte belongs to exactly one line; a line's position is the offset after its
newline, so reading can go on there; empty lines are no events; memory is bounded by one chunk plus
`max_line_bytes`, however long a line is. Of a longer line only the beginning is kept, with an error.

Splitting is done on whole chunks: the offsets of the newlines become the offsets of an Arrow array
over the same bytes with the newlines taken out. `bytes.split` with one object per line is four
times slower.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from signoff.sources.events import KEPT_BYTES, Offsets, Piece, piece, too_large

NEWLINE, RETURN = 10, 13


class LineSplitter:
    """Fed with chunks, asked for lines: `feed` once, then `take` until it returns None."""

    def __init__(self, max_line_bytes: int, position: int = 0) -> None:
        self._max_line_bytes = max_line_bytes
        self._kept_bytes = min(KEPT_BYTES, max_line_bytes)
        self._base = position
        """Offset of the buffer's first byte in the whole stream."""
        self._buffer = b""
        self._start = 0
        """Where in the buffer the next line begins."""
        self._ends: Offsets = np.empty(0, np.int64)
        """Offsets of the buffer's newlines."""
        self._taken = 0
        """How many of them are behind `_start`."""
        self._long: tuple[bytes, int] | None = None
        """Beginning and size so far of a line that is too long, whose end has not been seen."""
        self._ready: Piece | None = None
        self._end: int | None = None
        """Length of the whole stream, once it is known."""

    def feed(self, data: bytes) -> None:
        """Add a chunk. All complete lines of the chunk before must have been taken."""
        assert self._taken == len(self._ends), "lines of the chunk before were not taken"
        if self._long is not None:
            data = self._skip(data)
        rest = self._buffer[self._start :]
        self._base += self._start
        self._buffer, self._start, self._taken = rest + data if rest else data, 0, 0
        newlines = np.flatnonzero(np.frombuffer(data, np.uint8) == NEWLINE)
        self._ends = newlines + len(rest) if rest else newlines
        if not len(newlines) and len(self._buffer) > self._max_line_bytes + 1:  # one more: CRLF
            self._long = self._buffer[: self._kept_bytes], len(self._buffer)
            self._forget(len(self._buffer))

    def finish(self) -> None:
        """There is no more: what is left without a newline is the last line."""
        if self._long is not None:
            self._end_of_long_line(self._base)
        elif self._start < len(self._buffer):
            self._end = self._base + len(self._buffer)
            self._buffer += b"\n"
            self._ends = np.append(self._ends, len(self._buffer) - 1)

    def take(self, max_lines: int) -> Piece | None:
        """Up to `max_lines` lines, or None when another chunk is needed. May hold no event at all."""
        if self._ready is not None:
            ready, self._ready = self._ready, None
            return ready
        ends = self._ends[self._taken : self._taken + max_lines]
        if not len(ends):
            return None
        start, stop = self._start, int(ends[-1]) + 1
        lines = _split(self._buffer[start:stop], ends - start, self._max_line_bytes, self._kept_bytes)
        positions = lines.positions + (self._base + start)
        if self._end is not None:
            # The newline that `finish` made up is not in the stream and must not be counted.
            positions = np.minimum(positions, self._end)
        self._start, self._taken = stop, self._taken + len(ends)
        return Piece(lines.payload, positions, lines.errors)

    def rest(self) -> bytes:
        """The beginning of the line whose end has not been seen."""
        beginning = self._long[0] if self._long else self._buffer[self._start :]
        return beginning[: self._kept_bytes]

    def _skip(self, data: bytes) -> bytes:
        """Go over the rest of a line that is too long; returns what comes after it."""
        assert self._long is not None
        beginning, size = self._long
        end = data.find(b"\n")
        if end < 0:
            self._long = beginning, size + len(data)
            self._base += len(data)
            return b""
        self._long = beginning, size + end
        self._base += end + 1
        self._end_of_long_line(self._base)
        return data[end + 1 :]

    def _end_of_long_line(self, position: int) -> None:
        assert self._long is not None
        beginning, size = self._long
        self._ready = piece([beginning], [position], {0: too_large(size, self._max_line_bytes, "line")})
        self._long = None

    def _forget(self, size: int) -> None:
        self._base += size
        self._buffer, self._start = b"", 0


def _split(data: bytes, ends: Offsets, limit: int, kept: int) -> Piece:
    """The lines of `data`, which ends with a newline; `ends` are the offsets of its newlines."""
    starts = np.empty_like(ends)
    starts[0], starts[1:] = 0, ends[:-1] + 1
    lengths = ends - starts
    if b"\r" in data or lengths.max() > limit:
        return _split_with_care(data, starts, ends, limit, kept)
    return _lines(data.translate(None, b"\n"), lengths, ends + 1, {})


def _split_with_care(data: bytes, starts: Offsets, ends: Offsets, limit: int, kept: int) -> Piece:
    """The same where lines end with CRLF or are too long: those bytes are taken out as well."""
    raw = np.frombuffer(data, np.uint8)
    keep = np.ones(len(raw), dtype=bool)
    keep[ends] = False
    lengths = ends - starts
    returns = np.flatnonzero((lengths > 0) & (raw[ends - 1] == RETURN))
    keep[ends[returns] - 1] = False
    lengths[returns] -= 1
    errors = {}
    for line in np.flatnonzero(lengths > limit):
        keep[starts[line] + kept : ends[line]] = False
        errors[int(line)] = too_large(int(lengths[line]), limit, "line")
        lengths[line] = kept
    return _lines(raw[keep].tobytes(), lengths, ends + 1, errors)


def _lines(data: bytes, lengths: Offsets, positions: Offsets, errors: dict[int, str]) -> Piece:
    """An array of the lines that lie in `data` one after the other, without the empty ones."""
    filled = lengths > 0
    if not filled.all():
        moved = np.cumsum(filled) - 1
        errors = {int(moved[line]): reason for line, reason in errors.items()}
        lengths, positions = lengths[filled], positions[filled]
    offsets: npt.NDArray[np.int32] = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return Piece(pa.Array.from_buffers(pa.binary(), len(lengths), buffers), positions, errors)
