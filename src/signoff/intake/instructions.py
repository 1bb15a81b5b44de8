"""What an intake process is told to do: one line of JSON on its standard input.

Not in its arguments, because the config holds secrets and everybody can read arguments.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import ValidationError

from signoff.catalog import default
from signoff.errors import SourceError
from signoff.pipeline.model import SourceConfig
from signoff.pipeline.secrets import redact, register_secrets_of, reveal
from signoff.pipeline.trace_settings import TraceSettings
from signoff.sources import TYPES


@dataclass(frozen=True, slots=True)
class Instructions:
    """One source of one run."""

    name: str
    type: str
    config: dict[str, Any]
    """The source's fields, with secrets."""
    state: str
    """State directory of the run."""
    base: str
    """Directory of the pipeline file."""
    once: bool = False
    acknowledges: bool = True
    """False: the source is told as soon as its events are in the log."""
    stdin_fd: int | None = None
    """Descriptor of the run's own standard input, for a source that reads it."""
    log_format: Literal["text", "json"] = "text"
    """Style of the lines on standard error."""
    engine: bool = True
    """Whether an engine settles the events; false where a program's own query does."""
    pipeline: str = ""
    """Its name, for traces."""
    traces: dict[str, Any] | None = None
    """The settings of traces, with secrets; None: none are made."""

    @classmethod
    def of(
        cls, name: str, config: SourceConfig, *, state: Path, base: Path, once: bool = False,
        acknowledges: bool = True, stdin_fd: int | None = None, log_format: Literal["text", "json"] = "text",
        engine: bool = True, pipeline: str = "", traces: TraceSettings | None = None,
    ) -> Instructions:  # fmt: skip
        """To run a source with this config."""
        return cls(
            name, config.type, reveal(config), str(state), str(base), once, acknowledges, stdin_fd,
            log_format, engine, pipeline, None if traces is None else reveal(traces),
        )  # fmt: skip

    def encode(self) -> bytes:
        """The line the intake process reads."""
        return orjson.dumps(asdict(self)) + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Instructions:
        known = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in orjson.loads(line).items() if key in known})

    def source_config(self) -> SourceConfig:
        """The config as its model; its secrets are registered, so that no message shows them."""
        # To look for other packages takes longer than to load a type of our own.
        types = TYPES if self.type in TYPES else default().sources
        if self.type not in types:
            raise SourceError(
                f'source "{self.name}" has unknown type "{self.type}"; known: {", ".join(types)}'
            )
        try:
            config = types[self.type].model_validate({**self.config, "type": self.type})
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise SourceError(redact(f'source "{self.name}": {problems}')) from None
        register_secrets_of(config)
        return config

    def trace_settings(self) -> TraceSettings | None:
        if self.traces is None:
            return None
        settings = TraceSettings.model_validate(self.traces)
        register_secrets_of(settings)
        return settings

    @property
    def log_directory(self) -> Path:
        return Path(self.state) / "log" / self.name

    @property
    def directory(self) -> Path:
        """The source's own directory, which also holds the intake's status."""
        return Path(self.state) / "intake" / self.name

    @property
    def ledger(self) -> Path:
        return Path(self.state) / "ledger.db"
