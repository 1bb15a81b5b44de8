"""A pipeline as those load it who look at its state: they need the names in it, not its secrets."""

from __future__ import annotations

from pathlib import Path

from signoff.pipeline.graph import Graph


def load_for_reading(file: Path) -> Graph:
    """The graph, also in a shell that does not have the secrets of the run. Of a job, the half that has an
    account: it begins with the rows of tables and queries."""
    return with_account(load_job_for_reading(file))


def load_job_for_reading(file: Path) -> Graph:
    """The graph as it is written, also in a shell that does not have the secrets of the run."""
    from signoff.catalog import default
    from signoff.pipeline.load import load

    return load(file, default(), require_secrets=False)


def with_account(graph: Graph) -> Graph:
    """The graph itself; of a job, its half that has an account."""
    if graph.is_job:
        from signoff.jobs.outputs import second_half

        return second_half(graph)
    return graph
