"""Steps from rows to rows: one module per type."""

from __future__ import annotations

from signoff.pipeline.model import TransformConfig
from signoff.pipeline.types import TypesByName

TYPES = TypesByName[TransformConfig](
    {
        "parse_json": "signoff.transforms.parse_json:ParseJsonConfig",
        "parse_csv": "signoff.transforms.parse_csv:ParseCsvConfig",
        "parse_regex": "signoff.transforms.parse_regex:ParseRegexConfig",
        "parse_key_value": "signoff.transforms.parse_key_value:ParseKeyValueConfig",
        "filter": "signoff.transforms.filter:FilterConfig",
        "select": "signoff.transforms.select:SelectConfig",
        "route": "signoff.transforms.route:RouteConfig",
        "validate": "signoff.transforms.validate:ValidateConfig",
        "flatten": "signoff.transforms.flatten:FlattenConfig",
        "mask": "signoff.transforms.mask:MaskConfig",
        "lookup": "signoff.transforms.lookup:LookupConfig",
        "unfold": "signoff.transforms.unfold:UnfoldConfig",
        "merge": "signoff.transforms.merge:MergeConfig",
        "dedupe": "signoff.transforms.dedupe:DedupeConfig",
        "window": "signoff.transforms.window:WindowConfig",
        "fold": "signoff.transforms.fold:FoldConfig",
        "sample": "signoff.transforms.sample:SampleConfig",
        "enrich": "signoff.transforms.enrich:EnrichConfig",
        "python": "signoff.transforms.python:PythonConfig",
    }
)
"""Every transform, by the name it has in a pipeline."""
