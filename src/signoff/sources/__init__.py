"""Sources: where events come from. One module per type; `contract` says what a source is."""

from __future__ import annotations

from signoff.pipeline.model import SourceConfig
from signoff.pipeline.types import TypesByName

TYPES = TypesByName[SourceConfig](
    {
        "files": "signoff.sources.files:FilesConfig",
        "generate": "signoff.sources.generate:GenerateConfig",
        "http": "signoff.sources.http:HttpConfig",
        "pipeline": "signoff.sources.pipeline:PipelineConfig",
        "rabbitmq": "signoff.sources.rabbitmq:RabbitmqConfig",
        "stdin": "signoff.sources.stdin:StdinConfig",
    }
)
"""Every source type, by the name it has in a pipeline."""
