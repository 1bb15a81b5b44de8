"""Sources: where events come from. One module per type; `contract` says what a source is.

`TYPES` is built when it is first asked for: Spark's Python workers import this package for the event
schema alone, and should not pay for a web server.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from signoff.pipeline.model import SourceConfig

TYPES: dict[str, type[SourceConfig]]
"""Every source type, by the name it has in a pipeline."""


@cache
def _types() -> dict[str, type[SourceConfig]]:
    from signoff.sources.files import FilesConfig
    from signoff.sources.generate import GenerateConfig
    from signoff.sources.http import HttpConfig
    from signoff.sources.pipeline import PipelineConfig
    from signoff.sources.rabbitmq import RabbitmqConfig
    from signoff.sources.stdin import StdinConfig

    return {
        "files": FilesConfig,
        "generate": GenerateConfig,
        "http": HttpConfig,
        "pipeline": PipelineConfig,
        "rabbitmq": RabbitmqConfig,
        "stdin": StdinConfig,
    }


def __getattr__(name: str) -> Any:
    if name == "TYPES":
        return _types()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
