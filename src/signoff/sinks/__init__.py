"""Places that sign for events. One module per sink; `contract` says what a sink is.

`TYPES` is built when it is first asked for: a task of Spark imports the sinks it writes to, not all.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from signoff.pipeline.model import SinkConfig

TYPES: dict[str, type[SinkConfig]]
"""Every sink type, by the name it has in a pipeline."""


@cache
def _types() -> dict[str, type[SinkConfig]]:
    from signoff.sinks.console import ConsoleSinkConfig
    from signoff.sinks.files import FilesSinkConfig
    from signoff.sinks.http import HttpSinkConfig
    from signoff.sinks.pipeline import PipelineSinkConfig
    from signoff.sinks.postgres import PostgresSinkConfig
    from signoff.sinks.rabbitmq import RabbitmqSinkConfig
    from signoff.sinks.sqlite import SqliteSinkConfig

    return {
        "console": ConsoleSinkConfig,
        "files": FilesSinkConfig,
        "http": HttpSinkConfig,
        "pipeline": PipelineSinkConfig,
        "postgres": PostgresSinkConfig,
        "rabbitmq": RabbitmqSinkConfig,
        "sqlite": SqliteSinkConfig,
    }


def __getattr__(name: str) -> Any:
    if name == "TYPES":
        return _types()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
