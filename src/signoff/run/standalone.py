"""A source on its own: its events as a stream of any PySpark program, acknowledged after Spark's commit.

    spark.readStream.format("signoff").option("source", "rabbitmq").option("state", …).option("url", …)

Where things are: Spark keeps one Python process per query for its source. That process starts the
intake, which receives, logs and later acknowledges, and ends with it. Rows are read from the log as
ever, so whatever the program does, a replay after a crash comes from the log, never from the broker.

When an event is settled: Spark asks for the next offsets only when the batch before is finished and
its commit is on disk, and says from where on. So `latestOffset(start)` settles all below `start`, a
few milliseconds after the batch and also when nothing new comes; Spark's own `commit` may come much
later. What a batch did not finish is not settled, and is done again after a restart.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import ValidationError
from pyroaring import BitMap64
from pyspark.sql.streaming.datasource import ReadLimit

from signoff.catalog import default
from signoff.engine.state_dir.identity import StateIdentity
from signoff.errors import SourceError
from signoff.intake import Instructions, Status, read_status
from signoff.intake.trim_limit import ToldUpto
from signoff.ledger import Ledger, RunLock
from signoff.ledger.batch_state import Done
from signoff.ledger.sequences import from_range
from signoff.log import LogReader
from signoff.log.spark import LogOptions, LogStreamReader
from signoff.pipeline.model import SourceConfig
from signoff.pipeline.secrets import redact
from signoff.pipeline.variables import Expansion
from signoff.run.processes import Child

QUERY = "query"
"""What stands in the ledger for the program's query, which signs for all events of a batch."""
_OWN_OPTIONS = ("source", "state", "name", "parallelism")
_MOST_CRASHES = 5
_TELL_S = 10.0
_POLL_S = 0.01


@dataclass(frozen=True)
class Standalone:
    """The options of such a stream, checked."""

    name: str
    state: Path
    config: SourceConfig
    parallelism: int

    @classmethod
    def parse(cls, options: dict[str, str]) -> Standalone:
        kind = options["source"]
        types = default().sources
        if kind not in types:
            raise SourceError(f'the option "source" is "{kind}"; known are {", ".join(types)}')
        if not options.get("state"):
            raise SourceError('the option "state" is missing: a directory for the log and the ledger')
        problems: list[str] = []
        expansion = Expansion(os.environ, Path.cwd())
        fields = {
            key: _value(expansion.expand(text, secret=False, fail=lambda why, _: problems.append(why)))
            for key, text in options.items()
            if key.lower() not in _OWN_OPTIONS
        }
        config: SourceConfig | None = None
        try:
            config = types[kind].model_validate({**fields, "type": kind})
        except ValidationError as error:
            problems += [f'option "{".".join(map(str, e["loc"]))}": {e["msg"]}' for e in error.errors()]
        if config is not None and config.expires_in_vain(_acknowledges(config)):
            problems.append('option "acknowledge_within": the source is told nothing; remove the option')
        if config is None or problems:
            raise SourceError(redact(f"source {kind}: " + "; ".join(problems)))
        return cls(
            name=options.get("name") or kind,
            state=Path(options["state"]).absolute(),
            config=config,
            parallelism=int(options.get("parallelism") or os.cpu_count() or 1),
        )

    @property
    def log_directory(self) -> Path:
        return self.state / "log" / self.name

    def log_options(self) -> LogOptions:
        return LogOptions(
            path=self.log_directory,
            starting_sequence=None,
            ending_sequence=None,
            max_events_per_batch=self.config.max_events_per_batch,
            max_bytes_per_batch=self.config.max_bytes_per_batch,
            parallelism=self.parallelism,
            encoding=self.config.encoding,
        )


class StandaloneReader(LogStreamReader):
    """The log of a source whose intake belongs to the query."""

    _once = False
    """Trigger.AvailableNow: the source is read to its end, as with `signoff run --once`."""

    def __init__(self, source: Standalone, schema: pa.Schema) -> None:
        super().__init__(source.log_options(), schema)
        self._source = source

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """For a query without a checkpoint: from the first event that is not settled."""
        path = self._source.state / "ledger.db"
        if not path.exists():
            return {"sequence": 0}
        with Ledger(path, readonly=True) as ledger:
            return {"sequence": ledger.settled_upto(self._source.name)}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        intake = _intake_of(self._source, self._once)
        intake.settle(start["sequence"])
        end = super().latestOffset(start, limit)
        while self._once and end == start and not intake.ended():
            # Not to be said to Spark, which would end the query: the source is held back until this batch is
            # settled, or has not answered yet.
            time.sleep(_POLL_S)
            end = super().latestOffset(start, limit)
        if self._once and end == start:
            intake.await_told(start["sequence"])
        return end

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._once = True

    def commit(self, end: dict[str, int]) -> None:
        """Nothing: `latestOffset` was sooner."""


