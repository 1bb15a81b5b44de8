"""One batch from the log to settled: rounds, verdicts, retries, the backlog, dead letters, the search
for poison.
"""
