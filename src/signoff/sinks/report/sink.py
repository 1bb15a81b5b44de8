"""Sink `report`: one document of all rows of a run, as PDF, XLSX, HTML or JSON, replaced as a whole.

    <path>.pdf, <path>.xlsx, …       the report
    <directory>/.<name>.report/      its rows so far (see `rows`), and files on their way into place

What a signature means: the rows are durable beside the report, and only the next run removes them. In a run
that has an end (`run --once`, a job) the report is made once, at the end, of all rows of the run, also if
there are none; the run is not done before. In a run without an end it is made anew with every batch.

Rows come to the driver with the results of their tasks: reports are for people, and `max_rows` bounds them.
So executors need no disk that they share with the driver.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator, model_validator

from signoff.errors import PermanentError, TransientError
from signoff.json_text import json_objects
from signoff.pipeline.model import SinkConfig
from signoff.reports import Format, MissingLibrary, Report, Template, compose, render, renderer
from signoff.reports.template import PartTemplate
from signoff.sinks.contract import (
    EVENT_ID,
    INPUT,
    BatchRef,
    Part,
    Refusal,
    RunRef,
    Sink,
    Writer,
    missing_text,
)
from signoff.sinks.disk_failures import cannot_exist, disk_failure
from signoff.sinks.refusal import brief, fit, refused
from signoff.sinks.report.edition import COLUMNS, edition_row
from signoff.sinks.report.files import ReportFiles
from signoff.sinks.report.rows import StagedRows, pack, together

_ALONE = RunRef("", bounded=False)
"""What the sink belongs to where nobody has said so."""
_TURNS: dict[Path, threading.Lock] = {}
"""By report: each source has a query of its own, in a thread of its own, and all commit to one place. Not in
the sink, which is sent to executors."""


class ReportSinkConfig(SinkConfig):
    """A report of all rows of a run."""

    summary: ClassVar[str] = (
        "A report for people (PDF, XLSX, HTML, JSON) of all rows of a run, replaced as a whole."
    )
    example: ClassVar[str] = (
        "path: ./reports/failures\nformats: [pdf, xlsx]\ntitle: Failed equipment\n"
        'content:\n  - text: "{count(NAME)} rows."\n  - {table: NAME}'
    )
    separates_inputs: ClassVar[bool] = True
    finishes: ClassVar[bool] = True
    edition_columns: ClassVar[str] = COLUMNS

    type: Literal["report"] = "report"
    path: str = Field(min_length=1)
    """The files of the report without their ending, relative to the pipeline file: `./reports/failures`."""
    formats: tuple[Format, ...] = Field(default=("html",), min_length=1)
    """`pdf`, `xlsx`, `html`, `json`; the first two need `pip install "signoff[report]"`."""
    title: str = Field(min_length=1)
    """The first thing on it; may hold numbers of the rows, as in `{count(failures)} failures`."""
    about: Mapping[str, str] = {}
    """Facts below the title, by name."""
    content: tuple[PartTemplate, ...] = ()
    """Texts, tables and charts in order (docs/reports.md); by default a table of each input."""
    timezone: str = "UTC"
    """In which times are shown, as in `Europe/Helsinki`."""
    stamp: bool = True
    """Whether the report says when it was made; without, the same rows give the same bytes."""
    font: str | None = None
    """A TrueType font for the PDF, for scripts other than Latin."""
    max_rows: int = Field(default=100_000, ge=1)
    """Most rows of all inputs together. What would be more is refused: count or select before the report."""

    @field_validator("formats")
    @classmethod
    def _each_once(cls, value: tuple[Format, ...]) -> tuple[Format, ...]:
        return tuple(dict.fromkeys(value))

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        template, inputs = self.template, self.all_inputs
        if not Path(self.path).name or self.path.endswith("/"):
            raise ValueError("`path` names the report itself, as ./reports/failures")
        for field, name in template.unknown_inputs(inputs) if inputs else ():
            raise ValueError(
                f'`{field}` names "{name}", which is no input; the inputs are {", ".join(inputs)}'
            )
        if len(inputs) > 1 and (self.buffer or self.ordered_by or self.best_effort):
            field = "buffer" if self.buffer else "ordered_by" if self.ordered_by else "best_effort"
            raise ValueError(f"`{field}` would mix the inputs of a report; it keeps its rows itself")
        return self

    @property
    def template(self) -> Template:
        return Template(title=self.title, about=self.about, content=self.content, timezone=self.timezone)

    def missing_columns(self, columns: Mapping[str, Sequence[str]]) -> tuple[str, str, Sequence[str]] | None:
        for field, name, column in self.template.unknown_columns(columns):
            return field, f"{name}.{column}", columns[name]
        return None

    def files(self, base: Path) -> tuple[Path, ...]:
        """The files of the report."""
        whole = base / self.path
        return tuple(whole.with_name(f"{whole.name}.{form}") for form in self.formats)

    def writes(self, base: Path) -> tuple[tuple[Path, str], ...]:
        return tuple((file.parent.resolve(), file.name) for file in self.files(base))

    def target(self, base: Path) -> str | None:
        return f"report {(base / self.path).resolve()}"

    def build(self, base: Path) -> ReportSink:
        try:
            for form in self.formats:
                renderer(form)
        except MissingLibrary as error:
            raise PermanentError(str(error)) from error
        return ReportSink(self, base)


class ReportSink(Sink):
    atomic: ClassVar[bool] = True
    takes_back: ClassVar[bool] = True

    def __init__(self, config: ReportSinkConfig, base: Path) -> None:
        whole = (base / config.path).absolute()
        self._config, self._whole, self._run = config, whole, _ALONE
        self._font = None if config.font is None else (base / config.font).absolute()
        self._place = whole.with_name(f".{whole.name}.report")

    def begin(self, run: RunRef) -> None:
        self._run = run

    def prepare(self) -> None:
        if self._font is not None and not self._font.is_file():
            raise PermanentError(f"there is no font {self._font}")
        try:
            self._files.prepare()
        except OSError as error:
            raise PermanentError(_says(error, self._whole.parent)) from error

    def open(self, part: Part) -> Writer:
        return _ReportWriter(part.partition, self._config.all_inputs, self._config.max_rows)

    def commit(self, batch: BatchRef, parts: Sequence[bytes]) -> None:
        with _TURNS.setdefault(self._place, threading.Lock()):
            self._commit(batch, parts)

    def _commit(self, batch: BatchRef, parts: Sequence[bytes]) -> None:
        rows = together(part.partition(b"\n")[2] for part in sorted(parts, key=_partition))
        count = sum(table.num_rows for table in rows.values())
        staged = self._staged(self._run)
        try:
            if count and (total := staged.count(without=batch) + count) > self._config.max_rows:
                raise PermanentError(_too_many(total, self._config.max_rows))
            staged.put(batch, rows)
            if not self._run.bounded:
                staged.renew_stamp()
                self._make(staged, self._run, finished=False)
        except OSError as error:
            if not rows and cannot_exist(error):
                return  # nothing of the batch was ever there
            raise disk_failure(error, _says(error, self._place)) from error
        except _Unmade as error:  # by the rows of this batch, for the report was made before
            staged.put(batch, {})
            raise PermanentError(str(error)) from error

    def finish(self, run: RunRef) -> None:
        try:
            self._make(self._staged(run), run, finished=True)
        except OSError as error:
            raise disk_failure(error, _says(error, self._whole.parent)) from error

    def edition(self, run: RunRef) -> Mapping[str, Any]:
        try:
            report = self._report(self._staged(run), run)
            paths: dict[str, Path] = {form: self._whole.with_name(name) for form, name in self._names.items()}
            return edition_row(self._whole.name, report, run, paths)
        except OSError as error:  # somebody has taken a file away: it is made again when the run goes on
            raise TransientError(f"cannot read {error.filename}: {error.strerror}") from error

    @property
    def _files(self) -> ReportFiles:
        return ReportFiles(self._whole.parent, self._place)

    def _staged(self, run: RunRef) -> StagedRows:
        return StagedRows(self._place, run)

    def _make(self, staged: StagedRows, run: RunRef, *, finished: bool) -> None:
        """Write the report, unless it is there already, of the same rows and in the same shape."""
        files, shape, written = self._files, self._shape(), staged.note.written
        names = self._names
        if written == shape and files.all_there(set(names.values())):
            if finished and not staged.note.finished:
                staged.mark_written(shape, finished=True)
            return
        if written:
            staged.renew_stamp()
        files.prepare()
        report = self._report(staged, run)
        files.publish({name: _rendered(report, form) for form, name in names.items()})
        staged.mark_written(shape, finished=finished)
        staged.forget_others()

    @property
    def _names(self) -> dict[Format, str]:
        """The file of each form."""
        return {form: f"{self._whole.name}.{form}" for form in self._config.formats}

    def _report(self, staged: StagedRows, run: RunRef) -> Report:
        found = staged.read()
        rows = {
            name: found[name].drop_columns([EVENT_ID]) if name in found else pa.table({})
            for name in self._config.all_inputs
        }
        created = staged.stamp() if self._config.stamp else None
        template = self._config.template
        template = template.model_copy(update={"about": {**template.about, **_facts(run)}})
        return _composed(template, rows, created, self._font)

    def _shape(self) -> str:
        """Changes with whatever changes the report besides its rows."""
        fields = ("formats", "title", "about", "content", "timezone", "stamp", "font")
        text = self._config.model_dump_json(include=set(fields))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class _Unmade(PermanentError):
    """No document can be made of these rows."""


def _composed(
    template: Template, rows: Mapping[str, pa.Table], created: datetime | None, font: Path | None
) -> Report:
    try:
        return compose(template, rows, created, font)
    except Exception as error:  # `compose` says so in the report; this is to be sure
        raise _Unmade(f"the report could not be made of these rows: {brief(error)}") from error


def _rendered(report: Report, form: Format) -> bytes:
    try:
        return render(report, form)
    except Exception as error:  # whatever a library thinks of strange rows: the run must be able to say so
        raise _Unmade(f"the report could not be made as {form}: {brief(error)}") from error


class _ReportWriter(Writer):
    """One task's rows, by input."""

    def __init__(self, partition: int, inputs: tuple[str, ...], most: int) -> None:
        self._partition, self._inputs, self._most = partition, inputs, most
        self._kept: dict[str, list[pa.RecordBatch]] = {}
        self._rows = 0

    def write(self, rows: pa.RecordBatch) -> Sequence[Refusal]:
        sorted_out = fit(rows)
        room = max(self._most - self._rows, 0)
        kept = sorted_out.rows.slice(0, room)
        refusals = [
            refused(index, _too_many(self._rows + sorted_out.rows.num_rows, self._most))
            for index in range(kept.num_rows, sorted_out.rows.num_rows)
        ]
        for name, table in by_input(kept, self._inputs).items():
            json_objects(table)  # a type that has no text is refused now, and not when the report is made
            self._kept.setdefault(name, []).append(table)
        self._rows += kept.num_rows
        return sorted_out.original(refusals)

    def close(self) -> bytes | None:
        if not self._rows:
            return None
        tables = {name: pa.Table.from_batches(batches) for name, batches in self._kept.items()}
        return f"{self._partition}\n".encode() + pack(tables)


