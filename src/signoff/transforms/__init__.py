"""Steps from rows to rows: one module per type."""

from __future__ import annotations

from signoff.transforms.contract import Transform
from signoff.transforms.dedupe import DedupeConfig
from signoff.transforms.enrich import EnrichConfig
from signoff.transforms.filter import FilterConfig
from signoff.transforms.merge import MergeConfig
from signoff.transforms.parse_csv import ParseCsvConfig
from signoff.transforms.parse_json import ParseJsonConfig
from signoff.transforms.python import PythonConfig
from signoff.transforms.route import RouteConfig
from signoff.transforms.sample import SampleConfig
from signoff.transforms.select import SelectConfig
from signoff.transforms.unfold import UnfoldConfig

TYPES: dict[str, type[Transform]] = {
    "parse_json": ParseJsonConfig,
    "parse_csv": ParseCsvConfig,
    "filter": FilterConfig,
    "select": SelectConfig,
    "route": RouteConfig,
    "unfold": UnfoldConfig,
    "merge": MergeConfig,
    "dedupe": DedupeConfig,
    "sample": SampleConfig,
    "enrich": EnrichConfig,
    "python": PythonConfig,
}
