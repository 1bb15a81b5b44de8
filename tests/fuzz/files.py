"""Files of every format: reading ends, positions grow, and reading on after any event gives the rest."""

from __future__ import annotations

import bz2
import csv as writing
import gzip
import io
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from signoff.sources.files.content import ContentFile
from signoff.sources.files.formats import open_reader
from signoff.sources.files.reader import Format, Shape
from signoff.sources.lines import LineSplitter
from tests.fuzz.targets import mutated, target

FOLDER = Path(tempfile.mkdtemp(prefix="signoff-fuzz-"))
LIMIT = 200
"""Bytes of the largest event."""
LINES = b'{"a":1,"b":"x"}\n{"a":2,"b":"y\xc3\xa9"}\r\n\n{"a":3}\n' * 3
CSV = b'id,note\n1,a\n2,"two\nlines"\n3,"a ""quote"""\n\n4,\xc3\xa9\n5,b\r\n' * 2


def _parquet() -> bytes:
    out = io.BytesIO()
    columns = {
        "id": list(range(12)),
        "text": [f"t{number}" for number in range(12)],
        "when": pa.array(range(12), pa.timestamp("ns")),
        "list": [[number, None] for number in range(12)],
    }
    pq.write_table(pa.table(columns), out, row_group_size=4)
    return out.getvalue()


PARQUET = _parquet()


def events(
    name: str, data: bytes, form: Format, position: int = 0, **more: object
) -> list[tuple[int, bytes]]:
    """All events of such a file, with their positions."""
    path = FOLDER / name
    path.write_bytes(data)
    content = ContentFile(path)
    reader = open_reader(content, Shape(form, **{"max_event_bytes": LIMIT, **more}), position)  # type: ignore[arg-type]
    found: list[tuple[int, bytes]] = []
    try:
        for _ in range(10 * len(data) + 100):
            piece = reader.read(3)
            if piece is None:
                break
            found += zip(map(int, piece.positions), piece.payload.to_pylist(), strict=True)
            for reason in piece.errors.values():
                reason.encode()
        else:
            raise AssertionError("reading does not come to an end")
        reader.damaged.encode()
    finally:
        reader.close()
        content.close()
    places = [place for place, _ in found]
    assert places == sorted(places), places
    return found


def must_resume(name: str, data: bytes, form: Format, generator: random.Random, **more: object) -> None:
    """Reading on after any event gives what would have come after it."""
    found = events(name, data, form, **more)
    if found and "damaged" not in name:
        index = generator.randrange(len(found))
        place = found[index][0]
        if sum(one == place for one, _ in found) == 1 and found[index][1]:
            rest = events(name, data, form, place, **more)
            assert [payload for _, payload in rest] == [payload for _, payload in found[index + 1 :]]


@target("lines", weight=15)
def lines(generator: random.Random) -> None:
    must_resume("a.jsonl", mutated(generator, LINES), "jsonl", generator)


@target("stdin", weight=60)
def chunks(generator: random.Random) -> None:
    """Lines in chunks as a pipe gives them: each is one event, whole or with an error."""
    data = mutated(generator, LINES)
    if generator.random() < 0.3:
        data += b"x" * generator.choice((LIMIT - 1, LIMIT, LIMIT + 1, 3 * LIMIT))
        data += generator.choice((b"", b"\n", b"\r\n", b"\r", b"\r\r\n"))
        data += generator.choice((b"", b"y"))
    splitter = LineSplitter(LIMIT)
    found: list[tuple[bytes, bool]] = []
    place = 0
    while place < len(data):
        size = generator.choice((1, 3, 50, 1000))
        splitter.feed(data[place : place + size])
        place += size
        found += _taken(splitter, generator)
    splitter.finish()
    found += _taken(splitter, generator)
    lines = [line.removesuffix(b"\r") for line in data.split(b"\n")]
    wanted = [line for line in lines if line]
    assert len(found) == len(wanted), (found, wanted)
    for (payload, failed), line in zip(found, wanted, strict=True):
        assert failed == (len(line) > LIMIT), (payload, line)
        assert line.startswith(payload) if failed else payload == line, (payload, line)


def _taken(splitter: LineSplitter, generator: random.Random) -> list[tuple[bytes, bool]]:
    found = []
    while (piece := splitter.take(generator.choice((1, 2, 100)))) is not None:
        found += [(payload, row in piece.errors) for row, payload in enumerate(piece.payload.to_pylist())]
    return found


@target("gzip", weight=15)
def packed(generator: random.Random) -> None:
    data = gzip.compress(mutated(generator, LINES), mtime=0)
    if generator.random() < 0.7:
        data = mutated(generator, data, most=3)
    events("a.jsonl.gz", data, "jsonl")


