"""Sources: where events come from. One module per type; `contract` says what a source is."""

from __future__ import annotations

from signoff.pipeline.model import SourceConfig
from signoff.sources.files import FilesConfig

TYPES: dict[str, type[SourceConfig]] = {
    "files": FilesConfig,
}
"""Every source type, by the name it has in a pipeline."""
