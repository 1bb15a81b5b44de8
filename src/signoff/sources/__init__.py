"""Sources: where events come from. One module per type; `contract` says what a source is."""

from __future__ import annotations

from signoff.pipeline.model import SourceConfig
from signoff.pipeline.types import TypesByName

TYPES = TypesByName[SourceConfig](
    {
        "files": "signoff.sources.files.config:FilesConfig",
        "generate": "signoff.sources.generate:GenerateConfig",
        "http": "signoff.sources.http.source:HttpConfig",
        "nats": "signoff.sources.nats.config:NatsConfig",
        "pipeline": "signoff.link.source:PipelineConfig",
        "rabbitmq": "signoff.sources.rabbitmq.config:RabbitmqConfig",
        "redis": "signoff.sources.redis.config:RedisConfig",
        "stdin": "signoff.sources.stdin:StdinConfig",
        "table": "signoff.sources.table:TableConfig",
    }
)
"""Every source type, by the name it has in a pipeline."""
