"""The log: ordered, durable, replayable events of one source, in segments on disk.

Written by the intake (`LogWriter`), read by anybody (`LogReader`, and Spark through
`signoff.log.spark`), shortened by `trim` once events are settled.
"""

from signoff.log.exclusions import exclude, excluded
from signoff.log.reader import LogReader, Slice
from signoff.log.trimming import trim
from signoff.log.writer import LogWriter

__all__ = ["LogReader", "LogWriter", "Slice", "exclude", "excluded", "trim"]
