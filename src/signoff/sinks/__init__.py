"""Places that sign for events. One module per sink; `contract` says what a sink is."""

from __future__ import annotations

from signoff.pipeline.model import SinkConfig
from signoff.pipeline.types import TypesByName

TYPES = TypesByName[SinkConfig](
    {
        "console": "signoff.sinks.console:ConsoleSinkConfig",
        "files": "signoff.sinks.files:FilesSinkConfig",
        "http": "signoff.sinks.http:HttpSinkConfig",
        "pipeline": "signoff.sinks.pipeline:PipelineSinkConfig",
        "postgres": "signoff.sinks.postgres:PostgresSinkConfig",
        "rabbitmq": "signoff.sinks.rabbitmq:RabbitmqSinkConfig",
        "sqlite": "signoff.sinks.sqlite:SqliteSinkConfig",
    }
)
"""Every sink type, by the name it has in a pipeline."""
