"""What every source, transform and sink declares about itself; the pipeline's own fields are in `settings`.

A node type is one pydantic model: validation, `signoff describe`, the reference docs and the JSON
Schema all come from it. Field docs are attribute docstrings. The models here know nothing of
Spark, brokers or files; the concrete types live next to the code that does their work.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from signoff.errors import PluginError
from signoff.pipeline.durations import Duration
from signoff.pipeline.secrets import register_secrets_of

Kind = Literal["source", "transform", "sink"]

OnFailure = Literal["dead_letter", "refuse", "drop"]
"""What becomes of a row that cannot be delivered or computed.

`dead_letter` stores it with its reason and settles the event; `refuse` gives the source a negative
answer; `drop` counts it as dropped and writes one line to the run's log.
"""

_MOST_DOUBLINGS = 40

KINDS: tuple[Kind, ...] = ("source", "transform", "sink")

NAME_PATTERN = r"^[A-Za-z][A-Za-z0-9_]*$"


def _as_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


class Config(BaseModel):
    """The base of everything a user may write: unknown fields are errors, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class NodeConfig(Config):
    """A named node of the pipeline."""

    summary: ClassVar[str] = ""
    """One sentence for `signoff describe`."""
    example: ClassVar[str] = ""
    """Its fields as a user would write them in YAML, without `type` and `input`, for `signoff describe`."""
    type: str
    """Which kind of node this is; `signoff describe` lists the types."""

    def local_directories(self, base: Path) -> tuple[Path, ...]:
        """The directories, besides the state, in which executors read or write files for this node."""
        return ()

    def writes(self, base: Path) -> tuple[tuple[Path, str], ...]:
        """Where files appear because of this node: the real directory, and a name or `*` and a suffix."""
        return ()

    def belongs_to_project(self, base: Path) -> bool:
        """Whether a copy of the project's directory brings a copy of all that this node reads or writes
        outside of the pipeline. When in doubt it does not."""
        places = [directory for directory, _ in self.writes(base)]
        return bool(places) and all(place.resolve().is_relative_to(base.resolve()) for place in places)

    def needed_files(self, base: Path) -> tuple[Path, ...]:
        """Files that executors must find at the same path: modules beside the pipeline, certificates."""
        return ()

    def listens_on(self) -> tuple[str, int] | None:
        """Host and port this node takes requests at."""
        return None

    def connects_to(self) -> tuple[str, int] | None:
        """Host and port this node sends what it gets to."""
        return None

    def code_files(self, base: Path) -> tuple[Path, ...]:
        """The files with code of the user's own that this node may run."""
        return ()

    @model_validator(mode="after")
    def _register_secrets(self) -> Self:
        register_secrets_of(self)
        return self

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__(state)
        register_secrets_of(self)  # an executor must mask them as well as the driver does


class LogSettings(Config):
    """How a source's events are kept on disk until they are settled."""

    max_bytes: int = Field(default=4 * 1024**3, ge=1024 * 1024)
    """Bytes on disk at which the source is held back until events are settled."""
    segment_bytes: int = Field(default=64 * 1024**2, ge=64 * 1024)
    """Size at which a new segment file is begun; whole segments are removed once settled."""
    sync_ms: int = Field(default=5, ge=0, le=10_000)
    """Longest time an appended event waits for the fsync it shares with others."""
    sync_bytes: int = Field(default=4 * 1024**2, ge=1)
    """Bytes appended that force the shared fsync before `sync_ms` is over."""


@dataclass(frozen=True)
class TypedRows:
    """How a source's payloads, objects of texts by name (rows of CSV), become typed columns."""

    schema: str
    named: bool
    """The names come with the rows; else they are `_c0`, `_c1`, … in the order of the schema."""
    null_values: tuple[str, ...]
    timestamp_format: str | None
    date_format: str | None
    keep: tuple[str, ...]


