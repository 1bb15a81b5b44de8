"""Makes `spark.read.format("signoff")` and `spark.readStream.format("signoff")` work without a call to
register them: PySpark looks for a `DefaultSource` in every importable module named `pyspark_*`."""

from signoff.log.spark import LogDataSource as DefaultSource

__all__ = ["DefaultSource"]
