"""One query per source: which range of its log is the next batch, and who runs it."""
