"""The invoker: rows of a sink `job` become runs of the job, by key (docs/decisions/0026).

rows ──► requests, in a log of the sink's own ──► decided: a run for all that wait for a key ──► signoff jobs
run
                                                                                          │
events settled ◄── answers in the link ◄── the run is done, or was given up ◄─────────────┘

requests   what waits, by key: read from the link, whatever process has read it before
notes      what was decided: which run covers which rows. Durable before the run is started
clock      how long ago a run began, also after the clock was set or the machine restarted
invoker    takes, decides, starts, answers
processes  runs in processes of their own
lookup     for `explain` and `status`
"""