class SourceConfig(NodeConfig):
    """A place events come from."""

    bounded: ClassVar[bool] = False
    """Whether it is read as a whole, as it is at one moment: only jobs have such sources."""
    can_acknowledge: ClassVar[bool] = True
    """False where the other side cannot be told anything (standard input, a generator)."""
    always_answers: ClassVar[bool] = False
    """Whether the client blocks, with a timeout, also where acknowledgements are off (HTTP)."""
    acknowledgements: bool | None = None
    """Whether the source is told only after settlement; null takes the pipeline's setting.
    When false the source is told as soon as its events are in the log."""
    acknowledge_within: Annotated[Duration, Field(gt=0)] | None = None
    """How long an event may stay unsettled, counted from its receipt. After that it expires: the source gets
    a negative answer, and later outcomes of the event are ignored. Null: it never expires."""
    on_refusal: Literal["wait", "fail_fast"] = "wait"
    """When the source is told that an event is refused: `wait`, when every sink has an outcome for it;
    `fail_fast`, with the first refusal, and sinks that have not delivered the event are not retried for
    it."""
    encoding: Literal["utf-8", "binary"] = "utf-8"
    """`utf-8`: the payload is a string, and other bytes are a dead letter. `binary`: it is BINARY."""
    max_events_per_batch: int = Field(default=500_000, ge=1)
    """Most events one micro-batch takes from the log; it takes fewer when fewer are there."""
    max_bytes_per_batch: int = Field(default=128 * 1024**2, ge=1024 * 1024)
    """About how many bytes of the log one micro-batch takes at most."""
    max_event_bytes: int = Field(default=16 * 1024**2, ge=1)
    """Largest payload; what is larger is a dead letter of which only the beginning is kept."""
    log: LogSettings = LogSettings()
    """How its events are kept on disk until they are settled."""

    def with_header(self, name: str) -> Self:
        """The same, but that events keep this header if they bring it, where a source keeps only some."""
        return self

    @property
    def remembered_events(self) -> int:
        """How many of the newest events the log keeps although they are settled, while it has room."""
        return 0

    @property
    def typed_rows(self) -> TypedRows | None:
        """How its payloads become columns of their own; None: they are handed on as they are."""
        return None

    @property
    def patience_s(self) -> float | None:
        """How long the other side waits for an acknowledgement before it delivers again; None: for ever."""
        return None

    @property
    def patience_named(self) -> bool:
        """Whether the user set it, and it is not only the default of most brokers."""
        return False

    @property
    def most_unacknowledged(self) -> int | None:
        """How many events may be unacknowledged before no more come; None: as many as the log holds."""
        return None

    @property
    def lease_cap_s(self) -> float | None:
        """How far progress may extend `acknowledge_within`, counted from receipt; None: not at all."""
        return None

    def place_after(self, place: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
        """Where the source continues in a new log. `place`: that of the last event that could be read in the
        old one; later events are discarded there, and read once more."""
        return place

    def expires_in_vain(self, acknowledges: bool) -> bool:
        """Whether the user wrote `acknowledge_within` although the source is not told the outcome of an
        event."""
        written = "acknowledge_within" in self.model_fields_set and self.acknowledge_within is not None
        return written and not acknowledges and not self.always_answers

    def reads(self, base: Path) -> str | None:
        """The path or glob of the files that are read, absolute (see `globs.pattern_of`); None for none."""
        return None

    def puts_away(self, base: Path) -> tuple[tuple[str, Path | None, str], ...]:
        """Where files go that were read, and are not read again: the field that says so, the real directory,
        or None and the name of a directory next to each file."""
        return ()

    def read_before(self, base: Path, notes: Path) -> int:
        """How many of the files that it would read were read already by another source, which kept its notes
        in this directory (see `SourceContext.directory`)."""
        return 0

    def takes_files_away(self) -> bool:
        """Whether files that were read are moved or deleted."""
        return False


class InputsConfig(NodeConfig):
    """A node that is fed by others: `input` for one, `inputs` for several."""

    input: str | None = None
    """The node whose rows come in; `name.output` for one output of a `route`."""
    inputs: Names = ()
    """Several such nodes; the rows of all of them come in."""

    @property
    def all_inputs(self) -> tuple[str, ...]:
        return ((self.input,) if self.input else ()) + self.inputs


class TransformConfig(InputsConfig):
    """A step from rows to rows. Subclasses add `compile` (see `signoff.transforms.contract`)."""

    bounded: ClassVar[bool] = False
    """Whether it needs all rows of its inputs at once: only jobs have such steps."""
    on_error: OnFailure = "dead_letter"
    """What becomes of an event for which this step raises an error."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Named outputs besides the main one; only a `route` has any."""
        return ()

    @property
    def needed_outputs(self) -> tuple[str, ...]:
        """Those of them that somebody should read."""
        return self.outputs

    @property
    def settles(self) -> bool:
        """Whether an event that comes here is settled, so that its later rows cannot be refused."""
        return False

    @property
    def holds(self) -> Mapping[str, float]:
        """How long an event may be held here before it is settled: seconds, by the fields that say so."""
        return {}

    @property
    def lets_go(self) -> bool:
        """Whether held events are released when no more events come."""
        return True

    @property
    def needs_later_events(self) -> bool:
        """Whether held events are released only when later events could have come: a source that is held back
        because these fill its log would wait for ever."""
        return False

    @property
    def lets_go_by(self) -> str:
        """The field that makes it release them."""
        return "idle_after"

    @property
    def has_main_output(self) -> bool:
        """Whether `input: name` may be written without an output; false for a `route`."""
        return not self.outputs


class Retry(Config):
    """How often, and with which waits, a sink or a step is retried after a transient failure."""

    attempts: int | None = Field(default=None, ge=1)
    """Tries in all before `on_failure` (of a step: `on_error`) applies; null retries for ever: what waits
    stays in the log, which holds the source back only when it is full."""
    initial_ms: int = Field(default=100, ge=0)
    """Wait before the second try; it doubles with each further one, with jitter."""
    max_ms: int = Field(default=30_000, ge=0)
    """Longest wait between two tries."""

    def wait_s(self, attempts: int, chance: Callable[[], float] = random.random) -> float:
        """Seconds to wait after `attempts` failed tries: doubles each time, with a random half taken off.

        The jitter keeps tasks that failed together from retrying together for ever.
        """
        doublings = min(max(attempts, 1) - 1, _MOST_DOUBLINGS)
        longest = min(self.initial_ms * 2.0**doublings, self.max_ms) / 1000
        return longest * (0.5 + 0.5 * chance())

    @property
    def longest_s(self) -> float | None:
        """The waits between all tries together, at most; None when there is no last try."""
        if self.attempts is None:
            return None
        growing = min(self.attempts - 1, _MOST_DOUBLINGS)
        waits = [min(self.initial_ms * 2.0**number, self.max_ms) for number in range(growing)]
        return (sum(waits) + (self.attempts - 1 - growing) * self.max_ms) / 1000


class BufferSettings(Config):
    """A log of a sink's own, in which its rows wait; the sink takes them at its own pace."""

    type: Literal["disk"] = "disk"
    """Rows are on disk, fsynced, when they count as buffered."""
    max_bytes: int = Field(default=1024**3, ge=1024 * 1024)
    """Bytes on disk at which the buffer is full."""
    acknowledgements: bool = False
    """Whether the buffer signs for its rows: true, an event may be acknowledged when its rows are in the
    buffer; false, when the sink has taken them, however long they wait and however often the run restarts."""
    when_full: Literal["block", "drop_newest"] = "block"
    """`block`: the sources are held back. `drop_newest`: what finds no room is dropped, and counted."""
    name: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None
    """Name of the buffer, by default the sink's: one that was renamed finds its rows under its old name."""


class SinkConfig(InputsConfig):
    """A place that signs for events."""

    separates_inputs: ClassVar[bool] = False
    """Whether its inputs stay apart: see `signoff.sinks.contract.INPUT`."""
    finishes: ClassVar[bool] = False
    """Whether it has something to do at the end of a run: `Sink.finish`."""
    edition_columns: ClassVar[str] = ""
    """Whether others may name it as their input: in a job they get one row when it has finished, of what it
    has published (`Sink.edition`). Its columns, as Spark writes a schema in JSON; '' for most sinks."""

    knows_ids: ClassVar[bool] = False
    """Whether the other side knows a row that is sent again by its id, and can take nothing back: the next
    try of a failed run of a job sends rows that are the same under the ids of before."""

    buffer: BufferSettings | None = None
    """A buffer of its own; without one its rows wait in the logs of the sources."""
    authoritative: bool = False
    """Its signature settles an event; the rows of the other sinks wait for them in buffers if they must."""
    ordered_by: Names = ()
    """Columns: rows in which they are the same reach the sink in the order of their events, also if one of
    them is retried. The sink has a buffer then, and takes rows from it in a single task."""
    best_effort: bool = False
    """No event waits for it: its rows wait in a buffer, and are dropped and counted when that is full."""

    retry: Retry = Retry()
    """How often, and with which waits, it is retried after a transient failure."""
    on_failure: OnFailure = "dead_letter"
    """What becomes of a row that the sink rejects for good, or after the last retry."""

    def expressions(self) -> Mapping[str, str]:
        """Spark SQL expressions over the rows' columns whose values the writer wants as text, by the name of
        the column that brings them; such a column stands behind the others and is not part of the row."""
        return {}

    def field_of(self, expression: str) -> str:
        """The field that such an expression stands in; '' if the one field of the sink that has any."""
        return ""

    @property
    def rows_at_a_time(self) -> int | None:
        """Most rows of one batch, where the other side sets the pace: the sink has a buffer then, and takes
        rows from it in a single task. None: as many as come."""
        return None

    @property
    def collects_s(self) -> float:
        """How long rows are collected before it gets them, as one batch: it has a buffer then."""
        return 0.0

    def missing_columns(self, columns: Mapping[str, Sequence[str]]) -> tuple[str, str, Sequence[str]] | None:
        """Where inputs stay apart: a field that names a column which its input does not have, the name, and
        the columns it has. `columns`: by input; others are not known here."""
        return None

    def named_columns(self) -> Mapping[str, str]:
        """Columns that its fields name, which the rows must have, each with the field that names it."""
        return {}

    @property
    def reads(self) -> Collection[str] | None:
        """The columns it looks at, where these are not all: it is given no others."""
        return None

    def target(self, base: Path) -> str | None:
        """The place as a text that two sinks must not share, because they would overwrite each
        other's rows; None where sharing does no harm."""
        return None


@dataclass(frozen=True)
class Catalog:
    """The node types a pipeline may use, by the name that stands in `type`."""

    sources: Mapping[str, type[SourceConfig]]
    transforms: Mapping[str, type[TransformConfig]]
    sinks: Mapping[str, type[SinkConfig]]

    def of(self, kind: Kind) -> Mapping[str, type[NodeConfig]]:
        return {"source": self.sources, "transform": self.transforms, "sink": self.sinks}[kind]

    def usable(self, kind: Kind) -> tuple[dict[str, type[NodeConfig]], dict[str, PluginError]]:
        """The types of a kind, all loaded; and those of other packages that cannot be used, with why."""
        found: dict[str, type[NodeConfig]] = {}
        broken: dict[str, PluginError] = {}
        types = self.of(kind)
        for name in types:
            try:
                found[name] = types[name]
            except PluginError as error:
                broken[name] = error
        return found, broken

    def kinds(self, type_name: str) -> tuple[Kind, ...]:
        """The kinds that have a type of this name (`files` is both a source and a sink)."""
        return tuple(kind for kind in KINDS if type_name in self.of(kind))
