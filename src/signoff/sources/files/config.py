"""The fields of the source `files`, and what follows from them alone: formats, and where read files go."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from signoff.globs import pattern_of
from signoff.pipeline.model import SourceConfig, TypedRows
from signoff.sources.contract import Source
from signoff.sources.files.compressed import is_packed, without_packing
from signoff.sources.files.follow import FollowRules, FollowSource
from signoff.sources.files.matching_paths import Places
from signoff.sources.files.read_before import read_in_common
from signoff.sources.files.reader import Format, Shape
from signoff.sources.files.registry import DATABASE
from signoff.sources.files.search import Rules
from signoff.sources.files.settling import Policy

SUFFIXES: dict[str, Format] = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"
}  # fmt: skip


class FilesConfig(SourceConfig):
    """JSONL, text, CSV or Parquet files in a directory or glob."""

    summary: ClassVar[str] = "Reads files; a file is acknowledged when its last event is settled."
    type: Literal["files"] = "files"
    path: str = Field(min_length=1)
    """A file, a directory (the files directly in it) or a glob such as `./in/**/*.jsonl`."""
    format: Literal["auto", "jsonl", "text", "csv", "parquet"] = "auto"
    """What is in the files; `auto` goes by the suffix (`.jsonl`, `.csv`, `.parquet`, else text; what has
    a further `.gz`, `.bz2`, `.zst` or `.zstd` is decompressed). jsonl and text: an event is a line. csv and
    parquet: an event is a row, as a JSON object."""
    header: bool = True
    """csv: the first row holds the names; otherwise they are `_c0`, `_c1`, …"""
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    """csv: what separates the fields."""
    quote: Annotated[str, Field(min_length=1, max_length=1)] | None = '"'
    """csv: what encloses a field that holds delimiters or line breaks; null: nothing does."""
    escape: Annotated[str, Field(min_length=1, max_length=1)] | None = None
    """csv: what precedes a quote inside a quoted field; null: the quote is written twice."""
    schema_: str | None = Field(default=None, alias="schema")
    """csv: columns and types, as in Spark SQL: `id BIGINT NOT NULL, at TIMESTAMP, price DECIMAL(10,2)`. What
    reads the source gets these columns instead of `payload`, by the names in the header (further columns of
    the file are left out), or without a header in their order. A row with a value that does not fit is a
    dead letter that names column, value and type. Left out: the payload is an object of texts."""
    null_values: tuple[str, ...] = ("",)
    """csv with `schema`: texts that mean null."""
    timestamp_format: str | None = None
    """csv with `schema`: Spark datetime pattern of TIMESTAMP columns; by default ISO 8601."""
    date_format: str | None = None
    """csv with `schema`: Spark datetime pattern of DATE columns; by default ISO 8601."""
    keep: tuple[str, ...] = ()
    """csv with `schema`: what goes on besides its columns: `headers`, `payload`, `message_id` or
    `received_at`."""
    on_acknowledge: Literal["keep", "move", "delete"] = "keep"
    """What happens to a file when all its events are settled."""
    move_to: str | None = None
    """Where acknowledged files go; null is a directory `acknowledged` next to the file."""
    on_refuse: Literal["keep", "move"] = "keep"
    """What happens instead to a file of which an event was refused, or that cannot be read."""
    refused_to: str | None = None
    """Where such files go; null is a directory `refused` next to the file."""
    settle_ms: int = Field(default=200, ge=0)
    """How long a file must be unchanged before it is read; a run with `--once` does not wait."""
    poll_ms: int = Field(default=200, ge=10)
    """How often to look for new files."""
    follow: bool = False
    """Follow files that are written to, as `tail -F` does: each line is an event as soon as it is complete,
    also through rotation by rename or by copying and truncating. For lines (jsonl, text) in kept files."""
    rotate_wait_ms: int = Field(default=5_000, ge=0)
    """follow: how long a file that was renamed must be unchanged before it is closed, with its last line."""
    file_header: bool = True
    """Whether each event carries the path of its file as header `file`."""

    @model_validator(mode="after")
    def _follows_lines(self) -> Self:
        if self.follow and self.format in ("csv", "parquet"):
            raise ValueError("follow: true reads lines; use format jsonl or text, and parse_csv for CSV")
        if self.follow and self.takes_files_away():
            raise ValueError("follow: true keeps files: remove on_acknowledge and on_refuse")
        return self

    @model_validator(mode="after")
    def _csv_fits_together(self) -> Self:
        signs = [sign for sign in (self.delimiter, self.quote, self.escape) if sign is not None]
        if len(set(signs)) < len(signs) and self.escape != self.quote:
            raise ValueError("delimiter, quote and escape must be different characters")
        for name, sign in ("delimiter", self.delimiter), ("quote", self.quote), ("escape", self.escape):
            if sign is not None and sign in "\r\n\0":
                raise ValueError(f"a line break or NUL cannot be the {name}")
        if self.schema_ is None:
            for name in ("null_values", "timestamp_format", "date_format", "keep"):
                if name in self.model_fields_set:
                    raise ValueError(f'"{name}" needs a "schema"')
        elif not self.is_csv:
            raise ValueError('a schema is for CSV: write "format: csv", or parse the lines with a transform')
        return self

    @property
    def is_csv(self) -> bool:
        """Whether its files are CSV, as far as format and path say."""
        named = self.format == "auto" and ".csv" in PurePath(self.path).name.lower()
        return not self.follow and (self.format == "csv" or named)

    @property
    def typed_rows(self) -> TypedRows | None:
        if self.schema_ is None:
            return None
        return TypedRows(
            self.schema_,
            self.header,
            self.null_values,
            self.timestamp_format,
            self.date_format,
            self.keep,
        )

    def reads(self, base: Path) -> str:
        return pattern_of(base, self.path)

    def writes(self, base: Path) -> tuple[tuple[Path, str], ...]:
        return tuple((directory, "*") for _, directory, _ in self.puts_away(base) if directory)

    def puts_away(self, base: Path) -> tuple[tuple[str, Path | None, str], ...]:
        targets = (
            (self.on_acknowledge == "move", "move_to", self.move_to, "acknowledged"),
            (self.on_refuse == "move", "refused_to", self.refused_to, "refused"),
        )
        return tuple(
            (field, None if target is None else (base / target).resolve(), name)
            for moves, field, target, name in targets
            if moves
        )

    def belongs_to_project(self, base: Path) -> bool:
        away = tuple((directory, name) for _, directory, name in self.puts_away(base))
        return Places(self.reads(base), str(base / self.path), away).lie_within(base)

    def read_before(self, base: Path, notes: Path) -> int:
        return read_in_common(notes / DATABASE, base, self.path)

    def takes_files_away(self) -> bool:
        return self.on_acknowledge != "keep" or self.on_refuse != "keep"

    def shape_of(self, name: str) -> Shape:
        """How a file of this name is to be read."""
        path = without_packing(PurePath(name))
        form: Format = SUFFIXES.get(path.suffix.lower(), "text") if self.format == "auto" else self.format
        escape = None if self.escape == self.quote else self.escape
        return Shape(form, self.max_event_bytes, self.delimiter, self.header, self.quote, escape)

    def is_parquet(self, name: str) -> bool:
        return self.shape_of(name).format == "parquet"

    def can_grow(self, name: str) -> bool:
        """Whether more bytes at the end of such a file are simply more events."""
        return not self.is_parquet(name) and not is_packed(name)

    def search_rules(self, base: Path, once: bool) -> Rules:
        away = tuple((directory, name) for _, directory, name in self.puts_away(base))
        settle_ms = 0 if once else self.settle_ms
        return Rules(self.path, settle_ms, self.poll_ms, away, self.on_acknowledge != "keep")

    def settling_policy(self, base: Path) -> Policy:
        acknowledged = _target(base, self.move_to, "acknowledged")
        refused = _target(base, self.refused_to, "refused")
        return Policy(
            acknowledged if self.on_acknowledge == "move" else None,
            refused if self.on_refuse == "move" else None,
            self.on_acknowledge == "delete",
        )

    def build(self, base: Path) -> Source:
        if self.follow:
            rules = FollowRules(
                self.path, self.max_event_bytes, self.poll_ms, self.rotate_wait_ms, self.file_header
            )
            return FollowSource(rules, base)
        from signoff.sources.files.source import FilesSource  # which needs these fields

        return FilesSource(self, base)


def _target(base: Path, target: str | None, name: str) -> Path:
    """A name alone is a directory next to each file."""
    return Path(name) if target is None else (base / target).absolute()
