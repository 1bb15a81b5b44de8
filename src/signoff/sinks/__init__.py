"""Places that sign for events. One module per sink; `contract` says what a sink is."""

from __future__ import annotations

from signoff.pipeline.model import SinkConfig
from signoff.sinks.console import ConsoleSinkConfig
from signoff.sinks.files import FilesSinkConfig
from signoff.sinks.http import HttpSinkConfig
from signoff.sinks.postgres import PostgresSinkConfig
from signoff.sinks.sqlite import SqliteSinkConfig

TYPES: dict[str, type[SinkConfig]] = {
    "console": ConsoleSinkConfig,
    "files": FilesSinkConfig,
    "http": HttpSinkConfig,
    "postgres": PostgresSinkConfig,
    "sqlite": SqliteSinkConfig,
}
"""Every sink type by the name it has in a pipeline."""
