"""The rows of a report until it is made of them: on disk beside it, by run and batch.

    <directory>/.<name>.report/<run>/run.json               which run, and whether its report was written
    <directory>/.<name>.report/<run>/<turn>/<batch>.rows    the rows of a batch, by input

Invariants: a batch that is committed again replaces its rows. A finished run keeps its rows until the next
one brings some, so that a changed template or a replayed dead letter makes the same report anew, and not one
of a few rows. Rows of one run are never in the report of another; but for those of letters that were replayed
when a run had come to its end, until a report has them: they were signed for.

Runs that go on in one state directory have the same id. They are told apart by their turn, which the note
names: so a kill while the rows of the one before are removed leaves none of them behind.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from signoff.durable import sync_directory, write_whole
from signoff.json_text import json_values
from signoff.private import make_private
from signoff.sinks.contract import EVENT_ID, BatchRef, RunRef

_RUN, _ROWS = "run.json", ".rows"

Rows = Mapping[str, pa.Table]
"""By input; the first column is the id."""


@dataclass(frozen=True)
class RunNote:
    """What is kept of a run."""

    id: str
    key: str = ""
    created: str = ""
    """The stamp of its report, once one was to be made: the same however often that is tried."""
    written: str = ""
    """The shape of the report that was written of all its rows; '' if there is none, or rows came since."""
    finished: bool = False
    """It has come to its end: rows of another batch are of the next run."""
    turn: int = 0
    """How many runs have come to their end before."""
    since: tuple[str, ...] = ()
    """Files of replayed letters that came after the end, and are in no report yet."""


class StagedRows:
    """The rows of one run for one report."""

    def __init__(self, place: Path, run: RunRef) -> None:
        name = hashlib.sha256(run.id.encode()).hexdigest()[:24]
        self._place, self._run, self._directory = place, run, place / name

    @property
    def note(self) -> RunNote:
        with suppress(FileNotFoundError, ValueError, TypeError):
            known = json.loads((self._directory / _RUN).read_bytes())
            return RunNote(**{**known, "since": tuple(known.get("since", ()))})
        return RunNote(self._run.id, self._run.key)

    def put(self, batch: BatchRef, rows: Rows) -> None:
        """Keep the rows of a batch; none, if it has none any more."""
        note = self._begin_anew() if self._begins_anew(batch) else self.note
        if note.finished and batch.replay:
            note = replace(note, since=tuple(dict.fromkeys((*note.since, self._path(batch).name))))
        self._write_note(replace(note, written=""))
        make_private(self._rows)
        if rows:
            write_whole(self._path(batch), pack(rows))
        else:
            self._path(batch).unlink(missing_ok=True)
            sync_directory(self._rows)

    def count(self, without: BatchRef | None = None) -> int:
        """How many rows there are, those of one batch apart."""
        files, skipped = self._files(), None if without is None else self._path(without)
        if without is not None and self._begins_anew(without):
            files = self._unreported()
        return sum(_head(path)[1] for path in files if path != skipped)

    def read(self) -> dict[str, pa.Table]:
        """All rows, by input, each once."""
        found: dict[str, list[pa.Table]] = {}
        for path in self._files():
            for name, table in unpack(path.read_bytes()).items():
                found.setdefault(name, []).append(table)
        return {name: _united(tables) for name, tables in found.items()}

    def stamp(self) -> datetime:
        """When the report of these rows was first to be made."""
        note = self.note
        if not note.created:
            began = self._run.began_at or datetime.now(UTC).replace(microsecond=0)
            note = replace(note, created=began.isoformat())
            self._write_note(note)
        return datetime.fromisoformat(note.created)

    def mark_written(self, shape: str, *, finished: bool) -> None:
        note = self.note
        self._write_note(replace(note, written=shape, finished=finished or note.finished, since=()))

    def renew_stamp(self) -> None:
        """The report is to be made anew, of other rows or in another shape."""
        if self.note.created:
            self._write_note(replace(self.note, created=""))

    def forget_others(self) -> None:
        """Remove rows of runs that this one takes the place of, and of those that are done."""
        for other in self._place.glob(f"*/{_RUN}"):
            if other.parent == self._directory:
                continue
            with suppress(FileNotFoundError, ValueError, TypeError):
                note = RunNote(**json.loads(other.read_bytes()))
                if note.key == self._run.key or note.finished:
                    shutil.rmtree(other.parent, ignore_errors=True)

    def _begins_anew(self, batch: BatchRef) -> bool:
        """Whether a batch is the first of the run after one that has come to its end."""
        return self.note.finished and not batch.replay and not self._path(batch).exists()

    def _begin_anew(self) -> RunNote:
        """Without the rows of the run that has come to its end. Durable when it returns."""
        note = replace(self.note, created="", written="", finished=False, turn=self.note.turn + 1, since=())
        before, rows = self._rows, self._directory / str(note.turn)
        shutil.rmtree(rows, ignore_errors=True)  # left by a kill
        make_private(rows)
        for path in self._unreported():
            write_whole(rows / path.name, path.read_bytes())
        self._write_note(note)
        shutil.rmtree(before, ignore_errors=True)
        return note

    def _unreported(self) -> list[Path]:
        """What was replayed since the end of the run before."""
        return [self._rows / name for name in self.note.since if (self._rows / name).exists()]

    def _write_note(self, note: RunNote) -> None:
        make_private(self._directory)
        write_whole(self._directory / _RUN, json.dumps(asdict(note)).encode())

    def _path(self, batch: BatchRef) -> Path:
        return self._rows / (batch.key + _ROWS)

    @property
    def _rows(self) -> Path:
        return self._directory / str(self.note.turn)

    def _files(self) -> list[Path]:
        return sorted(self._rows.glob(f"*{_ROWS}"))


def pack(rows: Rows) -> bytes:
    """Tables by name as bytes: a line that says how long each is, and the tables."""
    bodies = {name: _stream(table) for name, table in rows.items()}
    lengths = [[name, len(body)] for name, body in bodies.items()]
    count = sum(table.num_rows for table in rows.values())
    head = json.dumps({"rows": count, "inputs": lengths}).encode() + b"\n"
    return head + b"".join(bodies.values())


def unpack(content: bytes) -> dict[str, pa.Table]:
    head, _, body = content.partition(b"\n")
    found: dict[str, pa.Table] = {}
    start = 0
    for name, length in json.loads(head)["inputs"]:
        found[name] = pa.ipc.open_stream(body[start : start + length]).read_all()
        start += length
    return found


def together(parts: Iterable[bytes]) -> dict[str, pa.Table]:
    """The rows of all parts of a batch."""
    found: dict[str, list[pa.Table]] = {}
    for part in parts:
        for name, table in unpack(part).items():
            found.setdefault(name, []).append(table)
    return {name: _united(found[name]) for name in sorted(found)}


def _head(path: Path) -> tuple[list[list[object]], int]:
    with path.open("rb") as file:
        head = json.loads(file.readline())
    return head["inputs"], head["rows"]


def _stream(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return bytes(out.getvalue())


def _united(tables: Sequence[pa.Table]) -> pa.Table:
    """One table; of rows with the same id, the last. Columns whose type has changed since become texts."""
    try:
        table = pa.concat_tables(tables, promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        table = pa.concat_tables(_as_texts(tables), promote_options="permissive")
    ids = table[EVENT_ID]
    if ids.null_count or pc.count_distinct(ids).as_py() == table.num_rows:
        return table
    last = {value: index for index, value in enumerate(ids.to_pylist())}
    return table.take(pa.array(sorted(last.values())))


def _as_texts(tables: Sequence[pa.Table]) -> list[pa.Table]:
    kinds: dict[str, set[pa.DataType]] = {}
    for table in tables:
        for field in table.schema:
            kinds.setdefault(field.name, set()).add(field.type)
    changed = {name for name, found in kinds.items() if len(found) > 1}
    result = []
    for table in tables:
        for place, name in enumerate(table.column_names):
            if name in changed:
                table = table.set_column(place, name, _texts(table[name]))
        result.append(table)
    return result


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column.cast(pa.large_string())
    return pa.chunked_array([json_values(chunk) for chunk in column.chunks], pa.large_string())
