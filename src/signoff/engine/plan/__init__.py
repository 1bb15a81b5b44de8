"""From a checked graph to one Spark plan per source: columns, error columns, drop counters, lineage."""
