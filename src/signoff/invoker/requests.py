"""What waits for runs, by key: read from the link of a sink, whatever an invoker before this one has read.

Rows of a key that ask for the same values are together; of the two parameters that say which period a run is
about, the earliest beginning and the latest end among them count, and of one up to which tables must be
complete the latest value, so that one run covers them all. What null
means for one of these only the job knows: a row with null and no default is not together with one that has
a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field

import pyarrow as pa
from pyroaring import BitMap64

from signoff.invoker.notes import Key, Origins
from signoff.ledger.outcome import OTHERS, EventId
from signoff.link.job_sink import Request
from signoff.link.notes import LinkNotes
from signoff.log import LogReader
from signoff.pipeline.graph import Graph
from signoff.pipeline.job_settings import Value, read_value, text_of
from signoff.pipeline.parameter_places import must_stay_in_paths

_COLUMNS = ("payload", "message_id", "position", "headers")
_MOST_BYTES = 100_000
"""Of all values together: a process takes no argument of 128 KiB."""


@dataclass(frozen=True, slots=True)
class Asking:
    """One row of the link."""

    number: int
    request: Request
    event: str
    """Id of the row."""
    origins: tuple[tuple[str, int], ...]
    """The events it was made from."""


@dataclass
class Waiting:
    """Rows of a key that one run will cover."""

    key: Key
    given: dict[str, Value]
    first: str
    rows: BitMap64 = field(default_factory=BitMap64)
    contents: set[str] = field(default_factory=set)
    origins: Origins = field(default_factory=dict)

    def add(
        self,
        row: Asking,
        given: Mapping[str, Value],
        period: tuple[str, ...] | None,
        needed: Set[str] = frozenset(),
    ) -> None:
        self.rows.add(row.number)
        self.contents.add(row.request.content)
        add_origins(self.origins, row)
        if period:
            begin, end = period
            if begin in given:
                self.given[begin] = min(self.given[begin], given[begin])  # type: ignore[type-var]
            if end in given:
                self.given[end] = max(self.given[end], given[end])  # type: ignore[type-var]
        for name in needed & given.keys():
            self.given[name] = max(self.given.get(name, given[name]), given[name])  # type: ignore[type-var]

    def texts(self) -> dict[str, str]:
        return {name: text_of(value) for name, value in self.given.items()}


class Requests:
    """The rows that wait."""

    def __init__(self) -> None:
        self._by_key: dict[Key, dict[tuple[tuple[str, Value], ...], Waiting]] = {}
        """In the order in which the first row of each came."""

    def add(
        self,
        row: Asking,
        given: Mapping[str, Value],
        period: tuple[str, ...] | None,
        needed: Set[str] = frozenset(),
    ) -> None:
        """`period`, `needed`: parameters of which one run has a value for all its rows. One that is both is
        of the period: rows without a value have a run of their own."""
        names = sorted(given.keys() - (needed - {*(period or ())}))
        apart = tuple((name, None if name in (period or ()) else given[name]) for name in names)
        of_key = self._by_key.setdefault(row.request.key, {})
        if apart not in of_key:
            of_key[apart] = Waiting(row.request.key, dict(given), row.event)
        of_key[apart].add(row, given, period, needed)

    @property
    def keys(self) -> list[Key]:
        return list(self._by_key)

    def next_of(self, key: Key) -> Waiting:
        """What the next run of a key will cover."""
        return next(iter(self._by_key[key].values()))

    def remove(self, waiting: Waiting) -> None:
        of_key = self._by_key[waiting.key]
        for apart, each in list(of_key.items()):
            if each is waiting:
                del of_key[apart]
        if not of_key:
            del self._by_key[waiting.key]

    @property
    def rows(self) -> int:
        return sum(len(each.rows) for of_key in self._by_key.values() for each in of_key.values())


def needed_to(job: Graph) -> Set[str]:
    """The parameters that say up to where a table must be complete."""
    named = (getattr(node.config, "needed_to", None) for node in job.sources.values())
    return frozenset(name for name in named if name is not None)


def values_of(job: Graph, given: Mapping[str, str | None]) -> dict[str, Value]:
    """The values a row gives to parameters; null is none. Raises ValueError for what does not fit the job."""
    declared = job.settings.parameters
    found: dict[str, Value] = {}
    for name, text in given.items():
        if name not in declared:
            raise ValueError(f'job "{job.name}" has no parameter "{name}"')
        if text is not None:
            try:
                found[name] = read_value(declared[name].type, text)
            except ValueError as error:
                raise ValueError(f'parameter "{name}": {error}') from None
    for name, parameter in declared.items():
        if parameter.required and name not in found:
            raise ValueError(f'the parameter "{name}" ({parameter.type}) of job "{job.name}" is null')
    for name in job.settings.period or ():  # what is put together with others must be known
        if (
            name not in found
            and (value := read_value(declared[name].type, declared[name].default)) is not None
        ):
            found[name] = value
    _must_fit_a_process(found)
    must_stay_in_paths(job, found)
    return found


def _must_fit_a_process(values: Mapping[str, Value]) -> None:
    """Values are arguments of the process that does the run."""
    size = 0
    for name, value in values.items():
        text = text_of(value)
        if "\0" in text:
            raise ValueError(f'parameter "{name}": its value has a NUL character')
        size += len(f"{name}={text}".encode())
        if size > _MOST_BYTES:
            raise ValueError(f'parameter "{name}": with it the values have more than {_MOST_BYTES:,} bytes')


def add_origins(origins: Origins, row: Asking) -> None:
    for source, sequence in row.origins:
        origins.setdefault(source, BitMap64()).add(sequence)


def rows_of(
    log: LogReader, notes: LinkNotes, start: int, end: int, wanted: Callable[[int], bool]
) -> Iterator[Asking]:
    """The rows of a range that are wanted."""
    handed = [(each.first, each.last, each.batch.source) for each in notes.each()]
    for first, events in log.read(start, end, list(_COLUMNS)):
        numbers = [number for number in range(first, first + events.num_rows) if wanted(number)]
        for number in numbers:
            yield _asking(number, events.slice(number - first, 1), handed)


def _asking(number: int, event: pa.RecordBatch, handed: list[tuple[int, int, str]]) -> Asking:
    row = {name: event.column(name)[0].as_py() for name in _COLUMNS}
    others = dict(row["headers"] or ()).get(OTHERS, "")
    sequences = [row["position"], *(int(each) for each in others.split(",") if each)]
    named = EventId.parse(row["message_id"])
    source = next((of for low, high, of in handed if low <= number < high), named.source)
    origins = [(source, sequence) for sequence in sequences]
    if named.source != source:  # it came through a log of the pipeline's own, and keeps the id it had before
        origins.append((named.source, named.sequence))
    return Asking(number, Request.parse(row["payload"]), row["message_id"], tuple(origins))
