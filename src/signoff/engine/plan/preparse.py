"""Decides what is done with the events of a source while its log is read (see `transforms.preparse`)."""

from __future__ import annotations

from pyspark.sql import SparkSession

from signoff.engine.plan.compile import SOURCE_COLUMNS
from signoff.pipeline.graph import Graph, Port
from signoff.pipeline.model import SourceConfig
from signoff.transforms.contract import Transform
from signoff.transforms.parsing.flat_json import FlatJson
from signoff.transforms.preparse import Early

_OPTIONAL = frozenset({"payload", "headers", "message_id", "unit", "position"})
"""Columns of the log that a plan can do without."""
_AS_WE_READ = {"spark.sql.session.timeZone": "UTC", "spark.sql.legacy.timeParserPolicy": "CORRECTED"}
"""Settings under which Spark reads times as we do, and the values they must have if they were changed."""


def early_of(graph: Graph, source: str, spark: SparkSession) -> Early | None:
    """What can be done while the log of a source is read; None if that is nothing."""
    config = graph.nodes[source].config
    assert isinstance(config, SourceConfig)
    if config.typed_rows is not None:
        return None
    if config.encoding != "utf-8" or any(spark.conf.get(k, v) != v for k, v in _AS_WE_READ.items()):
        return None
    parsers: dict[str, FlatJson] = {}
    read: set[str] = set()
    if getattr(config, "keeps_ids", False):
        read.add("message_id")
    for name, node in graph.nodes.items():
        if Port(source) not in node.inputs:
            continue
        step = node.config
        parser = step.flat_json() if isinstance(step, Transform) and len(node.inputs) == 1 else None
        if parser is None:
            read.update(SOURCE_COLUMNS)
        else:
            parsers[name] = parser
            read.update(getattr(step, "keep", ()))
    return Early(parsers, _OPTIONAL - read) if parsers else None