@target("bzip2", weight=15)
def bzip2(generator: random.Random) -> None:
    """Several streams are one file; damage in one gives nothing that was not there."""
    _streams("bz2", bz2.compress, generator, checked=True)


@target("zstd", weight=15)
def zstd(generator: random.Random) -> None:
    _streams("zst", lambda data: bytes(pa.compress(data, "zstd", asbytes=True)), generator, checked=False)


def _streams(
    suffix: str, packed_by: Callable[[bytes], bytes], generator: random.Random, *, checked: bool
) -> None:
    pieces = [mutated(generator, LINES) for _ in range(generator.choice((1, 1, 2, 4)))]
    if generator.random() < 0.2:
        pieces.insert(generator.randrange(len(pieces) + 1), b"")
    data = b"".join(map(packed_by, pieces))
    wanted = [payload for _, payload in events("a.jsonl", b"".join(pieces), "jsonl")]
    if generator.random() < 0.4:
        must_resume(f"a.jsonl.{suffix}", data, "jsonl", generator)
        assert [payload for _, payload in events(f"a.jsonl.{suffix}", data, "jsonl")] == wanted
        return
    found = [payload for _, payload in events(f"a.jsonl.{suffix}", mutated(generator, data, most=3), "jsonl")]
    if checked:
        whole = b"".join(pieces)
        assert all(payload in whole for payload in found), found


@target("csv", weight=15)
def csv(generator: random.Random) -> None:
    data = mutated(generator, CSV)
    must_resume("a.csv", data, "csv", generator, header=generator.random() < 0.7)


@target("csv-rows", weight=15)
def csv_rows(generator: random.Random) -> None:
    """What a writer of CSV has written comes out as it was."""
    signs = generator.choice(('ab"', "a,b\n", 'é";\r\n', " \t'", '😀\\,"'))
    rows = [
        ["".join(generator.choices(signs, k=generator.randint(0, 6))) or "x" for _ in range(3)]
        for _ in range(generator.randint(1, 8))
    ]
    out = io.StringIO(newline="")
    quoting = generator.choice((writing.QUOTE_MINIMAL, writing.QUOTE_ALL))
    if "\r" in signs:  # Python's writer would leave it without quotes, and it ends a row
        quoting = writing.QUOTE_ALL
    end = generator.choice(("\n", "\r\n"))
    writing.writer(out, quoting=quoting, lineterminator=end).writerows([["p", "q", "r"], *rows])
    found = events("b.csv", out.getvalue().encode(), "csv")
    wanted = [dict(zip("pqr", row, strict=True)) for row in rows]
    assert [json.loads(payload) for _, payload in found] == wanted, out.getvalue()


@target("parquet-rows", weight=10)
def parquet_rows(generator: random.Random) -> None:
    """Each row of a table is one event, whatever its values."""
    kinds = (
        pa.int64(), pa.float64(), pa.string(), pa.binary(), pa.timestamp("ns"), pa.timestamp("us", "UTC"),
        pa.date32(),
        pa.decimal128(38, 3), pa.bool_(), pa.time64("ns"), pa.duration("us"), pa.list_(pa.int32()),
    )  # fmt: skip
    number = generator.randint(1, 9)
    columns = {f"c{place}": _column(generator, generator.choice(kinds), number) for place in range(3)}
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, row_group_size=generator.choice((1, 4, 100)))
    found = events("b.parquet", out.getvalue(), "parquet", max_event_bytes=100_000)
    assert len(found) == number, (columns, found)


def _column(generator: random.Random, kind: pa.DataType, number: int) -> pa.Array:
    width = {64: 8, 32: 4, 128: 16}.get(
        getattr(kind, "bit_width", 0) if pa.types.is_primitive(kind) or pa.types.is_decimal(kind) else 0
    )
    if pa.types.is_boolean(kind) or width is None:
        values: list[Any] = [None, *([[1, None]] if pa.types.is_list(kind) else [True])]
        if pa.types.is_string(kind) or pa.types.is_binary(kind):
            values = [None, b"", b"x", b"\xff" if pa.types.is_binary(kind) else "é".encode()]
            return pa.array([generator.choice(values) for _ in range(number)], pa.binary()).cast(kind)
        return pa.array([generator.choice(values) for _ in range(number)], kind)
    edges = (bytes(width), b"\xff" * width, b"\xff" * (width - 1) + b"\x7f", b"\x00" * (width - 1) + b"\x80")
    cells = [generator.choice((*edges, generator.randbytes(width))) for _ in range(number)]
    return pa.Array.from_buffers(kind, number, [None, pa.py_buffer(b"".join(cells))])


@target("parquet", weight=10)
def parquet(generator: random.Random) -> None:
    events("a.parquet", mutated(generator, PARQUET, most=4), "parquet")