def by_input(rows: pa.RecordBatch, inputs: Sequence[str]) -> dict[str, pa.RecordBatch]:
    """The rows of each input with its own columns, which come as `<input>.<column>`."""
    if INPUT not in rows.schema.names:  # nobody has separated them; so there is one
        return {inputs[0]: rows} if rows.num_rows else {}
    names, said = rows.schema.names, rows.column(rows.schema.names.index(INPUT))
    found: dict[str, pa.RecordBatch] = {}
    for name in pc.unique(said).to_pylist():
        prefix = f"{name}."
        own = [column for column in names if column.startswith(prefix)]
        chosen = rows.filter(pc.equal(said, name)).select([EVENT_ID, *own])
        found[name] = chosen.rename_columns([EVENT_ID, *(column[len(prefix) :] for column in own)])
    return found


def _facts(run: RunRef) -> dict[str, str]:
    """What a job's run says of itself: its period, and up to where its input was complete then."""
    found = {"From": run.period[0], "To": run.period[1], "Input complete to": run.complete_to}
    said = {name: _text(value) for name, value in found.items() if value is not None}
    return said | ({"Not included": missing_text(run.missing)} if run.missing else {})


def _text(value: datetime | str) -> str:
    return value if isinstance(value, str) else value.isoformat(" ").replace("+00:00", " UTC")


def _partition(part: bytes) -> int:
    return int(part.split(b"\n", 1)[0])


def _too_many(rows: int, most: int) -> str:
    return f"the report would have {rows} rows or more, and max_rows is {most}; count or select before it"


def _says(error: OSError, path: Path) -> str:
    return f"cannot write to {path}: {error.strerror or brief(error)}"
