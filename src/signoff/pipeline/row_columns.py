"""Columns that rows have besides those of the pipeline."""

EVENT_ID = "event_id"
"""Column of every row a sink gets, and of every row it writes: the same on every replay."""
ORIGIN = "_origin"
"""Last column of the rows a sink with `wants_origins` gets: the number of the event a row was made from, or a
list of them where events were united."""
INPUT = "_input"
"""Last column of the rows a sink with `separates_inputs` gets: the input a row came by. Columns are called
`<input>.<column>` there, and are null in rows of other inputs."""
