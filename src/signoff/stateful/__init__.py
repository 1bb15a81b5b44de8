"""What steps with state need besides Spark's state store; nothing here knows Spark.

    events ──► windows and late ones told apart ──► partial results ──► link ──► Spark's state store
                        ▲                                    │
                        └───────── marks: up to where windows are closed ◄──┘

`marks` keeps, durably, how far the time of events has come; `panes` says which windows a time belongs to;
`partial` makes of a task's events one row for each window and key; `windowing` is the sink that hands those
rows on. `folding` says when a group of events ends and what comes out; `open_groups` knows which are open;
`folds` are the two ends of the query in between. See docs/decisions/0010.
"""
