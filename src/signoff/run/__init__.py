"""A run: the supervisor, its processes, and a source that stands alone in a PySpark program."""
