"""Steps from rows to rows: one module per type."""

from __future__ import annotations

from signoff.pipeline.model import TransformConfig
from signoff.pipeline.types import TypesByName

TYPES = TypesByName[TransformConfig](
    {
        "parse_json": "signoff.transforms.parsing.parse_json:ParseJsonConfig",
        "parse_csv": "signoff.transforms.parsing.parse_csv:ParseCsvConfig",
        "parse_regex": "signoff.transforms.parsing.parse_regex:ParseRegexConfig",
        "parse_key_value": "signoff.transforms.parsing.parse_key_value:ParseKeyValueConfig",
        "filter": "signoff.transforms.filter:FilterConfig",
        "select": "signoff.transforms.select:SelectConfig",
        "route": "signoff.transforms.route:RouteConfig",
        "validate": "signoff.transforms.validate:ValidateConfig",
        "flatten": "signoff.transforms.flatten:FlattenConfig",
        "mask": "signoff.transforms.mask:MaskConfig",
        "lookup": "signoff.transforms.lookup.step:LookupConfig",
        "unfold": "signoff.transforms.unfold:UnfoldConfig",
        "merge": "signoff.transforms.merge:MergeConfig",
        "dedupe": "signoff.transforms.dedupe:DedupeConfig",
        "throttle": "signoff.transforms.throttle:ThrottleConfig",
        "window": "signoff.transforms.window.step:WindowConfig",
        "burst": "signoff.transforms.burst.step:BurstConfig",
        "fold": "signoff.transforms.fold.step:FoldConfig",
        "sample": "signoff.transforms.sample:SampleConfig",
        "enrich": "signoff.transforms.enrich.step:EnrichConfig",
        "python": "signoff.transforms.functions.python:PythonConfig",
        "sql": "signoff.transforms.sql:SqlConfig",
    }
)
"""Every transform, by the name it has in a pipeline."""
