"""A link: a log between two queries, or between two pipelines.

    rows of batches ──► parts, written by tasks ──► appended to the log, whole batches at a time
                                                        │
    answers: what became of the rows  ◄── a query, or another pipeline, reads the log

It serves as the buffer of a sink, as the way from one pipeline into another, and as the place where
events of several sources meet. One side hands rows on (`handover`) and notes which part of the log
holds the rows of which batch (`notes`); the other reads the log like that of any source. What becomes
of the rows is brought back to the events they were made from (`signoff.engine.feedback.links`).
"""
