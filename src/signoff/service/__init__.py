"""The service: `signoff serve` keeps pipelines as they were asked to be, and answers a REST API.

    signoff serve ── hosted pipelines ── signoff run (a process in a session of its own, one per pipeline)

The service supervises and answers questions. No event passes through it, and no run is its child in any way
that matters: killed, upgraded or gone for a week, it finds the runs again by a lock that each of them holds
(`run_process`), and what they were asked to be in a file (`record`). `cli` starts it (`server`).
"""
