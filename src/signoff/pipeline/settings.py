"""A pipeline's own fields, besides its nodes: its name, its state directory, Spark, and those of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field

from signoff.pipeline.job_settings import Parameters
from signoff.pipeline.model import NAME_PATTERN, Config, Names
from signoff.pipeline.schedule_settings import Schedule
from signoff.pipeline.trace_settings import TraceSettings


def _as_properties(value: object) -> object:
    """Spark properties are strings; a user writes `2` and `true` without quotes."""
    if not isinstance(value, Mapping):
        return value
    return {str(key): _as_property(part) for key, part in value.items()}


def _as_property(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class SparkSettings(Config):
    """The Spark session of the run."""

    master: str = "local[*]"
    """Spark master; `spark://…` for a standalone cluster."""
    shared: bool = False
    """On a cluster: the state directory and all directories that sinks write are on a file system that
    every worker mounts at the same path. A cluster is refused without it; with it, a run proves it on every
    worker before it touches an event."""
    config: Annotated[dict[str, str], BeforeValidator(_as_properties)] = Field(default={})
    """Further Spark properties, passed on as they are."""

    @property
    def effective_master(self) -> str:
        """The master Spark gets: a property goes before the field."""
        return self.config.get("spark.master", self.master)

    @property
    def is_local(self) -> bool:
        """Whether all of Spark is on this machine."""
        return self.effective_master.startswith("local")


class Settings(Config):
    """The pipeline's own fields, besides its nodes."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    """Name of the pipeline."""
    state: str = "./state"
    """Directory of log, ledger, checkpoints and dead letters; relative to the pipeline file."""
    acknowledgements: bool = True
    """Whether sources are told only after settlement; each source may say otherwise."""
    spark: SparkSettings = SparkSettings()
    """The Spark session of the run."""
    traces: TraceSettings | None = None
    """Traces of events, sent to an OpenTelemetry collector (extra `signoff[traces]`); null sends none."""
    parameters: Parameters = Field(default={})
    """Jobs: what a run is asked for, by name: a type, or `{type, default}`. In SQL, `:name` is the value."""
    key: Names | None = None
    """Jobs: the parameters that say which run it is; running the same again replaces its outputs. By default
    all of them."""
    period: Annotated[tuple[str, ...], Field(min_length=2, max_length=2)] | None = None
    """Jobs: two parameters, the beginning and the end of the time that a run is about; for its record."""
    schedule: Schedule | None = None
    """Jobs: when it runs by itself, under `signoff jobs schedule FILE`."""
