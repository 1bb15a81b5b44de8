"""CSV files: one event a row."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator

import orjson

from signoff.sources.events import KEPT_BYTES, Piece, piece, too_large
from signoff.sources.files.compressed import Damaged
from signoff.sources.files.content import ContentFile
from signoff.sources.files.reader import (
    BYTE_ORDER_MARK,
    CHUNK_BYTES,
    ROWS,
    Reader,
    Shape,
    open_stream,
)


class CsvReader(Reader):
    """CSV: one event a row, as a JSON object of strings by the names in the header.

    A row that is wrong is an event with an error and its raw text. After a quote that is never
    closed, reading goes on with the line after the one it is in: one line is bad, not the rest. The lines
    up to where that was noticed are then rows by themselves, so no line is parsed more than a few times.
    """

    def __init__(self, content: ContentFile, shape: Shape, position: int) -> None:
        self._file, self._shape = open_stream(content), shape
        self.position = 0
        self._resume = position
        self._taken: list[bytes] = []
        """Raw lines of the row that is being read."""
        self._taken_bytes = 0
        self._again: deque[bytes] = deque()
        """Raw lines to be read once more, after a quote that was never closed."""
        self._singles = 0
        """How many of them are rows by themselves."""
        self._alone = False
        """The row that is being read is one of these."""
        self._rows = self._parser()
        self._names: list[str] | None = None
        self._ended = False

    def read(self, max_events: int) -> Piece | None:
        if self._ended:
            return None
        payloads: list[bytes] = []
        positions: list[int] = []
        errors: dict[int, str] = {}
        try:
            if self.position == 0:
                self._begin()
            size = 0
            while not self._ended and len(payloads) < min(max_events, ROWS) and size < CHUNK_BYTES:
                payload, error = self._row()
                size += len(payload)
                if payload:
                    if error:
                        errors[len(payloads)] = error
                    payloads.append(payload)
                    positions.append(self.position)
        except Damaged as failure:
            self.damaged, self._ended = f"file is damaged: {failure}", True
            errors[len(payloads)] = self.damaged
            payloads.append(b"")
            positions.append(self.position)
        return piece(payloads, positions, errors) if payloads else None

    def _begin(self) -> None:
        """Read the names, and go to where reading stopped."""
        if self._file.peek(3)[:3] == BYTE_ORDER_MARK:  # type: ignore[attr-defined]
            self.position = len(self._file.read(3))
        if self._shape.header:
            names, error = self._parsed()
            self._names = names
            if error:
                raise Damaged(f"the header is not CSV: {error}")
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                raise Damaged(f"the header names {twice[0]!r} twice")
        if self._resume > self.position:
            self._file.seek(self._resume)
            self.position = self._resume
            self._again.clear()
            self._singles = 0
            self._rows = self._parser()

    def _row(self) -> tuple[bytes, str]:
        """The next row as payload and error; an empty payload for an empty line and at the end."""
        fields, error = self._parsed()
        if error:
            return self._bad(error)
        if not fields:
            return b"", ""
        names = self._names or [f"_c{place}" for place in range(len(fields))]
        if len(fields) != len(names):
            return self._bad(f"row has {len(fields)} fields, the header has {len(names)}")
        try:
            return orjson.dumps(dict(zip(names, fields, strict=True))), ""
        except orjson.JSONEncodeError:
            return self._bad("row is not valid UTF-8")

    def _bad(self, error: str) -> tuple[bytes, str]:
        """The raw text of a row with what is wrong with it; cut only if it is larger than an event may be."""
        raw, limit = self._raw, self._shape.max_event_bytes
        if len(raw) > limit:
            raw = raw.removesuffix(b"\n")
        if len(raw) <= limit:
            return raw, error
        error = error if "only the beginning" in error else f"{error}; only the beginning is kept"
        return raw[: min(KEPT_BYTES, limit)], error

    def _parsed(self) -> tuple[list[str], str]:
        """The fields of the next row, or the reason why its first line is not one."""
        self._taken, self._taken_bytes = [], 0
        error = ""
        fields: list[str] = []
        try:
            fields = next(self._rows)
        except StopIteration:
            self._ended = True
        except csv.Error as failure:
            error = f"row is not CSV: {failure}"
            if len(self._taken) > 1:
                # A quoted field that begins between them would have been an error there. One may begin in
                # the last.
                self._singles = len(self._taken) - 2
                self._again.extendleft(reversed(self._taken[1:]))
                self._taken = self._taken[:1]
            self._rows = self._parser()
        self._raw = b"".join(self._taken)
        self.position += len(self._raw)
        return fields, error

    def _parser(self) -> Iterator[list[str]]:
        csv.field_size_limit(max(csv.field_size_limit(), self._shape.max_event_bytes))
        shape = self._shape
        return csv.reader(
            self._lines(),
            delimiter=shape.delimiter,
            quotechar=shape.quote,
            escapechar=shape.escape,
            quoting=csv.QUOTE_MINIMAL if shape.quote else csv.QUOTE_NONE,
            strict=True,
        )

    def _lines(self) -> Iterator[str]:
        limit = self._shape.max_event_bytes
        while True:
            if not self._taken:
                self._alone = self._singles > 0
                self._singles -= self._alone
            elif self._alone:
                raise csv.Error("a quote is not closed")
            raw = self._again.popleft() if self._again else self._file.readline(limit + 2)
            if not raw:
                return
            self._taken.append(raw)
            self._taken_bytes += len(raw)
            if self._taken_bytes > limit + 1:
                raise csv.Error(self._too_long(limit))
            yield raw.decode("utf-8", "surrogateescape")

    def _too_long(self, limit: int) -> str:
        """Go over the rest of a line that is too long, without holding it."""
        line = self._taken[-1]
        if len(self._taken) > 1 or line.endswith(b"\n"):
            return too_large(self._taken_bytes, limit, "row")
        size = len(line)
        while rest := self._file.readline(CHUNK_BYTES):
            size += len(rest)
            if rest.endswith(b"\n"):
                break
        self.position += size - len(line)
        return too_large(size, limit, "row")

    def close(self) -> None:
        self._file.close()