@dataclass
class _Intake:
    """The intake of a query, in the process that Spark keeps for the query's source."""

    source: Standalone
    child: Child
    ledger: Ledger
    lock: RunLock
    told: ToldUpto
    settled: int = -1
    needed_from: int = 0
    """Nobody will read again what is below."""
    trimmed_upto: int = 0

    @classmethod
    def start(cls, source: Standalone, once: bool) -> _Intake:
        lock = RunLock(source.state)
        lock.acquire()
        ledger = Ledger(source.state / "ledger.db")
        belonging = StateIdentity(source.state, ledger, LogReader)
        belonging.refuse_copy(Path.cwd(), {source.name: source.config})
        belonging.check([source.name])
        belonging.begin([source.name])
        acknowledges = source.config.acknowledgements is not False
        if not acknowledges:
            ledger.tells_nobody(source.name)
        job = Instructions.of(
            source.name,
            source.config,
            state=source.state,
            base=Path.cwd(),
            once=once,
            acknowledges=acknowledges,
            engine=False,
        )
        child = Child(f'the intake of "{source.name}"', "signoff.intake", job.encode())
        child.start()
        return cls(source, child, ledger, lock, ToldUpto(source.state / "intake" / source.name))

    def settle(self, upto: int) -> None:
        """Everything below was in a batch that is finished."""
        self.keep_up()
        if upto != self.settled:
            self._record(upto)
        self._trim()

    def _record(self, upto: int) -> None:
        name = self.source.name
        first = self.ledger.books(name).next
        if first < upto:
            self.ledger.open_batch(name, first, upto, [QUERY])
            self.ledger.record(
                name,
                first,
                upto,
                delivered=from_range(first, upto),
                outcomes=(),
                sinks={QUERY: Done()},
                owed=BitMap64(),
                rows={QUERY: upto - first},
            )
        self.settled = upto
        self.needed_from = self.ledger.needed_from(name)

    def _trim(self) -> None:
        """Also without a new batch: a log that is full takes nothing new, and none would come."""
        config, done = self.source.config, self.needed_from
        if done != self.trimmed_upto or config.remembered_events:  # then it depends on more than `done`
            self.told.trim(self.source.log_directory, done, config)
            self.trimmed_upto = done

    def keep_up(self) -> None:
        """Start the intake again when it crashed; give up when it does not stay up."""
        if self.child.exit_code() is None:
            return
        if self.child.crashes >= _MOST_CRASHES:
            status = self.status()
            reason = status.reason if status is not None else "it does not start"
            raise SourceError(redact(f'source "{self.source.name}": {reason}'))
        self.child.restart_when_due()

    def status(self) -> Status | None:
        return read_status(self.source.state / "intake" / self.source.name)

    def ended(self) -> bool:
        """Whether the source has no more, and all of it is in the log."""
        self.keep_up()
        status = self._own_status()
        return status is not None and status.state == "ended" and self._all_durable(status)

    def await_told(self, upto: int) -> None:
        """Wait until the source was told: the intake ends with the query."""
        deadline = time.monotonic() + _TELL_S
        while time.monotonic() < deadline:
            self.keep_up()
            status = self._own_status()
            if status is not None and status.settled_sequence >= upto:
                return
            time.sleep(_POLL_S)
        raise SourceError(f'source "{self.source.name}" could not be told within {_TELL_S:.0f} s')

    def _own_status(self) -> Status | None:
        """What the intake that runs now says of itself."""
        status = self.status()
        return status if status is not None and status.pid == self.child.pid else None

    @staticmethod
    def _all_durable(status: Status) -> bool:
        return status.next_sequence == status.durable_sequence


_running: dict[tuple[Path, str], _Intake] = {}
"""Not in the reader: that is sent to executors."""


def _intake_of(source: Standalone, once: bool) -> _Intake:
    key = (source.state, source.name)
    if key not in _running:
        _running[key] = _Intake.start(source, once)
    return _running[key]


def _acknowledges(config: SourceConfig) -> bool:
    return config.can_acknowledge and config.acknowledgements is not False


def _value(text: str) -> Any:
    """Options are text; lists and mappings are written as JSON."""
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text
    return text
