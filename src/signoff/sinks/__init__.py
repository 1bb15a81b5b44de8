"""Places that sign for events. One module per sink; `contract` says what a sink is."""

from __future__ import annotations

from signoff.pipeline.model import SinkConfig
from signoff.pipeline.types import TypesByName

TYPES = TypesByName[SinkConfig](
    {
        "console": "signoff.sinks.console:ConsoleSinkConfig",
        "elasticsearch": "signoff.sinks.opensearch.sink:ElasticsearchSinkConfig",
        "email": "signoff.sinks.email.config:EmailSinkConfig",
        "files": "signoff.sinks.files.sink:FilesSinkConfig",
        "http": "signoff.sinks.http:HttpSinkConfig",
        "job": "signoff.link.job_sink:JobSinkConfig",
        "nats": "signoff.sinks.nats:NatsSinkConfig",
        "opensearch": "signoff.sinks.opensearch.sink:OpensearchSinkConfig",
        "pipeline": "signoff.link.sink:PipelineSinkConfig",
        "postgres": "signoff.sinks.postgres.sink:PostgresSinkConfig",
        "rabbitmq": "signoff.sinks.rabbitmq.sink:RabbitmqSinkConfig",
        "redis": "signoff.sinks.redis:RedisSinkConfig",
        "report": "signoff.sinks.report.sink:ReportSinkConfig",
        "slack": "signoff.sinks.slack:SlackSinkConfig",
        "sqlite": "signoff.sinks.sqlite:SqliteSinkConfig",
    }
)
"""Every sink type, by the name it has in a pipeline."""
