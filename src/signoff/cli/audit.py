"""`signoff audit`: prove that every event received is accounted for."""

from __future__ import annotations

import json
from dataclasses import replace

import typer

from signoff.cli.reading import AsJson, PipelineFile, dash, load_for_reading, table
from signoff.engine.belonging import Belonging
from signoff.engine.gone import what_is_gone
from signoff.ledger import DeadLetters, Ledger
from signoff.ledger.audit import Audit, audit
from signoff.log import LogReader


def command(file: PipelineFile, as_json: AsJson = False) -> None:
    """Print the account of each source: where every event is that was received.

    Exits with 1 when an account does not add up, or log, ledger and dead letters contradict each other;
    each finding is printed to standard error.
    """
    graph = load_for_reading(file)
    report = audit(graph, LogReader)
    with (
        Ledger(graph.state / "ledger.db", readonly=True) as ledger,
        DeadLetters(graph.state / "dead_letters.db", readonly=True) as letters,
    ):
        mixed = Belonging(graph.state, ledger, LogReader).misfits(graph.sources.keys())
        gone = what_is_gone(graph, ledger, letters)
    report = replace(report, findings=(*report.findings, *mixed))
    if as_json:
        missing = {"gone": gone.as_dict()} if gone.as_dict() else {}
        unread = {"unreadable_link": gone.unread} if gone.unread else {}
        typer.echo(json.dumps(report.as_dict() | missing | unread))
    else:
        _print(report)
        for sentence in gone.sentences():
            typer.echo(sentence)
    for finding in report.findings:
        typer.echo(str(finding), err=True)
    if not report.balanced:
        raise typer.Exit(1)


def _print(report: Audit) -> None:
    names = list(report.total.as_dict())
    rows = [[source, *account.as_dict().values()] for source, account in report.sources.items()]
    if len(rows) > 1:
        rows.append(["all", *report.total.as_dict().values()])
    header = ["source", *(dash(name) for name in names)]
    typer.echo(table(header, rows, right=header[1:]))
    if report.buffers:
        rows = [[buffer, *account.as_dict().values()] for buffer, account in report.buffers.items()]
        typer.echo(table(["rows of", *header[1:]], rows, right=header[1:]))
    for source, number in report.ignored.items():
        if number:
            typer.echo(f"{source}: {number} outcomes came for events settled already, and were ignored")
    for source in report.stranded:
        left = report.accounts[source].in_flight
        typer.echo(
            f"{source} is not in the pipeline any more, and {left} of its events are not settled: see "
            "signoff sources --help"
        )
    if report.balanced:
        typer.echo("balanced: received = delivered + dropped + dead-lettered + refused + expired + in flight")
    else:
        typer.echo("NOT BALANCED", err=True)
    typer.echo("account: " + " ".join(f"{name}={number}" for name, number in report.total.as_dict().items()))
