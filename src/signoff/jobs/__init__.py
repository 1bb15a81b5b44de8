"""Jobs: pipelines over tables as they are at one moment, with parameters.

A run has two halves (docs/decisions/0023):

    compute    tables of one snapshot, and queries over them, as plain DataFrames   (parts on disk)
    deliver    the rows of each table or query that anything else reads, in a log of their own:
               from here on an event pipeline like any other, with the same engine, ledger and dead letters

    parameters   the values of a run, and the key it is known by
    tables, sqlite_table, postgres_table, parquet_table      one snapshot, read by executors as Arrow
    compute      from tables and queries to parts on disk
    outputs      the graph of the second half; from parts to the logs
    records      what is known of each run, in the ledger's database
    run          one run, from whatever a kill has left of it to its end
"""
