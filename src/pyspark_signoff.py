"""Makes `spark.read.format("signoff")` and `spark.readStream.format("signoff")` work without a call to
register them: PySpark looks for a `DefaultSource` in every importable module named `pyspark_*`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from signoff.log.spark import LogDataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType

    from signoff.run.standalone import Standalone


class DefaultSource(LogDataSource):
    """A log, or with the option `source` a source on its own (see `signoff.run.standalone`)."""

    def schema(self) -> StructType:
        if "source" not in self.options:
            return super().schema()
        encoding = self._standalone().config.encoding  # a mistake in the options is said by `load`
        return LogDataSource({"path": "-", "encoding": encoding}).schema()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        if "source" not in self.options:
            return super().streamReader(schema)
        from signoff.run.standalone import StandaloneReader

        return StandaloneReader(self._standalone(), self._arrow(schema))

    def _standalone(self) -> Standalone:
        # Loaded here: most queries read a log, and every process that plans one would pay for it.
        from signoff.run.standalone import Standalone

        return Standalone.parse(dict(self.options))


__all__ = ["DefaultSource"]
