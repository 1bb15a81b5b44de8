"""The engine: a checked graph becomes Spark plans, and every row of a batch gets its outcome.

Along the way of a batch: `plan` (graph to columns), `split` (where a graph is cut into parts), `query` (which
range of a log is next), `batch` (one batch from the log to settled), `delivery` (the pass that hands rows to
sinks, on executors), `state_queries` (windows and folds), `feedback` (outcomes of rows that were handed on),
`replay` (dead letters again), `state_dir` (whose files are whose), `spark` (session, Java, checkpoints).
`engine` holds them together.
"""
