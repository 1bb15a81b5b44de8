"""Files of every format: reading ends, positions grow, and reading on after any event gives the rest."""

from __future__ import annotations

import gzip
import io
import random
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from signoff.sources.file_content import ContentFile
from signoff.sources.file_formats import open_reader
from signoff.sources.file_reader import Format, Shape
from tests.fuzz.targets import mutated, target

FOLDER = Path(tempfile.mkdtemp(prefix="signoff-fuzz-"))
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
    reader = open_reader(content, Shape(form, **{"max_event_bytes": 200, **more}), position)  # type: ignore[arg-type]
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


@target("gzip", weight=15)
def packed(generator: random.Random) -> None:
    data = gzip.compress(mutated(generator, LINES), mtime=0)
    if generator.random() < 0.7:
        data = mutated(generator, data, most=3)
    events("a.jsonl.gz", data, "jsonl")


@target("csv", weight=15)
def csv(generator: random.Random) -> None:
    data = mutated(generator, CSV)
    must_resume("a.csv", data, "csv", generator, header=generator.random() < 0.7)


@target("parquet", weight=10)
def parquet(generator: random.Random) -> None:
    events("a.parquet", mutated(generator, PARQUET, most=4), "parquet")
