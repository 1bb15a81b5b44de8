"""Splitting into lines, against `bytes.split`, with chunks cut anywhere."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signoff.sources.lines import LineSplitter

Line = tuple[bytes, int, bool]


def expected(data: bytes, limit: int) -> list[Line]:
    lines, place = [], 0
    pieces = data.split(b"\n")
    for number, piece in enumerate(pieces):
        place += len(piece) + (number < len(pieces) - 1)
        line = piece.removesuffix(b"\r")
        if line:
            lines.append((line[:limit], place, len(line) > limit))
    return lines


def split(chunks: list[bytes], limit: int, max_lines: int = 3) -> list[Line]:
    splitter, lines = LineSplitter(limit), []

    def take() -> None:
        while (piece := splitter.take(max_lines)) is not None:
            rows = zip(piece.payload.to_pylist(), piece.positions.tolist(), strict=True)
            lines.extend((line, place, row in piece.errors) for row, (line, place) in enumerate(rows))

    for chunk in chunks:
        splitter.feed(chunk)
        take()
    splitter.finish()
    take()
    return lines


@given(st.lists(st.binary(max_size=12).map(lambda b: bytes(b"ab\r\n"[c % 4] for c in b))), st.integers(1, 9))
def test_lines_and_positions_are_those_of_a_plain_split(chunks: list[bytes], limit: int) -> None:
    assert split([chunk for chunk in chunks if chunk], limit) == expected(b"".join(chunks), limit)


def test_the_last_line_counts_without_a_newline() -> None:
    assert split([b"one\ntw", b"o"], 100) == [(b"one", 4, False), (b"two", 7, False)]


@pytest.mark.parametrize("ending", [b"\n", b""])
def test_a_huge_line_is_cut_and_its_neighbours_are_whole(ending: bytes) -> None:
    chunks = [b"before\nxx", *[b"x" * 1000] * 100, b"x" + b"\nafter" + ending]
    lines = split(chunks, 1000)
    assert [(line[:6], bad) for line, _, bad in lines] == [
        (b"before", False),
        (b"xxxxxx", True),
        (b"after", False),
    ]
    assert len(lines[1][0]) == 1000
    assert lines[1][1] == sum(map(len, chunks)) - len(b"after" + ending)


def test_memory_is_bounded_however_long_a_line_is() -> None:
    splitter = LineSplitter(64 * 1024)
    chunk = b"x" * 64 * 1024
    tracemalloc.start()
    for _ in range(1000):
        splitter.feed(chunk)
        assert splitter.take(10) is None
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1024 * 1024
    splitter.finish()
    piece = splitter.take(10)
    assert piece is not None
    assert "65536000 bytes" in piece.errors[0]
