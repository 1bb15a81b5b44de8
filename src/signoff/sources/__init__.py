"""Sources: where events come from. One module per type; `contract` says what a source is."""

from __future__ import annotations

from signoff.pipeline.model import SourceConfig
from signoff.sources.files import FilesConfig
from signoff.sources.generate import GenerateConfig
from signoff.sources.http import HttpConfig
from signoff.sources.stdin import StdinConfig

TYPES: dict[str, type[SourceConfig]] = {
    "files": FilesConfig,
    "generate": GenerateConfig,
    "http": HttpConfig,
    "stdin": StdinConfig,
}
"""Every source type, by the name it has in a pipeline."""
